"""Common protocols of the indexes, and types of their arguments and answers.

Every index answers `find` with a match that has the same methods: `depth`, `length`, `unit`, `levels()`, `scores()` and
`best()`. So a router that uses only these works with any index. Depths are in the match's `unit`: compare them with
each other and with `length`, not across indexes.

The prompt is always given by keyword, in a form that the index takes:

| index | `find` takes | unit |
|---|---|---|
| `BlockIndex`, a rung, `ReferenceIndex` | `tokens=` or `content_hashes=` | "blocks" |
| `TokenTree` | `tokens=` | "tokens" |
| `StringTree` | `text=` | "characters" |
| `SyncPrefixHashTable` | `tokens=` and `model=` | "percent" |

Only queries are common to all. Updates differ: a `BlockIndex` is updated with engines' events, a tree by the router.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, runtime_checkable

if TYPE_CHECKING:  # numpy takes most of the time that `import kvatlas` would take
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Counts",
    "Dialect",
    "EvictionPolicy",
    "HashIndex",
    "IndexStats",
    "Layout",
    "Loadable",
    "PrefixIndex",
    "PrefixMatch",
    "PrefixTableStats",
    "RungStats",
    "Search",
    "Segment",
    "TextIndex",
    "Tier",
    "TokenIndex",
    "TreeStats",
    "Unit",
]

Tier: TypeAlias = Literal["gpu", "cpu", "disk", "external"]
"""Tier of a block, nearest first: device memory, host memory, local storage, shared or remote storage."""

Unit: TypeAlias = Literal["blocks", "tokens", "characters", "percent"]
"""Unit of the depths and the length of a match."""

Dialect: TypeAlias = Literal["vllm", "sglang", "vllm-arrays", "sglang-arrays"]
"""Encoding of an engine's events: the current form, or the older form of arrays."""

EvictionPolicy: TypeAlias = Literal["lru", "lfu", "fifo", "mru", "filo", "priority"]
"""Order in which a tree evicts its entries."""

Search: TypeAlias = Literal["jump", "bisect"]
"""Search method of a positional index after a failed jump: position by position, or by bisection."""

Layout: TypeAlias = Literal["map", "arrays"]
"""Data structure in which a positional index keeps its entries."""


class Segment(NamedTuple):
    """Consecutive blocks of a prompt that an engine has, or can load, from one tier."""

    start: int
    """Number of blocks of the prompt before the segment."""
    end: int
    """Number of blocks of the prompt up to the end of the segment."""
    tier: Tier
    """Tier that has the blocks."""
    pool: str | None
    """Pool that has the blocks; None if the tier is the worker's own."""
    is_certain: bool
    """True if an eviction of the blocks would have been announced."""
    age: float | None
    """Seconds since the last announcement of the chunk that was announced longest ago; None outside pools."""


class Loadable(NamedTuple):
    """Part of a prompt that an engine can use without computing it."""

    worker: str
    """Name of the worker."""
    rank: int
    """Data-parallel rank of the worker."""
    device: int
    """Number of leading blocks in device memory."""
    host: int
    """Number of leading blocks in whole chunks of host memory, which other engines can pull."""
    may_hold_more: bool
    """True if host memory may hold more blocks than are counted, because a reset was announced."""
    segments: tuple[Segment, ...]
    """Segments of the prompt with their tiers, in the order of the prompt and without a gap."""
    used: int = 0
    """Number of leading blocks that the engine really uses: those on its device and those it loads. vLLM loads nothing
    if that would bring less than one chunk (blocks stored together), even if a chunk is there.
    """

    @property
    def depth(self) -> int:
        """Number of leading blocks that the engine can use without computing them."""
        return self.segments[-1].end if self.segments else 0

    @property
    def own_used(self) -> int:
        """Number of leading blocks that the engine uses from device memory and from its own host memory."""
        return min(self.own_depth, self.used)

    @property
    def own_depth(self) -> int:
        """Number of leading blocks that the engine has in device memory, continued by those in its host memory."""
        own = itertools.takewhile(lambda it: it.pool is None and it.tier in ("gpu", "cpu"), self.segments)
        return max((segment.end for segment in own), default=0)


@runtime_checkable
class PrefixMatch(Protocol):
    """Depth of each worker or tenant at one moment: the length of the prefix of a prompt that it has."""

    @property
    def depth(self) -> int:
        """Greatest depth of any worker; 0 if no worker has the beginning of the prompt."""

    @property
    def length(self) -> int:
        """Length of the prompt in the unit of the depths: the maximum of a depth."""

    @property
    def unit(self) -> Unit:
        """Unit of the depths and the length."""

    def levels(self) -> Sequence[tuple[int, Sequence[str]]]:
        """Names grouped by depth, deepest first; names with depth 0 are left out."""

    def scores(self) -> Mapping[str, int]:
        """Depths by name; names with depth 0 are left out."""

    def best(self, top_k: int = 1, among: Collection[str] | None = None) -> Sequence[tuple[str, int]]:
        """Deepest names with their depths, at most `top_k`, deepest first; only names in `among`, if given."""


@runtime_checkable
class PrefixIndex(Protocol):
    """Index that finds how much of a prompt each worker has, for any form of prompt.

    Queries do not change the index.
    """

    def find(self, *args: Any, **prompt: Any) -> PrefixMatch:
        """Find how long a prefix of a prompt each worker has. The prompt is given by keyword."""


class TokenIndex(Protocol):
    """Prefix index that is queried by token ids."""

    def find(self, *, tokens: Sequence[int] | NDArray[np.uint32]) -> PrefixMatch:
        """Find how many leading tokens of a prompt each worker has.

        Args:
            tokens: Token ids of the prompt, shape (n,).
        """


class HashIndex(Protocol):
    """Prefix index that is queried by content hashes."""

    def find(self, *, content_hashes: Sequence[int] | NDArray[np.uint64]) -> PrefixMatch:
        """Find how many leading blocks of a prompt each worker has.

        Args:
            content_hashes: Content hashes of the prompt's full blocks, shape (n,), each from 0 to 2**64 - 1.
        """


class TextIndex(Protocol):
    """Prefix index that is queried by text."""

    def find(self, *, text: str) -> PrefixMatch:
        """Find how many leading characters of a text each worker has.

        Args:
            text: Text of the prompt.
        """


@dataclass(frozen=True)
class Counts:
    """Match made of depths by name, for structures that answer with a dict.

    Attributes:
        counts: Depth by name; a depth may be 0.
        length: Maximum of a depth; 100 if depths are in percent.
        unit: Unit of the depths and the length.
    """

    counts: Mapping[str, int]
    length: int
    unit: Unit = "blocks"

    @property
    def depth(self) -> int:
        """Greatest depth of any name; 0 if all depths are 0."""
        return max(self.counts.values(), default=0)

    def levels(self) -> list[tuple[int, list[str]]]:
        """Names grouped by depth, deepest first; names with depth 0 are left out."""
        ranked = sorted(self.scores().items(), key=lambda score: -score[1])
        grouped = itertools.groupby(ranked, key=lambda score: score[1])
        return [(depth, [name for name, _ in level]) for depth, level in grouped]

    def scores(self) -> dict[str, int]:
        """Depths by name; names with depth 0 are left out."""
        return {name: depth for name, depth in self.counts.items() if depth > 0}

    def best(self, top_k: int = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """Deepest names with their depths, at most `top_k`, deepest first; only names in `among`, if given."""
        allowed = None if among is None else set(among)
        scores = ((name, depth) for name, depth in self.scores().items() if allowed is None or name in allowed)
        return heapq.nlargest(top_k, scores, key=lambda score: score[1])


class IndexStats(TypedDict):
    """Statistics of a `BlockIndex`: the result of `BlockIndex.stats`."""

    workers: int
    """Number of workers that have stored blocks since they were last dropped."""
    holders: int
    """Number of holders: one for each rank, and a second one if the rank holds blocks beyond its device memory."""
    blocks: int
    """Number of blocks held: for each rank, block hashes in device memory and offloaded ones."""
    unlinked: int
    """Number of blocks in device memory whose chain to the root is incomplete, because an earlier block is missing."""
    copies: int
    """Number of copies of blocks in device memory beyond the first copy."""
    positions: int
    """Number of different blocks in all chains that are complete from the root."""
    runs: int
    """Number of runs (sequences of consecutive positions) in which the blocks are stored."""
    sets: int
    """Number of distinct sets of holders that need memory of their own."""
    bytes: int
    """Allocated memory of the index, in bytes."""
    private_holders: int
    """Number of holders whose block hashes differ from those of the holders before them."""
    stores: int
    """Number of calls of `store` so far."""
    removes: int
    """Number of calls of `remove` so far."""
    clears: int
    """Number of calls of `clear` so far."""
    drops: int
    """Number of calls of `drop` so far."""
    replaced: int
    """Number of blocks whose block hash was announced again for a different block."""
    unknown_removals: int
    """Number of removed block hashes that were not held."""


class RungStats(TypedDict):
    """Statistics of a design of the index (a rung of the ladder of designs) or of a `PositionalIndexer`."""

    workers: int
    """Number of known workers."""
    blocks: int
    """Number of blocks held by all workers."""
    entries: int
    """Number of entries of the design's data structure: keys, nodes, positions or runs."""
    refused: int
    """Number of stores that the design refused."""
    unknown_removals: int
    """Number of removed block hashes that were not held."""
    messages: int
    """Number of messages between the parts of a design that has several parts."""


class TreeStats(TypedDict):
    """Statistics of a tree: the result of `StringTree.stats` and `TokenTree.stats`."""

    tenants: int
    """Number of tenants with at least one entry."""
    nodes: int
    """Number of nodes of the tree, without the root."""
    size: int
    """Sum of the sizes of all tenants, in characters or tokens."""
    bytes: int
    """Memory of the tree, in bytes."""


class PrefixTableStats(TypedDict):
    """Statistics of a prefix table: the result of `SyncPrefixHashTable.stats`."""

    contexts: int
    """Number of contexts: pairs of a model and a LoRA adapter."""
    prefixes: int
    """Number of prefix hashes that at least one pod holds."""
    other_names: int
    """Number of block hashes of a prefix beyond its first one."""
    pod_sets: int
    """Number of different sets of pods."""
    pods: int
    """Number of pods, counted once per context."""
    bytes: int
    """Memory of the table, in bytes."""
    unknown_parents: int
    """Number of stored events without effect, because the parent block is unknown."""
    unknown_removals: int
    """Number of removed blocks that were not held."""
    evicted_by_age: int
    """Number of prefixes evicted because of their age."""
    evicted_by_limit: int
    """Number of prefixes evicted because of a limit of the table."""
    evicted_contexts: int
    """Number of evicted contexts (pairs of a model and a LoRA adapter)."""
