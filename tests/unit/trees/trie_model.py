"""A radix trie in plain Python: one dict entry for each page, so that nothing is ever split.

A page is named by all tokens up to its end. What is one node and what is another is no concern of this model, except
for the order of eviction: there a leaf is a run of pages without branches that were made or released together.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[Hashable, ...]


@dataclass
class Page:
    """One page: its block, who uses it, when it was made or released, and which node's it is."""

    block: Any
    stamp: int
    users: set[int] = field(default_factory=set)
    starts_node: bool = False


class TrieModel:
    """The trie of the module's text. `keys` are whole sequences of tokens from the root on."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[Key, Page] = {}
        self.clock = 0

    def prefixes(self, tokens: Sequence[Hashable]) -> list[Key]:
        """The names of the whole pages of some tokens."""
        return [tuple(tokens[:end]) for end in range(self.page_size, len(tokens) + 1, self.page_size)]

    def children(self, key: Key) -> list[Key]:
        return [other for other in self.pages if len(other) == len(key) + self.page_size and other[: len(key)] == key]

    def split_after(self, key: Key) -> None:
        """The pages after this one begin new nodes."""
        for child in self.children(key):
            self.pages[child].starts_node = True

    def insert(self, tokens: Sequence[Hashable], blocks: Sequence[Any]) -> int:
        """Insert blocks; return the number of those that were known, and so not taken."""
        known = self.match(tokens)
        if len(known) < len(blocks):
            self.clock += 1
            first = True
            for key, block in list(zip(self.prefixes(tokens), blocks, strict=True))[len(known) :]:
                self.pages[key] = Page(block, self.clock, starts_node=first)
                first = False
        return len(known)

    def match(self, tokens: Sequence[Hashable]) -> list[Any]:
        found: list[Any] = []
        end: Key = ()
        for key in self.prefixes(tokens):
            if key not in self.pages:
                break
            found.append(self.pages[key].block)
            end = key
        if end:
            self.split_after(end)
        return found

    def mark(self, key: Key, user: int) -> None:
        for page in self.prefixes(key):
            self.pages[page].users.add(user)

    def release(self, key: Key, user: int) -> None:
        self.clock += 1
        for page in self.prefixes(key):
            self.pages[page].users.discard(user)
            self.pages[page].stamp = self.clock

    def evict(self, wanted: int) -> list[Any]:
        evicted: list[Any] = []
        while len(evicted) < wanted:
            ends = [key for key, page in self.pages.items() if not page.users and not self.children(key)]
            if not ends:
                break
            end = min(ends, key=lambda key: self.pages[key].stamp)
            part: list[Any] = []
            # The node that ends here, from its tail.
            while len(evicted) + len(part) < wanted:
                page = self.pages.pop(end)
                part.append(page.block)
                end = end[: -self.page_size]
                if page.starts_node or not end or self.children(end):
                    break
            evicted += part[::-1]
        return evicted

    def evictable(self) -> set[Any]:
        used = {key for key, page in self.pages.items() if page.users}
        return {page.block for key, page in self.pages.items() if not any(u[: len(key)] == key for u in used)}
