"""Tests that an engine holds, by its own words, what its stream says, at every quiet point."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from kvatlas.sim.server import EngineServer, Faults, ServerConfig

from .conftest import FAST, Reader, number, replay

KINDS = {
    "vllm": ServerConfig(),
    "vllm bytes": ServerConfig(hash_bytes=True),
    "vllm arrays": ServerConfig(arrays=True),
    "vllm own names": ServerConfig(hash_seed="7"),
    "sglang": ServerConfig(dialect="sglang"),
    "sglang arrays": ServerConfig(dialect="sglang", arrays=True),
    "sglang own names": ServerConfig(dialect="sglang", hash_seed="7"),
    "poisoned": ServerConfig(faults=Faults(poison_event=0.3, poison_type=0.3, poison_payload=0.3)),
    "poisoned arrays": ServerConfig(arrays=True, faults=Faults(poison_event=0.3, poison_type=0.3, poison_payload=0.3)),
}
LORAS = (None, None, "a", "b")
SALTS = (None, None, "x", "y")


class Workload:
    """Prompts over a few shared beginnings, under adapters and salts, some a whole number of blocks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.systems = [[self.random.randrange(500) for _ in range(n)] for n in (8, 21, 40)]
        self.sent: list[tuple[list[int], str | None, str | None]] = []

    def next(self) -> tuple[list[int], str | None, str | None]:
        if self.sent and self.random.random() < 0.4:
            tokens, lora, salt = self.random.choice(self.sent)
            cut = self.random.randrange(1, len(tokens) + 1)
            tokens = tokens[: max(cut // 4 * 4, 1)] if self.random.random() < 0.6 else tokens
        else:
            system = self.random.choice(self.systems)
            tokens = [*system, *(self.random.randrange(500) for _ in range(self.random.randrange(1, 30)))]
            lora, salt = self.random.choice(LORAS), self.random.choice(SALTS)
        self.sent.append((tokens, lora, salt))
        return tokens, lora, salt

    def probes(self) -> list[tuple[list[int], str | None, str | None]]:
        old = self.random.sample(self.sent, min(20, len(self.sent)))
        others = [(tokens, self.random.choice(LORAS), self.random.choice(SALTS)) for tokens, *_ in old]
        return [*old, *others, ([1, 2, 3], None, None), ([], None, None)]


async def settled(engine: EngineServer) -> None:
    async with asyncio.timeout(120):
        while not all(state.quiet for state in engine.state()):
            await asyncio.sleep(0.005)


def poisoned(engine: EngineServer, rank: int) -> int:
    counts = engine.state()[rank].counts
    return sum(counts.get(f"poison_{kind}", 0) for kind in ("events", "types", "payloads"))


async def check(engine: EngineServer, workload: Workload, poison_before: Sequence[int] = (0, 0)) -> int:
    """Hold the engine against a replay of its own stream; returns how many blocks its probes found."""
    found = 0
    for state in engine.state():
        reader = Reader(FAST.block_size)
        batches = await asyncio.to_thread(replay, engine.replay_endpoint(state.rank))
        assert [number(frames) for frames in batches] == list(range(len(batches)))
        assert (state.seq if state.seq is not None else -1) + 1 == len(batches)
        for frames in batches:
            reader.apply(frames[-1])
        assert reader.bad == poisoned(engine, state.rank) - poison_before[state.rank]
        stats = reader.index.stats()
        assert (stats["blocks"], stats["copies"]) == (state.held, state.copies - state.held)
        assert stats["unknown_removals"] == 0
        for tokens, lora, salt in workload.probes():
            truth = engine.match(tokens, lora=lora, salt=salt, rank=state.rank)
            depth = reader.index.find(tokens=tokens, lora=lora, salt=salt).by_rank().get(("w", state.rank), 0)
            assert (truth.held, truth.seq, truth.quiet) == (depth, state.seq, True)
            assert truth.usable == min(depth, max(len(tokens) - 1, 0) // FAST.block_size)
            found += depth
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_is_what_the_stream_says(kind: str) -> None:
    tight = replace(FAST, blocks=40, decode_rate=500.0)  # so that requests meet, and preempt each other
    settings = replace(KINDS[kind], engine=tight, ranks=2, step=0.001)

    async def run() -> None:
        workload = Workload(seed=len(kind))
        found = preempted = 0
        async with EngineServer(settings) as engine:
            poison = [0, 0]
            for turn in range(6):
                requests = [workload.next() for _ in range(25)]
                await asyncio.gather(
                    *(
                        engine.complete(t, 1 + i % 40, lora=lora, salt=salt)
                        for i, (t, lora, salt) in enumerate(requests)
                    )
                )
                await settled(engine)
                found += await check(engine, workload, poison)
                if turn == 2:
                    assert engine.reset()
                    found += await check(engine, workload, poison)
                preempted += sum(rank.core.counters.preemptions for rank in engine.ranks)
                if turn == 3:
                    await engine.begin_restart()
                    poison = [poisoned(engine, rank) for rank in range(2)]
        assert found > 100
        assert preempted > 0

    asyncio.run(run())


def test_a_hit_is_what_the_truth_promised() -> None:
    async def run() -> None:
        workload = Workload(seed=1)
        async with EngineServer(ServerConfig(engine=FAST, step=0.001)) as engine:
            hits = 0
            for _ in range(80):
                tokens, lora, salt = workload.next()
                truth = engine.match(tokens, lora=lora, salt=salt)
                request = await engine.complete(tokens, 3, lora=lora, salt=salt)
                assert request.hit_tokens == truth.usable * FAST.block_size
                hits += truth.usable
            assert hits > 50

    asyncio.run(run())


def test_vllm_announces_second_copies_and_sglang_does_not() -> None:
    async def copies(settings: ServerConfig) -> int:
        async with EngineServer(settings) as engine:
            for _ in range(3):
                await engine.complete(list(range(8)), 1)
            [state] = engine.state()
            assert state.held == 2
            return state.copies

    assert asyncio.run(copies(ServerConfig(engine=FAST))) == 4
    assert asyncio.run(copies(ServerConfig(engine=FAST, dialect="sglang"))) == 2


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_nothing_is_announced_before_it_is_computed(dialect: Literal["vllm", "sglang"]) -> None:
    async def run() -> None:
        slow = replace(FAST, prefill_rate=100.0, chunk=40)
        async with EngineServer(ServerConfig(engine=slow, step=0.001, dialect=dialect)) as engine:
            _, request = engine.submit(list(range(80)), 1)
            before = 0  # readings before the first chunk was computed
            while not request.over:
                reader = Reader(FAST.block_size)
                for frames in await asyncio.to_thread(replay, engine.replay_endpoint(0)):
                    reader.apply(frames[-1])
                depth = reader.index.find(tokens=list(range(80))).depth
                assert depth * FAST.block_size <= request.computed
                before += not request.computed
            assert before
            await settled(engine)
            assert engine.match(list(range(80))).held == 20

    asyncio.run(run())


def test_copies_that_meet_within_a_step_are_announced_once_by_sglang() -> None:
    # Two requests of one beginning, whose last blocks become copies of each other while a third is computed.
    async def run() -> None:
        slow = replace(FAST, prefill_rate=2_000.0)
        async with EngineServer(ServerConfig(engine=slow, dialect="sglang", step=0.001)) as engine:
            await asyncio.gather(
                *(engine.complete([1, 2, 3, 4] * 5, 20) for _ in range(4)), engine.complete(list(range(200)), 1)
            )
            await settled(engine)
            await check(engine, workload_of([1, 2, 3, 4] * 5))

    asyncio.run(run())


def workload_of(*prompts: list[int]) -> Workload:
    """A workload that has sent some prompts."""
    made = Workload(seed=4)
    made.sent = [(prompt, None, None) for prompt in prompts]
    return made


def test_a_salt_is_seen_at_the_first_block_only_in_vllm() -> None:
    # The same tokens under another salt: nothing of theirs is found, though every later block looks alike on the wire.
    async def run() -> None:
        async with EngineServer(ServerConfig(engine=FAST)) as engine:
            await engine.complete(list(range(20)), 1, salt="x")
            assert engine.match(list(range(20)), salt="x").held == 5
            assert engine.match(list(range(20)), salt="y").held == 0
            assert engine.match(list(range(20))).held == 0

    asyncio.run(run())


def test_a_reset_is_refused_while_a_request_runs() -> None:
    async def run() -> None:
        slow = replace(FAST, decode_rate=1.0)
        async with EngineServer(ServerConfig(engine=slow)) as engine:
            rank, request = engine.submit(list(range(20)), 20)
            assert not engine.reset()
            rank.abort(request)
            await settled(engine)
            assert engine.reset()
            assert engine.match(list(range(20))).held == 0

    asyncio.run(run())


def test_a_reset_may_wait_for_the_next_events() -> None:
    async def run() -> None:
        async with EngineServer(ServerConfig(engine=FAST)) as engine:
            await engine.complete(list(range(20)), 1)
            await settled(engine)
            [before] = engine.state()
            assert engine.reset(with_next=True)
            [waiting] = engine.state()
            assert (waiting.seq, waiting.held, waiting.quiet) == (before.seq, 0, False)
            await engine.complete(list(range(50, 60)), 1)
            await settled(engine)
            workload = Workload(seed=2)
            workload.sent.append((list(range(20)), None, None))
            await check(engine, workload)

    asyncio.run(run())


def test_an_aborted_request_gives_its_blocks_back() -> None:
    async def run() -> None:
        slow = replace(FAST, decode_rate=1.0, prefill_rate=100.0)
        async with EngineServer(ServerConfig(engine=slow)) as engine:
            requests = [engine.submit([i] * 100, 50) for i in range(4)]  # one prefills, the others wait
            for rank, request in requests:
                rank.abort(request)
            [rank] = engine.ranks
            assert rank.load == 0
            assert rank.last_seq is None  # the step that computes the first prompt goes on
            await settled(engine)
            assert rank.core.pool.free == rank.core.pool.size
            assert rank.last_seq == 0
            await check(engine, Workload(seed=3))

    asyncio.run(run())


def test_sockets_must_be_open() -> None:
    async def run() -> None:
        engine = EngineServer(ServerConfig(engine=FAST))
        with pytest.raises(RuntimeError, match="not started"):
            _ = engine.ranks[0].sockets
        await engine.close()

    asyncio.run(run())
