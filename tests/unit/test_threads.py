"""Readers and writers at once: every depth lies between the smallest and the largest true depth during the call."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from tests.support.threads import run, times

from kvatlas import BlockIndex
from kvatlas.events import Store

pytestmark = pytest.mark.usefixtures("frequent_switches")

LENGTH = 6000
QUERY = np.arange(1, LENGTH + 1, dtype=np.uint64)


class Chain:
    """One worker's chain, which grows to its full length and shrinks again, over and over.

    While it grows, `least` follows and `most` leads the true depth; while it shrinks the other way round. `turns`
    counts the changes between growing and shrinking.
    """

    def __init__(self, index: BlockIndex, worker: str, step: int) -> None:
        self.index, self.worker, self.step = index, worker, step
        self.least = self.most = self.turns = 0

    def grow(self) -> None:
        self.turns += 1
        for start in range(0, LENGTH, self.step):
            part = QUERY[start : start + self.step]
            self.most = start + len(part)
            parent = int(QUERY[start - 1]) if start else None
            self.index.store(self.worker, block_hashes=part, content_hashes=part, parent=parent)
            self.least = start + len(part)

    def shrink(self) -> None:
        self.turns += 1
        for start in reversed(range(0, LENGTH, self.step)):
            self.least = start
            self.index.remove(self.worker, block_hashes=QUERY[start : start + self.step][::-1].copy())
            self.most = start

    def shrink_by_a_hole(self) -> None:
        """The first block goes, and with it at once the whole depth."""
        self.turns += 1
        self.least = 0
        self.index.remove(self.worker, block_hashes=QUERY[:1])
        self.most = 0
        self.turns += 1
        self.index.clear(self.worker)

    def bounds(self) -> tuple[int, int, int]:
        return self.turns, self.least, self.most


@pytest.mark.parametrize("step", [1, 7, 300])
@pytest.mark.parametrize("length", [50, LENGTH], ids=["short queries", "long queries"])
def test_depths_lie_between_the_true_ones(step: int, length: int) -> None:
    index = BlockIndex()
    index.store("still", block_hashes=QUERY[:40], content_hashes=QUERY[:40])
    chains = [Chain(index, "one", step), Chain(index, "two", step)]
    query = QUERY[:length].copy()
    judged = 0

    def write() -> None:
        for chain in chains:
            chain.grow()
        chains[0].shrink()
        chains[1].shrink_by_a_hole()

    def read() -> None:
        nonlocal judged
        before = [chain.bounds() for chain in chains]
        scores = index.find(content_hashes=query).scores()
        after = [chain.bounds() for chain in chains]
        assert scores.pop("still") == 40
        for chain, (turns, least, most), (turns_after, least_after, most_after) in zip(
            chains, before, after, strict=True
        ):
            depth = scores.pop(chain.worker, 0)
            if turns == turns_after:
                judged += 1
                assert min(least, least_after, length) <= depth <= max(most, most_after)
        assert scores == {}

    turns = times(100) if step > 1 else times(4)  # each of which has as many events as hundreds of the others
    run(lambda: judged > times(1_000) and chains[0].turns > turns, write, read, read)


def test_answers_outlive_what_they_speak_of() -> None:
    index = BlockIndex()
    query = QUERY[:64].copy()
    number = looked = 0

    def write() -> None:
        nonlocal number
        number += 1
        for worker in range(20):
            index.store(f"{number}-{worker}", block_hashes=query[: worker + 1], content_hashes=query[: worker + 1])
        for worker in range(20):
            index.drop(f"{number}-{worker}")

    def read() -> None:
        nonlocal looked
        matches = [index.find(content_hashes=query) for _ in range(20)]
        for match in matches:
            for depth, workers in match.levels():
                assert {int(worker.split("-")[1]) + 1 for worker in workers} == {depth}
            assert match.depth == max(match.scores().values(), default=0)
            assert {worker for worker, _ in match.any_tier.by_rank()} == match.scores().keys()
        looked += 1

    run(lambda: number > times(1_000) and looked > times(1_000), write, read, read)
    assert index.workers() == {}


def test_several_writers_are_each_complete() -> None:
    index = BlockIndex()
    rounds = dict.fromkeys("abc", 0)
    looks = 0

    def churn(worker: str) -> Callable[[], None]:
        chain = Chain(index, worker, 500)

        def once() -> None:
            chain.grow()
            assert index.find(content_hashes=QUERY).scores()[worker] == LENGTH
            chain.shrink()
            assert worker not in index.find(content_hashes=QUERY).scores()
            rounds[worker] += 1

        return once

    def look() -> None:
        nonlocal looks
        assert index.stats()["blocks"] <= 3 * LENGTH
        copied = BlockIndex()
        copied.apply(index.dump())
        assert copied.find(content_hashes=QUERY).scores().keys() <= {"a", "b", "c"}
        looks += 1

    run(lambda: min(rounds.values()) > times(300) and looks > times(100), churn("a"), churn("b"), churn("c"), look)
    assert index.stats()["blocks"] == 0


def test_long_calls_leave_other_threads_room() -> None:
    """Python code in other threads goes on while the index is busy with one long call."""
    index = BlockIndex()
    contents = np.arange(1 << 18, dtype=np.uint64)
    events = [Store(f"w{i}", contents.tolist(), contents.tolist()) for i in range(2)]
    turns = 0
    applying = threading.Thread(
        target=index.store, args=("w",), kwargs={"block_hashes": contents, "content_hashes": contents}
    )
    applying.start()
    while applying.is_alive():
        turns += 1
    applying.join()
    assert turns > 100
    index.apply(events)
    assert index.find(content_hashes=contents).scores() == dict.fromkeys(["w", "w0", "w1"], 1 << 18)
