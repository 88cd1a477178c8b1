"""Protocol of the part of a match (the depths of workers) that a decision uses."""

from __future__ import annotations

from typing import Protocol


class Depths(Protocol):
    """The part of `kvatlas.Match` that a decision uses: the depths of workers."""

    def scores(self) -> dict[str, int]:
        """Number of leading blocks of the prompt by worker; workers that hold none are absent."""
