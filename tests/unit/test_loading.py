"""`BlockIndex.loading` and its literal model, on random streams of engines with pools.

`crates/index/tests/loading.rs` holds the index against the engines' own answers; here the two that Python has are held
against each other: their arguments, times and pools of several sizes of chunks.
"""

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas import BlockIndex
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.reference import ReferenceIndex
from kvatlas.types import Loadable, Segment, Tier
from kvatlas.wire import Cleared, Removed, Stored, decode_batch, encode_batch

WORKERS = ["a", "b", "c"]
OFFLOADED: list[Tier] = ["cpu", "disk", "external"]


def name_of(prompt: tuple[int, ...]) -> int:
    """Engines that share a pool name blocks alike."""
    return hash(prompt) & (1 << 63) - 1


def names_in_chunk(chunk: int, blocks: int) -> list[int | bytes]:
    return [*(f"{chunk}/{at}".encode() for at in range(1, blocks)), chunk]


@dataclass
class Pair:
    """The index and its literal model, which are told the same."""

    index: BlockIndex = field(default_factory=lambda: BlockIndex(block_size=1))
    model: ReferenceIndex = field(default_factory=lambda: ReferenceIndex(block_size=1))

    def both(self, method: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        answers = []
        for it in (self.index, self.model):
            owner: Any = it
            *path, last = method.split(".")
            for part in path:
                owner = getattr(owner, part)
            answers.append(getattr(owner, last)(*args, **kwargs))
        return answers[0], answers[1]

    def store(self, worker: str, prompt: tuple[int, ...], start: int, tier: Tier, rank: int) -> None:
        names = [name_of(prompt[: end + 1]) for end in range(start, len(prompt))]
        parent = name_of(prompt[:start]) if start else None
        contents = list(prompt[start:])
        self.both("store", worker, block_hashes=names, content_hashes=contents, parent=parent, tier=tier, rank=rank)

    def apply(self, worker: str, event: Stored | Removed | Cleared) -> None:
        """An event of rank 0, as its engine publishes it; a store without tokens announces names alone."""
        match event:
            case Stored(block_hashes=names, tokens=tokens, tier=tier) if tokens:
                self.model.store(worker, block_hashes=names, tokens=np.array(tokens), tier=tier)
            case Stored(block_hashes=names, tier=tier):
                self.model.store_known(worker, block_hashes=names, tier=tier)
            case Removed(block_hashes=names, tier=tier):
                self.model.remove(worker, block_hashes=names, tier=tier)
            case Cleared():
                self.model.loading.reset(worker, rank=0)
        assert self.index.apply(worker, decode_batch(encode_batch([event], timestamp=1.0))).refused == {}

    def store_chunk(self, worker: str, chunk: int, parent: int | None, tokens: tuple[int, ...]) -> None:
        """Announce a chunk of blocks of one token in host memory by one name, as LMCache's connector does."""
        event = Stored([chunk], parent=parent, tokens=list(tokens), block_size=len(tokens), medium="CPU")
        assert self.index.apply(worker, decode_batch(encode_batch([event], timestamp=1.0))).refused == {}
        names = names_in_chunk(chunk, len(tokens))
        self.model.store(worker, block_hashes=names, tokens=np.array(tokens), parent=parent, tier="cpu")

    def remove_chunks(self, worker: str, chunks: list[int], blocks: int) -> None:
        event = Removed(list(chunks), medium="CPU")
        assert self.index.apply(worker, decode_batch(encode_batch([event], timestamp=1.0))).refused == {}
        names = [name for chunk in chunks for name in names_in_chunk(chunk, blocks)]
        self.model.remove(worker, block_hashes=names, tier="cpu")

    def check(self, prompts: list[tuple[int, ...]]) -> int:
        answers = 0
        for prompt in prompts:
            found, wanted = self.both("loading.find", content_hashes=list(prompt))
            assert found == wanted
            answers += len(found)
        return answers


def run(seed: int) -> int:
    """A random stream. Returns the number of answers that were compared."""
    rng = random.Random(seed)
    pair = Pair()
    for worker in WORKERS:
        chunks = {f"{tier}_chunk": rng.choice([1, 2, 3, 4]) for tier in ("host", "disk", "external")}
        pair.both("loading.set_offloading", worker, **chunks, resets_keep=rng.choice([True, False, None]))
    for name in rng.sample(["folder", "store"], rng.randint(0, 2)):
        pair.both(
            "loading.add_pool",
            name,
            members=rng.choice([None, ["a", "b"], ["a", "new"]]),
            chunk=rng.choice([1, 2, 4]),
            tier={"folder": "external", "store": "disk"}[name],
            announces_removals=rng.random() < 0.5,
            lifetime=rng.choice([None, 20.0]),
            room=rng.choice([None, None, 5, 12]),
            evicts=rng.choice(["announced", "used"]),
            from_beginning=rng.random() < 0.3,
            follows_store=rng.random() < 0.3,
        )
    prompts: list[tuple[int, ...]] = [(1,)]
    while len(prompts) < 10:
        prompts.append(rng.choice(prompts) + tuple(rng.choices([1, 2], k=rng.randint(1, 6))))
    answers = 0
    for now in range(60):
        pair.both("loading.set_time", float(now))
        worker, prompt, rank = rng.choice(WORKERS), rng.choice(prompts), rng.choice([0, 0, 0, 1])
        tier: Tier = rng.choice(["gpu", *OFFLOADED])
        pool, ends = rng.choice(["folder", "store"]), range(1, len(prompt) + 1)
        match rng.randrange(25):
            case 22 | 23:
                named = [name_of(prompt[:end]) for end in rng.sample(ends, rng.randint(1, len(prompt)))]
                placed = pair.both("loading.hold", pool, block_hashes=named)
                assert placed[0] == placed[1]
            case 24:
                named = [name_of(prompt[:end]) for end in rng.sample(ends, rng.randint(1, len(prompt)))]
                left = pair.both("loading.release", pool, block_hashes=named)
                assert left[0] == left[1]
            case 20:
                found = [
                    name_of(prompt[:end]) for prompt in rng.sample(prompts, 3) for end in range(1, len(prompt) + 1)
                ]
                lost = pair.both("loading.keep", pool, block_hashes=found, until=rng.choice([None, now - 5.0]))
                assert lost[0] == lost[1]
            case 21:
                pair.both("loading.set_whole", pool, rng.random() < 0.5)
                loaded = pair.both(
                    "loading.note_load", pool, content_hashes=list(prompt), start=rng.randint(0, len(prompt))
                )
                assert loaded[0] == loaded[1]
            case 0:
                pair.both("loading.reset", worker, rank=rng.choice([None, rank]))
            case 1:
                pair.both("clear", worker, rank=rng.choice([None, rank]), tier=rng.choice([None, tier]))
            case 2:
                pair.both("drop", worker)
            case 3:
                lost = pair.both("loading.lose", pool, content_hashes=list(prompt[: rng.randint(1, len(prompt))]))
                assert lost[0] == lost[1]
            case 4 | 5 | 6 | 7:
                gone = rng.sample(range(1, len(prompt) + 1), k=rng.randint(1, len(prompt)))
                names = [name_of(prompt[:end]) for end in gone]
                pair.both("remove", worker, block_hashes=names, tier=tier, rank=rank)
            case _:
                # Engines write and copy what they know the beginning of.
                pair.store(worker, prompt, 0, tier, rank)
        answers += pair.check(prompts)
    return answers


def run_batches(seed: int) -> tuple[int, int]:
    """A random stream of batches in which many blocks beyond the device are announced by name alone.

    Returns the number of answers that were compared, and how many of them count blocks that were described later.
    """
    rng = random.Random(seed)
    pair = Pair()
    chunk = rng.choice([1, 2, 4])
    for worker in WORKERS:
        chunks = {f"{tier}_chunk": chunk for tier in ("host", "disk", "external")}
        pair.both("loading.set_offloading", worker, **chunks, resets_keep=rng.choice([True, False, None]))
        # What blocks mean that are gone is remembered from a rank's first block beyond its device on.
        pair.apply(worker, Stored([name_of((9,))], parent=None, tokens=[9], block_size=1, tier="cpu"))
    if rng.random() < 0.5:
        pair.both("loading.add_pool", "folder", members=["a", "b"], chunk=chunk)
    prompts: list[tuple[int, ...]] = [(1,)]
    while len(prompts) < 8:
        prompts.append(rng.choice(prompts) + tuple(rng.choices([1, 2], k=rng.randint(1, 6))))
    answers, late = 0, 0
    waiting: set[tuple[str, int]] = set()
    for _ in range(60):
        worker, prompt = rng.choice(WORKERS), rng.choice(prompts)
        names = [name_of(prompt[: end + 1]) for end in range(len(prompt))]
        tier = rng.choice(OFFLOADED)
        event: Stored | Removed | Cleared
        match rng.randrange(12):
            case 0:
                event = Cleared()
            case 1 | 2 | 3:
                gone = rng.sample(names, k=rng.randint(1, len(names)))
                event = Removed(gone, tier=rng.choice(["gpu", tier]))
            case 4 | 5 | 6 | 7:
                alone = rng.sample(names, k=rng.randint(1, len(names)))
                event = Stored(alone, parent=None, tokens=[], block_size=0, tier=tier)
                waiting |= {(worker, name) for name in alone}
            case _:
                where: Tier = rng.choice(["gpu", "gpu", "gpu", tier])
                event = Stored(names, parent=None, tokens=list(prompt), block_size=1, tier=where)
                late += sum((worker, name) in waiting for name in names)
        pair.apply(worker, event)
        for asked in prompts:
            found, wanted = pair.both("loading.find", tokens=list(asked))
            assert found == wanted
            answers += len(found)
    return answers, late


def run_own_chunks(seed: int) -> tuple[int, int]:
    """A random stream of engines whose connector stores whole chunks, each under one name of its own.

    Returns the number of answers that were compared, and how many of these have chunks behind a hole.
    """
    rng = random.Random(seed)
    pair, blocks = Pair(), rng.choice([2, 3, 4])
    keeps = {worker: rng.choice([True, False, None]) for worker in WORKERS}
    for worker in WORKERS:
        pair.index.loading.set_offloading(worker, resets_keep=keeps[worker])
        pair.model.loading.set_offloading(worker, host_chunk=blocks, resets_keep=keeps[worker])
        pair.model.loading.load_from_beginning(worker, rank=0, tier="cpu")
    prompts: list[tuple[int, ...]] = [(1,)]
    while len(prompts) < 8:
        prompts.append(rng.choice(prompts) + tuple(rng.choices([1, 2], k=rng.randint(1, 9))))
    held: dict[str, set[int]] = {worker: set() for worker in WORKERS}
    answers = holes = 0
    for _ in range(60):
        worker, prompt = rng.choice(WORKERS), rng.choice(prompts)
        ends = range(blocks, len(prompt) + 1, blocks)
        chunks = [name_of(prompt[:end]) ^ 1 << 62 for end in ends]
        match rng.randrange(12):
            case 0:
                pair.apply(worker, Cleared())
                held[worker] &= held[worker] if keeps[worker] else set()
            case 1 | 2:
                names = [name_of(prompt[: end + 1]) for end in range(len(prompt))]
                pair.apply(worker, Removed(rng.sample(names, k=rng.randint(1, len(names)))))
            case 3 | 4 | 5 if held[worker]:
                gone = rng.sample(sorted(held[worker]), k=rng.randint(1, len(held[worker])))
                held[worker].difference_update(gone)
                pair.remove_chunks(worker, gone, blocks)
            case 6 | 7:
                names = [name_of(prompt[: end + 1]) for end in range(len(prompt))]
                pair.apply(worker, Stored(names, parent=None, tokens=list(prompt), block_size=1))
            case _:
                for number, chunk in enumerate(chunks):
                    if chunk not in held[worker]:
                        parent = chunks[number - 1] if number else None
                        tokens = prompt[number * blocks : (number + 1) * blocks]
                        pair.store_chunk(worker, chunk, parent, tokens)
                        held[worker].add(chunk)
        for asked in prompts:
            found, wanted = pair.both("loading.find", tokens=list(asked))
            assert found == wanted
            answers += len(found)
            ended = [name_of(asked[:end]) ^ 1 << 62 for end in range(blocks, len(asked) + 1, blocks)]
            has = [[chunk in held[each.worker] for chunk in ended] for each in found]
            holes += sum(any(after and not before for before, after in pairwise(it)) for it in has)
    return answers, holes


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_the_index_equals_the_model(seed: int) -> None:
    run(seed)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_chunks_with_names_of_their_own(seed: int) -> None:
    run_own_chunks(seed)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_blocks_that_are_described_later(seed: int) -> None:
    run_batches(seed)


@pytest.mark.parametrize("stays", [True, False])
def test_what_a_pool_has_forgotten_does_not_come_back_with_a_later_block(stays: bool) -> None:
    pair = Pair()
    pair.both("loading.set_offloading", "b", resets_keep=False)
    pair.both("loading.add_pool", "folder", members=["a", "b"])
    first, second = name_of((1,)), name_of((1, 2))

    def alone(name: int) -> Stored:
        return Stored([name], parent=None, tokens=[], block_size=0, tier="external")

    def depth() -> int:
        found, wanted = pair.both("loading.find", tokens=[1])
        assert found == wanted
        depths: dict[str, int] = {it.worker: it.depth for it in found}
        return depths["b"]

    pair.apply("a", Stored([first], parent=None, tokens=[1], block_size=1, tier="external"))
    pair.apply("b", alone(second))
    assert depth() == 1
    if not stays:
        pair.apply("a", Removed([first], tier="external"))
    # With its contents, the second block comes into the pool: there the first one is in front of it, or is not.
    pair.apply("b", Stored([first, second], parent=None, tokens=[1, 2], block_size=1, tier="gpu"))
    if stays:
        pair.apply("a", Removed([first], tier="external"))
    pair.apply("b", Cleared())
    assert depth() == 0
    pair.apply("b", alone(first))
    assert depth() == (1 if stays else 0), "its meaning is kept only if the pool had it when the second block came"
    pair.apply("b", Stored([first], parent=None, tokens=[1], block_size=1, tier="gpu"))
    pair.apply("b", Cleared())
    assert depth() == 1, "what was described counts from then on"


def test_streams_have_answers() -> None:
    assert sum(map(run, range(5))) > 1000
    answers, late = zip(*map(run_batches, range(5)), strict=True)
    assert sum(answers) > 1000
    assert sum(late) > 20


def test_parts_of_a_prompt_and_their_ages() -> None:
    pair = Pair()
    pair.both("loading.set_offloading", "a", host_chunk=2)
    pair.both("loading.add_pool", "folder", members=["a", "b"], chunk=3, lifetime=9.0)
    prompt = (1, 2, 3, 4, 5, 6, 7, 8)
    pair.store("a", prompt[:1], 0, "gpu", 0)
    pair.store("a", prompt[:4], 0, "cpu", 0)
    pair.both("loading.set_time", 10.0)
    pair.store("a", prompt[:3], 0, "external", 0)
    pair.both("loading.set_time", 12.5)
    pair.store("a", prompt[:6], 3, "external", 0)
    pair.both("loading.set_time", 14.0)
    first, second = pair.both("loading.find", content_hashes=list(prompt))
    assert first == second
    own = (Segment(0, 1, "gpu", None, True, None), Segment(1, 4, "cpu", None, True, None))
    assert first == [
        Loadable("a", 0, 1, 4, False, (*own, Segment(4, 6, "external", "folder", False, 1.5)), 6),
        Loadable("b", 0, 0, 0, False, (Segment(0, 6, "external", "folder", False, 4.0),), 6),
    ]
    assert [(it.depth, it.own_depth) for it in first] == [(6, 4), (6, 0)]
    pair.both("loading.set_time", 20.0)
    assert [it.depth for it in pair.both("loading.find", content_hashes=list(prompt))[0]] == [6, 0]
    assert pair.both("loading.lose", "folder", content_hashes=list(prompt[:6])) == (1, 1)
    assert pair.both("loading.lose", "nowhere", content_hashes=list(prompt[:6])) == (0, 0)
    assert [it.depth for it in pair.both("loading.find", content_hashes=list(prompt))[0]] == [4, 0]


def used(pair: Pair, prompt: tuple[int, ...]) -> list[int]:
    """Numbers of blocks of a prompt that engines use."""
    found, wanted = pair.both("loading.find", content_hashes=list(prompt))
    assert found == wanted
    return [it.used for it in found]


def test_less_than_a_chunk_is_not_loaded() -> None:
    """vLLM's OffloadingConnector: the chunk is there, and what it would bring is less than a chunk."""
    pair = Pair()
    pair.both("loading.set_offloading", "a", host_chunk=4)
    prompt = tuple(range(1, 13))
    pair.store("a", prompt[:8], 0, "cpu", 0)
    pair.store("a", prompt[:6], 0, "gpu", 0)
    (found,), _ = pair.both("loading.find", content_hashes=list(prompt))
    assert (found.device, found.depth, found.used, found.own_depth, found.own_used) == (6, 8, 6, 8, 6)
    pair.store("a", prompt, 0, "cpu", 0)
    assert used(pair, prompt) == [12], "two chunks bring six blocks"
    pair.both("remove", "a", block_hashes=[name_of(prompt[:n]) for n in (5, 6)])
    assert used(pair, prompt[:8]) == [8], "a chunk whose beginning is where the device ends"


def test_pools_from_which_any_number_of_blocks_is_loaded() -> None:
    """LMCache's and Mooncake's connectors load what there is, however little."""
    prompt = tuple(range(1, 13))
    kinds: list[tuple[dict[str, Any], int]] = [({}, 6), ({"from_beginning": True}, 8), ({"follows_store": True}, 8)]
    for kind, wanted in kinds:
        pair = Pair()
        pair.both("loading.add_pool", "store", members=["a"], chunk=4, **kind)
        pair.store("a", prompt[:6], 0, "gpu", 0)
        pair.store("a", prompt[:8], 0, "external", 0)
        pair.both("loading.hold", "store", block_hashes=[name_of(prompt[:n]) for n in range(1, 9)])
        pair.store("a", prompt[:8], 0, "external", 0)
        assert used(pair, prompt) == [wanted]


def test_chunks_that_only_continue_other_chunks() -> None:
    """LMCache looks up its chunks from the beginning of a prompt on, whatever the device has."""
    for from_beginning, wanted in ((False, 8), (True, 4)):
        pair = Pair()
        pair.both("loading.add_pool", "store", members=["a"], chunk=4, from_beginning=from_beginning)
        prompt = tuple(range(1, 13))
        pair.store("a", prompt[:4], 0, "gpu", 0)
        pair.store("a", prompt[:8], 4, "external", 0)
        assert used(pair, prompt) == [wanted]


def test_the_beginning_of_a_block_is_known_though_the_store_lacks_it() -> None:
    pair = Pair()
    pair.both("loading.add_pool", "store", members=["a", "b"], chunk=3, follows_store=True)
    prompt = (1, 2, 3, 4)
    assert pair.both("loading.hold", "store", block_hashes=[name_of(prompt[:3])]) == (0, 0)
    pair.store("a", prompt, 0, "external", 0)
    assert used(pair, prompt) == [3, 3], "the chunk is looked up by its last block"
    assert pair.both("loading.lose", "store", content_hashes=list(prompt[:1])) == (1, 1), "it continues the first block"
    assert used(pair, prompt) == [0, 0]


@pytest.mark.parametrize("keeps", [True, False, None])
def test_what_a_reset_leaves(keeps: bool | None) -> None:
    pair = Pair()
    pair.both("loading.set_offloading", "a", resets_keep=keeps)
    pair.store("a", (1, 2), 0, "gpu", 0)
    pair.store("a", (1, 2, 3), 0, "cpu", 0)
    pair.both("loading.reset", "a")
    for found in pair.both("loading.find", content_hashes=[1, 2, 3]):
        assert [(it.device, it.depth, it.may_hold_more) for it in found] == [(0, 3 if keeps else 0, keeps is None)]
    pair.both("clear", "a")
    for found in pair.both("loading.find", content_hashes=[1, 2, 3]):
        assert [(it.depth, it.may_hold_more) for it in found] == [(0, False)]


def test_arguments_that_are_refused() -> None:
    loading = BlockIndex(block_size=1).loading
    chunks: list[dict[str, Any]] = [{"host_chunk": 0}, {"disk_chunk": 2**32}]
    for wrong in chunks:
        with pytest.raises(InvalidArgumentError, match="chunk must be from 1 to"):
            loading.set_offloading("a", **wrong)
    with pytest.raises(InvalidTypeError, match="resets_keep must be True or False"):
        loading.set_offloading("a", resets_keep="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="another tier than the device"):
        loading.add_pool("folder", tier="gpu")
    with pytest.raises(InvalidArgumentError, match="lifetime must be more than 0 seconds"):
        loading.add_pool("folder", lifetime=0)
    with pytest.raises(InvalidArgumentError, match="room must be from 1 to"):
        loading.add_pool("folder", room=0)
    with pytest.raises(InvalidArgumentError, match='evicts is "announced" or "used"'):
        loading.add_pool("folder", evicts="lru")
    with pytest.raises(InvalidTypeError, match="follows_store must be True or False"):
        loading.add_pool("folder", follows_store="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="from_beginning must be True or False"):
        loading.add_pool("folder", from_beginning="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="until must be finite"):
        loading.keep("folder", block_hashes=[], until=float("nan"))
    with pytest.raises(InvalidTypeError, match="members must be an iterable of str"):
        loading.add_pool("folder", members="a")
    with pytest.raises(InvalidArgumentError, match="seconds must be finite"):
        loading.set_time(float("inf"))
    assert loading.find(content_hashes=[1]) == []
