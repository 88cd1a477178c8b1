"""The literal model of the index: `ReferenceIndex` has the methods of `kvatlas.BlockIndex` in plain Python.

The model is the specification, against which the index is tested. It is slow, does not check its arguments, and every
method does exactly what its few lines say.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from numpy.typing import NDArray

from kvatlas._loading_model import Held, LoadingModel, ReferenceLoading
from kvatlas._native import content_hashes as hash_contents
from kvatlas.events import Clear, Drop, Event, Remove, Store
from kvatlas.types import Tier

__all__ = ["ReferenceIndex", "ReferenceLoading", "ReferenceMatch"]

Name = int | bytes
Names = Sequence[Name] | NDArray[Any]
Ints = Sequence[int] | NDArray[Any]
Blocks = dict[Name, tuple[Name | None, int]]
"""Blocks held, by block hash: (block hash of the parent, content hash)."""


Undescribed = dict[Name, list[Tier]]
"""Copies of blocks without known contents: the tier of each copy, by block hash."""


Children = dict[tuple[Name | None, int], set[Name]]
"""Block hashes of children, by (block hash of the parent or None for the root, content hash of the child)."""


TIERS: tuple[Tier, ...] = ("gpu", "cpu", "disk", "external")
NEARER: dict[Tier, tuple[Tier, ...]] = {tier: TIERS[1 : number + 1] for number, tier in enumerate(TIERS)}
"""For each tier, that tier and all tiers between it and the device."""


@dataclass
class Rank:
    """Blocks that one rank of a worker holds, with their copies."""

    device: Blocks = field(default_factory=dict)
    device_copies: dict[Name, int] = field(default_factory=dict)
    offloaded: Blocks = field(default_factory=dict)
    offloaded_copies: dict[Name, dict[Tier, int]] = field(default_factory=dict)
    views: dict[Tier, Children] | None = None  # children by the last tier that counts; None after a change

    def children(self) -> dict[Tier, Children]:
        if self.views is None and not self.offloaded:
            self.views = dict.fromkeys(TIERS, group(self.device))
        elif self.views is None:
            self.views = {tier: group(self.device | self.within(tiers)) for tier, tiers in NEARER.items()}
        return self.views

    def within(self, tiers: Sequence[Tier]) -> Blocks:
        """The blocks that are offloaded to any of the given tiers."""
        return {n: block for n, block in self.offloaded.items() if any(t in self.offloaded_copies[n] for t in tiers)}


def group(blocks: Blocks) -> Children:
    children: Children = {}
    for name, block in blocks.items():
        children.setdefault(block, set()).add(name)
    return children


def depth(children: Children, query: Sequence[int]) -> int:
    """Number of leading blocks of a query that form a chain of held blocks from the root, linked by their parents."""
    frontier: set[Name | None] = {None}
    for i, content in enumerate(query):
        frontier = {child for name in frontier for child in children.get((name, content), ())}
        if not frontier:
            return i
    return len(query)


def linked(children: Children) -> set[Name | None]:
    """Block hashes whose chain to the root is complete, and None for the root itself."""
    reached: set[Name | None] = {None}
    while more := {name for (parent, _), names in children.items() if parent in reached for name in names} - reached:
        reached |= more
    return reached


class ReferenceMatch:
    """Answer to a query, like `kvatlas.Match`."""

    unit: Final = "blocks"

    def __init__(
        self, views: dict[Tier, dict[tuple[str, int], int]], length: int, block_size: int, tier: Tier = "gpu"
    ) -> None:
        self._views = views
        self.block_size = block_size
        self.length = length
        self._by_rank = {holder: depth for holder, depth in views[tier].items() if depth > 0}
        self.depth = max(self._by_rank.values(), default=0)

    @property
    def any_tier(self) -> "ReferenceMatch":
        return self.within("external")

    def within(self, tier: Tier) -> "ReferenceMatch":
        return ReferenceMatch(self._views, self.length, self.block_size, tier)

    def by_rank(self) -> dict[tuple[str, int], int]:
        return dict(self._by_rank)

    def scores(self) -> dict[str, int]:
        scores: dict[str, int] = {}
        for (worker, _), depth in self._by_rank.items():
            scores[worker] = max(scores.get(worker, 0), depth)
        return scores

    def levels(self) -> list[tuple[int, list[str]]]:
        scores = self.scores()
        depths = sorted(set(scores.values()), reverse=True)
        return [(depth, [worker for worker in scores if scores[worker] == depth]) for depth in depths]

    def best(self, top_k: int = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        allowed = None if among is None else set(among)
        ranked = [(worker, depth) for depth, workers in self.levels() for worker in workers]
        return [(worker, depth) for worker, depth in ranked if allowed is None or worker in allowed][:top_k]


class ReferenceIndex:
    """The index as plain dicts, like `kvatlas.BlockIndex`."""

    def __init__(self, block_size: int = 16, count_copies: bool = True) -> None:
        self.block_size = block_size
        self.count_copies = count_copies
        self._ranks: dict[str, dict[int, Rank]] = {}
        self._loading = LoadingModel()
        self._undescribed: dict[tuple[str, int], Undescribed] = {}
        self._counters = dict.fromkeys(("stores", "removes", "clears", "drops", "replaced", "unknown_removals"), 0)

    def store(
        self,
        worker: str,
        *,
        block_hashes: Names,
        content_hashes: Ints | None = None,
        tokens: Ints | None = None,
        parent: Name | None = None,
        rank: int = 0,
        tier: Tier = "gpu",
        lora: str | None = None,
        salt: str | None = None,
    ) -> None:
        contents = self._contents(tokens, content_hashes, lora, salt)
        self._counters["stores"] += 1
        for name, content in zip(block_hashes, contents, strict=True):
            self._store_block(worker, rank, tier, name, (parent, content))
            parent = name
        if pool := self._loading.pool_at(worker, tier):
            self._loading.end_store(pool)
        waiting = self._undescribed.get((worker, rank), {})
        described = [(name, waiting.pop(name, [])) for name in block_hashes]
        for name, tiers in described:
            for where in tiers:
                self.store_known(worker, block_hashes=[name], rank=rank, tier=where)

    def _store_block(self, worker: str, rank: int, tier: Tier, name: Name, block: tuple[Name | None, int]) -> None:
        held = self._ranks.setdefault(worker, {}).setdefault(rank, Rank())
        held.views = None
        if tier != "gpu":
            self._loading.offloads.add((worker, rank))
            if pool := self._loading.pool_at(worker, tier):
                known = (held.device.get(name), pool.block(name), held.offloaded.get(name))
                return self._loading.store_in_pool(pool, name, known, block)
            block = self._loading.in_pools(worker, name) or block
        is_new = name not in held.device and name not in held.offloaded
        store_block = self._store_on_device if tier == "gpu" else self._store_offloaded
        store_block(held, tier, name, block)
        now_meant = held.device.get(name) or held.offloaded[name]
        self._loading.stored(worker, rank, tier, name, now_meant, is_new=is_new)
        return None

    def store_known(self, worker: str, *, block_hashes: Names, rank: int = 0, tier: Tier = "cpu") -> None:
        """Store blocks given by block hash only, with the contents that the rank or its pools know.

        Blocks whose contents are unknown count from the next store that gives them, unless removed before.
        """
        for name in block_hashes:
            held = self._ranks.get(worker, {}).get(rank, Rank())
            block = held.device.get(name) or held.offloaded.get(name) or self._loading.in_pools(worker, name)
            if block is not None:
                self._counters["stores"] += 1
                self._store_block(worker, rank, tier, name, block)
                if pool := self._loading.pool_at(worker, tier):
                    self._loading.end_store(pool)
                continue
            copies = self._undescribed.setdefault((worker, rank), {}).setdefault(name, [])
            if self.count_copies or tier not in copies:
                copies.append(tier)

    def _store_on_device(self, held: Rank, _tier: Tier, name: Name, block: tuple[Name | None, int]) -> None:
        if held.device.get(name, block) != block:
            self._counters["replaced"] += 1
            del held.device[name], held.device_copies[name]
        held.device[name] = block
        held.device_copies[name] = held.device_copies.get(name, 0) + 1 if self.count_copies else 1
        if held.offloaded.get(name, block) != block:  # the device says what a name means on all tiers
            self._counters["replaced"] += 1
            held.offloaded[name] = block

    def _store_offloaded(self, held: Rank, tier: Tier, name: Name, block: tuple[Name | None, int]) -> None:
        # What is said of a copy elsewhere counts only where nothing is held under its name.
        held.offloaded.setdefault(name, held.device.get(name, block))
        copies = held.offloaded_copies.setdefault(name, {})
        copies[tier] = copies.get(tier, 0) + 1 if self.count_copies else 1

    def remove(self, worker: str, *, block_hashes: Names, rank: int = 0, tier: Tier = "gpu") -> None:
        self._counters["removes"] += 1
        held = self._ranks.get(worker, {}).get(rank, Rank())
        held.views = None
        pool = self._loading.pool_at(worker, tier) if tier != "gpu" else None
        waiting = self._undescribed.get((worker, rank), {})
        for name in block_hashes:
            if tier in waiting.get(name, ()):
                waiting[name].remove(tier)
            elif pool is not None and rank in self._ranks.get(worker, {}):
                self._counters["unknown_removals"] += not pool.follows_store and not pool.take(name)
            elif tier == "gpu" and name in held.device:
                held.device_copies[name] -= 1
                if held.device_copies[name] == 0:
                    del held.device[name], held.device_copies[name]
            elif tier in held.offloaded_copies.get(name, {}):
                held.offloaded_copies[name][tier] -= 1
                if held.offloaded_copies[name][tier] == 0:
                    self._leave_tier(held, tier, name)
            else:
                self._counters["unknown_removals"] += 1

    def _leave_tier(self, held: Rank, tier: Tier, name: Name) -> None:
        held.offloaded_copies[name].pop(tier, None)
        if not held.offloaded_copies[name]:
            del held.offloaded[name], held.offloaded_copies[name]

    def clear(self, worker: str, *, rank: int | None = None, tier: Tier | None = None) -> None:
        self._counters["clears"] += 1
        for number in [number for name, number in self._undescribed if name == worker and rank in (None, number)]:
            waiting = self._undescribed[worker, number]
            for name, copies in waiting.items():
                # What is in a pool stays.
                waiting[name] = [it for it in copies if tier not in (None, it) or self._loading.pool_at(worker, it)]
        for number, held in self._ranks.get(worker, {}).items():
            if rank is not None and rank != number:
                continue
            held.views = None
            if tier in ("cpu", None):
                self._loading.in_doubt.discard((worker, number))
            if tier in ("gpu", None):
                held.device, held.device_copies = {}, {}
            if tier != "gpu":
                for gone in TIERS[1:] if tier is None else (tier,):
                    for name in list(held.offloaded):
                        self._leave_tier(held, gone, name)

    def drop(self, worker: str) -> None:
        self._counters["drops"] += 1
        for rank in self._ranks.get(worker, {}):
            self._loading.offloads.discard((worker, rank))
            self._loading.in_doubt.discard((worker, rank))
        self._ranks.pop(worker, None)
        for number in [number for name, number in self._undescribed if name == worker]:
            del self._undescribed[worker, number]

    def find(
        self,
        *,
        tokens: Ints | None = None,
        content_hashes: Ints | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> ReferenceMatch:
        query = self._contents(tokens, content_hashes, lora, salt)
        views: dict[Tier, dict[tuple[str, int], int]] = {tier: {} for tier in TIERS}
        for worker, rank, held in self._each_rank():
            for tier, children in held.children().items():
                views[tier][worker, rank] = depth(children, query)
        return ReferenceMatch(views, len(query), self.block_size)

    @property
    def loading(self) -> ReferenceLoading:
        return ReferenceLoading(self._loading, self._contents, self._held, self.clear)

    def _held(self) -> dict[tuple[str, int], Held]:
        return {
            (worker, rank): {"gpu": held.device, **{tier: held.within([tier]) for tier in TIERS[1:]}}
            for worker, rank, held in self._each_rank()
        }

    def _contents(
        self, tokens: Ints | None, content_hashes: Ints | None, lora: str | None, salt: str | None
    ) -> list[int]:
        """The content hashes as given, or computed from tokens. Exactly one of the two must be given."""
        if tokens is None:
            assert content_hashes is not None
            assert lora is None
            assert salt is None
            return [int(content) for content in content_hashes]
        assert content_hashes is None
        hashes: list[int] = hash_contents(tokens, self.block_size, lora, salt).tolist()
        return hashes

    def workers(self) -> dict[str, int]:
        return {
            worker: sum(len(held.device) + len(held.offloaded) for held in ranks.values())
            for worker, ranks in self._ranks.items()
        }

    def __repr__(self) -> str:
        workers = self.workers()
        copies = "" if self.count_copies else ", count_copies=False"
        blocks = f"workers={len(workers):,}, blocks={sum(workers.values()):,}"
        return f"ReferenceIndex(block_size={self.block_size}{copies}, {blocks})"

    def stats(self) -> dict[str, int]:
        """The statistics of `BlockIndex.stats` that do not depend on the implementation."""
        workers = self.workers()
        ranks = [held for *_, held in self._each_rank()]
        return {
            "workers": len(workers),
            "blocks": sum(workers.values()),
            "unlinked": sum(len(held.device.keys() - linked(held.children()["gpu"])) for held in ranks),
            "copies": sum(sum(held.device_copies.values()) - len(held.device) for held in ranks),
            **self._counters,
        }

    def dump(self) -> list[Store]:
        """The contents as events: one store for each copy of each block."""
        events = []
        for worker, rank, held in self._each_rank():
            for name, (parent, content) in held.device.items():
                events += [Store(worker, (name,), (content,), parent, rank)] * held.device_copies[name]
            for name, (parent, content) in held.offloaded.items():
                for tier, copies in held.offloaded_copies[name].items():
                    events += [Store(worker, (name,), (content,), parent, rank, tier)] * copies
        return events

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Store(worker, names, contents, parent, rank, tier):
                    self.store(worker, block_hashes=names, content_hashes=contents, parent=parent, rank=rank, tier=tier)
                case Remove(worker, names, rank, tier):
                    self.remove(worker, block_hashes=names, rank=rank, tier=tier)
                case Clear(worker, for_rank, for_tier):
                    self.clear(worker, rank=for_rank, tier=for_tier)
                case Drop(worker):
                    self.drop(worker)

    def _each_rank(self) -> Iterator[tuple[str, int, Rank]]:
        for worker, ranks in self._ranks.items():
            for rank, held in ranks.items():
                yield worker, rank, held
