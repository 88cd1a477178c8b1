"""Replay of a trace on a fleet of simulated engines, once for each policy.

All in virtual time: a request arrives, the index is queried for the blocks of its prompt that each engine holds, the
policy picks an engine, and the engine prefills, generates, and announces the blocks that it caches and evicts. Every
announcement is applied to the index before the next request comes (later, or never, if the scenario says so). Every
policy's replay has an index of its own; policies that do not use it ignore its answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import kvatlas
from kvatlas import BlockIndex
from kvatlas._hashes import Hashes
from kvatlas.errors import ConfigError, KvatlasError, PolicyError
from kvatlas.lab.replay.blind import Guess, MockCaches, TtlCaches
from kvatlas.lab.replay.bounds import BOUNDS, GreedyBound
from kvatlas.lab.replay.check import Checker, watched_workers
from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.delivery import Delivery
from kvatlas.lab.replay.drive import Drive
from kvatlas.lab.replay.loop import closed_arrivals, open_arrivals
from kvatlas.lab.replay.measure import Index, IndexMatch, TimedIndex, clock_cost, index_figures
from kvatlas.lab.replay.misses import Holdings
from kvatlas.lab.replay.placing import Placer, RouterPlacer, RoutersPlacer
from kvatlas.lab.replay.results import Latency, LoadFigures, PolicyResult, ReplayResult, latency, spread
from kvatlas.lab.replay.sessions import session_slowdown, time_alone
from kvatlas.lab.replay.tiers import PULL, FixedPulls, TierView, WarmUps
from kvatlas.lab.replay.variants import split_policy
from kvatlas.reference import ReferenceIndex
from kvatlas.sim.curve import hit_curve
from kvatlas.sim.loads import Source
from kvatlas.sim.loop import choose_loop
from kvatlas.sim.offload import Offload
from kvatlas.sim.pool import BlockPool
from kvatlas.sim.request import Request
from kvatlas.sim.statistics import infinite_cache, trace_statistics
from kvatlas.sim.tiers import SharedPool, TierConfig
from kvatlas.sim.trace import Trace, check_block_size, make_request, use_own_names
from kvatlas.sim.transfers import TRANSFERS

Progress = Callable[[str, int], None]  # policy, requests done


def replay(
    trace: Trace,
    config: ReplayConfig | None = None,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    make_index: Callable[[int], Index] | None = None,
    first: Placer | None = None,
) -> ReplayResult:
    """Replay `trace` once for each policy of `config`.

    `progress` is called every few requests. `stop` is called before each request: once it returns True, the results so
    far are returned, marked partial. `make_index` builds the index under test from a block size. `first`, for example
    the recorded choices of a router, is replayed before the policies.
    """
    config = config or ReplayConfig()
    fleet = config.fleet
    size = fleet.engine.block_size
    check_block_size(size, trace.block)
    loop = choose_loop(trace, config.loop)
    # All placers are made first, so that an invalid one is reported at once.
    placers = [make_placer(name, config) for name in config.policies]
    if first is not None:
        placers.insert(0, first)
    bound = infinite_cache(trace.requests, size, trace.block)
    prompts = sum(request.input_length for request in trace.requests)
    result = ReplayResult(
        version=kvatlas.__version__,
        trace=trace.name,
        skipped=trace.skipped,
        generated=trace.facts,
        config=config,
        loop=loop,
        statistics=trace_statistics(trace, size),
        bound_rate=sum(bound) / prompts,
        shared_rate=hit_curve(trace, size).rate(fleet.engines * fleet.engine.cache_tokens),
    )
    for placer in placers:
        index = make_index(size) if make_index else BlockIndex(block_size=size)
        one = _replay_policy(trace, loop, bound, config, placer, index, progress, stop)
        if one.requests or not one.partial:
            result.policies.append(one)
        if one.partial:
            result.partial = True
            break
    return result


def make_placer(policy: str, config: ReplayConfig) -> Placer:
    """Create the placer of one policy, which may have options after its name, or of a bound.

    Raises `PolicyError`, `ConfigError`.
    """
    fleet = config.fleet
    if policy.partition(" ")[0].endswith(PULL) and not config.tiers.pulls:
        raise ConfigError(f"policy {policy!r} pulls, and engines do not: set pulls (--pulls)")
    if policy in BOUNDS:
        return GreedyBound(policy, fleet.engine.block_size, fleet.seed)
    guess: Guess | None = None
    if config.scenario.no_events:
        blind = MockCaches(fleet.engines, fleet.engine.blocks) if config.guess == "mock" else None
        guess = blind or TtlCaches(fleet.engines)
    workers = fleet.workers()
    name, own = split_policy(policy)
    options = {**(config.options or {}), **own}
    size, seed, settings = fleet.engine.block_size, fleet.seed, config.settings
    rule = FixedPulls(size, config.pull_delta, seed) if name.endswith(PULL) else None
    name = name.removesuffix(PULL)
    try:
        routers = [
            RouterPlacer(name, workers, size, seed + nth, options, settings, guess, label=policy, fixed_pulls=rule)
            for nth in range(config.routers)
        ]
        return RoutersPlacer(routers) if len(routers) > 1 else routers[0]
    except KvatlasError:
        raise
    except Exception as error:  # a user's class may do anything
        what = f"{type(error).__name__}: {error}"
        raise PolicyError(f"policy {policy!r} failed when it was made: {what}", "policy_failed") from error


def _pool(policy: str, config: ReplayConfig, trace: Trace) -> BlockPool | None:
    """Create the one cache that a bound uses for all engines; None if each engine has its own cache."""
    engine = config.fleet.engine
    if policy == "shared-cache":
        return BlockPool(config.fleet.engines * engine.blocks)
    if policy == "infinite-cache":
        tokens = sum(line.input_length + line.output_length + 2 * engine.block_size for line in trace.requests)
        return BlockPool(tokens // engine.block_size)
    return None


def _store(policy: str, config: ReplayConfig) -> SharedPool | None:
    """Create the pool behind the engines' own caches: the configured one, or the one of a bound."""
    engine, tiers = config.fleet.engine, config.tiers
    if policy not in BOUNDS[3:]:
        return None if policy in BOUNDS[1:] else tiers.make_pool(engine.block_size)
    transfer = TRANSFERS["free"] if policy == "all-memory-free" else tiers.pull if tiers.pulls else tiers.pool
    device = 0 if policy == "host-memory-paid" else engine.cache_tokens
    tokens = config.fleet.engines * (device + tiers.host_tokens)
    return SharedPool(transfer, tokens // engine.block_size)


def _describe(loading: Any, tiers: TierConfig, workers: list[str], *, has_pool: bool) -> None:
    """Configure an index with the offloading settings of the engines."""
    for worker in workers:
        loading.set_offloading(worker, host_chunk=tiers.chunk, external_chunk=tiers.chunk)
    if has_pool:
        loading.add_pool("pool", members=workers, chunk=tiers.chunk)


def _replay_policy(
    trace: Trace,
    loop: str,
    bound: list[int],
    config: ReplayConfig,
    placer: Placer,
    index: Index,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
) -> PolicyResult:
    started = perf_counter()
    requests = trace.requests
    name, its = placer.name, config.fleet
    size, workers = its.engine.block_size, its.workers()
    # Late or lost events make depths differ without an error of the index: nothing to check.
    exact = config.scenario.exact_events and not config.scenario.loses_caches
    check = config.check if exact and name not in BOUNDS else 0.0
    watched = watched_workers(workers, its.engine.blocks, its.seed)
    tiers = config.tiers
    store = _store(name, config)
    # For other routers every engine holds the pool's blocks; ours asks the index what each engine can load.
    counted = workers if store is not None and not name.startswith("kvatlas") else ()
    timed = TimedIndex(index, ReferenceIndex(block_size=size) if check else None, watched, counted)
    loading = getattr(index, "loading", None) if tiers.any else None
    for each in (loading, timed.shadow.loading if isinstance(timed.shadow, ReferenceIndex) else None):
        if each is not None:
            _describe(each, tiers, workers, has_pool=store is not None and not counted)
    checker = Checker(name, check, config.check_seconds, len(requests), its.seed)
    delivery = Delivery(timed, config.scenario, its.seed)
    drive = Drive(
        workers,
        its.engine,
        config.steps,
        config.scenario,
        placer,
        delivery,
        None if config.scenario.no_events or name in BOUNDS else timed.find,
        config.limits,
        _pool(name, config, trace),
        prepare=use_own_names if its.own_names else None,
        tiers=replace(tiers, host_tokens=0, pulls=False) if name in BOUNDS[1:] else tiers,
        store=store,
    )
    if loading is not None:
        view = TierView(index, drive.engines, tiers)  # type: ignore[arg-type]  # it has `loading`
        for each in placer.routers if isinstance(placer, RoutersPlacer) else [placer]:
            if isinstance(each, RouterPlacer):
                each.use_tiers(view)
                if config.warm_up:
                    each.warm_up(WarmUps(view, config.warm_up, size, drive.ask))
    if isinstance(placer, GreedyBound):
        placer.engines = drive.engines

    def look(request: Request, query: Hashes, match: IndexMatch) -> None:
        checker.look(request, query, match, timed, drive.engines, its.own_names)

    came: dict[int, float] = {}
    tells_why = not its.own_names and any(line.session_id is not None for line in requests)
    held = Holdings(drive.engines, size) if tells_why else None
    done = 0
    now = 0.0
    partial = False
    arrivals = (
        closed_arrivals(trace, config.speedup, drive) if loop == "closed" else open_arrivals(trace, config.speedup)
    )
    for number, now in arrivals:
        if stop is not None and stop():
            partial = True
            break
        line = requests[number]
        came[number] = now
        request = make_request(line, number, size, trace.block)
        drive.run_until(now)
        if held is not None:
            held.look(request)
        drive.arrive(request, request.content_hashes[: line.input_length // size], now, look)
        done += 1
        if progress is not None and not (done - 1) & 15:
            progress(name, done)
    delivery.run_until(now)
    stats = index.stats()
    busy = sum(engine.busy for engine in drive.engines)
    if not partial:
        drive.drain()
    if progress is not None:
        progress(name, done)
    counters = [engine.counters for engine in drive.engines]
    prompt_tokens = sum(c.prompt_tokens for c in counters)
    hit_tokens = sum(c.hit_tokens for c in counters)
    routed = sum(requests[number].input_length for number in came)
    alone = [
        time_alone(line, cached, config.steps, its.engine.chunk) for line, cached in zip(requests, bound, strict=True)
    ]
    checker.agreement.reference_workers = len(timed.watched)
    checker.agreement.feed_seconds = timed.shadow_ns / 1e9
    outcome, gaps = drive.outcome, drive.gaps()
    offloads = [engine.offload for engine in drive.engines if engine.offload is not None]
    return PolicyResult(
        policy=name,
        requests=done,
        first_tokens=len(outcome.ttft),
        refused=outcome.refused,
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
        hit_rate=hit_tokens / prompt_tokens if prompt_tokens else 0.0,
        bound_rate=sum(bound[number] for number in came) / routed if routed else 0.0,
        prefill_tokens=sum(c.prefill_tokens for c in counters),
        preemptions=sum(c.preemptions for c in counters),
        utilisation=busy / (now * its.engines) if now else 0.0,
        spread=spread([engine.busy for engine in drive.engines]),
        ttft=latency(outcome.ttft),
        waits=outcome.waits.over(len(outcome.ttft)),
        between=Latency(gaps.mean, gaps.quantile(0.5), gaps.quantile(0.99)),
        missed=held.missed(requests, bound, outcome.hits) if held is not None else None,
        slowdown=session_slowdown(requests, alone, came, outcome.ends),
        goodput=outcome.good / outcome.end if outcome.end else 0.0,
        good=outcome.good / done if done else 0.0,
        throughput=len(outcome.ends) / outcome.end if outcome.end else 0.0,
        waited=outcome.waited,
        longest_wait=outcome.longest_wait,
        retried=outcome.retried,
        lost_events=delivery.counters.lost,
        loaded=_loaded(offloads),
        index=index_figures(timed, stats, clock_cost()),
        agreement=checker.agreement,
        seconds=perf_counter() - started,
        partial=partial,
        find_ns=timed.find_ns.tolist(),
    )


def _loaded(offloads: Sequence[Offload]) -> LoadFigures | None:
    """Summarize the tokens that engines loaded; None if they have no tiers."""
    if not offloads:
        return None
    each = [offload.counters for offload in offloads]
    tokens = sum((counters.tokens for counters in each), Counter[Source]())
    return LoadFigures(
        host_tokens=tokens["host"],
        pool_tokens=tokens["disk"],
        pulled_tokens=tokens["p2p"],
        pulls=sum(counters.pulls for counters in each),
        pulls_failed=sum(counters.pulls_failed for counters in each),
        short_tokens=sum(counters.short for counters in each),
        dropped_chunks=sum(counters.dropped for counters in each),
    )
