"""The protocols: every index satisfies them, as mypy sees it and at run time, and one router works with all of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

from kvatlas import BlockIndex, content_hashes
from kvatlas.lab.designs import NestedDict, Rung
from kvatlas.reference import ReferenceIndex
from kvatlas.trees import StringTree, SyncPrefixHashTable, TokenTree
from kvatlas.types import (
    Counts,
    HashIndex,
    IndexStats,
    PrefixIndex,
    PrefixMatch,
    PrefixTableStats,
    RungStats,
    TextIndex,
    TokenIndex,
    TreeStats,
    Unit,
)

PROMPT = list(range(100, 164))  # 64 tokens: 4 blocks or pages of 16
TEXT = "".join(map(chr, PROMPT))
Stored = BlockIndex | ReferenceIndex | NestedDict | Rung


def fed(index: Stored) -> Stored:
    """The index, told that "a" holds three of the prompt's blocks and "b" one."""
    index.store("a", block_hashes=[1, 2, 3], tokens=PROMPT[:48])
    index.store("b", block_hashes=[1], tokens=PROMPT[:16])
    if isinstance(index, Rung):
        index.flush()
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


class OfModel:
    """The prefix table of one model, as a router of that model has it."""

    def __init__(self) -> None:
        self.table = SyncPrefixHashTable(block_size=64, seed=1)
        hashes = self.table.get_prefix_hashes(PROMPT)
        self.table.add_prefix("m", -1, "a", hashes[:3])
        self.table.add_prefix("m", -1, "b", hashes[:1])
        self.table.close()

    def find(self, *, tokens: Sequence[int] | NDArray[np.uint32]) -> Counts:
        return self.table.find(tokens=tokens, model="m")


# mypy holds each of these assignments against the protocol.
BY_HASHES: list[HashIndex] = [BlockIndex(), ReferenceIndex(), NestedDict(), Rung("dict")]
BY_TEXT: list[TextIndex] = [string_tree()]
BY_TOKENS: list[TokenIndex] = [
    fed(BlockIndex()),
    fed(ReferenceIndex()),
    fed(NestedDict()),
    fed(Rung("radix-concurrent")),
    token_tree(),
    OfModel(),
]
ANY: list[PrefixIndex] = [*BY_HASHES, *BY_TEXT, *BY_TOKENS, OfModel().table]


def route(index: PrefixIndex, loads: Mapping[str, int], threshold: float = 0.5, **prompt: Any) -> str:
    """A router that works with any of them: route(index, loads, tokens=...)."""
    found = index.find(**prompt)
    for worker, depth in found.best(1, among=list(loads)):
        if depth > threshold * found.length:
            return worker
    return min(loads, key=loads.__getitem__)


@pytest.mark.parametrize("index", ANY, ids=lambda index: type(index).__name__)
def test_an_index_is_one(index: object) -> None:
    assert isinstance(index, PrefixIndex)
    assert not isinstance(object(), PrefixIndex)


ANSWERS: dict[str, tuple[Callable[[], PrefixMatch], int, Unit]] = {
    "BlockIndex": (lambda: fed(BlockIndex()).find(tokens=PROMPT), 1, "blocks"),
    "BlockIndex by hashes": (lambda: fed(BlockIndex()).find(content_hashes=content_hashes(PROMPT, 16)), 1, "blocks"),
    "any_tier": (lambda: BY_TOKENS[0].find(tokens=PROMPT).any_tier, 1, "blocks"),  # type: ignore[attr-defined]
    "ReferenceIndex": (lambda: fed(ReferenceIndex()).find(tokens=PROMPT), 1, "blocks"),
    "NestedDict": (lambda: fed(NestedDict()).find(tokens=PROMPT), 1, "blocks"),
    "Rung": (lambda: fed(Rung("positional")).find(tokens=PROMPT), 1, "blocks"),
    "TokenTree": (lambda: token_tree().find(tokens=PROMPT), 16, "tokens"),
    "StringTree": (lambda: string_tree().find(text=TEXT), 16, "characters"),
    "SyncPrefixHashTable": (lambda: OfModel().find(tokens=PROMPT), 25, "percent"),
    "Counts": (lambda: Counts({"b": 25, "a": 75, "c": 0}, 100, "percent"), 25, "percent"),
}


@pytest.mark.parametrize(("find", "one", "unit"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_one(find: Callable[[], PrefixMatch], one: int, unit: Unit) -> None:
    """Each structure gets one query and gives one answer, in units with `one` to a block."""
    found = find()
    assert isinstance(found, PrefixMatch)
    assert (found.depth, found.length, found.unit) == (3 * one, 4 * one, unit)
    assert found.scores() == {"a": 3 * one, "b": one}
    assert found.levels() == [(3 * one, ["a"]), (one, ["b"])]
    assert found.best() == found.best(top_k=1) == [("a", 3 * one)]
    assert found.best(5) == found.best(5, None) == [("a", 3 * one), ("b", one)]
    assert found.best(0) == []
    assert found.best(5, among=["b", "c", "nobody"]) == [("b", one)]
    assert found.best(top_k=5, among=[]) == []


@pytest.mark.parametrize(
    "nobody",
    [
        BlockIndex().find(tokens=[]),
        ReferenceIndex().find(tokens=[]),
        Rung("dict").find(tokens=[]),
        TokenTree().find(tokens=[]),
        StringTree().find(text=""),
        Counts({}, 0),
    ],
    ids=lambda found: type(found).__name__,
)
def test_an_answer_about_nobody(nobody: PrefixMatch) -> None:
    assert (nobody.depth, nobody.length, nobody.scores(), nobody.levels(), nobody.best()) == (0, 0, {}, [], [])


def test_names_of_equal_depth_share_a_level() -> None:
    assert Counts({"a": 1, "b": 2, "c": 1}, 2).levels() == [(2, ["b"]), (1, ["a", "c"])]
    tree = StringTree()
    for tenant in ("b", "a"):
        tree.insert_text("both", tenant)
    assert tree.find(text="both").levels() == [(4, ["a", "b"])]
    rung = Rung("inverted")
    for worker in ("b", "a"):
        rung.store(worker, block_hashes=[1], content_hashes=[10])
    rung.flush()
    assert [(depth, sorted(level)) for depth, level in rung.find(content_hashes=[10, 20]).levels()] == [(1, ["a", "b"])]


@pytest.mark.parametrize("index", BY_TOKENS, ids=lambda index: type(index).__name__)
def test_a_router_swaps_them(index: PrefixIndex) -> None:
    assert route(index, {"a": 9, "b": 8, "c": 0}, tokens=PROMPT) == "a"
    assert route(index, {"b": 8, "c": 0}, tokens=PROMPT) == "c"  # a quarter is not enough
    assert route(index, {"b": 8, "c": 0}, tokens=np.array(PROMPT[:16], np.uint32)) == "b"


def test_a_router_of_ones_own() -> None:
    """A user's own index is taken for one if it has a `find` like this."""

    class Everybody:
        def __init__(self, workers: Collection[str]) -> None:
            self.workers = workers

        def find(self, *, tokens: Sequence[int] | NDArray[np.uint32]) -> Counts:
            return Counts(dict.fromkeys(self.workers, len(tokens)), len(tokens), "tokens")

    index: TokenIndex = Everybody(["x"])
    assert isinstance(index, PrefixIndex)
    assert route(index, {"x": 5, "y": 0}, tokens=PROMPT) == "x"


@pytest.mark.parametrize("index", [BlockIndex(), Rung("dict"), NestedDict()], ids=lambda index: type(index).__name__)
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({}, "missing_argument", "find needs content_hashes or tokens"),
        (
            {"tokens": [1], "content_hashes": [1]},
            "conflicting_arguments",
            "find takes either content_hashes or tokens, not both",
        ),
        ({"content_hashes": [1], "lora": "a"}, "conflicting_arguments", "lora and salt can only be used with tokens"),
        ({"content_hashes": [1], "salt": ""}, "conflicting_arguments", "lora and salt can only be used with tokens"),
    ],
)
def test_exactly_one_form_of_the_prompt(index: Any, arguments: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        index.find(**arguments)
    assert getattr(refused.value, "code", None) == code
    with pytest.raises(TypeError):
        index.find([1])


def test_typed_stats_have_the_keys_that_there_are() -> None:
    with SyncPrefixHashTable() as table:
        said: list[tuple[Mapping[str, object], type]] = [
            (BlockIndex().stats(), IndexStats),
            (Rung("dict").stats(), RungStats),
            (NestedDict().stats(), RungStats),
            (StringTree().stats(), TreeStats),
            (TokenTree().stats(), TreeStats),
            (table.stats(), PrefixTableStats),
        ]
    for stats, wanted in said:
        assert list(stats) == list(get_type_hints(wanted))


def test_units_are_said_by_name() -> None:
    assert set(get_args(Unit)) == {unit for *_, unit in ANSWERS.values()}
    assert Unit == Literal["blocks", "tokens", "characters", "percent"]
