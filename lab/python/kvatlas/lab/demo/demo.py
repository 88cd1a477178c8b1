"""Run of the demo: each policy gets a router in front of the same engines with empty caches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvatlas.lab.demo.config import DemoConfig
from kvatlas.lab.demo.load import Load, Tally
from kvatlas.lab.replay.variants import split_policy
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.routing import Router as DecidingRouter
from kvatlas.routing.policies import check_name, own_policy
from kvatlas.service import LogConfig
from kvatlas.sim import Trace
from kvatlas.sim.server import Fleet

REFRESH = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class PolicyResults:
    """Results of one policy so far. Times are in seconds of the engines' clock.

    Attributes:
        name: Name of the policy.
        elapsed: Seconds for which the policy has run, in real time.
        done: Number of answered requests.
        failed: Number of failed requests.
        failure: Reason of the last failure.
        in_flight: Number of requests in progress.
        hit_rate: Share of prompt tokens that the engines had cached.
        first_token: Mean time to the first token.
        first_token_p99: 99th percentile of the time to the first token.
        decision: Median duration of the router's decisions, in seconds of real time.
    """

    name: str
    elapsed: float
    done: int
    failed: int
    failure: str | None
    in_flight: int
    hit_rate: float
    first_token: float | None
    first_token_p99: float | None
    decision: float | None


class Demo:
    """Driver of the demo, which runs the policies in turn and calls `show` with their results every second."""

    def __init__(self, config: DemoConfig, show: Callable[[list[PolicyResults]], None]) -> None:
        """Create the demo, without starting anything yet.

        Raises:
            PolicyError: A policy is unknown.
        """
        self._config = config
        self._show = show
        for policy in config.policies:
            check_policy(policy, config.fleet.seed)
        self._over: list[PolicyResults] = []

    def run(self, stop: Callable[[], bool]) -> list[PolicyResults]:
        """Run all policies, or until `stop` returns True.

        Raises `KvatlasError` if an engine or a router does not start.
        """
        trace = self._config.workload()
        with self._config.servers() as fleet:
            for policy in self._config.policies:
                if stop():
                    break
                self._over.append(self._turn(policy, fleet, trace, stop))
        return self._over

    def _turn(self, policy: str, fleet: Fleet, trace: Trace, stop: Callable[[], bool]) -> PolicyResults:
        config = self._config
        for engine in fleet.engines:
            engine.wait_quiet()
            engine.reset()
        name, options = split_policy(policy)
        # A free port: there may be a router where they usually are. Prompts are token ids already.
        settings = RouterConfig(
            http=RouterHttpConfig(bind="127.0.0.1:0"),
            router=RouterSection(
                policy=name, policy_options=tuple(options.items()), seed=config.fleet.seed, tokenizer="none"
            ),
            log=LogConfig(level="error"),
        )
        with Router(engines=fleet.urls, config=settings) as router:
            router.wait_ready(30.0)
            return asyncio.run(self._load(policy, router, trace, stop))

    async def _load(self, policy: str, router: Router, trace: Trace, stop: Callable[[], bool]) -> PolicyResults:
        config, tally, began = self._config, Tally(), time.monotonic()

        def standing() -> PolicyResults:
            first, p99 = tally.first_token(), tally.first_token(0.99)
            return PolicyResults(
                name=policy,
                elapsed=time.monotonic() - began,
                done=tally.done,
                failed=tally.failed,
                failure=tally.failure,
                in_flight=tally.in_flight,
                hit_rate=tally.hit_rate,
                first_token=None if first is None else first * config.speed,
                first_token_p99=None if p99 is None else p99 * config.speed,
                decision=tally.decision,
            )

        async def watch() -> None:
            while True:
                await asyncio.sleep(REFRESH)
                self._show([*self._over, standing()])

        watching = asyncio.create_task(watch())
        try:
            await Load(router.url, tally, stop).run(trace.requests, config.seconds, config.speed)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return standing()


def check_policy(policy: str, seed: int) -> None:
    """Check that a policy exists and accepts the options after its name. Raises `PolicyError`, `ConfigError`."""
    name, options = split_policy(policy)
    if ":" in name:
        own_policy(name, seed, options)
    else:
        check_name(name)
        DecidingRouter(name, (), block_size=16, seed=seed, options=options)
