"""Memory comes back, what `bytes` says is what the process takes, and depth costs no stack."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas.trees import GLOBAL_EVICTION_HASH, StringTree, TokenTree

from .pairs import find


def texts(tree: Any, count: int = 5000) -> None:
    for at in range(count):
        tree.insert_text(f"the same beginning, then {at % 50} and {at} " + "é" * 100, f"worker {at % 20}")


def tokens(tree: Any, count: int = 5000) -> None:
    for at in range(count):
        tree.insert_tokens(np.repeat(np.array([1, 2, at % 50, at], np.uint32), 32), f"worker {at % 20}")


def by_removal(tree: Any) -> None:
    for tenant in tree.tenants():
        tree.remove_tenant(tenant)


EMPTYING: list[Callable[[Any], object]] = [
    by_removal,
    lambda tree: tree.clear(),
    lambda tree: tree.evict_to_size(0),
    lambda tree: tree.evict_tenant_by_size(0),
    lambda tree: tree.evict_to_bytes(0),
    lambda tree: tree.evict_by_path_hash(GLOBAL_EVICTION_HASH),
]
WAYS = ["removed", "cleared", "evicted", "evicted by tenant", "evicted to bytes", "evicted by hash"]


@pytest.mark.parametrize(("make", "fill"), [(StringTree, texts), (TokenTree, tokens)], ids=["text", "tokens"])
@pytest.mark.parametrize("empty", EMPTYING, ids=WAYS)
def test_memory_comes_back(
    make: Callable[[], Any], fill: Callable[[Any], None], empty: Callable[[Any], object]
) -> None:
    tree = make()
    fresh = tree.bytes
    for _ in range(3):
        fill(tree)
        full = tree.bytes
        assert full > fresh + 500_000
        empty(tree)
        assert (tree.node_count, tree.total_size, tree.tenants()) == (0, 0, [])
        # A StringTree keeps the code that it has learnt for its text.
        assert tree.bytes < fresh + full / 50 + (300_000 if make is StringTree else 0)
        assert type(tree).from_snapshot(tree.snapshot()).node_count == 0


@pytest.mark.parametrize("fill", [texts, tokens])
def test_eviction_gives_memory_in_proportion(fill: Callable[..., None]) -> None:
    tree = StringTree() if fill is texts else TokenTree()
    fill(tree)
    full, size = tree.bytes, tree.total_size
    tree.evict_to_size(size // 4)
    assert tree.bytes < full * 0.45


def test_names_are_given_back() -> None:
    """The original kept every worker's name for as long as the process lived."""
    tree = StringTree()
    fresh = tree.bytes
    for at in range(2000):
        name = f"http://worker-{at}.{'x' * 2000}"
        tree.insert_text("prompt", name)
        tree.remove_tenant(name)
    assert tree.bytes < fresh + 100_000
    assert tree.tenants() == []


SAYS = """
import gc, os, sys
import numpy as np
from kvatlas.trees import StringTree, TokenTree

def taken():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

kind = sys.argv[1]
tree = StringTree() if kind == "text" else TokenTree()
choose = np.random.default_rng(1)
beginnings = choose.integers(0, 2**16, (50, 512)).astype(np.uint32)
before = taken()
for at in range(20_000):
    end = choose.integers(0, 2**16, 64).astype(np.uint32)
    prompt = np.concatenate([beginnings[at % 50], end])
    tree.insert(prompt.tobytes().decode("latin-1") if kind == "text" else prompt, f"w{at % 40}")
print(tree.bytes, taken() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the kernel does not say what a process takes")
@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_bytes_is_what_the_process_takes(kind: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SAYS, kind],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    said, taken = map(int, run.stdout.split())
    assert said > 5_000_000
    assert 0.6 < said / taken < 1.4, (said, taken)


def with_small_stack(work: Callable[[], None]) -> None:
    """Run `work` in a thread with 128 KiB of stack."""
    before = threading.stack_size(128 * 1024)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
    finally:
        threading.stack_size(before)


def test_a_chain_of_many_nodes_needs_no_stack() -> None:
    """The original overflowed the stack, and with it the process, at 10,000 nodes below each other."""
    levels = 12_000
    key = np.arange(levels, dtype=np.uint32)

    def work() -> None:
        tree = TokenTree(1)
        for length in range(levels, 0, -1):  # each divides the topmost edge
            tree.insert_tokens(key[:length], "w")
        assert (tree.node_count, tree.tenant_token_size("w")) == (levels, levels)
        assert tree.match_and_insert(key, "v").matched == levels
        assert tree.find(tokens=key).scores() == {"w": levels, "v": levels}
        entries = tree.iter_entries()
        assert [len(next(entries)[0]) for _ in range(100)] == list(range(1, 101))
        copy = TokenTree.from_snapshot(tree.snapshot())
        assert copy.get_used_size_per_tenant() == {"w": levels, "v": levels}
        assert copy.remove_tenant("w") == levels
        assert copy.evict_by_path_hash(GLOBAL_EVICTION_HASH) == levels
        assert tree.evict_tenant("w", 10) == levels - 10
        assert tree.find(tokens=key).scores() == {"w": 10, "v": levels}
        tree.clear()
        assert tree.node_count == 0
        TokenTree.from_snapshot(copy.snapshot())

    with_small_stack(work)


LENGTH = 4_000_000


@pytest.mark.parametrize(
    ("make", "key", "other"),
    [
        (StringTree, "é漢" * (LENGTH // 2), "é漢" * (LENGTH // 4) + "漢!"),
        (TokenTree, np.arange(LENGTH, dtype=np.uint32), np.arange(LENGTH // 2 + 16, dtype=np.uint32) % (LENGTH // 2)),
    ],
    ids=["text", "tokens"],
)
def test_prompts_of_millions(make: Callable[[], Any], key: Any, other: Any) -> None:
    def work() -> None:
        tree = make()
        tree.insert(key, "w")
        assert tree.match_and_insert(other, "v").matched == LENGTH // 2
        assert find(tree, key).scores() == {"w": LENGTH, "v": LENGTH // 2}
        assert tree.node_count == 3
        assert tree.tenant_sizes() == tree.get_used_size_per_tenant() == {"v": len(other), "w": LENGTH}
        assert tree.evict_tenant("w", LENGTH - 1) == LENGTH // 2
        matched, tenant = tree.prefix_match_legacy(key)
        assert (len(matched), tenant) == (LENGTH // 2, "w")
        assert all(matched[at] == key[at] for at in range(0, LENGTH // 2, 1000))

    with_small_stack(work)
