"""Scheduler of a simulated engine's requests and their blocks, common to all models of time.

The rules (each has a test):

- only full blocks are cached and announced; the last prompt token is always computed, so a prompt of exactly k blocks
  hits at most k - 1 (and its recomputed last block becomes a second copy);
- hits are not announced; the newly full blocks of a step are one announcement, chained to the block before; removals
  of the blocks that a step takes come before its store;
- blocks count as cached from the beginning of their step, so requests that are admitted meanwhile share them; but they
  are announced at the end of the step, together with all its other changes;
- a request is admitted when the pool has enough free blocks for its whole prompt; otherwise it waits, and the requests
  behind it wait too;
- when a request finds no free block, the request admitted last releases its blocks (they stay cached until reused),
  goes to the head of the queue, and recomputes the blocks that it cannot find later;
- a request that cannot fit in an empty pool is refused;
- with tiers behind the cache (`Offload`), an admitted request that can load blocks does so first, and holds its own
  blocks meanwhile; blocks for the rest of its prompt are kept free, but requests already being computed may take them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvatlas.errors import ConfigError
from kvatlas.sim.events import Sink
from kvatlas.sim.loads import Load
from kvatlas.sim.offload import Offload
from kvatlas.sim.pool import BlockPool
from kvatlas.sim.request import Request, State


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of a simulated engine. The defaults approximate a 70B model on four accelerators of 80 GB.

    Attributes:
        block_size: Tokens per block.
        blocks: Size of the engine's cache, in blocks.
        prefill_rate: Prompt tokens that the engine computes per second.
        decode_rate: Tokens that each running request generates per second.
        max_running: Maximum number of requests that run at once.
        chunk: Maximum number of prompt tokens in one prefill step; None for whole prompts.
    """

    block_size: int = 16
    blocks: int = 24_576
    prefill_rate: float = 5_000.0
    decode_rate: float = 30.0
    max_running: int = 128
    chunk: int | None = 8_192

    def __post_init__(self) -> None:
        for name in ("block_size", "blocks", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("prefill_rate", "decode_rate"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.chunk is not None and self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1 or None, got {self.chunk}")

    @property
    def cache_tokens(self) -> int:
        """Size of the cache, in tokens."""
        return self.blocks * self.block_size


class Listener(Protocol):
    """Receiver of a request's milestones (first token, end), called at the virtual time of each."""

    def first_token(self, request: Request) -> None:
        """Receive the end of a request's prefill. Not called again after a preemption."""

    def finished(self, request: Request) -> None:
        """Receive the end of a request: its last token is generated."""


@dataclass(slots=True)
class Counters:
    """Counters of an engine's work, in tokens and occurrences."""

    prompt_tokens: int = 0  # of admitted requests, once each
    hit_tokens: int = 0  # of those, found in the cache or loaded
    loaded_tokens: Counter[str] = field(default_factory=Counter)  # loaded, a part of hit_tokens, by source
    prefill_tokens: int = 0  # computed, again after preemptions included
    preemptions: int = 0
    refused: int = 0
    peak_running: int = 0


class Scheduler(ABC):
    """Waiting and running requests of a simulated engine, with their blocks. A subclass adds a model of time."""

    def __init__(
        self,
        worker: str,
        config: EngineConfig,
        sink: Sink,
        listener: Listener | None,
        pool: BlockPool | None = None,
        offload: Offload | None = None,
    ) -> None:
        """Create a scheduler. `pool`: a shared cache; None for a new cache. `offload`: tiers behind the cache."""
        self.worker = worker
        self.config = config
        self.counters = Counters()
        self.pool = pool or BlockPool(config.blocks)
        self.running: list[Request] = []  # in order of admission
        self.waiting: deque[Request] = deque()
        self._blocked = 0.0  # seconds for which the first of the queue had no room, until `_blocked_since`
        self._blocked_since: float | None = None  # None: it has room, or no request waits
        self.offload = offload
        self.loading: list[Request] = []  # admitted, but not computing yet
        self._ready: deque[Request] = deque()  # admitted, and their loads are done
        self._kept = 0  # blocks kept free for admitted requests that do not hold them yet
        self._sink = sink
        # Changes of the cache to be announced: a request with a range of full blocks, or evicted block hashes.
        self._unsent: list[tuple[Request, int, int] | list[int]] = []
        self._listener = listener

    # Driving it

    @abstractmethod
    def run_until(self, time: float) -> None:
        """Process everything that is due up to and including the virtual time `time`."""

    def drain(self) -> None:
        """Run until no request is left."""
        self.run_until(math.inf)

    def depth(self, block_hashes: list[int]) -> int:
        """Number of leading blocks of a prompt that are in the cache at this moment."""
        return self.pool.depth(block_hashes)

    def usable(self, block_hashes: list[int]) -> tuple[int, float]:
        """Leading blocks of a prompt that are cached or can be loaded, and the duration of that load in seconds."""
        depth = self.depth(block_hashes)
        return (depth, 0.0) if self.offload is None else self.offload.outlook(block_hashes, depth)

    @property
    def told(self) -> bool:
        """True if all changes of the cache have been announced."""
        return not self._unsent

    def announced_depth(self, block_hashes: Sequence[int]) -> int:
        """Number of leading blocks of a prompt that are in the cache according to the announcements so far."""
        changes: Counter[int] = Counter()
        for each in self._unsent:
            if isinstance(each, tuple):
                request, start, end = each
                changes.subtract(request.block_hashes[start:end])
            else:
                changes.update(each)
        copies = self.pool.copies
        return next(
            (at for at, name in enumerate(block_hashes) if copies(name) + changes[name] <= 0), len(block_hashes)
        )

    def reset(self) -> bool:
        """Clear the cache, as the engines' administrative route for resets does.

        Returns False, and does nothing, while requests hold blocks.
        """
        if not self.pool.reset():
            return False
        self._sink.clear(self.worker)
        return True

    # Requests

    def _queue(self, request: Request, now: float) -> bool:
        """Queue a request. Returns False if the request is refused because it would not fit in an empty cache."""
        request.arrival = now
        if -(-request.cacheable_tokens // self.config.block_size) > self.config.blocks:
            request.state = State.REFUSED
            self.counters.refused += 1
            return False
        request.target = request.prompt_tokens
        request.blocked = self._blocked_until(now)
        self.waiting.append(request)
        return True

    def _blocked_until(self, now: float) -> float:
        """Total seconds, until `now`, in which the first request of the queue lacked free blocks to start."""
        return self._blocked + (now - self._blocked_since if self._blocked_since is not None else 0.0)

    def _room_of_first(self) -> list[int] | None:
        """Cached blocks of the first request of the queue, by their numbers; None if it cannot be admitted yet."""
        if len(self.running) + len(self.loading) >= self.config.max_running:
            return None
        request, size = self.waiting[0], self.config.block_size
        hits = self.pool.lookup(request.block_hashes[: (request.target - 1) // size])
        new = -(-request.target // size) - len(hits)
        return hits if new + self.pool.idle(hits) + self._kept <= self.pool.free else None

    def _admit_first(self, now: float) -> Request | None:
        """Admit requests from the queue until one of them can be computed at once.

        Returns that request; None if no request can be computed.
        """
        while not self._ready:
            if not self.waiting:
                return None
            hits = self._room_of_first()
            if hits is None:
                if self._blocked_since is None:
                    self._blocked_since = now
                return None
            self._blocked, self._blocked_since = self._blocked_until(now), None
            request = self.waiting.popleft()
            self.pool.touch(hits)
            request.blocks = hits
            request.stored = len(hits)
            request.computed = len(hits) * self.config.block_size
            if not request.preempted:
                request.admitted = now
                request.room = self._blocked - request.blocked
            if not self._load(request, now):
                return self._begin(request)
        request = self._ready.popleft()
        self.loading.remove(request)
        self._kept -= self._missing(request)
        return self._begin(request)

    def _begin(self, request: Request) -> Request:
        """Start the prefill of an admitted request, and return the request."""
        request.state = State.PREFILL
        self.running.append(request)
        if not request.preempted:
            request.hit_tokens = request.computed
            self.counters.prompt_tokens += request.prompt_tokens
            self.counters.hit_tokens += request.computed
            self.counters.loaded_tokens.update(request.sources)
        self.counters.peak_running = max(self.counters.peak_running, len(self.running))
        return request

    # Loading

    def _missing(self, request: Request) -> int:
        """Number of blocks that a request's prompt needs in addition to those that the request holds."""
        return -(-request.target // self.config.block_size) - len(request.blocks)

    def _load(self, request: Request, now: float) -> bool:
        """Start to load the blocks that follow the cached ones of a request's prompt.

        Returns False if there is no load to wait for. The cache must have free blocks for the whole prompt.
        """
        offload = self.offload
        if offload is None:
            return False
        at = len(request.blocks)
        load = offload.load(request, at, now)
        offload.use(request.block_hashes[: load.end if load is not None else at])
        if load is None:
            return False
        request.load = load
        request.state = State.LOADING
        if load.end > at:
            taken, removed = self.pool.take(load.end - at)
            request.blocks.extend(taken)
            if removed:
                self._unsent.append(removed)
        if load.ready <= now:
            self._loaded(request, load, now)
            return False
        self.loading.append(request)
        self._kept += self._missing(request)
        self._wake(request, load.ready)
        return True

    def _loaded(self, request: Request, load: Load, now: float) -> None:
        """Record the end of a request's load: the loaded blocks are now cached."""
        request.load = None
        if self.offload is not None:
            self.offload.loaded(request, load)
        self._store_full(request, load.end * self.config.block_size)
        request.computed = load.end * self.config.block_size
        if not request.preempted:
            request.loading = load.ready - (now if request.admitted is None else request.admitted)
            request.sources = Counter(load.tokens)

    def _load_ends(self, request: Request, now: float) -> None:
        """Process the end of a request's load.

        The request continues with its prefill, or returns to the queue and looks for its blocks again.
        """
        load = request.load
        if load is None:
            return
        if load.waits:
            self.loading.remove(request)
            self._kept -= self._missing(request)
            self.pool.release(request.blocks)
            request.blocks, request.load, request.state = [], None, State.WAITING
            self.waiting.appendleft(request)
            return
        self._loaded(request, load, now)
        self._ready.append(request)

    def _drop_load(self, request: Request) -> None:
        """Cancel the load of a request, including one that has ended."""
        if self.offload is not None and request.load is not None:
            self.offload.abandon(request, request.load)
        request.load = None
        self.loading.remove(request)
        if request in self._ready:
            self._ready.remove(request)
        self._kept -= self._missing(request)

    @abstractmethod
    def _wake(self, request: Request, time: float) -> None:
        """Schedule a call of `_load_ends` for a request at virtual time `time`."""

    def _is_prefilled(self, request: Request, now: float) -> bool:
        """Record the end of a request's prefill. Returns False if the first token came earlier, before a preemption."""
        request.state = State.DECODE
        if request.first_token is not None:
            return False
        request.first_token = now
        if self._listener is not None:
            self._listener.first_token(request)
        return True

    def _finish(self, request: Request, now: float) -> None:
        request.state = State.FINISHED
        request.finished = now
        self.running.remove(request)
        self.pool.release(request.blocks)
        request.blocks = []
        if self._listener is not None:
            self._listener.finished(request)

    # Blocks

    def _grow(self, request: Request, blocks: int, now: float) -> bool:
        """Extend a request to `blocks` blocks; preempt other requests if needed.

        Returns False if the request itself is preempted.
        """
        missing = blocks - len(request.blocks)
        if missing <= 0:
            return True
        while self.pool.free < missing:
            victim = self.running[-1]
            self._preempt(victim, now)
            if victim is request:
                return False
        taken, removed = self.pool.take(missing)
        request.blocks.extend(taken)
        if removed:
            self._unsent.append(removed)
        return True

    def _store_full(self, request: Request, tokens: int) -> None:
        """Cache the newly full blocks among the first `tokens` tokens of a request.

        They are announced after the step.
        """
        start, end = request.stored, tokens // self.config.block_size
        if end <= start:
            return
        names = request.block_hashes[start:end]
        self.pool.fill(request.blocks[start:end], names)
        self._unsent.append((request, start, end))
        request.stored = end

    def _announce(self) -> None:
        """Announce the changes of the cache in the step that has ended, in order."""
        unsent, self._unsent = self._unsent, []
        for each in unsent:
            if isinstance(each, tuple):
                self._announce_store(*each)
            else:
                self._sink.remove(self.worker, each)
        if self.offload is not None:
            for each in unsent:
                if isinstance(each, tuple):
                    self.offload.computed(*each)

    def _announce_store(self, request: Request, start: int, end: int) -> None:
        """Announce the blocks of a request from number `start` to `end` (exclusive) as stored."""
        parent = request.block_hashes[start - 1] if start else None
        self._sink.store(self.worker, parent, request.block_hashes[start:end], request.content_hashes[start:end])

    def _preempt(self, request: Request, now: float) -> None:
        """Preempt a request: release its blocks, and put it at the head of the queue to be computed again."""
        self._interrupt(request, now)
        request.state = State.WAITING
        request.generation += 1
        request.preempted += 1
        self.counters.preemptions += 1
        self.running.remove(request)
        self.pool.release(request.blocks)
        request.blocks = []
        self.waiting.appendleft(request)

    @abstractmethod
    def _interrupt(self, request: Request, now: float) -> None:
        """Record the progress of a request at its preemption, and the tokens to be computed when it resumes."""
