"""Simulated engine for real sockets: `kvatlas.sim.engine` with token ids in announcements and aborted requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas._hashes import Hashes
from kvatlas.sim.engine import Engine
from kvatlas.sim.offload import Offload
from kvatlas.sim.request import Request, State
from kvatlas.sim.scheduler import EngineConfig, Listener
from kvatlas.sim.server.events import Batch, Medium, Placeholder, Stored
from kvatlas.sim.server.events import Engine as Dialect
from kvatlas.sim.server.names import Names
from kvatlas.types import Tier


@dataclass(slots=True, eq=False, kw_only=True)
class ServedRequest(Request):
    """Request with token ids: those of the prompt, followed by all that will be generated."""

    tokens: list[int]
    lora: str | None = None
    salt: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a milestone passed, or it is over
    failed: str | None = None  # why it will not be finished

    @property
    def over(self) -> bool:
        """True if the request has finished, has failed or was refused."""
        return self.failed is not None or self.state in (State.FINISHED, State.REFUSED)

    def fail(self, why: str) -> None:
        """Mark the request as failed, unless it has ended already. `why`: reason of the failure."""
        if not self.over:
            self.failed = why
            self.changed.set()


class Announcer:
    """Receiver that turns announcements of the cache into events, with block hashes in the engine's format."""

    def __init__(
        self,
        names: Names,
        dialect: Dialect,
        block_size: int,
        *,
        describes: bool = True,
        announces_pool: bool = True,
        pool_locality: bool = True,
    ) -> None:
        """Create an announcer. `ServerConfig` documents the three options about offloaded blocks."""
        self._describes = describes
        self._announces_pool = announces_pool
        self._pool_locality = "REMOTE" if pool_locality else None
        self.batch = Batch(dialect)
        self.core: Core | None = None
        self.copies = 0  # copies held according to the announcements
        self._copies: Counter[int] = Counter()  # copies of each block, if only the first is announced
        self._names = names
        self._size = block_size

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        core = self.core
        if core is None or core.storing is None:
            raise RuntimeError("blocks stored by no request")
        (request, begin), size = core.storing, self._size
        runs = [(0, len(block_hashes))]
        if self.batch.engine == "sglang":
            runs = _runs([not self._copies[name] for name in block_hashes])
            self._copies.update(block_hashes)
        for start, end in runs:
            before = block_hashes[start - 1] if start else parent
            first = begin + start
            self.copies += end - start
            self.batch.store(
                Stored(
                    [self._names.wire(name) for name in block_hashes[start:end]],
                    None if before is None else self._names.wire(before),
                    request.tokens[first * size : (first + end - start) * size],
                    request.lora,
                    request.salt,
                )
            )

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        if self.batch.engine == "sglang":
            self._copies.subtract(block_hashes)
            block_hashes = [name for name in dict.fromkeys(block_hashes) if not self._copies[name]]
            for name in block_hashes:
                del self._copies[name]
        if block_hashes:
            self.copies -= len(block_hashes)
            self.batch.remove([self._names.wire(name) for name in block_hashes])

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        """Announce each chunk in an event of its own, as vLLM does.

        The event has the token ids but (for vLLM) not the salt.
        """
        offload = self.core.offload if self.core is not None else None
        if offload is None or offload.storing is None:
            raise RuntimeError("blocks offloaded by no request")
        (request, begin), k, size = offload.storing, offload.config.chunk, self._size
        if not isinstance(request, ServedRequest):
            raise TypeError(f"a request with tokens is wanted, not a {type(request).__name__}")
        if tier == "external" and not self._announces_pool:
            return
        medium, locality = self._medium(tier), self._pool_locality if tier == "external" else None
        wire = [self._names.wire(name) for name in block_hashes]
        above = None if parent is None else self._names.wire(parent)
        for start in range(0, len(wire), k):
            names, first = wire[start : start + k], begin + start
            if self._describes or self.batch.engine == "sglang":
                content = request.tokens[first * size : (first + k) * size]
                salt = request.salt if self.batch.engine == "sglang" else None
                self.batch.store(Stored(names, above, content, request.lora, salt, medium, locality))
            else:
                self.batch.store_placeholder(Placeholder(names[-1:], medium, locality))
            above = names[-1]

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        self.batch.remove_chunk([self._names.wire(name) for name in block_hashes], self._medium(tier))

    def _medium(self, tier: Tier) -> Medium:
        if tier == "external":
            return "STORAGE"
        return "CPU_PINNED" if self.batch.engine == "sglang" else "CPU"

    def clear(self, worker: str) -> None:
        self.copies = 0
        self._copies.clear()
        self.batch.clear()


class Core(Engine):
    """Simulated engine that knows which request each announcement belongs to, and can abort requests."""

    def __init__(
        self, worker: str, config: EngineConfig, sink: Announcer, listener: Listener, offload: Offload | None = None
    ) -> None:
        super().__init__(worker, config, sink, listener, offload)
        self.storing: tuple[ServedRequest, int] | None = None  # and the first of the blocks
        sink.core = self

    def abort(self, request: Request, now: float) -> None:
        """Abort a request, as engines do when a client disconnects.

        Its computed blocks stay cached until they are evicted.

        A prompt that is being computed keeps its blocks until the step ends.
        """
        self.run_until(now)
        if request is self._prefilling:
            self.running.remove(request)
            request.state = State.FINISHED
            return
        if request.state is State.WAITING:
            self.waiting.remove(request)
        elif request.state is State.LOADING:
            self._drop_load(request)
            self.pool.release(request.blocks)
            request.blocks = []
        elif request.state is State.DECODE:
            self.running.remove(request)
            self.pool.release(request.blocks)
            request.blocks = []
        else:
            return
        request.generation += 1
        request.state = State.FINISHED
        self._admit(now)
        self._announce_between_chunks()

    def _chunk_done(self, request: Request, now: float) -> None:
        if request.state is State.PREFILL:
            super()._chunk_done(request, now)
            return
        self._prefilling = None
        self._announce()
        self.pool.release(request.blocks)
        request.blocks = []
        self._admit(now)

    def receive(self, request: ServedRequest) -> bool:
        """Cache the full blocks of a prompt that another engine computed.

        Returns False if there are too few free blocks.

        The request finds the blocks once it is submitted. The last token of the prompt is computed by this engine in
        any case.
        """
        size = self.config.block_size
        count = (request.prompt_tokens - 1) // size
        names = request.block_hashes[:count]
        held = self.pool.lookup(names)
        missing = count - len(held)
        if missing + self.pool.idle(held) > self.pool.free:
            return False
        self.pool.touch(held)
        blocks, removed = self.pool.take(missing)
        if removed:
            self._unsent.append(removed)
        request.blocks = [*held, *blocks]
        request.stored = len(held)
        self._store_full(request, count * size)
        self.pool.release(request.blocks)
        request.blocks, request.stored = [], 0
        self._announce_between_chunks()
        return True

    def generated(self, request: Request, now: float) -> int:
        """Number of tokens that a request has generated by time `now`, up to which the engine has run."""
        if request.state is State.FINISHED:
            return request.output_tokens
        if request.first_token is None:
            return 0
        done = request.computed - request.prompt_tokens + 1
        if request.state is State.DECODE:
            size = self.config.block_size
            left = request.cacheable_tokens - request.computed
            made = int((now - request.since) * self.config.decode_rate)
            # A token that fills a block, or is the last, is generated when the request's timer is due.
            done += max(min(made, left - 1, size - 1 - request.computed % size), 0)
        return max(done, 1)

    def _announce_store(self, request: Request, start: int, end: int) -> None:
        if isinstance(request, ServedRequest):
            self.storing = request, start
        super()._announce_store(request, start, end)


def _runs(kept: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of True in `kept`, each as its first position and the position after its last."""
    edges = [i for i in range(len(kept) + 1) if (i > 0 and kept[i - 1]) != (i < len(kept) and kept[i])]
    return list(zip(edges[::2], edges[1::2], strict=True))
