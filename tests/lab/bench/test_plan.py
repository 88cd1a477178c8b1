"""Plans: everything the engines did is in them, in order, and they come out the same every time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas import prefix_hashes
from kvatlas.errors import ConfigError
from kvatlas.lab.bench.arrivals import make_arrivals, make_chains, sessions_of, spread_ticks
from kvatlas.lab.bench.config import PlanConfig
from kvatlas.lab.bench.engines import LOOKUP, REMOVE, STORE, STORE_ROOT, Columns, run_worker
from kvatlas.lab.bench.plan import Draft, cached_plan, draft_plan, make_plan, plan_key
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest, WorkloadConfig, generate

TIGHT = PlanConfig(
    fleet=FleetConfig(engines=4, engine=EngineConfig(block_size=64, blocks=900), seed=3), copies=2, copy_spread=5.0
)


def seeded(seed: int) -> PlanConfig:
    return replace(TIGHT, fleet=replace(TIGHT.fleet, seed=seed))


def with_engine(**changes: Any) -> FleetConfig:
    return replace(TIGHT.fleet, engine=replace(TIGHT.fleet.engine, **changes))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(WorkloadConfig(requests=300, request_rate=2.0, seed=1))


@pytest.fixture(scope="module")
def draft(trace: Trace) -> Draft:
    return draft_plan(trace, TIGHT)


def same(a: Columns, b: Columns) -> bool:
    names = ("times", "kinds", "workers", "starts", "lengths", "parents", "removed")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_the_same_seed_makes_the_same_plan_in_any_number_of_processes(trace: Trace, draft: Draft) -> None:
    again = draft_plan(trace, TIGHT, processes=2)
    assert same(draft.columns, again.columns)
    assert draft.meta == again.meta
    assert draft.plan().digest == again.plan().digest
    other = draft_plan(trace, seeded(4))
    assert not same(draft.columns, other.columns)
    assert draft.plan().digest != other.plan().digest


def test_operations_are_in_order(draft: Draft) -> None:
    c = draft.columns
    assert (np.diff(c.times.astype(np.int64)) >= 0).all()
    for kind, count in ((LOOKUP, 600), (STORE, 100), (STORE_ROOT, 4), (REMOVE, 100)):
        assert (c.kinds == kind).sum() >= count
    # At one moment lookups come first.
    equal = c.times[1:] == c.times[:-1]
    assert not (equal & (c.kinds[:-1] != LOOKUP) & (c.kinds[1:] == LOOKUP)).any()


def test_every_request_is_a_lookup_on_each_of_its_workers(trace: Trace, draft: Draft) -> None:
    c = draft.columns
    lookups = c.kinds == LOOKUP
    assert lookups.sum() == 2 * len(trace.requests)
    chains = make_chains(trace, TIGHT)
    first = {int(f): r for r, f in enumerate(chains.first.tolist()) if chains.total[r]}
    by_session: dict[object, set[int]] = {}
    for worker, start, length in zip(
        c.workers[lookups].tolist(), c.starts[lookups].tolist(), c.lengths[lookups].tolist(), strict=True
    ):
        if length:
            line = trace.requests[first[start]]
            assert length == line.input_length // 64
            by_session.setdefault(line.session_id, set()).add(worker)
    # A session's requests all go to the same two.
    assert {len(workers) for workers in by_session.values()} == {2}
    assert set().union(*by_session.values()) == {0, 1, 2, 3}


def test_what_engines_announce_is_in_the_plan_and_ends_as_their_caches_do(trace: Trace, draft: Draft) -> None:
    arrivals, chains = make_arrivals(trace, TIGHT), make_chains(trace, TIGHT)
    slow = TIGHT.fleet.engine
    speed = float(str(draft.meta["engine_speed"]))
    config = replace(slow, prefill_rate=slow.prefill_rate * speed, decode_rate=slow.decode_rate * speed)
    c = draft.columns
    evicted = 0
    for worker in range(4):
        mine = arrivals.workers == worker
        tape, engine = run_worker(worker, arrivals.times[mine], arrivals.requests[mine], chains, config)
        engine.pool._compact()
        expected = {name for name in engine.pool._name if name is not None}
        # The tape, operation by operation and in its order, is this worker's part of the plan.
        alone, ours = tape.columns(), c.workers == worker
        for name in ("times", "kinds", "lengths", "parents"):
            in_plan = getattr(c, name)[ours]
            order = np.lexsort((alone.kinds != LOOKUP, alone.times))
            assert np.array_equal(in_plan, getattr(alone, name)[order]), name
        held: dict[int, int | None] = {}
        for kind, start, length, parent in zip(
            c.kinds[ours].tolist(),
            c.starts[ours].tolist(),
            c.lengths[ours].tolist(),
            c.parents[ours].tolist(),
            strict=True,
        ):
            if kind in (STORE, STORE_ROOT):
                assert length
                assert kind == STORE_ROOT or parent in held
                names = draft.names[start : start + length].tolist()
                assert not held.keys() & set(names), "announced twice"
                for name in names:
                    held[name] = parent if kind == STORE else None
                    kind, parent = STORE, name
            elif kind == REMOVE:
                assert length
                evicted += length
                for name in c.removed[start : start + length].tolist():
                    del held[name]
        assert held.keys() == expected
    assert evicted == len(c.removed) > 1_000


def test_the_names_of_a_chain_are_its_prefix_hashes(trace: Trace) -> None:
    chains = make_chains(trace, replace(TIGHT, duplication=2, length=3))
    assert len(chains.first) == 600
    for r in (0, 17, 299, 300, 599):
        part = slice(int(chains.first[r]), int(chains.first[r] + chains.total[r]))
        assert np.array_equal(chains.names[part], prefix_hashes(chains.contents[part]))
    assert chains.prompt[0] == trace.requests[0].input_length * 3 // 64


def test_chains_share_what_the_trace_says_and_nothing_else() -> None:
    rows = [TraceRequest(0, 1024, 600, (7, 1 << 63)), TraceRequest(0, 1100, 600, (7, 1 << 63, 9))]
    chains = make_chains(Trace(rows), PlanConfig(fleet=with_engine(block_size=256), duplication=2, length=2))
    parts = [chains.contents[f : f + t].tolist() for f, t in zip(chains.first, chains.total, strict=True)]
    assert [len(part) for part in parts] == [10, 10, 10, 10]
    assert parts[0][:8] == parts[1][:8]
    assert len(set(parts[0][:8])) == 8
    everything = [set(parts[0]), set(parts[1][8:]), set(parts[2]), set(parts[3][8:])]
    assert len(set().union(*everything)) == sum(map(len, everything)) == 24


def test_sessions() -> None:
    rows = [
        TraceRequest(0, 600, 1, (0, 5)),
        TraceRequest(0, 1100, 1, (0, 5, 6)),
        TraceRequest(0, 600, 1, (0, 7)),
        TraceRequest(0, 100, 1, (0,)),
        TraceRequest(0, 100, 1, (0,)),
        TraceRequest(0, 600, 1, (0, 5), "a"),
        TraceRequest(0, 600, 1, (0, 7), "a"),
    ]
    assert sessions_of(rows).tolist() == [0, 0, 1, 2, 3, 4, 4]


def test_ticks_are_spread_and_lulls_stay() -> None:
    assert spread_ticks([5000, 5000, 8000, 8000, 8000, 11000, 60000]).tolist() == [0, 1.5, 3, 4, 5, 6, 55]
    assert spread_ticks([4, 4]).tolist() == [0, 0.5]


def test_copies_do_not_come_at_once_and_keep_their_order(trace: Trace) -> None:
    arrivals = make_arrivals(trace, replace(TIGHT, copies=4))
    session = sessions_of(trace.requests)
    for worker in range(4):
        mine = arrivals.workers == worker
        for one in range(int(session.max()) + 1):
            requests = arrivals.requests[mine][session[arrivals.requests[mine]] == one]
            assert (np.diff(requests) > 0).all()
    first = arrivals.times[arrivals.requests == 0]
    assert len(np.unique(first)) == 4
    assert 0 <= first.min() <= first.max() <= 5.0


def test_engines_keep_up_with_a_duplicated_trace(trace: Trace) -> None:
    last = max(row.timestamp for row in trace.requests) / 1000
    draft = draft_plan(trace, replace(TIGHT, fleet=with_engine(blocks=20_000), copies=1, duplication=8))
    assert float(str(draft.meta["engine_speed"])) > 3
    assert draft.columns.times[-1] / 1e9 < 1.5 * last + 30


def test_requests_that_fit_nowhere_are_asked_for_and_counted() -> None:
    rows = [TraceRequest(0, 64 * 1000, 1, tuple(range(125))), TraceRequest(1, 640, 1, (1, 2))]
    draft = draft_plan(Trace(rows), replace(TIGHT, copies=1))
    assert draft.meta["refused_requests"] == 1
    assert (draft.columns.kinds == LOOKUP).sum() == 2


def test_a_plan_is_kept_and_found_again(trace: Trace, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    plan, path = cached_plan(trace, TIGHT, tmp_path / "deep" / "er", progress=lambda *args: told.append(args))
    assert told[0] == (0, 600)
    assert told[-1] == (600, 600)
    told.clear()
    again, same_path = cached_plan(trace, TIGHT, tmp_path / "deep" / "er", progress=lambda *args: told.append(args))
    assert not told
    assert same_path == path
    assert again.digest == plan.digest == make_plan(trace, TIGHT).digest
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    keys = {plan_key(trace, TIGHT), plan_key(trace, seeded(9)), plan_key(Trace(trace.requests[:9]), TIGHT)}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"copies": 5}, "5 copies of a request need as many engines, got 4"),
        ({"duplication": 0}, "duplication must be from 1"),
        ({"length": -1}, "length must be from 1"),
        ({"fleet": with_engine(block_size=100)}, "does not divide 512"),
        ({"fleet": with_engine(blocks=100_000_001)}, "at most 100000000 blocks"),
        ({"fleet": replace(TIGHT.fleet, own_names=True)}, "share block hashes"),
        ({"copy_spread": float("nan")}, "copy_spread must not be negative"),
        ({"engine_speed": 0.0}, "engine_speed must be above 0"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TIGHT, **changes)


def test_a_plan_too_large_is_refused(trace: Trace) -> None:
    with pytest.raises(ConfigError, match="use larger blocks"):
        make_chains(trace, replace(TIGHT, fleet=with_engine(block_size=1), duplication=1000))
