"""Protocol of the part of a match that a decision uses."""

from __future__ import annotations

from typing import Protocol


class Depths(Protocol):
    """Part of `kvatlas.Match` that a decision uses."""

    def scores(self) -> dict[str, int]:
        """Leading blocks of the prompt that each worker holds; workers that hold none are absent."""
