"""Tests of what `BlockIndex` and the model both do, one situation at a time."""

import array
import pickle
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import kvatlas
from kvatlas import BlockIndex, content_hashes
from kvatlas.errors import InvalidTypeError
from kvatlas.events import Clear, Drop, Remove, Store
from kvatlas.lab.designs import open_rung
from kvatlas.reference import ReferenceIndex

Index = BlockIndex | ReferenceIndex


@pytest.fixture(params=[BlockIndex, ReferenceIndex])
def index(request: pytest.FixtureRequest) -> Index:
    made: Index = request.param()
    return made


@pytest.fixture(params=[BlockIndex, ReferenceIndex])
def uncounted(request: pytest.FixtureRequest) -> Index:
    made: Index = request.param(count_copies=False)
    return made


def depths(index: Index, *query: int) -> tuple[int, int]:
    match = index.find(content_hashes=query)
    return match.depth, match.any_tier.depth


def test_a_chain_is_found_as_far_as_it_is_held(index: Index) -> None:
    index.store("w", block_hashes=[1, 2, 3], content_hashes=[10, 20, 30])
    assert depths(index, 10, 20, 30, 40) == (3, 3)
    assert depths(index, 10, 20) == (2, 2)
    assert depths(index, 10, 21, 30) == (1, 1)
    assert depths(index, 20) == (0, 0)
    assert depths(index) == (0, 0)


def test_a_store_continues_its_parent(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.store("w", block_hashes=[2, 3], content_hashes=[20, 30], parent=1)
    index.store("w", block_hashes=[4], content_hashes=[21], parent=1)
    assert depths(index, 10, 20, 30) == (3, 3)
    assert depths(index, 10, 21) == (2, 2)


def test_a_hole_ends_the_match_until_it_is_filled(index: Index) -> None:
    index.store("w", block_hashes=[1, 2, 3], content_hashes=[10, 20, 30])
    index.remove("w", block_hashes=[2])
    assert depths(index, 10, 20, 30) == (1, 1)
    assert index.workers() == {"w": 2}
    index.store("w", block_hashes=[2], content_hashes=[20], parent=1)
    assert depths(index, 10, 20, 30) == (3, 3)


def test_an_orphan_counts_when_its_chain_is_complete(index: Index) -> None:
    index.store("w", block_hashes=[3], content_hashes=[30], parent=2)
    index.store("w", block_hashes=[2], content_hashes=[20], parent=1)
    assert depths(index, 10, 20, 30) == (0, 0)
    index.store("w", block_hashes=[1], content_hashes=[10])
    assert depths(index, 10, 20, 30) == (3, 3)


def test_another_workers_block_does_not_complete_a_chain(index: Index) -> None:
    index.store("a", block_hashes=[2], content_hashes=[20], parent=1)
    index.store("b", block_hashes=[1], content_hashes=[10])
    assert index.find(content_hashes=[10, 20]).scores() == {"b": 1}


def test_ranks_are_apart(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10], rank=3)
    index.store("w", block_hashes=[2], content_hashes=[20], parent=1)
    index.store("w", block_hashes=[1, 2, 5], content_hashes=[10, 20, 30], rank=2**32 - 1)
    match = index.find(content_hashes=[10, 20])
    assert match.by_rank() == {("w", 3): 1, ("w", 2**32 - 1): 2}
    assert match.scores() == {"w": 2}
    assert match.levels() == [(2, ["w"])]


def test_copies_are_counted(index: Index) -> None:
    for _ in range(3):
        index.store("w", block_hashes=[1], content_hashes=[10])
    assert index.stats()["copies"] == 2
    index.remove("w", block_hashes=[1, 1])
    assert depths(index, 10) == (1, 1)
    index.remove("w", block_hashes=[1])
    assert depths(index, 10) == (0, 0)


def test_copies_are_not_counted_if_not_wanted(uncounted: Index) -> None:
    for _ in range(3):
        uncounted.store("w", block_hashes=[1], content_hashes=[10])
    uncounted.remove("w", block_hashes=[1])
    assert depths(uncounted, 10) == (0, 0)
    assert uncounted.stats()["unknown_removals"] == 0


def test_unknown_removals_change_nothing(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.remove("w", block_hashes=[2])
    index.remove("w", block_hashes=[1], rank=1)
    index.remove("w", block_hashes=[1], tier="cpu")
    index.remove("v", block_hashes=[1, 2])
    assert depths(index, 10) == (1, 1)
    assert index.stats()["unknown_removals"] == 5
    assert index.workers() == {"w": 1}


def test_the_newest_announcement_of_a_name_wins(index: Index) -> None:
    index.store("w", block_hashes=[1, 2], content_hashes=[10, 20])
    index.store("w", block_hashes=[2], content_hashes=[21], parent=1)
    assert depths(index, 10, 20) == (1, 1)
    assert depths(index, 10, 21) == (2, 2)
    index.store("w", block_hashes=[2], content_hashes=[21])
    assert depths(index, 21) == (1, 1)
    assert index.stats()["replaced"] == 2


def test_the_device_says_what_a_name_means_on_all_tiers(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[11], tier="cpu")
    assert (depths(index, 10), depths(index, 11)) == ((0, 0), (0, 1))
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.store("w", block_hashes=[1], content_hashes=[12], tier="disk")
    assert (depths(index, 10), depths(index, 11), depths(index, 12)) == ((1, 1), (0, 0), (0, 0))
    index.remove("w", block_hashes=[1])
    assert depths(index, 10) == (0, 1)
    assert index.stats()["replaced"] == 1


def test_equal_content_under_different_prefixes(index: Index) -> None:
    index.store("w", block_hashes=[1, 2, 3], content_hashes=[10, 10, 10])
    index.store("w", block_hashes=[4, 5], content_hashes=[20, 10])
    index.remove("w", block_hashes=[2])
    assert depths(index, 10, 10, 10) == (1, 1)
    assert depths(index, 20, 10) == (2, 2)


def test_one_name_for_two_blocks_of_two_workers(index: Index) -> None:
    index.store("a", block_hashes=[1, 2], content_hashes=[10, 20])
    index.store("b", block_hashes=[2, 1], content_hashes=[10, 20])
    index.store("c", block_hashes=[1, 2], content_hashes=[30, 10])
    assert index.find(content_hashes=[10, 20]).scores() == {"a": 2, "b": 2}
    assert index.find(content_hashes=[30, 10]).levels() == [(2, ["c"])]
    index.remove("b", block_hashes=[1])
    assert index.find(content_hashes=[10, 20]).levels() == [(2, ["a"]), (1, ["b"])]


def test_two_names_of_one_worker_for_one_block(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.store("w", block_hashes=[2], content_hashes=[10])
    index.store("w", block_hashes=[3], content_hashes=[20], parent=2)
    index.remove("w", block_hashes=[1])
    assert depths(index, 10, 20) == (2, 2)
    index.remove("w", block_hashes=[2])
    assert depths(index, 10, 20) == (0, 0)


def test_a_block_that_is_its_own_ancestor(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10], parent=1)
    assert depths(index, 10) == (0, 0)
    index.store("w", block_hashes=[1, 2, 1], content_hashes=[10, 20, 10])
    assert depths(index, 10, 20, 10) == (0, 0)
    assert index.workers() == {"w": 2}


def test_offloaded_blocks_count_in_any_tier(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.store("w", block_hashes=[2], content_hashes=[20], parent=1, tier="cpu")
    index.store("w", block_hashes=[3], content_hashes=[30], parent=2, tier="disk")
    index.store("v", block_hashes=[1, 2], content_hashes=[10, 20])
    match = index.find(content_hashes=[10, 20, 30])
    assert match.levels() == [(2, ["v"]), (1, ["w"])]
    assert match.any_tier.levels() == [(3, ["w"]), (2, ["v"])]
    assert match.any_tier.any_tier.depth == 3
    assert match.within("gpu").levels() == match.levels()
    assert match.within("cpu").scores() == {"w": 2, "v": 2}
    assert match.within("disk").within("cpu").scores() == {"w": 2, "v": 2}
    assert match.within("disk").scores() == match.within("external").scores() == {"w": 3, "v": 2}
    index.clear("w", tier="disk")
    assert index.find(content_hashes=[10, 20, 30]).any_tier.scores() == {"w": 2, "v": 2}


def test_tiers_are_used_in_any_order(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10], tier="external")
    index.store("w", block_hashes=[2], content_hashes=[20], parent=1, tier="cpu")
    match = index.find(content_hashes=[10, 20])
    assert [match.within(tier).depth for tier in ("gpu", "cpu", "disk", "external")] == [0, 0, 0, 2]
    index.store("w", block_hashes=[1], content_hashes=[10], tier="disk")
    match = index.find(content_hashes=[10, 20])
    assert [match.within(tier).depth for tier in ("gpu", "cpu", "disk", "external")] == [0, 0, 2, 2]
    index.remove("w", block_hashes=[1], tier="external")
    index.store("w", block_hashes=[1], content_hashes=[10])
    match = index.find(content_hashes=[10, 20])
    assert [match.within(tier).depth for tier in ("gpu", "cpu", "disk", "external")] == [1, 2, 2, 2]


def test_a_block_in_two_tiers_is_held_until_both_are_gone(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.store("w", block_hashes=[1], content_hashes=[10], tier="cpu")
    index.store("w", block_hashes=[1], content_hashes=[10], tier="external")
    assert index.workers() == {"w": 2}
    index.remove("w", block_hashes=[1])
    assert depths(index, 10) == (0, 1)
    index.remove("w", block_hashes=[1], tier="cpu")
    assert depths(index, 10) == (0, 1)
    index.remove("w", block_hashes=[1], tier="external")
    assert depths(index, 10) == (0, 0)


def test_clear_one_rank_one_tier_or_all(index: Index) -> None:
    def fill() -> None:
        for rank in (0, 1):
            for tier in ("gpu", "cpu"):
                index.store("w", block_hashes=[1], content_hashes=[10], rank=rank, tier=tier)

    fill()
    index.clear("w", rank=0, tier="gpu")
    assert index.find(content_hashes=[10]).by_rank() == {("w", 1): 1}
    assert index.find(content_hashes=[10]).any_tier.by_rank() == {("w", 0): 1, ("w", 1): 1}
    fill()
    index.clear("w", tier="cpu")
    index.clear("w", rank=1)
    assert index.find(content_hashes=[10]).any_tier.by_rank() == {("w", 0): 1}
    index.clear("w")
    assert index.workers() == {"w": 0}
    index.clear("nobody")
    assert index.workers() == {"w": 0}


def test_a_dropped_worker_is_forgotten(index: Index) -> None:
    index.store("a", block_hashes=[1], content_hashes=[10])
    index.store("b", block_hashes=[1], content_hashes=[10])
    index.drop("a")
    index.drop("nobody")
    assert index.workers() == {"b": 1}
    index.store("a", block_hashes=[1], content_hashes=[10])
    assert index.find(content_hashes=[10]).scores() == {"a": 1, "b": 1}


def test_best(index: Index) -> None:
    for worker, length in [("a", 1), ("b", 3), ("c", 2), ("d", 2)]:
        index.store(worker, block_hashes=[1, 2, 3][:length], content_hashes=[10, 20, 30][:length])
    match = index.find(content_hashes=[10, 20, 30, 40])
    assert match.best() == [("b", 3)]
    assert match.best(2) in ([("b", 3), ("c", 2)], [("b", 3), ("d", 2)])
    assert sorted(match.best(3)) == [("b", 3), ("c", 2), ("d", 2)]
    assert match.best(0) == []
    assert sorted(match.best(2**80)) == [("a", 1), ("b", 3), ("c", 2), ("d", 2)]
    assert match.best(top_k=2, among=["a", "d", "nobody"]) == [("d", 2), ("a", 1)]
    assert match.best(2, among=iter({"a": 0})) == [("a", 1)]
    assert match.best(2, among=[]) == []
    assert [(depth, sorted(workers)) for depth, workers in match.levels()] == [(3, ["b"]), (2, ["c", "d"]), (1, ["a"])]


def test_a_match_stays_as_it_was(index: Index) -> None:
    index.store("w", block_hashes=[1], content_hashes=[10])
    match = index.find(content_hashes=[10])
    index.drop("w")
    index.store("v", block_hashes=[1], content_hashes=[10])
    assert match.scores() == {"w": 1}
    del index
    assert match.any_tier.by_rank() == {("w", 0): 1}


def test_a_store_of_nothing_does_nothing(index: Index) -> None:
    index.store("w", block_hashes=[], content_hashes=[])
    index.store("w", block_hashes=[], tokens=[], parent=7, tier="cpu")
    assert index.workers() == {}
    assert index.find(content_hashes=[1]).levels() == []


def test_tokens_are_hashed_by_the_index() -> None:
    tokens = np.arange(100, 148, dtype=np.int32)
    for made in (BlockIndex(block_size=16), ReferenceIndex(block_size=16)):
        index: Index = made
        index.store("plain", block_hashes=[1, 2, 3], tokens=tokens)
        index.store("lora", block_hashes=[4, 5, 6], tokens=tokens, lora="adapter")
        index.store("both", block_hashes=[7, 8, 9], tokens=tokens.tolist(), lora="adapter", salt="tenant")
        assert index.find(tokens=tokens).scores() == {"plain": 3}
        assert index.find(tokens=tokens[:47].tolist()).scores() == {"plain": 2}
        assert index.find(tokens=tokens, lora="adapter").scores() == {"lora": 3}
        assert index.find(tokens=tokens, lora="adapter", salt="tenant").scores() == {"both": 3}
        assert index.find(tokens=tokens, lora="", salt="tenant").scores() == {}
        assert index.find(content_hashes=content_hashes(tokens, 16)).scores() == {"plain": 3}


NAMES: dict[str, Any] = {
    "ints": [5, 0, 2**64 - 1, 2**63],
    "negative": [-1, -(2**63), -5, 5],
    "one off": [2**64 - 1, -1, 2**64, -(2**64)],
    "wide": [2**64, -(2**63) - 1, 2**256, -(2**256)],
    "wide neighbours": [2**71 - 1, 2**71, -(2**71), -(2**71) - 1],
    "bytes": [b"", b"\0", b"digest", bytes(32)],
    "mixed": [b"1", 1, -1, 2**80],
    "uint64": np.array([1, 2**64 - 1, 2**63, 0], "u8"),
    "int64": np.array([1, -1, -(2**63), 0]),
    "uint32": np.array([1, 2**32 - 1, 5, 0], "u4"),
    "int32": np.array([1, -1, -(2**31), 0], "i4"),
    "big-endian": np.array([1, -1, -(2**63), 0], ">i8"),
    "strided": np.arange(8)[::-2],
    "array": array.array("q", [1, -1, 3, 4]),
    "numpy ints": [np.int8(-1), np.uint64(2**64 - 1), np.int64(-2), 3],
    "tuple": (1, -2, 3, 4),
    "deque": deque([1, 2, 3, 4]),
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("count_copies", [True, False])
def test_every_kind_of_block_hash(kind: str, count_copies: bool) -> None:
    """Four different names are four blocks, and each answers to every way to write it."""
    names = NAMES[kind]
    index = BlockIndex(count_copies=count_copies)
    index.store("w", block_hashes=names, content_hashes=[1, 2, 3, 4])
    assert index.stats()["blocks"] == 4
    plain = [name if isinstance(name, bytes) else int(name) for name in names]
    index.store("w", block_hashes=[99], content_hashes=[5], parent=plain[3])
    assert index.find(content_hashes=[1, 2, 3, 4, 5]).depth == 5
    restored = BlockIndex(count_copies=count_copies)
    restored.apply(index.dump())
    for at in (3, 2, 1, 0):
        for made in (index, restored):
            made.remove("w", block_hashes=[plain[at]])
            assert made.find(content_hashes=[1, 2, 3, 4, 5]).depth == at


def test_dump_is_made_of_plain_values() -> None:
    index = BlockIndex()
    index.store("w", block_hashes=np.array([1, 2], "u8"), content_hashes=np.array([3, 2**64 - 1], "u8"), rank=5)
    index.store("w", block_hashes=[7], content_hashes=[8], parent=2, tier="disk")
    dump = index.dump()
    assert all(isinstance(event, Store) for event in dump)
    assert pickle.loads(pickle.dumps(dump)) == dump
    restored = BlockIndex()
    restored.apply(dump)
    assert restored.dump() == dump
    assert restored.find(content_hashes=[3, 2**64 - 1]).by_rank() == {("w", 5): 2}


def test_apply_takes_all_events(index: Index) -> None:
    index.apply(
        [
            Store("a", (1, 2), (10, 20)),
            Store("a", [b"x"], np.array([30], "u8"), parent=2, rank=0, tier="cpu"),  # type: ignore[arg-type]
            Store("b", [1], [10], rank=2),
            Store("c", [1], [10]),
            Remove("a", (2,)),
            Clear("b", 2, "gpu"),
            Drop("c"),
        ]
    )
    assert index.workers() == {"a": 2, "b": 0}
    index.apply(iter([Store("a", [2], [20], 1)]))
    assert index.find(content_hashes=[10, 20, 30]).any_tier.scores() == {"a": 3}
    index.apply(())


def test_stats_count_calls() -> None:
    index = BlockIndex()
    before: Mapping[str, Any] = index.stats()
    assert all(value >= 0 for value in before.values())
    index.store("w", block_hashes=[1, 2], content_hashes=[10, 20])
    index.store("w", block_hashes=[4], content_hashes=[40], parent=3)
    index.remove("w", block_hashes=[2, 9])
    index.clear("v")
    index.drop("v")
    stats: Mapping[str, Any] = index.stats()
    wanted = {"workers": 1, "blocks": 2, "stores": 2, "removes": 1, "clears": 1, "drops": 1, "unknown_removals": 1}
    assert {key: stats[key] for key in wanted} == wanted
    assert all(type(value) is int for value in stats.values())


def test_the_index_says_what_it_is() -> None:
    index = BlockIndex(32, False)
    assert (index.block_size, index.count_copies) == (32, False)
    assert repr(index) == "BlockIndex(block_size=32, count_copies=False, workers=0, blocks=0)"
    assert repr(index.find(content_hashes=[1])) == "Match(depth=0, length=1, workers=0)"
    index = BlockIndex(4)
    for worker in ("a", "b"):
        index.store(worker, block_hashes=range(602), content_hashes=range(602))
    assert repr(index) == "BlockIndex(block_size=4, workers=2, blocks=1,204)"
    assert repr(index.find(content_hashes=range(2000))) == "Match(depth=602, length=2000, workers=2)"
    model = ReferenceIndex(4, count_copies=False)
    model.store("a", block_hashes=[1, 2], content_hashes=[1, 2])
    assert repr(model) == "ReferenceIndex(block_size=4, count_copies=False, workers=1, blocks=2)"
    assert BlockIndex(block_size=np.int64(8)).block_size == 8
    with pytest.raises(AttributeError):
        index.block_size = 4  # type: ignore[misc]


def test_a_prompt_is_given_by_keyword() -> None:
    words = r"find takes a prompt by keyword: find\(tokens=…\) or find\(content_hashes=…\)"
    for index in (BlockIndex(4), open_rung("radix", block_size=4)):
        with pytest.raises(InvalidTypeError, match=words):
            index.find([1, 2, 3, 4])  # type: ignore[call-arg]


def test_help_says_what_to_give_and_what_comes_back() -> None:
    for documented in (BlockIndex, kvatlas.Match, kvatlas.content_hashes, kvatlas.prefix_hashes):
        assert documented.__doc__
    for owner in (BlockIndex, kvatlas.Match):
        for name in dir(owner):
            if not name.startswith("_"):
                assert getattr(owner, name).__doc__, f"{owner.__name__}.{name}"
