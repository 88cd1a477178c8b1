"""Replay a trace over a fleet of mock engines, once for each policy.

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
from kvatlas.bench.check import Checker, watched_workers
from kvatlas.bench.measure import Index, TimedIndex, clock_cost, index_figures
from kvatlas.bench.results import PolicyResult, ReplayResult, latency, spread
from kvatlas.bench.settings import ReplaySettings
from kvatlas.reference import ReferenceIndex
from kvatlas.routing import Load, Policy, PolicyError, Prompt, find_policy, policy_failed
from kvatlas.sim.engine import Engine
from kvatlas.sim.request import Request
from kvatlas.sim.statistics import infinite_cache, shared_cache, trace_statistics
from kvatlas.sim.trace import Trace, make_request, use_own_names

Progress = Callable[[str, int], None]  # policy, requests done


class _Fleet:
    """The engines and what the router knows of their load."""

    def __init__(self, settings: ReplaySettings, sink: TimedIndex) -> None:
        config = settings.engine()
        self.engines = [Engine(worker, config, sink, self) for worker in settings.workers()]
        self.loads = [Load() for _ in self.engines]
        self.ttft: list[float] = []
        self._sent: dict[int, tuple[int, int]] = {}  # request -> engine, tokens it added to the queue there

    def run_until(self, now: float) -> None:
        for engine in self.engines:
            engine.run_until(now)

    def send(self, request: Request, number: int, queued_tokens: int, now: float) -> bool:
        """Send a request to engine `number`. False: refused, too large."""
        load = self.loads[number]
        load.in_flight += 1
        load.queued_tokens += queued_tokens
        self._sent[request.number] = number, queued_tokens
        if self.engines[number].submit(request, now):
            return True
        load.in_flight -= 1
        load.queued_tokens -= queued_tokens
        del self._sent[request.number]
        return False

    def first_token(self, request: Request) -> None:
        number, queued_tokens = self._sent[request.number]
        self.loads[number].queued_tokens -= queued_tokens
        if request.first_token is not None:
            self.ttft.append(request.first_token - request.arrival)

    def finished(self, request: Request) -> None:
        number, _ = self._sent.pop(request.number)
        self.loads[number].in_flight -= 1


def replay(
    trace: Trace,
    settings: ReplaySettings | None = None,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    make_index: Callable[[int], Index] | None = None,
) -> ReplayResult:
    """Replay `trace` once for each policy of `settings`.

    `progress` is told of every few requests done. `stop` is asked before each request: once it says True, what was done
    so far is returned, marked partial. `make_index` builds the index under test from a block size.
    """
    settings = settings or ReplaySettings()
    factories = [(name, find_policy(name)) for name in settings.policies]
    bound = infinite_cache(trace.requests, settings.block_size)
    prompts = sum(request.input_length for request in trace.requests)
    shared = shared_cache(trace.requests, settings.engines * settings.pool_tokens)
    result = ReplayResult(
        version=kvatlas.__version__,
        trace=trace.name,
        skipped=trace.skipped,
        generated=trace.facts,
        settings=settings,
        statistics=trace_statistics(trace, settings.block_size),
        bound_rate=sum(bound) / prompts,
        shared_rate=shared / prompts,
    )
    for name, factory in factories:
        index = make_index(settings.block_size) if make_index else BlockIndex(block_size=settings.block_size)
        try:
            policy = factory(settings.workers(), settings.seed)
        except Exception as error:
            raise policy_failed(name, "when it was made", error) from error
        one = _replay_policy(trace, bound, settings, name, policy, index, progress, stop)
        if one.requests or not one.partial:
            result.policies.append(one)
        if one.partial:
            result.partial = True
            break
    return result


def _replay_policy(
    trace: Trace,
    bound: list[int],
    settings: ReplaySettings,
    name: str,
    policy: Policy,
    index: Index,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
) -> PolicyResult:
    started = perf_counter()
    requests = trace.requests
    size = settings.block_size
    workers = settings.workers()
    watched = watched_workers(workers, settings.engine().blocks, settings.seed)
    timed = TimedIndex(index, ReferenceIndex(block_size=size) if settings.check else None, watched)
    checker = Checker(name, settings.check, settings.check_seconds, len(requests), settings.seed)
    fleet = _Fleet(settings, timed)
    begin = requests[0].timestamp
    refused = done = 0
    now = 0.0
    partial = False
    for number, line in enumerate(requests):
        if stop is not None and stop():
            partial = True
            break
        now = (line.timestamp - begin) / 1000 / settings.speedup
        fleet.run_until(now)
        request = make_request(line, number, size)
        query = request.content_hashes[: line.input_length // size]
        match = timed.find(query)
        checker.look(request, query, match, timed, fleet.engines, settings.own_names)
        prompt = Prompt(line.input_length, query, size)
        try:
            chosen = policy.choose(prompt, fleet.loads, match)
        except Exception as error:
            raise policy_failed(name, f"at request {number}", error) from error
        if chosen not in range(len(workers)):
            raise PolicyError(f"policy {name!r} chose {chosen!r}: engines are numbered 0 to {len(workers) - 1}")
        queued = line.input_length
        if policy.uses_index:
            found = match.best(1, among=[workers[chosen]])
            queued = prompt.uncached(found[0][1] if found else 0)
        if settings.own_names:
            use_own_names(request, chosen)
        refused += not fleet.send(request, chosen, queued, now)
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
        utilisation=prefill_due / (now * settings.prefill_rate * settings.engines) if now else 0.0,
        spread=spread([c.prefill_tokens for c in counters]),
        ttft=latency(fleet.ttft),
        index=index_figures(timed, stats, clock_cost()),
        agreement=checker.agreement,
        seconds=perf_counter() - started,
        partial=partial,
        find_ns=timed.find_ns.tolist(),
    )
