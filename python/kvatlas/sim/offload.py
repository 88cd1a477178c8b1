"""Offloading of a simulated engine: host memory, a shared pool and pulls from peers, by the rules of vLLM's.

The rules (each has a test):

- computed blocks are copied to the tiers in whole chunks, and announced after the step's stores on the device;
- the cached part of a prompt is continued from the chunk in which it ends, chunk by chunk, as long as some tier holds
  the next one;
- host memory is used before the pool, and the pool before the peer that the request names;
- chunks that are pulled, or found in the pool, are first copied to host memory and announced there;
- without a free slot in host memory, chunks in the pool or at a peer count as not found;
- a pull takes chunks from the peer's host memory only, not from its device;
- a request that needs chunks which another request is loading waits for that load, and then looks again;
- a request that loads holds its blocks, and does not delay any step;
- pulls from one peer follow each other, as do loads from one tier; the first contact of two engines takes longer;
- a peer that refuses costs 10 ms; a peer that does not answer costs 11.8 s if the two engines have spoken before, and
  30 s if not; in the latter case every later pull of the asking engine waits as long;
- the sender of a request can forbid loads, or limit them;
- a reset keeps host memory, and a restart keeps the pool; evictions of a pool are not announced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvatlas.sim.chunks import ChunkStore, leading_chunks
from kvatlas.sim.events import TierSink
from kvatlas.sim.loads import Load, PullAnswer, PullSource, Source
from kvatlas.sim.request import Request
from kvatlas.sim.tiers import PoolChunks, SharedPool, TierConfig
from kvatlas.sim.transfers import Link, Transfer
from kvatlas.types import Tier

REFUSED = 0.010
"""Seconds after which an engine gives up a pull from a peer that refuses connections."""

SILENT = 11.8
"""Seconds after which an engine gives up a pull from a silent peer with which it has exchanged data before."""

HANDSHAKE = 30.0
"""Seconds after which an engine gives up a pull from a silent peer with which it has never exchanged data."""


@dataclass(slots=True)
class OffloadCounters:
    """Counters of an engine's loads, pulls and offloaded chunks."""

    tokens: Counter[Source] = field(default_factory=Counter)  # loaded, by source
    dropped: int = 0  # chunks that found no slot in host memory
    pulls: int = 0  # requests that asked a source
    pulls_failed: int = 0  # requests that asked a source and got no answer
    short: int = 0  # tokens that a source had when the request was sent, and no longer when it was asked


class Offload:
    """Tiers behind one engine's cache: host memory, from which other engines can pull blocks, and a shared pool."""

    def __init__(
        self, worker: str, block_size: int, config: TierConfig, sink: TierSink, pool: SharedPool | None = None
    ) -> None:
        self.worker = worker
        self.config = config
        self.counters = OffloadCounters()
        self.host = ChunkStore(config.host_slots(block_size)) if config.host_slots(block_size) else None
        self.pool = pool
        self.storing: tuple[Request, int] | None = None  # what is being announced, and its first block
        # When the engine answers its consumers again, and whether it refuses their connections.
        self.frozen_until = 0.0
        self.refuses = False
        self._size = block_size
        self._sink = sink
        self._own, self._far, self._out = Link(), Link(), Link()
        self._spoken: set[object] = set()  # consumers that it has a session with
        self._broken = False  # whether its own pulls fail: a handshake got no answer
        self._coming: dict[int, float] = {}  # chunks of loads under way, and when those are done

    # Storing

    def computed(self, request: Request, start: int, end: int) -> None:
        """Copy the chunks completed by blocks `start` to `end` of a request to the tiers, and announce these chunks."""
        k, host = self.config.chunk, self.host
        if self.config.prompt_only:
            end = min(end, request.prompt_tokens // self._size)
        numbers = range(start // k, end // k)
        if not numbers:
            return
        there: Sequence[int] = numbers
        if host is not None:
            last = {number: request.block_hashes[number * k + k - 1] for number in numbers}
            new = []
            for number, name in last.items():
                if name not in host and self._keep(request, number, host):
                    new.append(number)
                host.pin(name)  # they do not evict each other
            there = [number for number, name in last.items() if name in host]
            for name in last.values():
                host.unpin(name)
            self._store("cpu", request, new)
            self.use(request.block_hashes[:end])
        if (pool := self.pool) is not None:
            self._store("external", request, [n for n in there if pool.take(self._blocks(request, n))])

    def _blocks(self, request: Request, number: int) -> list[int]:
        k = self.config.chunk
        return request.block_hashes[number * k : number * k + k]

    def _keep(self, request: Request, number: int, host: ChunkStore) -> bool:
        """Store a chunk of a request in host memory, and announce the resulting evictions.

        Returns False if no slot is free.
        """
        gone = host.add(self._blocks(request, number))
        if gone is None:
            self.counters.dropped += 1
            return False
        for chunk in gone:
            self._sink.remove_tier(self.worker, "cpu", chunk)
        return True

    def _store(self, tier: Tier, request: Request, numbers: Sequence[int]) -> None:
        """Announce stored chunks of a request, given by their numbers; consecutive chunks form one announcement."""
        k = self.config.chunk
        for start, end in runs(numbers):
            first, last = start * k, end * k
            names, contents = request.block_hashes, request.content_hashes
            self.storing = request, first
            parent = names[first - 1] if first else None
            self._sink.store_tier(self.worker, tier, parent, names[first:last], contents[first:last])

    # Loading

    def load(self, request: Request, at: int, now: float) -> Load | None:
        """Begin to load the blocks after the first `at` of a request. Returns None if nothing can be loaded."""
        size, k = self._size, self.config.chunk
        names, usable = request.block_hashes, (request.target - 1) // size
        if request.max_load is not None:
            usable = min(usable, at + request.max_load // size)
        pool, peer = self.pool if request.load_pool else None, request.pull
        answer: PullAnswer | None = None
        load = Load(at, at, now)
        number = at // k
        while number * k < usable and (number + 1) * k <= request.target // size:
            name = names[number * k + k - 1]
            if name in self._coming:
                self.abandon(request, load)
                return Load(at, at, self._coming[name], waits=True)
            source: Source | None = None
            if self.host is not None and name in self.host:
                source = "host"
            elif pool is not None and name in pool.chunks:
                source = "disk"
                pool.chunks.use([name])
            elif peer is not None:
                if answer is None:
                    answer = self._ask(peer, now)
                if name in answer.held:
                    source = "p2p"
            if source is None or (source != "host" and not self._promote(request, number, load)):
                break
            load.chunks.append(name)
            if self.host is not None:
                self.host.pin(name)
            load.tokens[source] += (min(number * k + k, usable) - max(number * k, at)) * size
            number += 1
        if number * k - at < k and load.chunks:  # as vLLM: less than a chunk is not loaded
            self.abandon(request, load)
            return None
        load.end = max(at, min(number * k, usable))
        if answer is not None and not answer.failed:
            self.counters.short += max(min(request.pull_blocks, usable) - load.end, 0) * size
        self._time(load, peer, answer, now)
        return load if load.ready > now or load.end > at else None

    def _ask(self, peer: PullSource, now: float) -> PullAnswer:
        self.counters.pulls += 1
        if self._broken:
            answer = PullAnswer((), HANDSHAKE, failed=True)
        else:
            answer = peer.answer(self, now)
            self._broken = answer.failed and answer.delay >= HANDSHAKE
        self.counters.pulls_failed += answer.failed
        return answer

    def _promote(self, request: Request, number: int, load: Load) -> bool:
        """Reserve a slot in host memory for a chunk that is loaded from the pool or a peer.

        Returns False if no slot is free.
        """
        if self.host is not None:
            if not self._keep(request, number, self.host):
                return False
            load.promoted.append(number)
        return True

    def _time(self, load: Load, peer: PullSource | None, answer: PullAnswer | None, now: float) -> None:
        """Compute the virtual time at which a load ends. Transfers from different tiers run one after another."""
        if answer is not None:
            load.ready = max(load.ready, now + answer.delay)
        if peer is not None and (tokens := load.tokens["p2p"]):
            load.ready = peer.send(self, self.config.pull, tokens, load.ready)
        if self.pool is not None and (tokens := load.tokens["disk"]):
            load.ready = self._far.carry(self.pool.transfer, tokens, load.ready)
        if tokens := load.tokens["host"]:
            load.ready = self._own.carry(self.config.host, tokens, load.ready)
        self._coming.update(dict.fromkeys(load.chunks, load.ready))

    def loaded(self, request: Request, load: Load) -> None:
        """Complete a load: announce the chunks that were copied to host memory, and count the loaded tokens."""
        self._store("cpu", request, load.promoted)
        self._release(load)
        self.counters.tokens.update(load.tokens)

    def abandon(self, request: Request, load: Load) -> None:
        """Abandon a load, and free the slots in host memory reserved for its chunks."""
        self._release(load)
        if self.host is not None:
            for number in load.promoted:
                self.host.discard(self._blocks(request, number)[-1])

    def _release(self, load: Load) -> None:
        """Allow the eviction of a load's chunks again."""
        for name in load.chunks:
            self._coming.pop(name, None)
            if self.host is not None:
                self.host.unpin(name)

    def use(self, names: Sequence[int]) -> None:
        """Mark the chunks of a prompt's leading blocks as the most recently used ones of host memory."""
        if self.host is not None:
            self.host.use(names[self.config.chunk - 1 :: self.config.chunk])

    def outlook(self, names: Sequence[int], at: int) -> tuple[int, float]:
        """Leading blocks of a prompt that are cached or can be loaded, and the duration of that load in seconds.

        `names`: block hashes of the prompt. `at`: number of leading blocks in the engine's own cache.
        """
        k, size = self.config.chunk, self._size
        places: list[tuple[PoolChunks, Transfer]] = [] if self.host is None else [(self.host, self.config.host)]
        if self.pool is not None:
            places.append((self.pool.chunks, self.pool.transfer))
        found = leading_chunks(names, at, k, [tier for tier, _ in places])
        if at // k * k + len(found) * k - at < k:
            found = []  # less than a chunk is not loaded
        end = max(at, min(at // k * k + len(found) * k, len(names)))
        first = at // k * k + k - at  # blocks of the first chunk
        seconds = 0.0
        for number, (_, transfer) in enumerate(places):
            if blocks := found.count(number) * k - (k - first if found[:1] == [number] else 0):
                seconds += transfer.of(blocks * size)
        return end, seconds

    # As a source

    def answer(self, consumer: object, now: float) -> PullAnswer:
        """Answer a peer (the consumer) that asks at virtual time `now` with the chunks in host memory.

        See `PullSource`.
        """
        if self.refuses or self.host is None:
            return PullAnswer((), REFUSED, failed=True)
        spoken = consumer in self._spoken
        limit = SILENT if spoken else HANDSHAKE
        silent = self.frozen_until - now
        if silent >= limit:
            return PullAnswer((), limit, failed=True)
        self._spoken.add(consumer)
        return PullAnswer(self.host, max(silent, 0.0) + (0.0 if spoken else self.config.pull.connect))

    def send(self, consumer: object, transfer: Transfer, tokens: int, now: float) -> float:
        """Send `tokens` tokens to a peer (the consumer) from virtual time `now` on.

        Returns the time at which they arrive.
        """
        return self._out.carry(transfer, tokens, now)

    # The end

    def clear(self) -> None:
        """Clear host memory and all connections to peers, as a restart does. The shared pool stays."""
        if self.host is not None:
            self.host.clear()
        self._coming.clear()
        self._spoken.clear()
        self._broken = False
        self._own, self._far, self._out = Link(), Link(), Link()


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers in `numbers`, each as its first number and the number after its last."""
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[begin], numbers[at - 1] + 1
            begin = at
