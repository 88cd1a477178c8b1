"""Prompts for the trees, and one way to ask either."""

import random
from typing import Any

from kvatlas.trees import StringTree, TokenTree, TreeDepths

PAGE = 16
CHARACTERS = "xyé漢😀"


def pages(*numbers: int) -> list[int]:
    """A page of each of these tokens."""
    return [number for number in numbers for _ in range(PAGE)]


def find(tree: StringTree | TokenTree, key: Any) -> TreeDepths:
    """Asks either tree, each by the keyword that it has."""
    return tree.find(text=key) if isinstance(tree, StringTree) else tree.find(tokens=key)


class Keys:
    """Keys that share beginnings: new ones are mostly old ones cut and grown, of few units."""

    def __init__(self, choose: random.Random, page_size: int | None) -> None:
        self.choose, self.page_size = choose, page_size
        self.known: list[Any] = [self.some(6) for _ in range(3)]

    def some(self, most: int) -> Any:
        units = self.choose.randrange(most + 1)
        if self.page_size is None:
            return "".join(self.choose.choice(CHARACTERS) for _ in range(units))
        pages = [[self.choose.randrange(2)] * self.page_size for _ in range(units)]
        tokens = [token for page in pages for token in page] + [7] * self.choose.randrange(self.page_size)
        if tokens and self.choose.random() < 0.3:
            tokens[self.choose.randrange(len(tokens))] = 2**32 - 1  # pages that differ in one token, wherever it is
        return tokens

    def draw(self) -> Any:
        old = self.choose.choice(self.known)
        if self.choose.random() < 0.5:
            return old
        cut = self.choose.randrange(len(old) + 1)
        if self.page_size and self.choose.random() < 0.8:
            cut -= cut % self.page_size
        new = old[:cut] + self.some(3)
        if len(self.known) < 12:
            self.known.append(new)
        else:
            self.known[self.choose.randrange(len(self.known))] = new
        return new
