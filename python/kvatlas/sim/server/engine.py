"""Simulated engine without its HTTP server: ranks in real time, their sockets, and their faults."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import zmq

from kvatlas.errors import InvalidArgumentError, RequestRefusedError, SimulatedEngineError
from kvatlas.sim.request import State
from kvatlas.sim.server.addresses import bindable, reachable
from kvatlas.sim.server.clock import Clock
from kvatlas.sim.server.config import ServerConfig
from kvatlas.sim.server.core import ServedRequest
from kvatlas.sim.server.faults import Faults
from kvatlas.sim.server.handover import Handover
from kvatlas.sim.server.peers import AnsweredPull
from kvatlas.sim.server.ports import free_block
from kvatlas.sim.server.rank import Rank
from kvatlas.sim.server.transfer import TransferOrder
from kvatlas.sim.server.truth import RankState, Truth

TRIES = 20  # to find free ports
_PATIENCE = 15.0  # seconds that a restart waits for its own ports


class ServedEngine:
    """Simulated engine with real event sockets but without an HTTP server, in a running event loop."""

    def __init__(
        self, config: ServerConfig | None = None, *, context: zmq.Context[zmq.Socket[bytes]] | None = None
    ) -> None:
        self.config = config or ServerConfig()
        self.faults: Faults = self.config.faults
        self.model = self.config.model  # may be changed while it runs
        self.handover = Handover()
        self.clock = Clock(self.config.speed)
        self.started = time.time()
        self.epoch = 0  # restarts so far
        self.down = False  # between the end of one epoch and the beginning of the next
        self.counts: Counter[str] = Counter()
        self._own = context is None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context() if context is None else context
        self.ranks = [Rank(self, number, self._context) for number in range(self.config.ranks)]
        self.going = asyncio.Event()  # not paused
        self.going.set()
        self._resume: asyncio.TimerHandle | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._next = 0
        self.http_port = self.config.http_port
        self.events_port = self.config.events_port
        self.pull_port: int | None = self.config.pull_port if self.config.tiers.pulls else None
        self.replay_port: int | None = None if self.config.replay_socket == "none" else self.config.replay_port

    # Life

    async def start(self) -> None:
        """Bind the sockets of all ranks. Raises `SimulatedEngineError` if a port is taken."""
        self._open_ranks()

    async def close(self) -> None:
        """Stop the engine: requests in progress fail, and all sockets are closed."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
            self._restarting = None
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        self.going.set()
        for rank in self.ranks:
            rank.end("the engine is shutting down")
        await self._disconnect()
        if self._own:
            self._context.term()

    async def _disconnect(self) -> None:
        """Close the servers that a subclass has added. All requests have failed before this call."""

    # Where it is

    @property
    def url(self) -> str:
        """URL of the engine's HTTP server."""
        return f"http://{reachable(self.config.host)}:{self.http_port}"

    def endpoint(self, rank: int = 0) -> str:
        """ZMQ endpoint of a rank's live event stream."""
        return f"tcp://{reachable(self.config.host)}:{self.events_port + self._rank(rank).number}"

    def replay_endpoint(self, rank: int = 0) -> str | None:
        """ZMQ endpoint at which a rank answers replay requests; None if it answers none."""
        if self.replay_port is None:
            return None
        return f"tcp://{reachable(self.config.host)}:{self.replay_port + self._rank(rank).number}"

    # Requests

    def submit(
        self,
        prompt: Sequence[int],
        output: int = 16,
        *,
        lora: str | None = None,
        salt: str | None = None,
        rank: int | None = None,
        seed: int | None = None,
        received: bool = False,
        order: TransferOrder | None = None,
        pull: AnsweredPull | None = None,
    ) -> tuple[Rank, ServedRequest]:
        """Queue a request at rank `rank`; None for the least loaded rank. Returns the rank and the request.

        Raises `RequestRefusedError` if the request can never run. `received`: True if the prompt's blocks, computed by
        another engine, have been fetched. `order`: instructions of the request's sender about loads. `pull`: result of
        the rank's `ask_peer`.
        """
        if not prompt or output < 1:
            raise RequestRefusedError("a request needs at least one prompt token and one token to generate")
        if len(prompt) + output > self.config.longest:
            raise RequestRefusedError(
                f"{len(prompt)} prompt tokens and {output} to generate are more than this engine's "
                f"{self.config.longest}",
                "too_long",
            )
        if self.down:
            raise SimulatedEngineError("the engine is starting", "down")
        chosen = self.choose_rank(rank)
        request = chosen.submit(prompt, output, lora, salt, seed, received=received, order=order, pull=pull)
        if request.state is State.REFUSED:
            raise RequestRefusedError("the request does not fit in the cache", "too_long")
        return chosen, request

    def choose_rank(self, rank: int | None) -> Rank:
        """Find the rank with number `rank`; None for the least loaded one.

        Raises `InvalidArgumentError` for an unknown rank.
        """
        return self._rank(rank) if rank is not None else self._idlest()

    async def complete(
        self,
        prompt: Sequence[int],
        output: int = 16,
        *,
        lora: str | None = None,
        salt: str | None = None,
        rank: int | None = None,
    ) -> ServedRequest:
        """Send a request and wait for its end.

        Raises `RequestFailedError` if the engine stops or restarts meanwhile.
        """
        chosen, request = self.submit(prompt, output, lora=lora, salt=salt, rank=rank)
        await chosen.finish(request)
        return request

    # The truth

    def match(self, tokens: Sequence[int], *, lora: str | None = None, salt: str | None = None, rank: int = 0) -> Truth:
        """Blocks of a prompt that a rank holds. If the result is `quiet`, all of them have been published."""
        chosen = self._rank(rank)
        held, usable = chosen.depths(tokens, lora, salt)
        host, loadable = chosen.offloaded(tokens, lora, salt)
        quiet = chosen.quiet and not self.down
        return Truth(held, usable, self.epoch, chosen.last_seq, quiet, host, loadable)

    def state(self) -> list[RankState]:
        """State of each rank."""
        return [
            RankState(
                rank=rank.number,
                epoch=self.epoch,
                seq=rank.last_seq,
                held=rank.core.pool.cached,
                copies=rank.announcer.copies,
                running=len(rank.core.running),
                waiting=len(rank.core.waiting) + len(rank.core.loading),
                quiet=rank.quiet and not self.down,
                counts=dict(rank.counts + self.counts),
            )
            for rank in self.ranks
        ]

    # What goes wrong

    def set_faults(self, faults: Faults) -> None:
        """Replace all faults of the engine, with immediate effect."""
        self.faults = faults
        if not (self.down or self.clock.stopped):
            for rank in self.ranks:
                rank.watch()

    def reset(self, *, with_next: bool = False, with_host: bool = False) -> bool:
        """Clear the cache of every rank. Returns False, and does nothing, while requests use a cache.

        `with_next`: announce the reset only together with the next events. `with_host`: clear host memory too.
        """
        if any(rank.core.running or rank.core.loading for rank in self.ranks):
            return False
        done = [rank.reset(with_next=with_next, with_host=with_host) for rank in self.ranks]
        return all(done)

    def pause(self, seconds: float | None = None) -> None:
        """Pause the engine: its sockets stay open, but it neither publishes nor answers.

        `seconds`: length of the pause; None for a pause until `resume`.
        """
        if self.down:
            return
        if not self.clock.stopped:
            self.counts["pauses"] += 1
            self.clock.stop()
            self.going.clear()
            for rank in self.ranks:
                rank.pause()
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if seconds is not None:
            self._resume = asyncio.get_running_loop().call_later(seconds, self.resume)

    def resume(self) -> None:
        """End a pause of the engine."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self.clock.stopped:
            self.clock.go()
            self.going.set()
            for rank in self.ranks:
                rank.resume()

    def begin_restart(self, down: float = 0.0) -> asyncio.Task[None]:
        """Start a restart of the engine, or return the one in progress; the task ends when the engine is up again.

        `down`: seconds for which the engine is down.
        """
        if self._restarting is None or self._restarting.done():
            self.counts["restarts"] += 1
            self.down = True
            self._restarting = asyncio.get_running_loop().create_task(self._restart(down))
        return self._restarting

    async def _restart(self, down: float) -> None:
        self.resume()
        for rank in self.ranks:
            rank.end("the engine restarted")
        self.epoch += 1
        await asyncio.sleep(down)
        patience = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            try:
                self._bind_ranks()
                break
            except zmq.ZMQError as error:
                # The old sockets are closed in the background.
                if asyncio.get_running_loop().time() > patience:
                    raise SimulatedEngineError(
                        f"{self.config.name} cannot restart: {error.strerror}", "down"
                    ) from error
                await asyncio.sleep(0.01)
        self.down = False

    # Ports

    def _open_ranks(self) -> None:
        host, count = self.config.host, self.config.ranks
        for left in reversed(range(TRIES)):
            if not self.config.events_port:
                self.events_port = self.free_port(count)
            if self.replay_port is not None and not self.config.replay_port:
                self.replay_port = self.free_port(count)
            try:
                self._bind_ranks()
            except zmq.ZMQError as error:
                if not left or self.config.events_port:
                    ports = f"{self.events_port} (events)" + (
                        f" and {self.replay_port} (replays)" if self.replay_port is not None else ""
                    )
                    raise SimulatedEngineError(
                        f"cannot bind {count} ports from {ports} on {host}: {error.strerror}", "port_in_use"
                    ) from error
            else:
                return

    def free_port(self, count: int = 1) -> int:
        """First of `count` consecutive free ports. Raises `SimulatedEngineError` if the host cannot be bound."""
        host = bindable(self.config.host)
        try:
            return free_block(host, count)
        except OSError as error:
            raise SimulatedEngineError(f"cannot bind {host}: {error.strerror or error}", "invalid_host") from error

    def _bind_ranks(self) -> None:
        try:
            for rank in self.ranks:
                rank.open(
                    self.events_port + rank.number,
                    None if self.replay_port is None else self.replay_port + rank.number,
                )
        except zmq.ZMQError:
            for rank in self.ranks:
                rank.close()
            raise

    def _rank(self, number: int) -> Rank:
        if not 0 <= number < len(self.ranks):
            raise InvalidArgumentError(
                f"there is no rank {number}: ranks are 0 to {len(self.ranks) - 1}", "out_of_range"
            )
        return self.ranks[number]

    def _idlest(self) -> Rank:
        self._next += 1
        count = len(self.ranks)
        return min((self.ranks[(self._next + i) % count] for i in range(count)), key=lambda rank: rank.load)
