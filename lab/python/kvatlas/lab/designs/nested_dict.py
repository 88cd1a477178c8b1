"""Rung 1 of the ladder of designs, in plain Python: worker → content hash → block hashes.

The simplest design. A lookup asks every worker for every block, which is O(workers x depth). It identifies a block by
its content alone, not by its position in a prompt, so some depths are too large:

- a worker that holds the prompts ``1 2`` and ``3 4`` seems to hold both blocks of ``1 4``; it holds one,
- a worker that holds ``1`` seems to hold all of ``1 1 1``,
- a block whose parent was never announced counts as if it began a prompt.

``kvatlas.lab.designs.RUNGS["dict-python"]`` lists all deviations from the reference, with the events that show them.
With ``strict=True``, a block counts only if it continues the block that matched at the previous position; this is
exact.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kvatlas._native import content_hashes as hash_contents
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.reference import ReferenceMatch
from kvatlas.types import RungStats

__all__ = ["NestedDict"]

Name = int | bytes
Names = Sequence[Name] | NDArray[Any]
Ints = Sequence[int] | NDArray[Any]


class NestedDict:
    """Index as a nested dictionary, with the methods of `kvatlas.lab.designs.Rung`. For one thread at a time.

    Args:
        strict: True if lookups check each block's parent, which makes them exact.
        block_size: Tokens per block, for ``tokens=``.
    """

    name = "dict-python"

    def __init__(self, *, strict: bool = False, block_size: int = 16) -> None:
        self.strict = strict
        self.block_size = block_size
        self.applied = 0
        # worker -> content hash -> block hash -> parent, the last for strict lookups only
        self._blocks: dict[str, dict[int, dict[Name, Name | None]]] = {}
        # worker -> block hash -> content hash, since evictions come by name
        self._contents: dict[str, dict[Name, int]] = {}
        self._unknown_removals = 0

    def store(
        self,
        worker: str,
        *,
        block_hashes: Names,
        content_hashes: Ints | None = None,
        tokens: Ints | None = None,
        parent: Name | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> None:
        """Record that a worker has cached consecutive blocks of one chain: see `kvatlas.BlockIndex.store`.

        Raises:
            InvalidTypeError: worker is not a str.
            InvalidArgumentError: The lengths differ, or both or neither of content_hashes and tokens are given.
        """
        _check_worker(worker)
        contents = self._hashes("store", tokens, content_hashes, lora, salt)
        names = list(block_hashes)
        if len(names) != len(contents):
            message = (
                f"{len(names)} block hashes but {len(contents)} content hashes: "
                "a store needs one content hash for each block hash"
            )
            raise InvalidArgumentError(message, "length_mismatch")
        self.applied += 1
        for name, content in zip(names, contents, strict=True):
            known = self._contents.setdefault(worker, {})
            if known.get(name, content) != content:
                self._forget(worker, name)
            known[name] = content
            self._blocks.setdefault(worker, {}).setdefault(content, {})[name] = parent
            parent = name

    def remove(self, worker: str, *, block_hashes: Names) -> None:
        """Record that a worker has evicted blocks. Block hashes that the worker does not hold are counted.

        Raises:
            InvalidTypeError: worker is not a str.
        """
        _check_worker(worker)
        self.applied += 1
        for name in block_hashes:
            if name in self._contents.get(worker, {}):
                self._forget(worker, name)
            else:
                self._unknown_removals += 1

    def _forget(self, worker: str, name: Name) -> None:
        content = self._contents[worker].pop(name)
        names = self._blocks[worker][content]
        del names[name]
        if not names:
            del self._blocks[worker][content]

    def clear(self, worker: str) -> None:
        """Record that a worker has lost all blocks.

        Raises:
            InvalidTypeError: worker is not a str.
        """
        _check_worker(worker)
        self.applied += 1
        if worker in self._blocks:
            self._blocks[worker], self._contents[worker] = {}, {}

    def drop(self, worker: str) -> None:
        """Remove a worker that has left the fleet.

        Raises:
            InvalidTypeError: worker is not a str.
        """
        _check_worker(worker)
        self.applied += 1
        self._blocks.pop(worker, None)
        self._contents.pop(worker, None)

    def flush(self) -> None:
        """Do nothing, as every change is applied before its call returns."""

    def find(
        self,
        *,
        tokens: Ints | None = None,
        content_hashes: Ints | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> ReferenceMatch:
        """Find the number of leading blocks of a prompt that each worker holds: see `kvatlas.BlockIndex.find`.

        Raises:
            InvalidArgumentError: Both or neither of tokens and content_hashes are given, or lora or salt with
                content_hashes.
        """
        query = self._hashes("find", tokens, content_hashes, lora, salt)
        depth = self._strict_depth if self.strict else self._depth
        depths = {(worker, 0): depth(blocks, query) for worker, blocks in self._blocks.items()}
        return ReferenceMatch({"gpu": depths}, len(query), self.block_size)

    def _hashes(
        self, call: str, tokens: Ints | None, content_hashes: Ints | None, lora: str | None, salt: str | None
    ) -> list[int]:
        """Return the given content hashes, or those computed from tokens. Exactly one of the two must be given."""
        if content_hashes is None:
            if tokens is None:
                raise InvalidArgumentError(f"{call} needs content_hashes or tokens", "missing_argument")
            hashes: list[int] = hash_contents(tokens, self.block_size, lora, salt).tolist()
            return hashes
        if tokens is not None:
            message = f"{call} takes either content_hashes or tokens, not both"
            raise InvalidArgumentError(message, "conflicting_arguments")
        if lora is not None or salt is not None:
            message = "lora and salt can only be used with tokens; content_hashes already include them"
            raise InvalidArgumentError(message, "conflicting_arguments")
        return [int(content) for content in content_hashes]

    @staticmethod
    def _depth(blocks: dict[int, dict[Name, Name | None]], query: list[int]) -> int:
        for depth, content in enumerate(query):
            if content not in blocks:
                return depth
        return len(query)

    @staticmethod
    def _strict_depth(blocks: dict[int, dict[Name, Name | None]], query: list[int]) -> int:
        before: set[Name | None] = {None}
        for depth, content in enumerate(query):
            before = {name for name, parent in blocks.get(content, {}).items() if parent in before}
            if not before:
                return depth
        return len(query)

    def workers(self) -> dict[str, int]:
        """Workers that hold blocks, each with its number of blocks."""
        return {worker: len(names) for worker, names in self._contents.items() if names}

    def stats(self) -> RungStats:
        """Statistics as in `kvatlas.lab.designs.Rung.stats`; entries are pairs of a worker and a content hash."""
        return {
            "workers": len(self._blocks),
            "blocks": sum(len(names) for names in self._contents.values()),
            "entries": sum(len(blocks) for blocks in self._blocks.values()),
            "refused": 0,
            "unknown_removals": self._unknown_removals,
            "messages": 0,
        }

    def __repr__(self) -> str:
        blocks = sum(self.workers().values())
        return f"NestedDict(strict={self.strict}, workers={len(self.workers()):,}, blocks={blocks:,})"


def _check_worker(worker: object) -> None:
    if not isinstance(worker, str):
        raise InvalidTypeError(f"worker must be a str, got {type(worker).__name__}")
