"""The index and `kvatlas.reference` from Python, on random streams with few names.

`crates/index/tests` holds the index against a reference of its own, on longer streams; here the two that Python has are
held against each other, by names of every kind and through every method.

Names come from a small pool in which every kind of name occurs, and half of the stores give them by position in a
small tree and half at random. So the streams are full of holes, orphans, copies, replacements, cycles, names shared
by different blocks and blocks with several names, in several ranks and tiers, with clears, drops and restores.
"""

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas import BlockIndex, content_hashes
from kvatlas.events import Clear, Drop, Event, Remove, Store
from kvatlas.reference import ReferenceIndex
from kvatlas.types import Tier

BLOCK_SIZE = 2
WORKERS = ["a", "b", "c", "å"]
RANKS = [0, 1, 2**32 - 1]
TIERS: list[Tier] = ["gpu", "cpu", "disk", "external"]
NAMES: list[int | bytes] = [
    *range(1, 9),
    0,
    2**64 - 1,
    -1,
    2**63,
    -(2**63),
    2**64,
    -(2**64) - 1,
    b"",
    b"\1",
    b"a digest of thirty-two bytes....",
]
CONTENTS = [int(content_hashes([token] * BLOCK_SIZE, BLOCK_SIZE)[0]) for token in range(3)]
QUERIES = [list(query) for query in itertools.product(CONTENTS[:2], repeat=5)] + [
    [CONTENTS[2], CONTENTS[0], CONTENTS[1]],
    [CONTENTS[0], CONTENTS[2], CONTENTS[2]],
    [CONTENTS[0]] * 30,
]


@dataclass(frozen=True)
class Restore:
    """The index is replaced by what its dump makes."""


Step = Event | Restore


@dataclass(frozen=True)
class World:
    """The things that the events of one stream are about: the fewer, the more often they meet."""

    workers: list[str]
    ranks: list[int]
    tiers: list[Tier]
    names: list[int | bytes]


worlds = st.builds(
    World,
    st.lists(st.sampled_from(WORKERS), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(RANKS), min_size=1, max_size=2, unique=True),
    st.lists(st.sampled_from(TIERS), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True),
)


@st.composite
def wild_stores(draw: st.DrawFn, world: World) -> Store:
    """Any names with any contents under any parent."""
    contents = st.sampled_from([*CONTENTS[:2] * 3, CONTENTS[2]])
    names = st.sampled_from(world.names)
    chain = draw(st.lists(st.tuples(names, contents), min_size=1, max_size=5))
    parent = draw(st.none() | names)
    block_hashes, content = zip(*chain, strict=True)
    worker, rank, tier = draw(places(world))
    return Store(worker, block_hashes, content, parent, rank, tier)


@st.composite
def tame_stores(draw: st.DrawFn, world: World) -> Store:
    """A stretch of a path through a binary tree whose nodes have fixed names, another set for some workers."""
    worker, rank, tier = draw(places(world))
    path = draw(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=3))
    start = draw(st.integers(0, len(path) - 1))
    nodes = list(itertools.accumulate(path, lambda node, turn: 2 * node + 1 + turn, initial=0))
    own = 3 if worker == "c" else 0
    block_hashes = [world.names[(node - 1 + own) % len(world.names)] for node in nodes[1:]]
    parent = block_hashes[start - 1] if start else None
    content = [CONTENTS[turn] for turn in path]
    return Store(worker, block_hashes[start:], content[start:], parent, rank, tier)


def places(world: World) -> st.SearchStrategy[tuple[str, int, Tier]]:
    return st.tuples(st.sampled_from(world.workers), st.sampled_from(world.ranks), st.sampled_from(world.tiers))


@st.composite
def streams(draw: st.DrawFn) -> list[Step]:
    world = draw(worlds)
    workers, ranks, tiers = (st.sampled_from(pool) for pool in (world.workers, world.ranks, world.tiers))
    removed = st.lists(st.sampled_from(world.names), min_size=1, max_size=4)
    removes = st.builds(Remove, workers, removed, ranks, tiers)
    stores = [wild_stores(world)] * 3 + [tame_stores(world)] * 4
    rare = [
        st.builds(Clear, workers, st.none() | ranks, st.none() | st.sampled_from(TIERS)),
        st.builds(Drop, workers),
        st.just(Restore()),
    ]
    # The choice of one of the rare ones counts as one.
    steps = st.one_of(*stores, *[removes] * 5, st.one_of(rare))
    return draw(st.lists(steps, min_size=draw(st.sampled_from([0, 8, 20])), max_size=40))


def same_answer(index: BlockIndex, model: ReferenceIndex, query: list[int]) -> None:
    found, wanted = index.find(content_hashes=query), model.find(content_hashes=query)
    assert found.length == found.any_tier.length == wanted.length == len(query)
    for ours, theirs in (
        (found, wanted),
        (found.within("cpu"), wanted.within("cpu")),
        (found.within("disk"), wanted.within("disk")),
        (found.any_tier, wanted.any_tier),
    ):
        assert ours.by_rank() == theirs.by_rank(), query
        assert ours.depth == theirs.depth, query
        assert ours.scores() == theirs.scores(), query
        assert [(depth, set(level)) for depth, level in ours.levels()] == [
            (depth, set(level)) for depth, level in theirs.levels()
        ], query
        for among in (None, ["b", "c", "nobody"]):
            for k in (1, 2, 10):
                same_best(ours.best(k, among), theirs.best(k, among), wanted=theirs.scores(), among=among)


def same_best(
    ours: list[tuple[str, int]], theirs: list[tuple[str, int]], wanted: dict[str, int], among: list[str] | None
) -> None:
    """Check that the best are as deep as the model's, allowed, and each once; equals may come in any order."""
    assert [depth for _, depth in ours] == [depth for _, depth in theirs]
    assert len(dict(ours)) == len(ours)
    assert all(wanted[worker] == depth and (among is None or worker in among) for worker, depth in ours)


def same_contents(index: BlockIndex, model: ReferenceIndex) -> None:
    assert index.workers() == model.workers()
    stats: Mapping[str, Any] = index.stats()
    wanted = model.stats()
    keys = ("workers", "blocks", "unlinked", "copies", "replaced", "unknown_removals")
    assert {key: stats[key] for key in keys} == {key: wanted[key] for key in keys}


def nothing_is_left(index: BlockIndex) -> None:
    """When every worker is cleared, nothing is kept for blocks that are gone."""
    for worker in WORKERS:
        index.clear(worker)
    stats: Mapping[str, Any] = index.stats()
    keys = ("blocks", "positions", "runs", "sets", "unlinked", "copies")
    assert {key: stats[key] for key in keys} == dict.fromkeys(keys, 0)


@dataclass
class IndexPair:
    """An index and the model, fed alike."""

    count_copies: bool
    index: BlockIndex = field(init=False)
    model: ReferenceIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = BlockIndex(BLOCK_SIZE, self.count_copies)
        self.model = ReferenceIndex(BLOCK_SIZE, self.count_copies)

    def step(self, step: Step) -> None:
        match step:
            case Restore():
                self.restore()
            case _:
                self.model.apply([step])
                feed(self.index, step)

    def restore(self) -> None:
        old = self.index.stats(), self.model.stats()
        dump, model_dump = self.index.dump(), self.model.dump()
        self.__post_init__()
        self.index.apply(dump)
        self.model.apply(model_dump)
        assert self.index.stats()["blocks"] == old[0]["blocks"]
        assert self.index.stats()["replaced"] == self.model.stats()["replaced"]


def feed(index: BlockIndex, event: Event) -> None:
    """The event by a method call; a store by its tokens if they are of this test, by arrays if they fit."""
    match event:
        case Store(worker, block_hashes, content, parent, rank, tier) if len(block_hashes) % 2:
            tokens = np.repeat([CONTENTS.index(c) for c in content], BLOCK_SIZE)
            index.store(worker, block_hashes=block_hashes, tokens=tokens, parent=parent, rank=rank, tier=tier)
        case Store(worker, block_hashes, content, parent, rank, tier):
            given = np.array(content, "u8")
            index.store(worker, block_hashes=block_hashes, content_hashes=given, parent=parent, rank=rank, tier=tier)
        case Remove(worker, block_hashes, rank, tier):
            index.remove(worker, block_hashes=block_hashes, rank=rank, tier=tier)
        case Clear(worker, for_rank, for_tier):
            index.clear(worker, rank=for_rank, tier=for_tier)
        case Drop(worker):
            index.drop(worker)


@given(st.booleans(), streams())
@settings(max_examples=settings().max_examples // 2)  # each is hundreds of answers
def test_the_index_is_the_model(count_copies: bool, stream: list[Step]) -> None:
    both = IndexPair(count_copies)
    for step in stream:
        both.step(step)
        for query in QUERIES[::6]:
            assert both.index.find(content_hashes=query).by_rank() == both.model.find(content_hashes=query).by_rank(), (
                query
            )
    for query in QUERIES:
        same_answer(both.index, both.model, query)
    same_contents(both.index, both.model)
    at_once = IndexPair(count_copies)
    at_once.index.apply([step for step in stream if not isinstance(step, Restore)])
    at_once.model.apply([step for step in stream if not isinstance(step, Restore)])
    for query in QUERIES[::5]:
        same_answer(at_once.index, at_once.model, query)
    same_contents(at_once.index, at_once.model)
    nothing_is_left(both.index)


def test_the_model_answers_by_definition() -> None:
    """The model itself, against a third way to say it: every path through the held blocks, one by one."""

    def deepest(blocks: dict[int, tuple[int | None, int]], parent: int | None, query: list[int]) -> int:
        if not query:
            return 0
        following: Callable[[int], int] = lambda name: 1 + deepest(blocks, name, query[1:])  # noqa: E731
        return max((following(n) for n, (p, c) in blocks.items() if (p, c) == (parent, query[0])), default=0)

    choose = random.Random(0)
    for _ in range(200):
        model, blocks = ReferenceIndex(), {}
        for name in range(choose.randrange(12)):
            parent = choose.choice([None, *range(12)])
            content = choose.randrange(2)
            model.store("w", block_hashes=[name], content_hashes=[content], parent=parent)
            blocks[name] = (parent, content)
        for query in itertools.product(range(2), repeat=6):
            assert model.find(content_hashes=query).depth == deepest(blocks, None, list(query))
