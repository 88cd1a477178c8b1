"""A tree and its model, driven alike: what the random tests of both trees share."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvatlas.trees import (
    GLOBAL_EVICTION_HASH,
    StringTree,
    TokenTree,
    TreeDepths,
    TreeMatch,
    hash_node_path,
    hash_token_path,
)
from kvatlas.types import EvictionPolicy

from .models import POLICIES, Match, Path, TreeModel, flat, text_path, token_path

TENANTS = ["a", "b", "http://worker-3:8000", "å", ""]
PAGE = 16
CHARACTERS = "xyé漢😀"


def pages(*numbers: int) -> list[int]:
    """A page of each of these tokens."""
    return [number for number in numbers for _ in range(PAGE)]


class Pair:
    """Every step is done to both, and every answer held against the model's."""

    tree: Any
    model: TreeModel

    def path(self, key: Any) -> Path:
        raise NotImplementedError

    def given(self, key: Any) -> Any:
        """The key in one of the forms that the tree takes."""
        return key

    def hash(self, path: Path) -> int:
        raise NotImplementedError

    # steps

    def insert(self, key: Any, tenant: str, priority: int = 0) -> None:
        self.tree.insert(self.given(key), tenant, priority=priority)
        self.model.insert(self.path(key), tenant, priority)

    def match(self, key: Any) -> None:
        self.same(self.tree.match_prefix_with_counts(self.given(key)), self.model.match(self.path(key), len(key)))

    def match_tenant(self, key: Any, tenant: str) -> None:
        found = self.tree.prefix_match_tenant(self.given(key), tenant)
        depth = self.model.match_tenant(self.path(key), tenant)
        assert found == (key[:depth] if isinstance(key, str) else depth)

    def prefix_match(self, key: Any) -> None:
        assert self.tree.prefix_match(self.given(key)) == self.model.match(self.path(key)).tenant

    def legacy(self, key: Any) -> None:
        wanted = self.model.match(self.path(key))
        assert self.tree.prefix_match_legacy(self.given(key)) == (key[: wanted.matched], wanted.tenant)

    def match_and_insert(self, key: Any, tenant: str) -> None:
        wanted = self.model.match_and_insert_with(self.path(key), lambda _: tenant, len(key))
        self.same(self.tree.match_and_insert(self.given(key), tenant), wanted)

    def match_and_insert_with(self, key: Any, other: str | None) -> None:
        """Give a key to the tenant of the match if most of it matched, as a router does; else to another, or nobody."""
        called = []

        def select(found: TreeMatch | Match) -> str | None:
            called.append(found)
            return found.tenant if found.hit_ratio > 0.5 else other

        wanted = self.model.match_and_insert_with(self.path(key), select, len(key))
        found = self.tree.match_and_insert_with(self.given(key), select)
        self.same(found, wanted)
        assert called == [wanted, found]

    def evict_tenant(self, tenant: str, most: int) -> None:
        assert self.tree.evict_tenant(tenant, most) == self.model.evict_tenant(tenant, most)

    def evict_tenant_by_size(self, most: int) -> None:
        assert self.tree.evict_tenant_by_size(most) == self.model.evict_tenant_by_size(most)

    def evict_to_size(self, most: int) -> None:
        assert self.tree.evict_to_size(most) == self.model.evict_to_size(most)

    def evict_path(self, key: Any, tenant: str | None) -> None:
        path = self.path(key)
        evicted = self.tree.evict_by_path_hash(self.hash(path) if path else GLOBAL_EVICTION_HASH, tenant)
        assert evicted == self.model.evict_path(path, tenant)

    def remove_tenant(self, tenant: str) -> None:
        assert self.tree.remove_tenant(tenant) == self.model.evict_path((), tenant)

    def clear(self) -> None:
        self.tree.clear()
        self.model.clear()

    def restore(self) -> None:
        snapshot = self.tree.snapshot()
        self.tree = type(self.tree).from_snapshot(memoryview(snapshot))
        assert self.tree.policy == self.model.policy
        assert self.tree.snapshot() == snapshot

    # what must hold after every step

    def same(self, found: TreeMatch, wanted: Match) -> None:
        assert (found.tenant, found.matched, found.input, found.paged) == wanted
        assert found.hit_ratio == wanted.hit_ratio

    def check(self, keys: Sequence[Any]) -> None:
        sizes = self.model.sizes()
        assert self.tree.tenant_sizes() == self.tree.get_used_size_per_tenant() == sizes
        assert list(self.tree.tenant_sizes()) == self.tree.tenants() == list(sizes)
        assert all(self.tree.tenant_size(tenant) == sizes.get(tenant, 0) for tenant in TENANTS)
        assert self.tree.total_size == sum(sizes.values())
        assert self.tree.node_count == len(self.model.nodes)
        for key in keys:
            path = self.path(key)
            wanted = self.model.depths(path)
            found = find(self.tree, self.given(key))
            assert found.scores() == self.tree.depths(key) == wanted
            assert list(found.scores().items()) == sorted(wanted.items(), key=lambda score: (-score[1], score[0]))
            assert (found.depth, found.length) == (max(wanted.values(), default=0), len(path) * self.model.unit)

    def check_entries(self) -> None:
        entries = [(self.path(key), dict(tenants)) for key, tenants in self.tree.iter_entries()]
        # An entry has the last use that ended in it. Uses that went on are found below.
        used = [
            (
                path,
                [
                    (tenant, max(below.get(tenant, 0) for p, below in entries if p[: len(path)] == path))
                    for tenant in owners
                ],
            )
            for path, owners in entries
        ]
        assert used == self.model.entries()

    def end(self) -> None:
        """When the last tenant has gone, nothing is left."""
        self.check_entries()
        for tenant in self.tree.tenants():
            self.remove_tenant(tenant)
        assert (self.tree.node_count, self.tree.total_size, self.tree.tenants()) == (0, 0, [])
        assert list(self.tree.iter_entries()) == []


def find(tree: StringTree | TokenTree, key: Any) -> TreeDepths:
    """Asks either tree, each by the keyword that it has."""
    return tree.find(text=key) if isinstance(tree, StringTree) else tree.find(tokens=key)


class Texts(Pair):
    def __init__(self, policy: EvictionPolicy) -> None:
        self.tree = StringTree(policy=policy)
        self.model = TreeModel(policy=policy)

    def path(self, key: str) -> Path:
        return text_path(key)

    def hash(self, path: Path) -> int:
        return hash_node_path("".join(path))


class Tokens(Pair):
    def __init__(self, policy: EvictionPolicy, page_size: int, choose: random.Random) -> None:
        self.tree = TokenTree(page_size, policy=policy)
        self.model = TreeModel(page_size, policy)
        self.choose = choose

    def path(self, key: Sequence[int]) -> Path:
        return token_path(key, self.model.unit)

    def given(self, key: Sequence[int]) -> Any:
        forms: list[Callable[[Sequence[int]], Any]] = [
            list,
            tuple,
            lambda key: np.array(key, np.uint32),
            lambda key: np.array(key, np.int64),
            lambda key: np.array(key, "<u4").tobytes(),
        ]
        return self.choose.choice(forms)(key)

    def hash(self, path: Path) -> int:
        return hash_token_path(list(flat(path)))


class Keys:
    """Keys that share beginnings: new ones are mostly old ones cut and grown, of few units."""

    def __init__(self, choose: random.Random, page_size: int | None) -> None:
        self.choose, self.page_size = choose, page_size
        self.known: list[Any] = [self.some(6) for _ in range(3)]

    def some(self, most: int) -> Any:
        units = self.choose.randrange(most + 1)
        if self.page_size is None:
            return "".join(self.choose.choice(CHARACTERS) for _ in range(units))
        pages = [[self.choose.randrange(2)] * self.page_size for _ in range(units)]
        tokens = [token for page in pages for token in page] + [7] * self.choose.randrange(self.page_size)
        if tokens and self.choose.random() < 0.3:
            tokens[self.choose.randrange(len(tokens))] = 2**32 - 1  # pages that differ in one token, wherever it is
        return tokens

    def draw(self) -> Any:
        old = self.choose.choice(self.known)
        if self.choose.random() < 0.5:
            return old
        cut = self.choose.randrange(len(old) + 1)
        if self.page_size and self.choose.random() < 0.8:
            cut -= cut % self.page_size
        new = old[:cut] + self.some(3)
        if len(self.known) < 12:
            self.known.append(new)
        else:
            self.known[self.choose.randrange(len(self.known))] = new
        return new


def pair(choose: random.Random) -> tuple[Pair, Keys]:
    """A pair of either kind by any policy."""
    policy = choose.choice(list(POLICIES))
    if choose.random() < 0.5:
        return Texts(policy), Keys(choose, None)
    page_size = choose.choice([1, 2, 4, 16, 128])
    return Tokens(policy, page_size, choose), Keys(choose, page_size)


def step(pair: Pair, keys: Keys, choose: random.Random) -> None:
    """One step at random. Those that empty the tree are rare."""
    tenant = choose.choice(TENANTS[: choose.choice([2, 3, 5])])
    unit = pair.model.unit
    steps: list[tuple[int, Callable[[], None]]] = [
        (30, lambda: pair.insert(keys.draw(), tenant)),
        (6, lambda: pair.insert(keys.draw(), tenant, choose.choice([-(2**31), -1, 1, 2**31 - 1]))),
        (15, lambda: pair.match(keys.draw())),
        (4, lambda: pair.match_tenant(keys.draw(), tenant)),
        (2, lambda: pair.prefix_match(keys.draw())),
        (2, lambda: pair.legacy(keys.draw())),
        (10, lambda: pair.match_and_insert(keys.draw(), tenant)),
        (10, lambda: pair.match_and_insert_with(keys.draw(), choose.choice([tenant, None]))),
        (5, lambda: pair.evict_tenant(tenant, choose.randrange(20) * unit)),
        (3, lambda: pair.evict_tenant_by_size(choose.randrange(8, 30) * unit)),
        (3, lambda: pair.evict_to_size(choose.randrange(8, 60) * unit - choose.randrange(2))),
        (4, lambda: pair.evict_path(keys.draw(), choose.choice([tenant, None]))),
        (1, lambda: pair.remove_tenant(tenant)),
        (1, pair.restore),
    ]
    weights, actions = zip(*steps, strict=True)
    (pair.clear if choose.random() < 0.002 else choose.choices(actions, weights)[0])()


def seeded(seed: int) -> random.Random:
    """Names the seed should the test fail."""
    print(f"seed {seed}")
    return random.Random(seed)
