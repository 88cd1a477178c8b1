"""A literal model of the blocks that engines can load from host memory, disks and pools: a part of `kvatlas.reference`.

The model never forgets for which block a block hash (name) has stood, so any name can be followed to the beginning of
its prompt; the index remembers that beginning only as long as the name is held. For a pool, a name stands for a block
as long as the pool has the block, or one that continues it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from kvatlas.types import Loadable, Segment, Tier

__all__ = ["Held", "LoadingModel", "ReferenceLoading"]

Name = int | bytes
Block = tuple[Name | None, int]
"""Block hash of a block's parent, None at the beginning of a prompt, and the block's content hash."""
Held = Mapping[Tier, Mapping[Name, Block]]
"""Blocks that a rank holds on each of its tiers; tiers without blocks may be missing."""
Chain = tuple[int, ...]
"""Content hashes of a prompt's leading blocks."""
Ranks = Mapping[tuple[str, int], Held]


@dataclass(frozen=True)
class Source:
    """A source of blocks.

    `chunk`: number of blocks in a chunk. `least`: number of blocks below which an engine does not load from it.
    `segment`: function of start, end and chain that returns the segment for the chunk at the chain's end, or None.
    """

    chunk: int
    least: int
    segment: Callable[[int, int, Chain], Segment | None]


OWN: tuple[Tier, ...] = ("cpu", "disk", "external")


@dataclass
class Pool:
    """A store that several workers share: its settings, and its blocks with the time of the last announcement.

    `meant` has the meaning (parent and content) of all block hashes that the pool ever had. `known` has the block
    hashes whose meaning still counts: those of the pool's blocks, and of removed blocks as long as the pool has a block
    that continues them. `unmeant` has the block hashes that the store has named and that no member has
    described yet. `seen` has the blocks in the order of eviction.
    """

    name: str
    members: frozenset[str] | None
    tier: Tier
    chunk: int
    announces_removals: bool
    lifetime: float | None
    room: int | None
    evicts: str
    follows_store: bool
    from_beginning: bool
    is_whole: bool = True
    unmeant: dict[Name, float] = field(default_factory=dict)
    meant: dict[Name, Block] = field(default_factory=dict)
    known: set[Name] = field(default_factory=set)
    seen: dict[Name, float] = field(default_factory=dict)

    def block(self, name: Name) -> Block | None:
        """The block for which a block hash stands in the pool; None if unknown."""
        return self.meant[name] if name in self.known else None

    def take(self, name: Name) -> bool:
        """Remove a block from the pool. Returns False if the pool does not have it."""
        is_there = self.seen.pop(name, None) is not None
        self.forget_unused()
        return is_there

    def forget_unused(self) -> None:
        """Forget the meaning of block hashes whose blocks are gone, unless the pool has a block that continues them.

        A block that comes later and continues a forgotten one does not bring its meaning back.
        """
        kept: set[Name | None] = set(self.seen)
        while more := {self.meant[name][0] for name in self.known & kept} & self.known - kept:
            kept |= more
        self.known &= kept

    def has(self, worker: str) -> bool:
        return self.members is None or worker in self.members


@dataclass
class OffloadSettings:
    """Settings of an engine that offloads blocks to other tiers.

    `chunks`: number of blocks in a chunk of each tier. `resets_keep`: True if a reset of the prefix cache keeps
    offloaded blocks; None if unknown.
    """

    chunks: Mapping[Tier, int]
    resets_keep: bool | None


class LoadingModel:
    """Settings of workers, pools, and the blocks for which block hashes have stood."""

    def __init__(self) -> None:
        self.offloading: dict[str, OffloadSettings] = {}
        self.pools: dict[str, Pool] = {}
        self.meant: dict[tuple[str, int], dict[Name, Block]] = {}
        self.offloads: set[tuple[str, int]] = set()  # ranks that have stored anything beyond their device
        self.in_doubt: set[tuple[str, int]] = set()
        self.gapless: set[tuple[str, int, Tier]] = set()  # tiers of ranks that are loaded from a prompt's beginning on
        self.now = 0.0

    def settings(self, worker: str) -> OffloadSettings:
        return self.offloading.get(worker, OffloadSettings(dict.fromkeys(OWN, 1), None))

    def pools_of(self, worker: str) -> list[Pool]:
        return [pool for pool in self.pools.values() if pool.has(worker)]

    def pool_at(self, worker: str, tier: Tier) -> Pool | None:
        return next((pool for pool in self.pools_of(worker) if pool.tier == tier), None)

    def in_pools(self, worker: str, name: Name) -> Block | None:
        """The block for which a block hash stands in the pools from which a worker may load; None if unknown."""
        blocks = (pool.block(name) for pool in self.pools_of(worker))
        return next((block for block in blocks if block is not None), None)

    def stored(self, worker: str, rank: int, tier: Tier, name: Name, block: Block, *, is_new: bool) -> None:
        """Record the block for which a rank's block hash stands.

        For the tier "gpu", the meaning replaces the one in pools too. `is_new`: the rank had the block on none of its
        own tiers, so it was loaded if a pool of the rank has it.
        """
        self.meant.setdefault((worker, rank), {})[name] = block
        for pool in self.pools_of(worker) if tier == "gpu" else ():
            if name in pool.meant:
                pool.meant[name] = block
                pool.forget_unused()
        for pool in self.pools_of(worker):
            if name in pool.unmeant:
                self.place(pool, name, block, pool.unmeant.pop(name))
                self.remember(pool, name, [self.meant[worker, rank]])
            if is_new and pool.evicts == "used" and name in pool.seen:
                self.renew(pool, name)

    def renew(self, pool: Pool, name: Name) -> None:
        del pool.seen[name]
        pool.seen[name] = self.now

    def place(self, pool: Pool, name: Name, block: Block, at: float) -> None:
        """Put a block into a pool, whose store says that it is there."""
        pool.meant[name] = block
        pool.known.add(name)
        pool.seen[name] = at
        pool.forget_unused()
        self.keep_to_room(pool)

    @staticmethod
    def remember(pool: Pool, name: Name, known: Sequence[Mapping[Name, Block]]) -> None:
        """Keep what the blocks before a block mean, as the index keeps the beginning of its prompt."""
        parent = pool.meant[name][0]
        while parent is not None and parent not in pool.meant:
            block = next((names[parent] for names in known if parent in names), None)
            if block is None:
                return
            pool.meant[parent] = block
            parent = block[0]

    def hold(self, pool: Pool, names: Iterable[Name], ranks: Ranks) -> int:
        """The store of a pool says that it has these. Returns how many are in the pool now and were not before."""
        members = [held for rank, held in sorted(ranks.items()) if pool.has(rank[0])]
        meant = [self.meant.get(rank, {}) for rank in sorted(ranks) if pool.has(rank[0])]
        known = [*(names for held in members for names in held.values()), *meant]
        before = [beginnings(ranks[rank], self.meant.get(rank, {})) for rank in sorted(ranks) if pool.has(rank[0])]
        placed = 0
        for name in names:
            if name in pool.seen:
                pool.seen[name] = self.now
                continue
            on_device = (held["gpu"].get(name) for held in members)
            elsewhere = (held[tier].get(name) for held in members for tier in OWN)
            said = [*on_device, pool.block(name), *elsewhere, *(names.get(name) for names in before)]
            block = next((block for block in said if block is not None), None)
            if block is None:
                pool.unmeant[name] = self.now
            else:
                self.place(pool, name, block, self.now)
                self.remember(pool, name, known)
                placed += 1
        return placed

    def store_in_pool(self, pool: Pool, name: Name, known: Iterable[Block | None], said: Block) -> None:
        """Put a block into a pool; `end_store` must follow.

        Its parent and content are the first of `known` that is not None, else those of the event (`said`). If the store
        of the pool has not named the block, only its meaning is kept, as long as the pool has a block that continues
        it.
        """
        named_at = pool.unmeant.pop(name, None)
        block = next((block for block in known if block is not None), said)
        if pool.follows_store and name not in pool.seen and named_at is None:
            if name not in pool.known:
                pool.meant[name] = block
                pool.known.add(name)
            return
        if pool.follows_store:
            pool.seen.setdefault(name, named_at or 0.0)
        else:
            pool.seen.pop(name, None)
            pool.seen[name] = self.now
        pool.meant[name] = block
        pool.known.add(name)

    def end_store(self, pool: Pool) -> None:
        """Forget what a store has brought into a pool and is not needed, and evict what has no room."""
        pool.forget_unused()
        self.keep_to_room(pool)

    @staticmethod
    def keep_to_room(pool: Pool) -> None:
        """Remove the blocks announced longest ago from a pool until it is within its capacity."""
        while pool.room is not None and len(pool.seen) > pool.room:
            pool.take(next(iter(pool.seen)))

    def lose(self, name: str, ended: Sequence[int]) -> int:
        """Remove from a pool the block at the end of the content hashes `ended`, and the blocks that continue it.

        Blocks that come after a block unknown to the pool stay. Returns the number of removed blocks.
        """
        pool = self.pools.get(name)
        if pool is None:
            return 0
        chains = Chains([pool.meant])
        gone = {block for block in pool.known if chains.of(block) == tuple(ended)}
        while more := {block for block in pool.known - gone if pool.meant[block][0] in gone}:
            gone |= more
        lost = [block for block in gone if block in pool.seen]
        for block in lost:
            pool.take(block)
        return len(lost)

    def find(self, ranks: Ranks, query: Sequence[int]) -> list[Loadable]:
        """Find the blocks of a prompt that each rank can load.

        Ranks that have not offloaded blocks and belong to no pool are left out.
        """
        registered = {worker for worker, _ in ranks}
        named = {
            (worker, 0) for pool in self.pools.values() for worker in pool.members or () if worker not in registered
        }
        asked = {rank for rank in ranks if rank in self.offloads or self.pools_of(rank[0])} | named
        return [self.answer(rank, ranks, tuple(query)) for rank in sorted(asked)]

    def answer(self, rank: tuple[str, int], ranks: Ranks, query: Chain) -> Loadable:
        worker, held, pools = rank[0], ranks.get(rank, {}), self.pools_of(rank[0])
        known = [*held.values(), *(pool.meant for pool in pools), self.meant.get(rank, {})]
        chains = Chains(known, [(pool.meant, self.chains_of_pool(pool, ranks)) for pool in pools])
        chunks = self.settings(worker).chunks
        on_own = [
            (tier, {chains.of(name) for name in held.get(tier, {})}, (*rank, tier) in self.gapless) for tier in OWN
        ]
        # LMCache's connector loads any number of blocks.
        own = [
            replace(own_source(tier, chunks[tier], ended), least=1 if is_gapless else chunks[tier])
            for tier, ended, is_gapless in on_own
        ]
        shared = [self.pool_source(pool, ranks) for pool in pools]
        on_device = own_source("gpu", 1, set(map(Chains([held.get("gpu", {})]).of, held.get("gpu", {}))))
        device = end_of(walk([], [on_device], query))
        begun = [Segment(0, device, "gpu", None, True, None)] if device else []
        host = 0 if (*rank, "cpu") in self.gapless else end_of(walk([], own[:1], query))
        gapless = [source for pool, source in zip(pools, shared, strict=True) if pool.from_beginning]
        reach = end_of(walk([], own + gapless, query))
        are_gapless = [is_gapless for _, _, is_gapless in on_own] + [pool.from_beginning for pool in pools]
        sources = [
            replace(source, segment=within(source.segment, reach)) if is_gapless else source
            for source, is_gapless in zip(own + shared, are_gapless, strict=True)
        ]
        segments = walk(begun, sources, query)
        used, loaded = end_of(segments), first_step(device, sources, query)
        if loaded is not None and used - device < loaded[0].least:
            used = device
        return Loadable(*rank, device, host, rank in self.in_doubt, tuple(segments), used)

    def chains_of_pool(self, pool: Pool, ranks: Ranks) -> "Chains":
        members = [rank for rank in ranks if pool.has(rank[0])]
        beside = [names for rank in members for names in (*ranks[rank].values(), self.meant.get(rank, {}))]
        return Chains([pool.meant, *beside])

    def pool_source(self, pool: Pool, ranks: Ranks) -> Source:
        chains = self.chains_of_pool(pool, ranks)
        last: dict[Chain | None, float] = {}
        for name, seen in pool.seen.items():
            it = chains.of(name)
            last[it] = max(seen, last.get(it, seen))

        def segment(start: int, end: int, ended: Chain) -> Segment | None:
            age = max(0.0, self.now - last[ended]) if ended in last else None
            if age is None or (pool.lifetime is not None and age > pool.lifetime):
                return None
            is_certain = pool.announces_removals and pool.is_whole
            return Segment(start, end, pool.tier, pool.name, is_certain, age)

        # LMCache's and Mooncake's connectors load any number of blocks.
        least = 1 if pool.from_beginning or pool.follows_store else pool.chunk
        return Source(pool.chunk, least, segment)


def own_source(tier: Tier, chunk: int, chains: set[Chain | None]) -> Source:
    def segment(start: int, end: int, ended: Chain) -> Segment | None:
        return Segment(start, end, tier, None, True, None) if ended in chains else None

    return Source(chunk, chunk, segment)


def beginnings(held: Held, meant: Mapping[Name, Block]) -> dict[Name, Block]:
    """The blocks before those that a rank holds, as far as their meaning is known."""
    found: dict[Name, Block] = {}
    for names in held.values():
        for block in names.values():
            name = block[0]
            while name is not None and name in meant and name not in found:
                found[name] = meant[name]
                name = meant[name][0]
    return found


def within(segment: Callable[[int, int, Chain], Segment | None], reach: int) -> Callable[..., Segment | None]:
    """Segments of a source that end at the block `reach` or before."""
    return lambda start, end, ended: segment(start, end, ended) if end <= reach else None


def end_of(segments: Sequence[Segment]) -> int:
    return segments[-1].end if segments else 0


class Chains:
    """Content hashes of all blocks from the beginning of a prompt up to a given block hash; None if one is unknown.

    `pools`: for each pool with the same block hashes, its block hashes and the chains known there.
    """

    def __init__(
        self, known: Sequence[Mapping[Name, Block]], pools: Sequence[tuple[Mapping[Name, Block], "Chains"]] = ()
    ) -> None:
        self.known = known
        self.pools = pools
        self.chains: dict[Name | None, Chain | None] = {None: ()}

    def of(self, name: Name | None) -> Chain | None:
        way: list[tuple[Name | None, int]] = []
        while name is not None and name not in self.chains:
            block = next((names[name] for names in self.known if name in names), None)
            same = (chains.of(name) for names, chains in self.pools if name in names and names[name] == block)
            # Until it is known; and so it stays in a circle.
            self.chains[name] = next((chain for chain in same if chain is not None), None)
            if block is None or self.chains[name] is not None:
                break
            way.append((name, block[1]))
            name = block[0]
        chain = self.chains[name]
        for name, content in reversed(way):
            chain = None if chain is None else (*chain, content)
            self.chains[name] = chain
        return chain


def first_step(at: int, sources: Sequence[Source], query: Chain) -> tuple[Source, Segment] | None:
    """The first source that has the prompt's chunk with block number `at`, and the segment of this chunk.

    Chunks of n blocks begin at multiples of n.
    """
    for source in sources:
        end = (at // source.chunk + 1) * source.chunk
        segment = source.segment(at, end, query[:end]) if end <= len(query) else None
        if segment is not None:
            return source, segment
    return None


def walk(begun: list[Segment], sources: Sequence[Source], query: Chain) -> list[Segment]:
    """Continue the loadable segments of a prompt chunk by chunk, each from the first source that has it."""
    segments = list(begun)
    while (found := first_step(end_of(segments), sources, query)) is not None:
        step = found[1]
        last = segments[-1] if segments else None
        if last is not None and (last.tier, last.pool) == (step.tier, step.pool):
            age = None if step.age is None or last.age is None else max(step.age, last.age)
            segments[-1] = last._replace(end=step.end, age=age)
        else:
            segments.append(step)
    return segments


class ReferenceLoading:
    """The part of the model for blocks that engines can load: see `kvatlas._native.LoadableIndex`."""

    def __init__(
        self,
        model: LoadingModel,
        contents: Callable[..., list[int]],
        held: Callable[[], Ranks],
        clear: Callable[..., None],
    ) -> None:
        self._model = model
        self._contents = contents
        self._held = held
        self._clear = clear

    def set_offloading(
        self,
        worker: str,
        *,
        host_chunk: int | None = None,
        disk_chunk: int | None = None,
        external_chunk: int | None = None,
        resets_keep: bool | None = None,
    ) -> None:
        chunks: dict[Tier, int] = {"cpu": host_chunk or 1, "disk": disk_chunk or 1, "external": external_chunk or 1}
        self._model.offloading[worker] = OffloadSettings(chunks, resets_keep)

    def load_from_beginning(self, worker: str, *, rank: int, tier: Tier) -> None:
        """Make a rank load blocks of this tier only from a prompt's beginning on, as engines with LMCache do."""
        self._model.gapless.add((worker, rank, tier))

    def add_pool(
        self,
        name: str,
        *,
        members: Iterable[str] | None = None,
        chunk: int | None = None,
        tier: Tier = "external",
        announces_removals: bool = False,
        lifetime: float | None = None,
        room: int | None = None,
        evicts: str = "announced",
        follows_store: bool = False,
        from_beginning: bool = False,
    ) -> None:
        named = None if members is None else frozenset(members)
        settings = (chunk or 1, announces_removals, lifetime, room, evicts, follows_store, from_beginning)
        pool = Pool(name, named, tier, *settings)
        before = self._model.pools.get(name, pool)
        pool.meant, pool.known, pool.seen = before.meant, before.known, before.seen
        pool.unmeant, pool.is_whole = before.unmeant, before.is_whole
        self._model.pools[name] = pool
        self._model.keep_to_room(pool)

    def set_time(self, seconds: float) -> None:
        self._model.now = seconds

    def reset(self, worker: str, *, rank: int | None = None) -> None:
        keeps = self._model.settings(worker).resets_keep
        ranks = {it: held for it, held in self._held().items() if it[0] == worker and rank in (None, it[1])}
        offloading = {it for it, held in ranks.items() if any(held[tier] for tier in OWN)}
        in_doubt = offloading | (ranks.keys() & self._model.in_doubt)
        self._clear(worker, rank=rank, tier="gpu" if keeps else None)
        if keeps is None:
            self._model.in_doubt |= in_doubt

    def lose(
        self,
        pool: str,
        *,
        tokens: Sequence[int] | NDArray[Any] | None = None,
        content_hashes: Sequence[int] | NDArray[Any] | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> int:
        return self._model.lose(pool, self._contents(tokens, content_hashes, lora, salt))

    def keep(self, pool: str, *, block_hashes: Iterable[Name], until: float | None = None) -> int:
        if (it := self._model.pools.get(pool)) is None:
            return 0
        end, found = self._model.now if until is None else until, set(block_hashes)
        gone = [name for name, at in it.seen.items() if at <= end and name not in found]
        for name in gone:
            it.take(name)
        it.unmeant = {name: at for name, at in it.unmeant.items() if at > end or name in found}
        return len(gone)

    def hold(self, pool: str, *, block_hashes: Iterable[Name]) -> int:
        it = self._model.pools.get(pool)
        return 0 if it is None else self._model.hold(it, block_hashes, self._held())

    def release(self, pool: str, *, block_hashes: Iterable[Name]) -> int:
        if (it := self._model.pools.get(pool)) is None:
            return 0
        gone = 0
        for name in block_hashes:
            it.unmeant.pop(name, None)
            gone += it.take(name)
        return gone

    def set_whole(self, pool: str, whole: bool) -> None:
        if pool in self._model.pools:
            self._model.pools[pool].is_whole = whole

    def note_load(
        self,
        pool: str,
        *,
        tokens: Sequence[int] | NDArray[Any] | None = None,
        content_hashes: Sequence[int] | NDArray[Any] | None = None,
        start: int = 0,
        lora: str | None = None,
        salt: str | None = None,
    ) -> int:
        it = self._model.pools.get(pool)
        if it is None or it.evicts != "used":
            return 0
        query = tuple(self._contents(tokens, content_hashes, lora, salt))
        chains = self._model.chains_of_pool(it, self._held())
        used = 0
        for end in range(start + 1, len(query) + 1):
            for name in [name for name in it.seen if chains.of(name) == query[:end]]:
                self._model.renew(it, name)
                used += 1
        return used

    def find(
        self,
        *,
        tokens: Sequence[int] | NDArray[Any] | None = None,
        content_hashes: Sequence[int] | NDArray[Any] | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> list[Loadable]:
        return self._model.find(self._held(), self._contents(tokens, content_hashes, lora, salt))
