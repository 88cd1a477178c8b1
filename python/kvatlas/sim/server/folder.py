"""Folder that engines share as a pool, as with vLLM's `fs` tier: each chunk of blocks is a file.

Deletions of files are not announced: if another program cleans the folder, the engines notice at their next access.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class ChunkFolder:
    """Chunks of blocks in a folder: each is an empty file, named after the chunk's last block."""

    def __init__(self, folder: Path) -> None:
        """Use a folder as a pool; create it if it is missing. Raises `OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def __contains__(self, name: object) -> bool:
        return isinstance(name, int) and self._path(name).exists()

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.iterdir())

    def add(self, blocks: Sequence[int]) -> list[tuple[int, ...]]:
        """Store a chunk. Returns the evicted chunks: always an empty list, as the folder has no limit."""
        self._path(blocks[-1]).touch()
        return []

    def use(self, names: Sequence[int]) -> None:
        """Mark chunks as used now, by the modification times of their files."""
        for name in names:
            if name in self:
                self._path(name).touch()

    def _path(self, name: int) -> Path:
        return self._folder / f"{name:x}"
