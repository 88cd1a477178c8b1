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
"""Order in which a tree evicts."""

Search: TypeAlias = Literal["jump", "bisect"]
"""Search within a failed jump of a positional index: position by position, or by bisection."""

Layout: TypeAlias = Literal["map", "arrays"]
"""Data structure in which a positional index keeps its entries."""


class Segment(NamedTuple):
    """Consecutive blocks of a prompt that an engine has, or can load, from one place."""

    start: int
    """Blocks of the prompt before it."""
    end: int
    """Blocks of the prompt up to its end."""
    tier: Tier
    """Tier that has it."""
    pool: str | None
    """Pool that has it; None where it is the worker's own."""
    is_certain: bool
    """True if its end would have been announced."""
    age: float | None
    """Seconds since the oldest of its chunks was last announced, in a pool."""


class Loadable(NamedTuple):
    """Part of a prompt that an engine can use without computing it."""

    worker: str
    """The worker."""
    rank: int
    """The rank of the worker."""
    device: int
    """Leading blocks on the device."""
    host: int
    """Leading blocks in whole chunks of host memory alone: what another engine can pull from it."""
    may_hold_more: bool
    """True if a reset may have left blocks in host memory that are not counted."""
    segments: tuple[Segment, ...]
    """Sources of the blocks, in the order of the prompt and without a gap."""

    @property
    def depth(self) -> int:
        """Leading blocks that the engine can use without computing them."""
        return self.segments[-1].end if self.segments else 0

    @property
    def own_depth(self) -> int:
        """Leading blocks that the engine has on its device, continued by those in its host memory."""
        own = itertools.takewhile(lambda it: it.pool is None and it.tier in ("gpu", "cpu"), self.segments)
        return max((segment.end for segment in own), default=0)


@runtime_checkable
class PrefixMatch(Protocol):
    """Depth of each worker or tenant at one moment: how much of a prompt it has, counted from the beginning."""

    @property
    def depth(self) -> int:
        """The greatest depth of any worker; 0 if no worker has any of it."""

    @property
    def length(self) -> int:
        """The length of the prompt in the same unit, the maximum of a depth."""

    @property
    def unit(self) -> Unit:
        """The unit of depths and length."""

    def levels(self) -> Sequence[tuple[int, Sequence[str]]]:
        """The names grouped by depth, deepest first; those that have nothing are left out."""

    def scores(self) -> Mapping[str, int]:
        """The depths by name; those that have nothing are left out."""

    def best(self, top_k: int = 1, among: Collection[str] | None = None) -> Sequence[tuple[str, int]]:
        """The deepest names with their depths, at most `top_k`, deepest first; only names in `among`, if given."""


@runtime_checkable
class PrefixIndex(Protocol):
    """Index that finds how much of a prompt each worker has, for any form of prompt. `find` does not change it."""

    def find(self, *args: Any, **prompt: Any) -> PrefixMatch:
        """Find how much of a prompt each worker has from its beginning. The prompt is given by keyword."""


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
        """Find how much of a text each worker has from its first character.

        Args:
            text: The prompt.
        """


@dataclass(frozen=True)
class Counts:
    """Match made of counts by name, for structures that answer with a dict.

    Attributes:
        counts: Depth by name; names may have 0.
        length: Maximum of a depth; 100 if the counts are percent.
        unit: Unit of the counts and the length.
    """

    counts: Mapping[str, int]
    length: int
    unit: Unit = "blocks"

    @property
    def depth(self) -> int:
        """The greatest depth of any worker; 0 if no worker has any of it."""
        return max(self.counts.values(), default=0)

    def levels(self) -> list[tuple[int, list[str]]]:
        """The names grouped by depth, deepest first; those that have nothing are left out."""
        ranked = sorted(self.scores().items(), key=lambda score: -score[1])
        grouped = itertools.groupby(ranked, key=lambda score: score[1])
        return [(depth, [name for name, _ in level]) for depth, level in grouped]

    def scores(self) -> dict[str, int]:
        """The depths by name; those that have nothing are left out."""
        return {name: depth for name, depth in self.counts.items() if depth > 0}

    def best(self, top_k: int = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The deepest names with their depths, at most `top_k`, deepest first; only names in `among`, if given."""
        allowed = None if among is None else set(among)
        scores = ((name, depth) for name, depth in self.scores().items() if allowed is None or name in allowed)
        return heapq.nlargest(top_k, scores, key=lambda score: score[1])


class IndexStats(TypedDict):
    """Result of `BlockIndex.stats`."""

    workers: int
    """Workers that have stored blocks since they were last dropped."""
    holders: int
    """Ranks, counted again if they hold blocks beyond their device memory."""
    blocks: int
    """Blocks held: for each rank, names on the device and names offloaded."""
    unlinked: int
    """Blocks on devices whose chain to the root is not complete: below a hole, or without a known parent."""
    copies: int
    """Copies on devices beyond the first."""
    positions: int
    """Different blocks of all reachable chains."""
    runs: int
    """Runs of consecutive positions in which the blocks are kept."""
    sets: int
    """Distinct sets of holders that need memory of their own."""
    bytes: int
    """Memory of all this, as allocated."""
    private_holders: int
    """Holders whose block hashes differ from those of the holders before them."""
    stores: int
    """Calls of store so far."""
    removes: int
    """Calls of remove so far."""
    clears: int
    """Calls of clear so far."""
    drops: int
    """Calls of drop so far."""
    replaced: int
    """Blocks whose name was announced again for another block."""
    unknown_removals: int
    """Names removed that were not held."""


class RungStats(TypedDict):
    """Result of `stats` of the designs and of `PositionalIndexer`."""

    workers: int
    """Workers known."""
    blocks: int
    """Blocks held by all workers."""
    entries: int
    """Entries of the design's own kind: keys, nodes, positions, runs."""
    refused: int
    """Stores that the design refused."""
    unknown_removals: int
    """Names removed that were not held."""
    messages: int
    """Messages between the parts of a design with several parts."""


class TreeStats(TypedDict):
    """Result of `StringTree.stats` and `TokenTree.stats`."""

    tenants: int
    """Tenants with at least one entry."""
    nodes: int
    """Nodes of the tree, without the root."""
    size: int
    """The sum of the sizes of all tenants, in characters or tokens."""
    bytes: int
    """Memory of the tree."""


class PrefixTableStats(TypedDict):
    """Result of `SyncPrefixHashTable.stats`."""

    contexts: int
    """Contexts: pairs of a model and an adapter."""
    prefixes: int
    """Prefix hashes that a pod holds."""
    other_names: int
    """Names of a prefix beyond its first."""
    pod_sets: int
    """Different sets of pods."""
    pods: int
    """Pods, counted once per context."""
    bytes: int
    """Memory of all this."""
    unknown_parents: int
    """Stored events without effect."""
    unknown_removals: int
    """Blocks removed that were not held."""
    evicted_by_age: int
    """Prefixes evicted because of their age."""
    evicted_by_limit: int
    """Prefixes evicted because of a limit."""
    evicted_contexts: int
    """Contexts evicted."""
