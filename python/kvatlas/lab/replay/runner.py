"""Replay a trace over a fleet of simulated engines, once for each policy.

In virtual time: a request arrives, the index is asked what each engine holds of its prompt, the policy picks an engine,
the engine prefills and generates and announces what it caches and gives up, and every announcement is applied to the
index before the next request comes. Every policy's replay asks and feeds an index of its own; only policies that use it
let the answer decide.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import kvatlas
from kvatlas import BlockIndex
from kvatlas.lab.replay.check import Checker, watched_workers
from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.measure import Index, TimedIndex, clock_cost, index_figures
from kvatlas.lab.replay.results import PolicyResult, ReplayResult, latency, spread
from kvatlas.reference import ReferenceIndex
from kvatlas.routing import Dispatched, Dispatcher, Prompt, find_policy
from kvatlas.sim.engine import Engine
from kvatlas.sim.fleet import FleetConfig
from kvatlas.sim.request import Request
from kvatlas.sim.statistics import infinite_cache, shared_cache, trace_statistics
from kvatlas.sim.trace import Trace, make_request, use_own_names

Progress = Callable[[str, int], None]  # policy, requests done


class _Fleet:
    """The engines, which tell the router of each request's first token and end."""

    def __init__(self, config: FleetConfig, sink: TimedIndex, router: Dispatcher) -> None:
        self.engines = [Engine(worker, config.engine, sink, self) for worker in router.workers]
        self.ttft: list[float] = []
        self._router = router
        self._sent: dict[int, Dispatched] = {}  # by the request's number

    def run_until(self, now: float) -> None:
        for engine in self.engines:
            engine.run_until(now)

    def send(self, request: Request, sent: Dispatched, now: float) -> bool:
        """Send a request to the engine that was chosen. False: refused, too large."""
        self._sent[request.number] = sent
        if self.engines[sent.engine].submit(request, now):
            return True
        self.finished(request)
        return False

    def first_token(self, request: Request) -> None:
        self._router.first_token(self._sent[request.number])
        if request.first_token is not None:
            self.ttft.append(request.first_token - request.arrival)

    def finished(self, request: Request) -> None:
        self._router.finished(self._sent.pop(request.number))


def replay(
    trace: Trace,
    config: ReplayConfig | None = None,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    make_index: Callable[[int], Index] | None = None,
) -> ReplayResult:
    """Replay `trace` once for each policy of `config`.

    `progress` is called every few requests. `stop` is called before each request: once it returns True, what was done
    so far is returned, marked partial. `make_index` builds the index under test from a block size.
    """
    config = config or ReplayConfig()
    fleet = config.fleet
    size = fleet.engine.block_size
    factories = [(name, find_policy(name)) for name in config.policies]
    bound = infinite_cache(trace.requests, size)
    prompts = sum(request.input_length for request in trace.requests)
    shared = shared_cache(trace.requests, fleet.engines * fleet.engine.cache_tokens)
    result = ReplayResult(
        version=kvatlas.__version__,
        trace=trace.name,
        skipped=trace.skipped,
        generated=trace.facts,
        config=config,
        statistics=trace_statistics(trace, size),
        bound_rate=sum(bound) / prompts,
        shared_rate=shared / prompts,
    )
    for name, factory in factories:
        index = make_index(size) if make_index else BlockIndex(block_size=size)
        router = Dispatcher(name, factory, fleet.workers(), fleet.seed)
        one = _replay_policy(trace, bound, config, router, index, progress, stop)
        if one.requests or not one.partial:
            result.policies.append(one)
        if one.partial:
            result.partial = True
            break
    return result


def _replay_policy(
    trace: Trace,
    bound: list[int],
    config: ReplayConfig,
    router: Dispatcher,
    index: Index,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
) -> PolicyResult:
    started = perf_counter()
    requests = trace.requests
    name, its = router.name, config.fleet
    size = its.engine.block_size
    watched = watched_workers(router.workers, its.engine.blocks, its.seed)
    timed = TimedIndex(index, ReferenceIndex(block_size=size) if config.check else None, watched)
    checker = Checker(name, config.check, config.check_seconds, len(requests), its.seed)
    fleet = _Fleet(its, timed, router)
    begin = requests[0].timestamp
    refused = done = 0
    now = 0.0
    partial = False
    for number, line in enumerate(requests):
        if stop is not None and stop():
            partial = True
            break
        now = (line.timestamp - begin) / 1000 / config.speedup
        fleet.run_until(now)
        request = make_request(line, number, size)
        query = request.content_hashes[: line.input_length // size]
        match = timed.find(query)
        checker.look(request, query, match, timed, fleet.engines, its.own_names)
        sent = router.dispatch(Prompt(line.input_length, query, size), match)
        if its.own_names:
            use_own_names(request, sent.engine)
        refused += not fleet.send(request, sent, now)
        done += 1
        if progress is not None and not number & 15:
            progress(name, done)
    stats = index.stats()
    prefill_due = sum(engine.counters.prefill_tokens for engine in fleet.engines)
    if not partial:
        for engine in fleet.engines:
            engine.drain()
    if progress is not None:
        progress(name, done)
    counters = [engine.counters for engine in fleet.engines]
    prompt_tokens = sum(c.prompt_tokens for c in counters)
    hit_tokens = sum(c.hit_tokens for c in counters)
    routed = sum(line.input_length for line in requests[:done])
    checker.agreement.reference_workers = len(timed.watched)
    checker.agreement.feed_seconds = timed.shadow_ns / 1e9
    return PolicyResult(
        policy=name,
        requests=done,
        first_tokens=len(fleet.ttft),
        refused=refused,
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
        hit_rate=hit_tokens / prompt_tokens if prompt_tokens else 0.0,
        bound_rate=sum(bound[:done]) / routed if routed else 0.0,
        prefill_tokens=sum(c.prefill_tokens for c in counters),
        preemptions=sum(c.preemptions for c in counters),
        utilisation=prefill_due / (now * its.engine.prefill_rate * its.engines) if now else 0.0,
        spread=spread([c.prefill_tokens for c in counters]),
        ttft=latency(fleet.ttft),
        index=index_figures(timed, stats, clock_cost()),
        agreement=checker.agreement,
        seconds=perf_counter() - started,
        partial=partial,
        find_ns=timed.find_ns.tolist(),
    )
