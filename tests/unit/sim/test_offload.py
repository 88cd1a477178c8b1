"""Tiers behind a simulated engine's cache: every rule of `kvatlas.sim.offload`."""

from collections import Counter
from collections.abc import Callable

import pytest

from kvatlas import BlockIndex
from kvatlas.errors import ConfigError
from kvatlas.events import Clear, Remove, Store
from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.sim import Engine, EngineConfig, FleetConfig, Recorder, Request, Trace, TraceRequest, make_request
from kvatlas.sim.chunks import ChunkStore
from kvatlas.sim.hardware import StepTime
from kvatlas.sim.offload import HANDSHAKE, REFUSED, SILENT, Offload
from kvatlas.sim.scheduler import Scheduler
from kvatlas.sim.stepped import SteppedEngine
from kvatlas.sim.tiers import SharedPool, TierConfig
from kvatlas.sim.transfers import Transfer

SIZE = 16
STEPS = StepTime(base=1.0, prefill=0.0, running=0.0, context=0.0)
HOST, POOL, PULL = Transfer(0.25, 1 / 256), Transfer(0.5, 1 / 128), Transfer(0.125, 1 / 64)


def tiers(host: int = 64, chunk: int = 1, **how: bool) -> TierConfig:
    """Host memory of a number of blocks."""
    return TierConfig(host_tokens=host * SIZE, chunk=chunk, host=HOST, pool=POOL, pull=PULL, **how)


class Bench:
    """Engines with tiers, and their announcements."""

    def __init__(
        self,
        config: TierConfig,
        *,
        engines: int = 1,
        blocks: int = 8,
        pool: SharedPool | None = None,
        make: Callable[..., Scheduler] | None = None,
    ) -> None:
        self.sink = Recorder()
        self.engines = []
        for n in range(engines):
            offload = Offload(f"w{n}", SIZE, config, self.sink, pool)
            settings = EngineConfig(SIZE, blocks, chunk=None)
            if make is not None:
                self.engines.append(make(f"w{n}", settings, self.sink, offload=offload))
            else:
                self.engines.append(SteppedEngine(f"w{n}", settings, STEPS, self.sink, offload=offload))
        self.asked = 0

    def request(self, ids: tuple[int, ...], tokens: int | None = None, output: int = 1) -> Request:
        self.asked += 1
        count = SIZE * len(ids) if tokens is None else tokens
        return make_request(TraceRequest(0, count, output, ids), self.asked, SIZE, SIZE)

    def ask(self, ids: tuple[int, ...], at: float = 0.0, engine: int = 0, source: int | None = None) -> Request:
        """Compute a prompt to the end, alone."""
        request = self.request(ids)
        if source is not None:
            request.pull = self.engines[source].offload
        assert self.engines[engine].submit(request, at)  # type: ignore[attr-defined]
        self.engines[engine].drain()
        assert request.first_token is not None
        return request

    def took(self, request: Request) -> float:
        """Seconds to the first token, without the one step that a prompt takes."""
        assert request.first_token is not None
        return request.first_token - request.arrival - 1.0

    def offload(self, engine: int = 0) -> Offload:
        found = self.engines[engine].offload
        assert found is not None
        return found


A, B = (1, 2, 3, 4, 5, 6), (11, 12, 13, 14, 15, 16, 17, 18)


@pytest.mark.parametrize("make", [None, Engine])
def test_what_was_evicted_is_loaded(make: Callable[..., Scheduler] | None) -> None:
    bench = Bench(tiers(), make=make)
    bench.ask(A)
    bench.ask(B, 100)
    again = bench.ask(A, 200)
    # The last token is always computed: five of six blocks are loaded, and take as long as the tier says.
    assert again.hit_tokens == 5 * SIZE
    assert again.sources == Counter(host=5 * SIZE)
    assert again.loading == pytest.approx(HOST.of(5 * SIZE))
    assert bench.offload().counters.tokens == Counter(host=5 * SIZE)
    if make is None:
        assert bench.took(again) == pytest.approx(HOST.of(5 * SIZE))


def test_computed_blocks_are_copied_in_whole_chunks_and_announced_after_the_device() -> None:
    bench = Bench(tiers(chunk=4))
    bench.ask(A)
    device, host = bench.sink.events
    assert isinstance(device, Store)
    assert isinstance(host, Store)
    assert (device.tier, len(device.block_hashes)) == ("gpu", 6)
    assert (host.tier, host.block_hashes, host.content_hashes) == (
        "cpu",
        device.block_hashes[:4],
        device.content_hashes[:4],
    )


def test_generated_blocks_are_copied_only_if_that_is_asked_for() -> None:
    for prompt_only, copied in ((True, 2), (False, 4)):
        bench = Bench(tiers(prompt_only=prompt_only))
        request = bench.request((1, 2), output=SIZE * 2 + 1)
        bench.engines[0].submit(request, 0.0)  # type: ignore[attr-defined]
        bench.engines[0].drain()
        host = [e for e in bench.sink.events if isinstance(e, Store) and e.tier == "cpu"]
        assert sum(len(e.block_hashes) for e in host) == copied


def test_a_prompt_goes_on_from_the_chunk_with_the_end_of_the_cached_part() -> None:
    """Chunks before that one need not be in host memory; less than a chunk is not loaded."""
    bench = Bench(tiers(chunk=4), blocks=12)
    bench.ask(tuple(range(1, 9)))
    names = bench.request(tuple(range(1, 9))).block_hashes
    offload = bench.offload()
    assert offload.host is not None
    offload.host.discard(names[3])
    assert offload.outlook(names, 4)[0] == 8
    assert offload.outlook(names, 6)[0] == 6
    assert offload.outlook(names, 3)[0] == 3
    assert offload.outlook(names[:7], 5)[0] == 5


def test_host_memory_comes_before_the_pool_and_that_before_the_peer() -> None:
    chunks = ChunkStore()
    pool = SharedPool(POOL, chunks=chunks)
    bench = Bench(tiers(), engines=2, blocks=8, pool=pool)
    bench.ask((1, 2, 3, 4, 5, 6, 7, 8), engine=1)
    names = bench.request((1, 2, 3, 4, 5, 6, 7, 8)).block_hashes
    own, peer = bench.offload(0).host, bench.offload(1).host
    assert own is not None
    assert peer is not None
    own.add((names[1],))
    chunks.discard(names[4])
    chunks.discard(names[5])
    found = bench.ask((1, 2, 3, 4, 5, 6, 7, 8), engine=0, source=1)
    # The eighth has the last token.
    assert found.sources == Counter(host=SIZE, disk=4 * SIZE, p2p=2 * SIZE)
    assert found.hit_tokens == 7 * SIZE
    assert bench.took(found) == pytest.approx(PULL.of(2 * SIZE) + POOL.of(4 * SIZE) + HOST.of(SIZE))


def test_what_is_pulled_comes_to_host_memory_first_and_is_announced_there_first() -> None:
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    del bench.sink.events[:]
    pulled = bench.ask(A, engine=1, source=0)
    assert pulled.sources == Counter(p2p=5 * SIZE)
    told = [(e.tier, len(e.block_hashes)) for e in bench.sink.events if isinstance(e, Store)]
    assert told == [("cpu", 5), ("gpu", 5), ("gpu", 1), ("cpu", 1)]
    assert all(e.worker == "w1" for e in bench.sink.events if isinstance(e, Store | Remove))
    # The next time, it is host memory that has them.
    bench.ask(B, 100, engine=1)
    assert bench.ask(A, 200, engine=1).sources == Counter(host=5 * SIZE)


def test_without_a_slot_what_is_elsewhere_counts_as_not_found() -> None:
    bench = Bench(tiers(host=2), engines=2)
    source = bench.offload(0).host
    assert source is not None
    for name in bench.request(A).block_hashes:
        source.slots = None
        source.add((name,))
    pulled = bench.ask(A, engine=1, source=0)
    assert pulled.sources == Counter(p2p=2 * SIZE)
    assert bench.offload(1).counters.dropped > 0


def test_a_pull_takes_host_memory_only() -> None:
    """Blocks on the source's device count for nothing, and the tail is computed."""
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    source = bench.offload(0).host
    assert source is not None
    names = bench.request(A).block_hashes
    source.discard(names[3])
    assert bench.engines[0].depth(names) == 6
    assert bench.ask(A, engine=1, source=0).hit_tokens == 3 * SIZE


def test_a_pull_brings_what_the_longer_of_both_has() -> None:
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    bench.ask(A[:2], engine=1)
    pulled = bench.ask(A, 10, engine=1, source=0)
    assert pulled.sources == Counter(p2p=3 * SIZE)
    assert pulled.hit_tokens == 5 * SIZE


def test_what_a_source_no_longer_has_is_counted() -> None:
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    source = bench.offload(0).host
    assert source is not None
    source.discard(bench.request(A).block_hashes[3])
    request = bench.request(A)
    request.pull, request.pull_blocks = bench.offload(0), 6
    bench.engines[1].submit(request, 0.0)  # type: ignore[attr-defined]
    bench.engines[1].drain()
    assert bench.offload(1).counters.short == 2 * SIZE


def test_a_request_that_needs_what_another_one_is_loading_waits_for_that() -> None:
    bench = Bench(tiers(), engines=2, blocks=32)
    bench.ask(A, engine=0)
    engine = bench.engines[1]
    requests = [bench.request((*A, last)) for last in (7, 8)]
    for request in requests:
        request.pull = bench.offload(0)
        engine.submit(request, 100.0)  # type: ignore[attr-defined]
    engine.drain()
    assert [request.sources for request in requests] == [Counter(p2p=6 * SIZE), Counter()]
    assert [request.hit_tokens for request in requests] == [6 * SIZE, 6 * SIZE]
    assert bench.offload(1).counters.pulls == 1


def test_a_request_that_loads_holds_up_no_step() -> None:
    bench = Bench(tiers(), engines=2, blocks=32)
    bench.ask(A, engine=0)
    engine = bench.engines[1]
    pulled, other = bench.request(A), bench.request(B)
    pulled.pull = bench.offload(0)
    for request in (pulled, other):
        engine.submit(request, 100.0)  # type: ignore[attr-defined]
    engine.drain()
    assert bench.took(other) == pytest.approx(0.0)
    # Its load is done within the second step of that, and it begins with the third.
    assert PULL.of(5 * SIZE) == 1.375
    assert pulled.first_token == 102.375


def test_pulls_from_one_source_follow_each_other() -> None:
    bench = Bench(tiers(), engines=3)
    bench.ask(A, engine=0)
    took = []
    for engine in (1, 2):
        request = bench.request(A)
        request.pull = bench.offload(0)
        bench.engines[engine].submit(request, 100.0)  # type: ignore[attr-defined]
        took.append(request)
    for engine in (1, 2):
        bench.engines[engine].drain()
    assert bench.took(took[0]) == pytest.approx(PULL.of(5 * SIZE))
    assert bench.took(took[1]) == pytest.approx(PULL.of(5 * SIZE) + PULL.per_token * 5 * SIZE)


def test_first_contact_of_a_pair_takes_longer() -> None:
    slow = TierConfig(host_tokens=64 * SIZE, host=HOST, pull=Transfer(0.125, 1 / 64, connect=2.0))
    bench = Bench(slow, engines=2, blocks=12)
    bench.ask((1, 2, 3), engine=0)
    bench.ask((4, 5, 6), 10, engine=0)
    assert bench.took(bench.ask((1, 2, 3), 100, engine=1, source=0)) == pytest.approx(2.0 + PULL.of(2 * SIZE))
    assert bench.took(bench.ask((4, 5, 6), 200, engine=1, source=0)) == pytest.approx(PULL.of(2 * SIZE))


def test_a_source_that_refuses_costs_little_and_one_that_does_not_answer_much() -> None:
    bench = Bench(tiers(), engines=3, blocks=32)
    bench.ask(A, engine=0)
    bench.ask((*A, 7), 10, engine=0)
    source = bench.offload(0)
    source.refuses = True
    refused = bench.ask(A, 100, engine=1, source=0)
    assert bench.took(refused) == pytest.approx(REFUSED)
    assert refused.hit_tokens == 0
    source.refuses = False
    # They speak, then the source freezes.
    other = (21, 22, 23)
    bench.ask(other, 150, engine=0)
    assert bench.ask(other, 200, engine=1, source=0).hit_tokens == 2 * SIZE
    source.frozen_until = 1_000.0
    silent = bench.ask((31, 32), 300, engine=1, source=0)
    assert bench.took(silent) == pytest.approx(SILENT)
    assert silent.hit_tokens == 0
    never = bench.ask(A, 400, engine=2, source=0)
    assert bench.took(never) == pytest.approx(HANDSHAKE)
    assert never.hit_tokens == 0
    assert bench.offload(2).counters.pulls_failed == 1
    # It answers again: the engine that has spoken with it can pull, the other one waits each time.
    assert bench.took(bench.ask((*A, 7), 2_000, engine=1, source=0)) < 1.5
    assert bench.took(bench.ask(other, 2_000, engine=2, source=0)) == pytest.approx(HANDSHAKE)


def test_a_source_that_wakes_in_time_sends_late() -> None:
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    bench.offload(0).frozen_until = 104.0
    pulled = bench.ask(A, 100, engine=1, source=0)
    assert bench.took(pulled) == pytest.approx(4.0 + PULL.of(5 * SIZE))
    assert pulled.hit_tokens == 5 * SIZE


def test_the_sender_can_forbid_loads() -> None:
    pool = SharedPool(POOL)
    bench = Bench(tiers(), engines=2, pool=pool)
    bench.ask(A, engine=0)
    at = 100.0
    for most, load_pool, expected in ((0, True, 0), (2 * SIZE + 3, True, 2), (None, False, 0), (None, True, 5)):
        request = bench.request(A)
        request.max_load, request.load_pool = most, load_pool
        offload = bench.offload(1)
        load = offload.load(started(request), 0, at)
        assert (0 if load is None else load.end) == expected
        if load is not None:
            offload.abandon(request, load)


def started(request: Request) -> Request:
    request.target = request.prompt_tokens
    return request


def test_a_load_that_is_given_up_leaves_nothing_behind() -> None:
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    request = started(bench.request(A))
    request.pull = bench.offload(0)
    offload = bench.offload(1)
    load = offload.load(request, 0, 0.0)
    assert load is not None
    assert load.end == 5
    offload.abandon(request, load)
    assert offload.host is not None
    assert len(offload.host) == 0
    assert offload.outlook(request.block_hashes, 0) == (0, 0.0)


def test_a_reset_leaves_host_memory_and_a_restart_leaves_the_pool() -> None:
    pool = SharedPool(POOL)
    bench = Bench(tiers(), pool=pool)
    bench.ask(A)
    engine = bench.engines[0]
    assert engine.reset()
    assert bench.sink.events[-1] == Clear("w0")
    assert bench.ask(A, 100).sources == Counter(host=5 * SIZE)
    assert isinstance(engine, SteppedEngine)
    engine.restart(200.0)
    assert bench.ask(A, 300).sources == Counter(disk=5 * SIZE)


def test_what_a_pool_evicts_is_not_announced() -> None:
    pool = SharedPool(POOL, 3)
    bench = Bench(tiers(host=0), pool=pool, blocks=8)
    bench.ask(A)
    stored = [e for e in bench.sink.events if isinstance(e, Store) and e.tier == "external"]
    assert sum(len(e.block_hashes) for e in stored) == 6
    assert len(pool.chunks) == 3
    assert not [e for e in bench.sink.events if isinstance(e, Remove)]


def test_an_engine_that_dies_gives_up_its_loads() -> None:
    bench = Bench(tiers(), engines=2)
    bench.ask(A, engine=0)
    request = bench.request(A)
    request.pull = bench.offload(0)
    engine = bench.engines[1]
    assert isinstance(engine, SteppedEngine)
    engine.submit(request, 100.0)
    assert engine.loading == [request]
    assert engine.die(100.5) == [request]
    engine.drain()
    assert request.first_token is None
    assert engine.pool.free == engine.pool.size


def test_announcements_make_an_index_that_knows_what_engines_can_load() -> None:
    """The index answers what each engine could load of any prompt, and what others could pull from it."""
    pool = SharedPool(POOL)
    config = tiers(host=6, chunk=2)
    bench = Bench(config, engines=3, blocks=10, pool=pool)
    prompts = [(1, 2, 3, 4, 5), (1, 2, 7, 8, 9, 10), (1, 2, 3, 4, 11, 12), (21, 22, 23, 24, 25, 26, 27)]
    at = 0.0
    for turn in range(24):
        source = (turn * 5 + 1) % 3 if turn % 2 else None
        bench.ask(prompts[(turn * 7) % 4], at, engine=turn % 3, source=source)
        at += 100.0
    index = BlockIndex(block_size=SIZE)
    index.loading.add_pool("pool", members=["w0", "w1", "w2"], chunk=2)
    for n in range(3):
        index.loading.set_offloading(f"w{n}", host_chunk=2, external_chunk=2)
    for event in bench.sink.events:
        assert isinstance(event, Store | Remove)
        if isinstance(event, Store):
            index.store(
                event.worker,
                block_hashes=list(event.block_hashes),
                content_hashes=list(event.content_hashes),
                parent=event.parent,
                tier=event.tier,
            )
        else:
            index.remove(event.worker, block_hashes=list(event.block_hashes), tier=event.tier)
    deepest = 0
    for ids in prompts:
        asked = bench.request(ids)
        found = {it.worker: it for it in index.loading.find(content_hashes=asked.content_hashes)}
        for engine in bench.engines:
            host = engine.offload.host if engine.offload is not None else None
            assert host is not None
            it = found[engine.worker]
            assert it.device == engine.depth(asked.block_hashes)
            assert it.used == engine.usable(asked.block_hashes)[0]
            alone = Offload("alone", SIZE, config, Recorder())
            alone.host = host
            assert it.host == alone.outlook(asked.block_hashes, 0)[0]
            deepest = max(deepest, it.host)
    assert deepest > 0


def test_pulls_without_host_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="host_tokens"):
        TierConfig(pulls=True)
    with pytest.raises(ConfigError, match="chunk"):
        TierConfig(chunk=0)
    with pytest.raises(ConfigError, match="pool_tokens"):
        TierConfig(pool_tokens=-1)


# In a replay

TURNS = [
    TraceRequest(10_000 * n, SIZE * len(ids) - 3, 1, ids)
    for n, ids in enumerate([(1, 2, 3), (4, 5, 6), (1, 2, 3), (1, 2, 3), (4, 5, 7)])
]


def test_a_replayed_fleet_finds_what_its_tiers_hold() -> None:
    fleet = FleetConfig(1, EngineConfig(SIZE, 3, chunk=None))
    trace = Trace(TURNS, block=SIZE)
    config = ReplayConfig(fleet=fleet, steps=STEPS, policies=("kvatlas",), check=1.0)
    alone = replay(trace, config).policies[0]
    assert (alone.hit_tokens, alone.loaded) == (2 * SIZE, None)
    for tier in (TierConfig(host_tokens=6 * SIZE), TierConfig(pool_tokens=6 * SIZE)):
        found = replay(trace, ReplayConfig(fleet=fleet, steps=STEPS, policies=("kvatlas",), check=1.0, tiers=tier))
        assert found.policies[0].hit_tokens == 6 * SIZE
        assert found.disagreements == 0
        loaded = found.policies[0].loaded
        assert loaded is not None
        assert loaded.host_tokens + loaded.pool_tokens == 4 * SIZE
