"""Simulated engine with an HTTP server like a real engine's."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import zmq
from aiohttp import web

from kvatlas.errors import SimulatedEngineError
from kvatlas.sim.server.addresses import bindable
from kvatlas.sim.server.api import make_app
from kvatlas.sim.server.config import ServerConfig
from kvatlas.sim.server.engine import TRIES, ServedEngine
from kvatlas.sim.server.peers import PullPort


class EngineServer(ServedEngine):
    """Simulated engine with real event sockets and an HTTP server, in a running event loop.

    `async with EngineServer(config) as engine:` serves until the end of the block. Share one `context` between the
    engines of a process.
    """

    def __init__(
        self, config: ServerConfig | None = None, *, context: zmq.Context[zmq.Socket[bytes]] | None = None
    ) -> None:
        super().__init__(config, context=context)
        self._runner: web.AppRunner | None = None
        self._pull_ports: list[PullPort] = []

    async def start(self) -> None:
        """Bind all sockets and serve. Raises `SimulatedEngineError` if a port is taken."""
        try:
            await super().start()
            runner = web.AppRunner(make_app(self), access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
            self._runner = runner
            await runner.setup()
            await self._listen(runner)
            await self._serve_peers()
        except BaseException:
            await self.close()
            raise

    async def _disconnect(self) -> None:
        for port in self._pull_ports:
            await port.close()
        self._pull_ports = []
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _serve_peers(self) -> None:
        if self.pull_port is None:
            return
        self.pull_port = self.pull_port or self.free_port(self.config.ranks)
        for rank in self.ranks:
            port = PullPort(rank.answer_peer, self._answers_peers)
            try:
                await port.open(bindable(self.config.host), self.pull_port + rank.number)
            except OSError as error:
                where = f"{self.config.host}, port {self.pull_port + rank.number}"
                raise SimulatedEngineError(f"cannot serve pulls on {where}: {error.strerror}", "port_in_use") from error
            self._pull_ports.append(port)

    async def _answers_peers(self) -> bool:
        """Wait while the engine is paused. Returns False if the engine is down, or refuses pulls."""
        await self.going.wait()
        while self.faults.pulls == "silent":
            await asyncio.sleep(0.02)
        return not self.down and self.faults.pulls == "on"

    async def _listen(self, runner: web.AppRunner) -> None:
        host = bindable(self.config.host)
        for left in reversed(range(TRIES)):
            if not self.config.http_port:
                self.http_port = self.free_port()
            site = web.TCPSite(runner, host, self.http_port)
            try:
                await site.start()
            except OSError as error:
                if not left or self.config.http_port:
                    raise SimulatedEngineError(
                        f"cannot serve HTTP on {host}, port {self.http_port}: {error.strerror}", "port_in_use"
                    ) from error
            else:
                return
