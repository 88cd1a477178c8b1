"""Tests of what the trees evict, in which order, and on whose account."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvatlas.trees import (
    GLOBAL_EVICTION_HASH,
    StringTree,
    TokenTree,
    hash_node_path,
    hash_token_path,
)
from kvatlas.types import EvictionPolicy

from .prompts import find, pages


def three(tree: StringTree) -> None:
    """Leaves named by what they are first in: "a" came first, "b" was used last, "c" least often."""
    for text in ("a", "b", "c"):
        tree.insert_text(text, "w")
    for text in ("a", "b", "a", "a", "c", "b"):
        tree.match_prefix_with_counts(text)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("lru", "acb"), ("mru", "bca"), ("fifo", "abc"), ("filo", "cba"), ("lfu", "cba"), ("priority", "acb")],
)
def test_policies(policy: EvictionPolicy, order: str) -> None:
    tree = StringTree(policy=policy)
    three(tree)
    gone = ""
    for left in (2, 1, 0):
        before = [path for path, _ in tree.iter_entries()]
        assert tree.evict_tenant("w", left) == 1
        gone += next(path for path in before if not tree.find(text=path).depth)
    assert gone == order


def test_path_hashes() -> None:
    assert GLOBAL_EVICTION_HASH == 0
    assert hash_node_path("") == hash_token_path([]) == 0xA6A1F9F5B94913AF
    assert hash_node_path("hello") == 0x928286B33D168FEA
    assert hash_token_path([1, 2, 3]) == 0x20CB7C4A90F407DF
    assert hash_token_path(np.array([1, 2, 3], np.int64)) == 0x20CB7C4A90F407DF
    text = "漢字" * 100_000  # 6 bytes: whole tokens, and long enough to be hashed without the GIL
    assert hash_node_path(text) == hash_token_path(np.frombuffer(text.encode(), "<u4"))


def test_eviction_by_path_hash() -> None:
    tree = StringTree()
    for text, tenant in [("abc", "a"), ("abcdef", "a"), ("abcdef", "b"), ("abcxyz", "b"), ("other", "a")]:
        tree.insert_text(text, tenant)
    assert tree.evict_by_path_hash(hash_node_path("ab")) == 0  # inside an edge
    assert tree.evict_by_path_hash(hash_node_path("nowhere")) == 0
    assert tree.evict_by_path_hash(hash_node_path("abcdef"), "c") == 0
    assert tree.evict_by_path_hash(hash_node_path("abcdef"), "a") == 3
    assert tree.find(text="abcdef").scores() == {"b": 6, "a": 3}
    assert tree.evict_by_path_hash(hash_node_path("abc"), "b") == 9  # with all that is below
    assert tree.tenant_sizes() == {"a": 8}
    assert tree.evict_by_path_hash(hash_node_path("abc")) == 3
    assert tree.evict_by_path_hash(GLOBAL_EVICTION_HASH, "b") == 0
    assert tree.evict_by_path_hash(GLOBAL_EVICTION_HASH) == 5
    assert (tree.tenants(), tree.node_count) == ([], 0)

    tokens = TokenTree()
    tokens.insert_tokens(pages(1, 2), "a")
    tokens.insert_tokens(pages(1, 3), "b")
    assert tokens.evict_by_path_hash(hash_token_path(pages(1, 3))) == 16
    assert tokens.tenant_sizes() == {"a": 32, "b": 16}
    assert tokens.evict_by_path_hash(np.uint64(hash_token_path(pages(1)))) == 48


# budgets


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (StringTree, lambda at: f"{at % 7} {at:0200}"),
        (TokenTree, lambda at: np.repeat(np.array([at % 7, at], np.uint32), 64)),
    ],
    ids=["text", "tokens"],
)
def test_the_budget_holds_after_every_insert(make: Callable[..., Any], key: Callable[[int], Any]) -> None:
    budget = 300_000
    tree = make(budget_bytes=budget)
    assert tree.budget_bytes == budget
    for at in range(3000):
        tree.match_and_insert(key(at), f"w{at % 5}")
        assert tree.bytes <= budget
        found = find(tree, key(at))
        assert found.best() == [(f"w{at % 5}", found.length)]
    assert tree.bytes > budget / 2
    assert tree.tenant_sizes() == tree.get_used_size_per_tenant()
    tree.budget_bytes = budget // 2
    assert tree.bytes <= budget / 2
    tree.budget_bytes = None
    assert tree.budget_bytes is None
    for at in range(3000):
        tree.insert(key(at), "w")
    assert tree.bytes > budget
    kept = tree.evict_to_bytes(budget)
    assert kept > 0
    assert tree.bytes <= budget
