"""The trees as flat dicts: each node under its whole path. Slow, and short enough to be seen to be right.

A path is a tuple of units: characters for a text, pages (tuples of tokens) for tokens. There are no pointers: the
parent of a node is the longest shorter path that is a node as well, its edge is what it has beyond that. The rules:

- Who is on a node is on all nodes above it. A node without tenants does not exist.
- An insert makes the end of its key a node, which may split an edge in two; the upper part knows all that the lower
  one knew. Nothing is put together again.
- Time is a counter. Who answers for a match, and who inserts, has used every node of the path at that moment.
- The answer to a match is the tenant that has held the deepest node for longest.
- Eviction takes a tenant's leaves, the first by the policy first. A leaf is a node of which it holds no node below.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from kvatlas.types import EvictionPolicy

Path: TypeAlias = tuple[Any, ...]


class Match(NamedTuple):
    tenant: str | None
    matched: int
    input: int
    paged: int

    @property
    def hit_ratio(self) -> float:
        return self.matched / self.input if self.input else 0.0


@dataclass
class ModelTenant:
    """A node's record of one of its tenants."""

    since: int
    used: int
    hits: int
    priority: int


POLICIES: Mapping[EvictionPolicy, Callable[[ModelTenant], tuple[int, ...]]] = {
    "lru": lambda held: (held.used,),
    "lfu": lambda held: (held.hits, held.used),
    "fifo": lambda held: (held.since,),
    "mru": lambda held: (-held.used,),
    "filo": lambda held: (-held.since,),
    "priority": lambda held: (held.priority, held.used),
}


def shared(one: Path, other: Path) -> int:
    """The length of the beginning that two paths have in common."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def below(path: Path, other: Path) -> bool:
    return len(other) > len(path) and other[: len(path)] == path


@dataclass
class TreeModel:
    """The rules, for paths of any units."""

    unit: int = 1  # what an element of a path counts: 1 for a character, the page size for a page
    policy: EvictionPolicy = "lru"
    now: int = 0
    nodes: dict[Path, dict[str, ModelTenant]] = field(default_factory=dict)

    # what there is

    def size_of(self, path: Path) -> int:
        above = (len(other) for other in self.nodes if below(other, path))
        return (len(path) - max(above, default=0)) * self.unit

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for path, owners in self.nodes.items():
            for tenant in owners:
                sizes[tenant] = sizes.get(tenant, 0) + self.size_of(path)
        return dict(sorted(sizes.items()))

    def depths(self, key: Path) -> dict[str, int]:
        depths: dict[str, int] = {}
        for path, owners in self.nodes.items():
            for tenant in owners:
                depths[tenant] = max(depths.get(tenant, 0), shared(path, key) * self.unit)
        return {tenant: depth for tenant, depth in depths.items() if depth}

    def entries(self) -> list[tuple[Path, list[tuple[str, int]]]]:
        """Every node, those above before those below and siblings by order of their paths."""
        return [(path, sorted((t, held.used) for t, held in self.nodes[path].items())) for path in sorted(self.nodes)]

    # what changes it

    def end(self, path: Path) -> Path | None:
        """The node in whose edge the path ends, or that it is."""
        return min((node for node in self.nodes if node[: len(path)] == path), key=len, default=None)

    def use(self, tenant: str, path: Path) -> None:
        self.now += 1
        last = self.end(path)
        for node, owners in self.nodes.items():
            if last is not None and last[: len(node)] == node:
                owners[tenant].used = self.now
                owners[tenant].hits += 1

    def insert(self, key: Path, tenant: str, priority: int = 0) -> None:
        if not key:
            return
        for length in {len(key), max((shared(path, key) for path in self.nodes), default=0)} - {0}:
            lower = self.end(key[:length])
            if lower is not None and key[:length] not in self.nodes:
                self.nodes[key[:length]] = {t: replace(held) for t, held in self.nodes[lower].items()}
        self.nodes.setdefault(key, {})
        for path, owners in self.nodes.items():
            if key[: len(path)] == path:
                held = owners.setdefault(tenant, ModelTenant(self.now + 1, 0, 0, priority))
                held.priority = max(held.priority, priority)
        self.use(tenant, key)

    def match(self, key: Path, tokens: int | None = None) -> Match:
        """The longest prefix that anybody has. `tokens` is the length of the key before it was cut to whole pages."""
        paged = len(key) * self.unit
        given = paged if tokens is None else tokens
        depth = max((shared(path, key) for path in self.nodes), default=0)
        if not depth:
            return Match(None, 0, given, paged)
        last = self.end(key[:depth])
        assert last is not None
        owners = self.nodes[last]
        tenant = min(owners, key=lambda t: owners[t].since)
        self.use(tenant, key[:depth])
        return Match(tenant, depth * self.unit, given, paged)

    def match_tenant(self, key: Path, tenant: str) -> int:
        depth = self.depths(key).get(tenant, 0)
        if depth:
            self.use(tenant, key[: depth // self.unit])
        return depth

    def match_and_insert_with(
        self, key: Path, select: Callable[[Match], str | None], tokens: int | None = None
    ) -> Match:
        found = self.match(key, tokens)
        if (tenant := select(found)) is not None:
            self.insert(key, tenant)
        return found

    # what takes away

    def leave(self, tenant: str, path: Path) -> int:
        size = self.size_of(path)
        del self.nodes[path][tenant]
        if not self.nodes[path]:
            del self.nodes[path]
        return size

    def leaves(self, tenant: str) -> list[Path]:
        mine = [path for path, owners in self.nodes.items() if tenant in owners]
        return [path for path in mine if not any(below(path, other) for other in mine)]

    def evict(self, tenants: Sequence[str], over: Callable[[], bool]) -> int:
        """The first leaf by the policy, again and again while there is too much."""
        evicted = 0
        order = POLICIES[self.policy]
        while over():
            leaves = [(order(self.nodes[path][t]), t, path) for t in tenants for path in self.leaves(t)]
            if not leaves:
                break
            _, tenant, path = min(leaves)
            evicted += self.leave(tenant, path)
        return evicted

    def evict_tenant(self, tenant: str, most: int) -> int:
        return self.evict([tenant], lambda: self.sizes().get(tenant, 0) > most)

    def evict_tenant_by_size(self, most: int) -> int:
        return sum(self.evict_tenant(tenant, most) for tenant in self.sizes())

    def evict_to_size(self, most: int) -> int:
        return self.evict(list(self.sizes()), lambda: sum(self.sizes().values()) > most)

    def evict_path(self, path: Path, tenant: str | None) -> int:
        """A node with everything below it, for one tenant or everybody. () is everything, as by the hash 0."""
        if path and path not in self.nodes:
            return 0
        gone = [(other, t) for other, owners in self.nodes.items() if other[: len(path)] == path for t in owners]
        sizes = {other: self.size_of(other) for other, _ in gone}
        taken = [(other, t) for other, t in gone if tenant in (None, t)]
        for other, t in taken:
            self.leave(t, other)
        return sum(sizes[other] for other, _ in taken)

    def clear(self) -> None:
        self.nodes.clear()


def text_path(text: str) -> Path:
    return tuple(text)


def token_path(tokens: Sequence[int], page: int) -> Path:
    """Whole pages only."""
    return tuple(tuple(tokens[at : at + page]) for at in range(0, len(tokens) // page * page, page))


def flat(path: Path) -> Iterator[Any]:
    """The tokens of the pages of a path."""
    for page in path:
        yield from page
