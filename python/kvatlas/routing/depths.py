"""The part of a lookup's answer that a decision uses."""

from __future__ import annotations

from typing import Protocol


class Depths(Protocol):
    """The part of `kvatlas.Match` that a decision needs."""

    def scores(self) -> dict[str, int]:
        """Leading blocks of the prompt that each worker holds; workers that hold none are absent."""
