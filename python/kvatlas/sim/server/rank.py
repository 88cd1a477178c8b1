"""Data-parallel rank: a cache with its requests, driven in real time, and its event stream.

A rank works in steps. A step processes everything that is due in virtual time, and publishes the resulting events as
one batch. The next step comes when something is due again, at least `ServerConfig.step` later. Nothing runs between
steps.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq

from kvatlas import content_hashes
from kvatlas.errors import RequestFailedError, SimulatedEngineError
from kvatlas.sim.chunks import leading_blocks
from kvatlas.sim.offload import Offload
from kvatlas.sim.request import Request, State, cacheable_tokens
from kvatlas.sim.server import payload, tokens
from kvatlas.sim.server.addresses import zmq_endpoint
from kvatlas.sim.server.clock import Clock
from kvatlas.sim.server.config import ServerConfig
from kvatlas.sim.server.core import Announcer, Core, ServedRequest
from kvatlas.sim.server.faults import SLOW, Faults, Link
from kvatlas.sim.server.folder import ChunkFolder
from kvatlas.sim.server.peers import AnsweredPull, PullClient
from kvatlas.sim.server.sockets import EventSockets, SocketConfig, wanted
from kvatlas.sim.server.transfer import RemoteSource, TransferOrder
from kvatlas.sim.tiers import SharedPool


class Owner(Protocol):
    """Interface of an engine to its ranks."""

    config: ServerConfig
    clock: Clock
    faults: Faults

    def begin_restart(self, down: float = 0.0) -> asyncio.Task[None]: ...

    def pause(self, seconds: float | None = None) -> None: ...


_REMEMBERED = 1_024  # pulls that are kept before those that have ended are dropped


@dataclass(slots=True)
class _Pull:
    """Request that pulls blocks from a peer; it exists from the question to the peer until the end of the request."""

    prompt: list[int]
    asks: bool = True
    request: ServedRequest | None = None

    @property
    def over(self) -> bool:
        return not self.asks and (self.request is None or self.request.over)


class Rank:
    """Data-parallel rank of a simulated engine."""

    def __init__(self, engine: Owner, number: int, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.number = number
        self.engine = engine
        self.config: ServerConfig = engine.config
        self.clock: Clock = engine.clock
        self.counts: Counter[str] = Counter()  # faults that happened
        self._names = self.config.names()
        self._random = random.Random(f"{self.config.seed}/{self.config.name}/{number}")
        self._context = context
        self._requests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._last_step = 0.0
        self._sockets: EventSockets | None = None
        self._watched: int | None = None  # the replay socket's file descriptor
        self._reopen: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None  # the next batch of a slow replay
        self._strays = 0  # batches of another publisher
        self._lazy = False  # what is to be announced can wait for something else to announce
        self._pulling: dict[str, _Pull] = {}  # by the id that their senders gave them
        self._pool: SharedPool | None = None
        if folder := self.config.pool_folder:
            self._pool = SharedPool(self.config.tiers.pool, chunks=ChunkFolder(Path(folder)))
        self._begin()

    def _begin(self) -> None:
        config, size = self.config, self.config.engine.block_size
        self.announcer = Announcer(
            self._names,
            config.dialect,
            size,
            describes=config.describes,
            announces_pool=config.announces_pool,
            pool_locality=config.pool_locality,
        )
        name, offload = f"{config.name}/{self.number}", None
        if config.tiers.host_tokens or self._pool is not None:
            offload = Offload(name, size, config.tiers, self.announcer, self._pool)
        self.core = Core(name, config.engine, self.announcer, self, offload)
        self._peers = PullClient(name, offload, config.speed) if offload is not None and config.tiers.pulls else None

    # The sockets

    def open(self, events_port: int, replay_port: int | None) -> None:
        """Bind the live and the replay socket, as a new process does. Raises `zmq.ZMQError` if an address is taken."""
        config = self.config
        self._sockets = EventSockets(
            self._context,
            SocketConfig(
                zmq_endpoint(config.host, events_port),
                None if replay_port is None else zmq_endpoint(config.host, replay_port),
                config.topic.encode(),
                config.buffer_steps,
                old_replies=config.replay_socket == "old",
            ),
        )
        self.link = Link(self._sockets.send, self._random, self._count)
        self._sockets.open()
        self.watch()
        if config.dialect == "sglang":
            # SGLang's cache begins with a reset, which is announced.
            self.announcer.batch.clear()
            self._publish(suffer=False)

    def close(self) -> None:
        """Close the live and the replay socket; batches that are not sent yet are lost."""
        self._cancel()
        self._unwatch()
        if self._sockets is not None:
            self.link.discard()
            self._sockets.close()

    @property
    def sockets(self) -> EventSockets:
        """Live and replay socket of the rank. Raises `RuntimeError` before they are open."""
        if self._sockets is None:
            raise RuntimeError("the engine is not started")
        return self._sockets

    def watch(self) -> None:
        """Start to answer replay requests, subject to the current faults."""
        sockets = self.sockets
        self._unwatch()
        if self.engine.faults.replay_socket == "closed":
            sockets.close_replay()
            return
        try:
            sockets.open_replay()
        except zmq.ZMQError:
            # The old socket is closed in the background, and still has its port.
            self._reopen = asyncio.get_running_loop().call_later(0.01, self.watch)
            return
        if sockets.router is None or self.clock.stopped:
            return
        self._watched = watched = sockets.descriptor(sockets.router)
        asyncio.get_running_loop().add_reader(watched, self._answer)
        self._answer()

    def _unwatch(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _answer(self) -> None:
        # As the descriptor is edge-triggered, all requests are read, with those that come meanwhile.
        sockets = self.sockets
        while (request := sockets.request()) is not None:
            start = wanted(request)
            if start is None or self.engine.faults.replay_socket == "silent":
                self._count("replays_unanswered")
                continue
            self._count("replays")
            if self.engine.faults.replay_socket == "slow":
                self._slowly(request, start)
            else:
                sockets.answer(request, sockets.kept(start))

    def _slowly(self, request: list[bytes], start: int) -> None:
        """Answer a replay request slowly, one batch after another.

        The answer ends at a new replay request or a change of the faults.
        """
        first = self.sockets.kept(start)[:1]
        self.sockets.answer(request, first, end=not first)
        if self._slow is not None:
            self._slow.cancel()
        if first:
            self._slow = asyncio.get_running_loop().call_later(SLOW, self._slowly, request, first[0][0] + 1)

    # Requests

    def submit(
        self,
        prompt: Sequence[int],
        output: int,
        lora: str | None,
        salt: str | None,
        seed: int | None,
        *,
        received: bool = False,
        order: TransferOrder | None = None,
        pull: AnsweredPull | None = None,
    ) -> ServedRequest:
        """Queue a request, with its output chosen at once.

        Raises an error for a request that cannot fit in the cache. `received`: True if another engine has computed the
        prompt's blocks; they are computed again if there are too few free blocks. `order`: instructions of the
        request's sender about loads. `pull`: result of `ask_peer`.
        """
        size = self.config.engine.block_size
        everything = [*prompt, *tokens.answer((list(prompt[-64:]), len(prompt), lora, seed), output)]
        kept = everything[: cacheable_tokens(len(prompt), output)]
        self._requests += 1
        request = ServedRequest(
            self._requests,
            len(prompt),
            output,
            content_hashes(kept, size, lora, salt),
            self._names.chain(kept, size, lora, salt),
            tokens=everything,
            lora=lora or None,
            salt=salt or None,
        )
        if order is not None:
            request.max_load, request.load_pool, request.pull = order.max_load, order.load_pool, pull
            if order.source is not None and (pulling := self._pulling.get(order.source.request_id)) is not None:
                pulling.request = request
        now = self.clock.now()
        if received:
            self.core.run_until(now)
            if not self.core.receive(request):
                self._count("handovers_without_room")
        self.core.submit(request, now)
        self._plan()
        return request

    async def ask_peer(
        self, source: RemoteSource, prompt: Sequence[int], lora: str | None, salt: str | None
    ) -> AnsweredPull | None:
        """Ask a peer which blocks of a prompt can be pulled.

        Returns None if no blocks are needed, or the peer does not answer. Raises `SimulatedEngineError` if another
        prompt pulls under the same id: vLLM crashes in this case, so this engine restarts.
        """
        peers, offload = self._peers, self.core.offload
        if peers is None or offload is None:
            return None
        if (other := self._pulling.get(source.request_id)) is not None and not other.over:
            if other.prompt != prompt:
                self._count("pull_id_crashes")
                _ = self.engine.begin_restart()
                raise SimulatedEngineError(f"symmetric fetch for {source.request_id} has keys but no probes", "down")
            return None
        size, k = self.config.engine.block_size, self.config.tiers.chunk
        names = self._names.chain(prompt, size, lora or None, salt or None)
        own = self.core.usable(names)[0]
        if own // k == len(names) // k:
            return None
        if len(self._pulling) >= _REMEMBERED:
            self._pulling = {name: pulling for name, pulling in self._pulling.items() if not pulling.over}
        pulling = self._pulling[source.request_id] = _Pull(list(prompt))
        try:
            return await peers.ask(source, names[k - 1 :: k], own // k)
        finally:
            pulling.asks = False

    def answer_peer(self, consumer: str, chunks: list[int], own: int) -> tuple[int, float]:
        """Answer a peer that asks for blocks of a prompt.

        Returns the number of leading chunks in host memory, and the seconds to send those that the peer lacks.
        `chunks`: names of the prompt's chunks. `own`: number of leading chunks that the peer has.
        """
        offload, now = self.core.offload, self.clock.now()
        if offload is None or offload.host is None:
            return 0, 0.0
        self.core.run_until(now)
        host, k = offload.host, self.config.tiers.chunk
        held = next((at for at, name in enumerate(chunks) if at >= own and name not in host), len(chunks))
        if held <= own:
            return held, 0.0
        offload.use([name for name in chunks[:held] for _ in range(k)])
        tokens = (held - own) * k * self.config.engine.block_size
        return held, offload.send(consumer, self.config.tiers.pull, tokens, now) - now

    async def output(self, request: ServedRequest) -> AsyncGenerator[list[int]]:
        """Yield the generated tokens of a request as they come. Closing the generator aborts the request.

        Raises `RequestFailedError` if the request fails.
        """
        pause = max(1 / (self.config.engine.decode_rate * self.config.speed), self.config.step)
        sent, prompt = 0, request.prompt_tokens
        try:
            while True:
                request.changed.clear()
                made = max(self.core.generated(request, self.clock.now()), sent)
                if made > sent:
                    yield request.tokens[prompt + sent : prompt + made]
                    sent = made
                if request.failed is not None:
                    raise RequestFailedError(request.failed)
                if request.over:
                    return
                if request.state is not State.DECODE:
                    await request.changed.wait()
                    continue
                try:
                    async with asyncio.timeout(pause):
                        await request.changed.wait()
                except TimeoutError:
                    pass
        finally:
            self.abort(request)

    async def finish(self, request: ServedRequest) -> None:
        """Wait for the end of a request. Cancelling the call aborts the request.

        Raises `RequestFailedError` if the request fails.
        """
        try:
            while not request.over:
                request.changed.clear()
                await request.changed.wait()
        finally:
            self.abort(request)
        if request.failed is not None:
            raise RequestFailedError(request.failed)

    def abort(self, request: ServedRequest) -> None:
        """Abort a request whose client has disconnected."""
        if not request.over:
            self.core.abort(request, self.clock.now())
            self._plan()

    def first_token(self, request: Request) -> None:
        if isinstance(request, ServedRequest):
            request.changed.set()

    finished = first_token

    # The truth

    def depths(self, prompt: Sequence[int], lora: str | None, salt: str | None) -> tuple[int, int]:
        """Number of leading full blocks of a prompt in the cache, and how many of them a request could use.

        A request computes its last prompt token in any case.
        """
        size = self.config.engine.block_size
        held = self.core.pool.depth(self._names.chain(prompt, size, lora or None, salt or None))
        return held, min(held, max(len(prompt) - 1, 0) // size)

    def offloaded(self, prompt: Sequence[int], lora: str | None, salt: str | None) -> tuple[int, int]:
        """Numbers of leading full blocks of a prompt: in whole chunks of host memory, and cached or loadable."""
        names = self._names.chain(prompt, self.config.engine.block_size, lora or None, salt or None)
        offload = self.core.offload
        host = [offload.host] if offload is not None and offload.host is not None else []
        pool = [offload.pool.chunks] if offload is not None and offload.pool is not None else []
        chunk, depth = self.config.tiers.chunk, self.core.depth(names)
        return leading_blocks(names, 0, chunk, host), leading_blocks(names, depth, chunk, [*host, *pool])

    @property
    def load(self) -> int:
        """Number of running, loading and waiting requests."""
        return len(self.core.running) + len(self.core.loading) + len(self.core.waiting)

    @property
    def quiet(self) -> bool:
        """True if no request, unpublished event or unsent batch remains."""
        return self.core.told and not (self.load or self.announcer.batch.events or self.link.pending)

    @property
    def last_seq(self) -> int | None:
        """Sequence number of the last published batch; None before the first."""
        return self.sockets.next_seq - 1 if self.sockets.next_seq else None

    # Steps

    def reset(self, *, with_next: bool, with_host: bool = False) -> bool:
        """Clear the cache. Returns False, and does nothing, while requests use the cache.

        `with_next`: announce the reset only together with the next events. `with_host`: clear host memory too, which is
        not announced.
        """
        if not self.core.reset():
            return False
        if with_host and self.core.offload is not None and self.core.offload.host is not None:
            self.core.offload.host.clear()
        self._lazy = with_next
        if not with_next:
            self._publish()
        return True

    def pause(self) -> None:
        """Stop steps, replays and batches until `resume`. The caller has stopped the clock."""
        self._cancel()
        self._unwatch()
        self.link.stop()

    def resume(self) -> None:
        """Continue steps, replays and batches after `pause`. The caller has started the clock."""
        self.link.go()
        self.watch()
        self._plan()

    def end(self, why: str) -> None:
        """Drop requests, cache and unsent batches, like a process that dies.

        `why`: reason given for the failed requests.
        """
        requests = [*self.core.running, *self.core.loading, *self.core.waiting]
        self.close()
        self._begin()
        for request in requests:
            if isinstance(request, ServedRequest):
                request.fail(why)

    def _step(self) -> None:
        self._timer = None
        self.core.run_until(self.clock.now())
        self._last_step = asyncio.get_running_loop().time()
        self._publish()
        self._plan()

    def _plan(self) -> None:
        """Schedule the next step, if something is due."""
        if self.clock.stopped:
            return
        self._cancel()
        due = None if (virtual := self.core.due) is None else self.clock.real(virtual)
        if self.announcer.batch.events and (self.load or not self._lazy):
            due = 0.0
        if due is not None:
            when = max(due, self._last_step + self.config.step)
            self._timer = asyncio.get_running_loop().call_at(when, self._step)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _publish(self, *, suffer: bool = True) -> None:
        self._lazy = False
        events = self.announcer.batch.take()
        if not events:
            return
        faults, chance = self.engine.faults, self._random
        rows = payload.rows(events, block_size=self.config.engine.block_size, dialect=self.config.wire)
        for make, rate, name in (
            (payload.undecodable, faults.poison_event, "poison_events"),
            (payload.unknown, faults.poison_type, "poison_types"),
        ):
            if chance.random() < rate:
                self._count(name)
                rows.insert(chance.randint(0, len(rows)), make(chance, self.config.wire))
        self._send(payload.encode(rows, timestamp=time.time(), rank=self.number), faults)
        if chance.random() < faults.poison_payload:
            self._count("poison_payloads")
            self._send(payload.garbage(chance), faults)
        if suffer:
            self._suffer(faults)

    def _send(self, data: bytes, faults: Faults) -> None:
        chance = self._random
        if chance.random() < faults.corrupt:
            self._count("corrupted")
            data = payload.truncated(data, chance)
        seq = self.sockets.record(data)
        if chance.random() < faults.truncate:
            self._count("truncated")
            data = payload.truncated(data, chance)
        self.link.push(seq, data, faults)
        if chance.random() < faults.stray:
            self._count("strays")
            stray = payload.stray(chance, self.config.wire, self.config.engine.block_size)
            self.link.push(self._strays, stray, faults)
            self._strays += 1

    def _suffer(self, faults: Faults) -> None:
        chance: Callable[[], float] = self._random.random
        if chance() < faults.restart:
            _ = self.engine.begin_restart()
        elif chance() < faults.pause:
            self.engine.pause(faults.pause_seconds)

    def _count(self, fault: str) -> None:
        self.counts[fault] += 1
