"""The policies side by side: one load, a fleet for each, one service that follows them all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

import aiohttp

from kvatlas.client import AsyncClient
from kvatlas.lab.demo.config import DemoConfig
from kvatlas.lab.demo.contender import Contender, settle
from kvatlas.routing import Dispatcher, PolicyFactory, find_policy
from kvatlas.service import Config, Engine, HttpConfig, Service
from kvatlas.sim import Trace, TraceRequest
from kvatlas.sim.server import Fleet, prompt_tokens

REFRESH = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """How one policy fares. Times in seconds of the engines' clock."""

    name: str
    done: int
    failed: int
    failure: str | None  # the last one
    in_flight: int
    hit_rate: float  # of all prompt tokens so far
    hit_rate_now: float | None  # of the last seconds
    first_token: float | None  # mean of the last seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything at one moment."""

    elapsed: float  # seconds
    policies: list[PolicyStanding]
    lookups_per_second: float
    lookup_p50: float | None  # seconds, over HTTP, as the router sees it
    lag: float | None  # seconds from an engine's batch to its being visible: the worst engine's last
    blocks: int  # held, over all engines
    streams: int
    live: int  # of those, trusted


class Race:
    """Runs the policies; tells `show` how they stand every second."""

    def __init__(self, config: DemoConfig, show: Callable[[Standing], None]) -> None:
        """Nothing is started yet.

        Raises:
            PolicyError: A policy is unknown.
        """
        self._config = config
        self._show = show
        self._factories = [(name, find_policy(name)) for name in config.policies]
        self._stop: Callable[[], bool] = lambda: False
        self._began = 0.0
        self._before = (0.0, 0)

    def run(self, stop: Callable[[], bool]) -> Standing:
        """The whole of it, or until `stop`. Raises `KvatlasError` if an engine or the service does not start."""
        config = self._config
        self._stop = stop
        trace = config.workload()
        # A free port: there may be a service where they usually are.
        service_config = Config(http=HttpConfig(bind="127.0.0.1:0"))
        with ExitStack() as stack:
            fleets = [(name, make, config.servers(f"sim/{name}")) for name, make in self._factories]
            for *_, fleet in fleets:
                stack.enter_context(fleet)
            engines = [Engine(url=url) for *_, fleet in fleets for url in fleet.urls]
            service = stack.enter_context(Service(engines=engines, config=service_config))
            service.wait_ready(30.0)
            return asyncio.run(self._run(trace, service.url, fleets))

    async def _run(self, trace: Trace, url: str, fleets: list[tuple[str, PolicyFactory, Fleet]]) -> Standing:
        config = self._config
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        async with AsyncClient(url) as client, aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            contenders = []
            for name, make, fleet in fleets:
                workers = [Engine(url=url).worker for url in fleet.urls]
                router = Dispatcher(name, make, workers, config.fleet.seed)
                block_size = config.fleet.engine.block_size
                contenders.append(Contender(router, fleet.urls, f"sim/{name}", block_size, client))
            self._began = time.monotonic()
            tasks: set[asyncio.Task[None]] = set()
            watch = asyncio.create_task(self._watch(contenders, client))
            try:
                await self._send(trace.requests, contenders, session, tasks)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
                await settle(tasks, 3.0)
            self._before = (self._began, 0)  # the last one is about all of it
            return await self._standing(contenders, client)

    async def _send(
        self,
        requests: list[TraceRequest],
        contenders: list[Contender],
        session: aiohttp.ClientSession,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        config = self._config
        for request in requests:
            due = self._began + (request.timestamp - requests[0].timestamp) / 1000 / config.speed
            while (wait := due - time.monotonic()) > 0:
                if self._stop() or time.monotonic() - self._began > config.seconds:
                    return
                await asyncio.sleep(min(wait, 0.1))
            if self._stop() or time.monotonic() - self._began > config.seconds:
                return
            tokens = prompt_tokens(request)
            for contender in contenders:
                task = asyncio.create_task(contender.send(session, tokens, request.output_length))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _watch(self, contenders: list[Contender], client: AsyncClient) -> None:
        while True:
            await asyncio.sleep(REFRESH)
            self._show(await self._standing(contenders, client))

    async def _standing(self, contenders: list[Contender], client: AsyncClient) -> Standing:
        now = time.monotonic()
        streams = [stream for worker in await client.workers() for stream in worker.streams]
        lags = [stream.lag_ms / 1000 for stream in streams if stream.lag_ms is not None]
        times = sorted(seconds for contender in contenders for seconds in contender.lookup_times)
        lookups = sum(contender.lookups for contender in contenders)
        then, before = self._before
        self._before = (now, lookups)
        return Standing(
            elapsed=now - self._began,
            policies=[self._policy(contender) for contender in contenders],
            lookups_per_second=(lookups - before) / (now - then) if then else 0.0,
            lookup_p50=times[len(times) // 2] if times else None,
            lag=max(lags, default=None),
            blocks=sum(stream.blocks for stream in streams),
            streams=len(streams),
            live=sum(stream.trusted for stream in streams),
        )

    def _policy(self, contender: Contender) -> PolicyStanding:
        recent = contender.recent()
        prompts = sum(done.prompt_tokens for done in recent)
        return PolicyStanding(
            name=contender.name,
            done=contender.done,
            failed=contender.failed,
            failure=contender.failure,
            in_flight=sum(load.in_flight for load in contender.router.loads),
            hit_rate=contender.cached_tokens / max(contender.prompt_tokens, 1),
            hit_rate_now=sum(done.cached_tokens for done in recent) / prompts if prompts else None,
            first_token=fmean(done.first_token for done in recent) * self._config.speed if recent else None,
        )
