"""What the indexes have in common: ask by a key, learn who has how much of it.

A router that asks `find(key)` and reads nothing but `scores()`, `best()`, `depth` and `length` of the answer works
with any of them. Depths count in the units of the index, so compare them with each other and with `length`, which is
in the same units: blocks (`BlockIndex`), characters (`StringTree`), tokens in whole pages (`TokenTree`).

Only the question is common. How an index learns is not: a `BlockIndex` is told by engines, the trees by the router.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

__all__ = ["Counts", "Finder", "PrefixIndex", "PrefixMatch"]

Key = TypeVar("Key")
Key_contra = TypeVar("Key_contra", contravariant=True)


@runtime_checkable
class PrefixMatch(Protocol):
    """Who has how much of a prompt from its beginning on, as of one moment."""

    @property
    def depth(self) -> int:
        """The greatest depth of anyone; 0 if nobody has anything."""

    @property
    def length(self) -> int:
        """What a depth is out of: the length of the prompt in the same units. No depth is greater."""

    def scores(self) -> Mapping[str, int]:
        """The depth of everyone who has anything, by name."""

    def best(self, k: int = 1, among: Collection[str] | None = None) -> list[tuple[str, int]]:
        """The deepest with their depths, at most k, deepest first; only of those among, if given."""


@runtime_checkable
class PrefixIndex(Protocol[Key_contra]):
    """Answers for a key (content hashes, tokens, text) who has how much of it. Asking changes nothing."""

    def find(self, key: Key_contra, /) -> PrefixMatch:
        """Who has how much of this key from its beginning on."""


@dataclass(frozen=True)
class Finder(Generic[Key]):
    """Makes a `PrefixIndex` of any function that answers with a match, such as `BlockIndex.find_tokens`.

    Attributes:
        find: The function.
    """

    find: Callable[[Key], PrefixMatch]


@dataclass(frozen=True)
class Counts:
    """A match made of plain counts, for structures that answer with a dict.

    Attributes:
        counts: Depth by name. Who has nothing may be in it with 0.
        length: What a depth is out of: 100 if the counts are percent.
    """

    counts: Mapping[str, int]
    length: int

    @property
    def depth(self) -> int:
        """The greatest depth of anyone; 0 if nobody has anything."""
        return max(self.counts.values(), default=0)

    def scores(self) -> dict[str, int]:
        """The depth of everyone who has anything, by name."""
        return {name: depth for name, depth in self.counts.items() if depth > 0}

    def best(self, k: int = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The deepest with their depths, at most k, deepest first; only of those among, if given."""
        allowed = None if among is None else set(among)
        scores = ((name, depth) for name, depth in self.scores().items() if allowed is None or name in allowed)
        return heapq.nlargest(k, scores, key=lambda score: score[1])
