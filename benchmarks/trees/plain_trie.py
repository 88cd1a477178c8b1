"""A radix cache in plain Python that behaves as SGLang's does: what RadixTrie is measured against.

Written for speed as caches of this kind usually are: children in a dict by their first page, whole pages compared by
    slices,
one token after another only where a page is one token, split where two prompts part, and no copy that is not needed.
It does less than RadixTrie: no marks, no eviction, no checks.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = list[int] | NDArray[np.integer[Any]]


class Node:
    """Pages that follow one another."""

    __slots__ = ("blocks", "children", "parent", "tokens")

    def __init__(self, tokens: list[int], blocks: list[Any], parent: "Node | None") -> None:
        self.tokens, self.blocks, self.parent = tokens, blocks, parent
        self.children: dict[Any, Node] = {}


class PlainTrie:
    """A trie of pages: see the module's text."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node([], [], None)

    def key(self, tokens: list[int], at: int) -> Any:
        return tokens[at] if self.page_size == 1 else tuple(tokens[at : at + self.page_size])

    def common(self, kept: list[int], tokens: list[int], at: int) -> int:
        """The number of leading tokens, of whole pages, that a node's tokens and others from `at` on have in common."""
        page = self.page_size
        if page == 1:
            same = 0
            for one, other in zip(kept, tokens[at:] if at else tokens, strict=False):
                if one != other:
                    break
                same += 1
            return same
        limit = min(len(kept), len(tokens) - at)
        same = page
        while same < limit:
            if kept[same : same + page] != tokens[at + same : at + same + page]:
                break
            same += page
        return same

    def split(self, node: Node, length: int) -> Node:
        pages = length // self.page_size
        parent = node.parent
        assert parent is not None
        upper = Node(node.tokens[:length], node.blocks[:pages], parent)
        parent.children[self.key(upper.tokens, 0)] = upper
        node.tokens, node.blocks, node.parent = node.tokens[length:], node.blocks[pages:], upper
        upper.children[self.key(node.tokens, 0)] = node
        return upper

    def match_prefix(self, given: Tokens) -> tuple[Node, list[Any]]:
        tokens: list[int] = given if isinstance(given, list) else given.tolist()
        node, at, blocks = self.root, 0, []
        length = len(tokens) // self.page_size * self.page_size
        while at < length:
            child = node.children.get(self.key(tokens, at))
            if child is None:
                break
            same = self.common(child.tokens, tokens, at)
            at += same
            if same < len(child.tokens):
                node = self.split(child, same)
                blocks += node.blocks
                break
            node = child
            blocks += node.blocks
        return node, blocks

    def insert(self, given: Tokens, blocks: list[Any]) -> Node:
        tokens: list[int] = given if isinstance(given, list) else given.tolist()
        node, at = self.root, 0
        while at < len(tokens):
            child = node.children.get(self.key(tokens, at))
            if child is None:
                leaf = Node(tokens[at:], blocks[at // self.page_size :], node)
                node.children[self.key(tokens, at)] = leaf
                return leaf
            same = self.common(child.tokens, tokens, at)
            at += same
            node = child if same == len(child.tokens) else self.split(child, same)
        return node
