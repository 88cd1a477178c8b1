"""Snapshots, files, pickles and copies: what comes back is what was kept, and damage is refused."""

import copy
import os
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from kvatlas import BlockIndex
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.trees import RadixTrie, StringTree, TokenTree
from kvatlas.wire import Stored, decode_batch, encode_batch

from .test_properties import BLOCK_SIZE, TIERS, IndexPair, Restore, Step, same_answer, same_contents, streams

COUNTERS = ("stores", "removes", "clears", "drops", "replaced", "unknown_removals")


def held(index: BlockIndex) -> Counter[tuple[object, ...]]:
    """The dump without its order: each copy of each block."""
    blocks: Counter[tuple[object, ...]] = Counter()
    for store in index.dump():
        parent = store.parent
        for name, content in zip(store.block_hashes, store.content_hashes, strict=True):
            blocks[store.worker, store.rank, store.tier, name, parent, content] += 1
            parent = name
    return blocks


def equal(back: BlockIndex, index: BlockIndex) -> None:
    assert (back.block_size, back.count_copies) == (index.block_size, index.count_copies)
    assert held(back) == held(index)
    assert back.workers() == index.workers()
    ours: dict[str, Any] = {**back.stats()}
    wanted: dict[str, Any] = {**index.stats()}
    for number in ("workers", "blocks", "unlinked", "copies", *COUNTERS):
        assert ours[number] == wanted[number], number


def filled(seed: int, chains: int) -> BlockIndex:
    """An index of chains that share their beginnings, in ranks and tiers, with holes here and there."""
    choose = random.Random(seed)
    index = BlockIndex(BLOCK_SIZE)
    for number in range(1, chains + 1):
        own = range(1000 * number, 1000 * number + choose.randrange(1, 40))
        names = [*range(choose.randrange(30)), *own]
        worker, rank, tier = choose.choice("abc"), choose.randrange(2), choose.choice(TIERS)
        index.store(worker, block_hashes=names, content_hashes=names, rank=rank, tier=tier)
        if choose.random() < 0.3:
            index.remove(worker, block_hashes=choose.sample(names, len(names) // 3), rank=rank, tier=tier)
    return index


WAYS: dict[str, Callable[[BlockIndex], BlockIndex]] = {
    "snapshot": lambda index: BlockIndex.from_snapshot(index.snapshot()),
    "memoryview": lambda index: BlockIndex.from_snapshot(memoryview(index.snapshot())),
    "pickle": lambda index: pickle.loads(pickle.dumps(index)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("count_copies", [True, False])
@settings(max_examples=settings().max_examples // 4)  # five ways back in each
@given(stream=streams())
def test_an_index_comes_back(count_copies: bool, stream: list[Step]) -> None:
    """Holes, orphans, copies, ranks, tiers, private names: on wild streams, and it goes on as the old one would."""
    both = IndexPair(count_copies)
    for at, step in enumerate(stream):
        if not isinstance(step, Restore):
            both.step(step)
        elif at % 2:
            old, both.index = both.index, BlockIndex.from_snapshot(both.index.snapshot())
            equal(both.index, old)
            same_contents(both.index, both.model)
    same_contents(both.index, both.model)
    for way in WAYS.values():
        back = way(both.index)
        equal(back, both.index)
        same_answer(back, both.model, [1, 2])


@pytest.mark.parametrize("seed", range(5))
def test_many_chains_come_back(seed: int, tmp_path: Path) -> None:
    index = filled(seed, 200)
    index.save(tmp_path / "index")
    equal(BlockIndex.load(str(tmp_path / "index")), index)
    equal(WAYS["pickle"](index), index)


def test_a_copy_is_another_index() -> None:
    index = BlockIndex()
    index.store("w", block_hashes=[b"x", -1], content_hashes=[10, 20])
    back = copy.deepcopy(index)
    index.remove("w", block_hashes=[-1])
    assert back.find(content_hashes=[10, 20]).scores() == {"w": 2}
    back.remove("w", block_hashes=[b"x"])  # the engine's own names still count
    assert back.workers() == {"w": 1}


def test_workers_without_blocks_stay_known() -> None:
    index = BlockIndex()
    index.store("w", block_hashes=[1], content_hashes=[10], rank=3)
    index.clear("w")
    assert WAYS["snapshot"](index).workers() == index.workers() == {"w": 0}


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    index = BlockIndex(8)
    path = tmp_path / "index"
    index.save(path)
    index.store("w", block_hashes=[1], content_hashes=[10])
    index.save(path)
    assert BlockIndex.load(path).workers() == {"w": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["index"]
    assert path.read_bytes() == index.snapshot()
    with pytest.raises(FileNotFoundError) as missing:
        BlockIndex.load(tmp_path / "none")
    assert missing.value.filename == str(tmp_path / "none")
    assert missing.value.strerror == "No such file or directory"
    with pytest.raises(FileNotFoundError):
        index.save(tmp_path / "none" / "index")
    with pytest.raises(IsADirectoryError):
        BlockIndex.load(tmp_path)
    with pytest.raises(OSError, match="directory"):
        index.save(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["index"]


def refused(bytes_: bytes, path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="not a snapshot of an index: ") as error:
        BlockIndex.from_snapshot(bytes_)
    assert error.value.code == "invalid_snapshot"
    path.write_bytes(bytes_)
    with pytest.raises(InvalidArgumentError) as error:
        BlockIndex.load(path)
    assert error.value.code == "invalid_snapshot"
    assert str(error.value).startswith(f"{path}: not a snapshot of an index: ")


def test_damage_is_refused(tmp_path: Path) -> None:
    choose = random.Random(1)
    whole = filled(1, 50).snapshot()
    for _ in range(200):
        damaged = bytearray(whole)
        match choose.randrange(4):
            case 0:
                del damaged[choose.randrange(len(whole)) :]
            case 1:
                damaged[choose.randrange(len(whole))] ^= 1 << choose.randrange(8)
            case 2:
                damaged += choose.randbytes(choose.randrange(1, 9))
            case _:
                at = choose.randrange(len(whole))
                del damaged[at : at + choose.randrange(1, 9)]
        refused(bytes(damaged), tmp_path / "damaged")
    for other in (b"", b"KVAINDEX", pickle.dumps({}), os.urandom(500)):
        refused(other, tmp_path / "other")


def test_wrong_types_are_refused() -> None:
    index: Any = BlockIndex
    with pytest.raises(InvalidTypeError, match="snapshot must be bytes, got str"):
        index.from_snapshot("KVAINDEX")
    with pytest.raises(TypeError):
        index.load(5)
    with pytest.raises(TypeError):
        index().save()


def test_what_is_remembered_of_a_stream_is_not_kept() -> None:
    """A salt that continues a chain is known to the index that saw it begin."""
    index = BlockIndex(2)
    index.apply("w", decode_batch(encode_batch([Stored([1], None, [1, 2], 2, salt="s")], timestamp=1)))
    back = WAYS["snapshot"](index)
    after = decode_batch(encode_batch([Stored([2], 1, [3, 4], 2)], timestamp=2))
    for one in (index, back):
        one.apply("w", after)
    prompt = [1, 2, 3, 4]
    assert index.find(tokens=prompt, salt="s").depth == 2
    assert back.find(tokens=prompt, salt="s").depth == 1


@pytest.mark.parametrize("way", [lambda tree: pickle.loads(pickle.dumps(tree)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("budget", [None, 1 << 20])
def test_trees_come_back(way: Callable[[Any], Any], budget: int | None) -> None:
    text = StringTree(policy="fifo", budget_bytes=budget)
    text.insert_text("a prompt", "w", priority=3)
    tokens = TokenTree(4, policy="mru", budget_bytes=budget)
    tokens.insert_tokens(range(16), "w")
    for tree in (text, tokens):
        back = way(tree)
        assert type(back) is type(tree)
        assert back.snapshot() == tree.snapshot()
        assert (back.policy, back.budget_bytes) == (tree.policy, budget)
        back.clear()
        assert tree.tenants() == ["w"]
    assert way(tokens).page_size == 4


def test_a_trie_of_the_callers_objects_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(RadixTrie())


def test_a_snapshot_is_compact() -> None:
    index = BlockIndex()
    names = list(range(1, 10_001))
    index.store("w", block_hashes=names, content_hashes=names)
    assert len(index.snapshot()) < 16 * 10_000 + 120
    assert sys.getsizeof(pickle.dumps(index)) < 16 * 10_000 + 300
