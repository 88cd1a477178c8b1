"""The protocols: every index satisfies them, as mypy sees it and at run time, and one router works with all of them."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kvatlas import BlockIndex
from kvatlas.reference import ReferenceIndex
from kvatlas.trees import StringTree, SyncPrefixHashTable, TokenTree
from kvatlas.types import Counts, Finder, PrefixIndex, PrefixMatch

Tokens = Sequence[int] | NDArray[np.uint32]
PROMPT = list(range(100, 164))  # 64 tokens: 4 blocks or pages of 16
TEXT = "".join(map(chr, PROMPT))


def block_index() -> BlockIndex:
    index = BlockIndex(16)
    index.store("a", block_hashes=[1, 2, 3], tokens=PROMPT[:48])
    index.store("b", block_hashes=[1], tokens=PROMPT[:16])
    return index


def token_tree() -> TokenTree:
    tree = TokenTree()
    tree.insert_tokens(PROMPT[:48], "a")
    tree.insert_tokens(PROMPT[:16], "b")
    return tree


def string_tree() -> StringTree:
    tree = StringTree()
    tree.insert_text(TEXT[:48], "a")
    tree.insert_text(TEXT[:16], "b")
    return tree


def by_percent(tokens: Tokens) -> Counts:
    with SyncPrefixHashTable(block_size=64, seed=1) as table:
        hashes = table.get_prefix_hashes(PROMPT)
        table.add_prefix("m", -1, "a", hashes[:3])
        table.add_prefix("m", -1, "b", hashes[:1])
        return Counts(table.match_prefix("m", -1, tokens)[0], 100)


# mypy holds each of these assignments against the protocol.
BY_HASHES: list[PrefixIndex[NDArray[np.uint64]]] = [BlockIndex(), ReferenceIndex()]
BY_TEXT: list[PrefixIndex[str]] = [string_tree()]
BY_TOKENS: list[PrefixIndex[Tokens]] = [
    token_tree(),
    Finder(block_index().find_tokens),
    Finder(by_percent),
]


def route(index: PrefixIndex[Tokens], prompt: Tokens, loads: Mapping[str, int], threshold: float = 0.5) -> str:
    """The router of docs/family.md."""
    found = index.find(prompt)
    for worker, depth in found.best(1, among=list(loads)):
        if depth > threshold * found.length:
            return worker
    return min(loads, key=loads.__getitem__)


@pytest.mark.parametrize("index", [*BY_HASHES, *BY_TEXT, *BY_TOKENS], ids=lambda index: type(index).__name__)
def test_an_index_is_one(index: object) -> None:
    assert isinstance(index, PrefixIndex)
    assert not isinstance(object(), PrefixIndex)


def answers() -> list[tuple[PrefixMatch, int]]:
    """Answers to the same question, each with the depth of one block or page."""
    return [
        (block_index().find_tokens(PROMPT), 1),
        (token_tree().find(PROMPT), 16),
        (string_tree().find(TEXT), 16),
        (by_percent(PROMPT), 25),
        (Counts({"a": 75, "b": 25, "c": 0}, 100), 25),
    ]


@pytest.mark.parametrize(("found", "unit"), answers(), ids=lambda value: type(value).__name__)
def test_an_answer_is_one(found: PrefixMatch, unit: int) -> None:
    assert isinstance(found, PrefixMatch)
    assert (found.depth, found.length) == (3 * unit, 4 * unit)
    assert found.scores() == {"a": 3 * unit, "b": unit}
    assert found.best() == [("a", 3 * unit)]
    assert found.best(5) == [("a", 3 * unit), ("b", unit)]
    assert found.best(0) == []
    assert found.best(5, among=["b", "c", "nobody"]) == [("b", unit)]
    assert found.best(5, among=[]) == []


def test_counts_of_nobody() -> None:
    nobody = Counts({}, 0)
    assert (nobody.depth, nobody.length, nobody.scores(), nobody.best()) == (0, 0, {}, [])


@pytest.mark.parametrize("index", BY_TOKENS, ids=lambda index: type(index).__name__)
def test_a_router_swaps_them(index: PrefixIndex[Tokens]) -> None:
    assert route(index, PROMPT, {"a": 9, "b": 8, "c": 0}) == "a"
    assert route(index, PROMPT, {"b": 8, "c": 0}) == "c"  # a quarter is not enough
    assert route(index, np.array(PROMPT[:16], np.uint32), {"b": 8, "c": 0}) in ("b", "c")


def test_a_router_of_ones_own() -> None:
    """What a user writes to have an index of their own taken for one."""

    class Everybody:
        def __init__(self, workers: Collection[str]) -> None:
            self.workers = workers

        def find(self, key: Tokens, /) -> Counts:
            return Counts(dict.fromkeys(self.workers, len(key)), len(key))

    index: PrefixIndex[Tokens] = Everybody(["x"])
    assert isinstance(index, PrefixIndex)
    assert route(index, PROMPT, {"x": 5, "y": 0}) == "x"
