"""Every rung against the model, on random streams of what it promises to get right, and what it says it gets wrong."""

import doctest
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support import stable

import kvatlas.lab.designs
from kvatlas.events import Clear, Drop, Event, Remove, Store
from kvatlas.lab.designs import RUNGS, Deviation, NestedDict, Rung, open_rung
from kvatlas.reference import ReferenceIndex

WORKERS = ["a", "b", "c", "å"]
SMALL: dict[str, Any] = {"event_threads": 2, "jump_size": 3, "group_size": 2}

EXACT = [name for name, rung in RUNGS.items() if rung.strict_deviations == ()]
"""The rungs that get everything right if strict."""


def apply(index: Rung | NestedDict | ReferenceIndex, event: Event) -> None:
    match event:
        case Store(worker, names, contents, parent):
            index.store(worker, block_hashes=names, content_hashes=contents, parent=parent)
        case Remove(worker, names):
            index.remove(worker, block_hashes=names)
        case Clear(worker):
            index.clear(worker)
        case Drop(worker):
            index.drop(worker)


def well_behaved(seed: int) -> Iterator[tuple[Event, list[list[int]]]]:
    """Events of workers whose blocks are closed under prefixes, each content at one place only and names their own."""
    rng = random.Random(seed)
    held: dict[str, dict[tuple[int, ...], int]] = {worker: {} for worker in WORKERS}

    def name(worker: str, path: tuple[int, ...]) -> int:
        return stable.number(worker, path)

    def content(path: tuple[int, ...]) -> int:
        return stable.number("content", path, bits=64)

    for _ in range(60):
        worker = rng.choice(WORKERS)
        path = tuple(rng.choices([0, 1], k=rng.randint(1, 9)))
        mine = held[worker]
        event: Event
        if rng.random() < 0.6:
            known = max((depth for depth in range(1, len(path) + 1) if path[:depth] in mine), default=0)
            new = [path[:depth] for depth in range(known + 1, len(path) + 1)]
            if not new:
                continue
            mine.update(dict.fromkeys(new, 1))
            names, contents = [name(worker, p) for p in new], [content(p) for p in new]
            event = Store(worker, names, contents, name(worker, path[:known]) if known else None)
        elif rng.random() < 0.9:
            gone = [p for p in mine if p[: len(path)] == path]
            for p in gone:
                del mine[p]
            event = Remove(worker, [name(worker, p) for p in sorted(gone, key=len, reverse=True)])
        elif mine:
            mine.clear()
            event = Clear(worker) if rng.random() < 0.5 else Drop(worker)
        else:
            continue
        paths = [tuple(rng.choices([0, 1], k=10)) for _ in range(4)]
        yield event, [[content(p[:depth]) for depth in range(1, len(p) + 1)] for p in [*paths, (*path, 1)]]


def anything(seed: int) -> Iterator[tuple[Event, list[list[int]]]]:
    """Few names, few contents, any parent: holes, orphans, copies, replaced names, cycles, aliases."""
    rng = random.Random(seed)
    names: list[int | bytes] = [1, 2, 3, 4, 5, -1, 2**64 - 1, b"six", 2**70]
    for _ in range(60):
        worker = rng.choice(WORKERS)
        some = rng.choices(names, k=rng.randint(1, 4))
        kind = rng.random()
        event: Event
        if kind < 0.55:
            parent = rng.choice([None, *names])
            event = Store(worker, some, rng.choices([1, 2], k=len(some)), parent)
        elif kind < 0.95:
            event = Remove(worker, some)
        else:
            event = Clear(worker) if rng.random() < 0.5 else Drop(worker)
        yield event, [rng.choices([1, 2], k=6) for _ in range(4)]


def compare(index: Rung | NestedDict, stream: Iterator[tuple[Event, list[list[int]]]]) -> None:
    model = ReferenceIndex(count_copies=False)
    for event, queries in stream:
        apply(index, event)
        apply(model, event)
        index.flush()
        for query in queries:
            found, wanted = index.find(content_hashes=query), model.find(content_hashes=query)
            assert found.scores() == wanted.scores(), (event, query)
            assert found.depth == wanted.depth
            assert [(depth, set(level)) for depth, level in found.levels()] == [
                (depth, set(level)) for depth, level in wanted.levels()
            ]
            for among in (None, ["b", "c", "nobody"]):
                for k in (0, 1, 10):
                    best = found.best(k, among)
                    assert [depth for _, depth in best] == [depth for _, depth in wanted.best(k, among)]
                    assert set(best) <= set(wanted.scores().items())
    assert index.workers() == {worker: blocks for worker, blocks in model.workers().items() if blocks}
    stats, wanted_stats = index.stats(), model.stats()
    assert [stats[key] for key in ("workers", "blocks", "unknown_removals")] == [
        wanted_stats[key] for key in ("workers", "blocks", "unknown_removals")
    ]
    assert stats["refused"] == 0


@pytest.mark.parametrize("name", RUNGS)
def test_gets_well_behaved_streams_right(name: str) -> None:
    for seed in range(6):
        compare(open_rung(name, **SMALL), well_behaved(seed))


@pytest.mark.parametrize("name", EXACT)
def test_gets_everything_right_if_strict(name: str) -> None:
    for seed in range(8):
        compare(open_rung(name, strict=True, **SMALL), anything(seed))


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        pytest.param(name, deviation, id=f"{name}-{deviation.name}")
        for name, rung in RUNGS.items()
        for deviation in rung.deviations
    ],
)
def test_deviates_as_the_registry_says(name: str, deviation: Deviation) -> None:
    model = ReferenceIndex(count_copies=False)
    for event in deviation.events:
        apply(model, event)
    assert model.find(content_hashes=deviation.query).depth == deviation.truth
    strict = RUNGS[name].strict_deviations
    cases = [(name, deviation.answer)]
    if strict is not None:
        cases.append((f"{name}-strict", deviation.answer if deviation in strict else deviation.truth))
    for which, answer in cases:
        index = open_rung(which)
        for event in deviation.events:
            apply(index, event)
        index.flush()
        assert index.find(content_hashes=deviation.query).depth == answer, which


def test_the_example_of_the_package_holds() -> None:
    assert doctest.testmod(kvatlas.lab.designs) == doctest.TestResults(failed=0, attempted=9)


def test_registry_is_complete() -> None:
    assert next(iter(RUNGS)) == "dict-python"
    assert [rung.step for rung in RUNGS.values()] == sorted(rung.step for rung in RUNGS.values())
    assert {rung.step for rung in RUNGS.values()} == {1, 2, 3, 4, 5, 6, 7}
    for name, rung in RUNGS.items():
        assert rung.name == name
        assert rung.what
        assert rung.promise
        assert ("strict" in rung.options) == bool(rung.deviations and rung.strict_deviations is not None)
        index = open_rung(name)
        assert (index.name, index.strict, index.block_size) == (name, False, 16)
        if rung.strict_deviations is not None:
            assert open_rung(f"{name}-strict").strict


@pytest.mark.parametrize("name", RUNGS)
def test_takes_tokens_and_arrays(name: str) -> None:
    index = open_rung(name, block_size=2)
    tokens = np.arange(6, dtype=np.uint32)
    index.store("w", block_hashes=np.array([7, 8], "i8"), tokens=tokens[:4], lora="a")
    index.store("w", block_hashes=[9], tokens=tokens[4:], parent=8, lora="a")
    index.flush()
    assert index.applied == 2
    assert index.find(tokens=tokens, lora="a").scores() == {"w": 3}
    assert index.find(tokens=tokens[:5].tolist(), lora="a").levels() == [(2, ["w"])]
    assert index.find(tokens=tokens).depth == 0
    assert index.find(content_hashes=np.array([], "u8")).scores() == {}
    assert "w" in index.workers()
    if name == "dict-python":
        assert repr(index) == "NestedDict(strict=False, workers=1, blocks=3)"
    else:
        assert repr(index) == f"Rung('{name}', strict=False, block_size=2, applied=2)"
    found = index.find(tokens=tokens, lora="a")
    if not isinstance(index, NestedDict):
        assert repr(found) == "RungMatch(depth=3, length=3, workers=1)"


@pytest.mark.parametrize("name", [name for name in RUNGS if name != "dict-python"])
def test_takes_changes_from_many_threads(name: str) -> None:
    index = open_rung(name, event_threads=3)

    def feed(worker: str) -> None:
        for block in range(200):
            index.store(worker, block_hashes=[block], content_hashes=[block], parent=block - 1 if block else None)
            index.find(content_hashes=[0, 1, 2])

    threads = [threading.Thread(target=feed, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index.flush()
    assert index.applied == 800
    assert index.find(content_hashes=list(range(300))).scores() == {f"w{number}": 200 for number in range(4)}
