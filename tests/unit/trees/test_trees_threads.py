"""The trees used by many threads at once, the interpreter switching between them all the time."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.support.threads import run, times

from kvatlas.trees import StringTree, TokenTree, hash_node_path, hash_token_path
from kvatlas.types import EvictionPolicy

from .prompts import Keys, find

pytestmark = pytest.mark.usefixtures("frequent_switches")

TENANTS = ["a", "b", "c"]


@pytest.mark.parametrize("page", [None, 1, 16], ids=["text", "tokens", "pages"])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_sizes_equal_a_recount(page: int | None, policy: EvictionPolicy) -> None:
    tree: Any = StringTree(policy=policy) if page is None else TokenTree(page, policy=policy)
    shared_keys = Keys(random.Random(page or 0), page)
    keys = [shared_keys.draw() for _ in range(60)]
    hashed: Callable[[Any], int] = hash_node_path if page is None else hash_token_path
    done = [0] * 8

    def worker(number: int) -> Callable[[], None]:
        choose = random.Random(number)

        def select(found: Any) -> str | None:
            sane(found)
            choices: list[str | None] = [*TENANTS, found.tenant, None]
            return choose.choice(choices)

        def sane(found: Any) -> None:
            assert 0 <= found.matched <= found.paged <= found.input
            assert (found.tenant is None) == (found.matched == 0)
            assert found.tenant in {*TENANTS, None}

        def once() -> None:
            key, tenant = choose.choice(keys), choose.choice(TENANTS)
            turn = choose.random()
            if turn < 0.3:
                tree.insert(key, tenant)
            elif turn < 0.45:
                sane(tree.match_prefix_with_counts(key))
            elif turn < 0.6:
                sane(tree.match_and_insert(key, tenant))
            elif turn < 0.7:
                sane(tree.match_and_insert_with(key, select))
            elif turn < 0.8:
                found = find(tree, key)
                assert all(0 < depth <= found.length for depth in found.scores().values())
                assert found.scores().keys() <= set(TENANTS)
            elif turn < 0.85:
                assert tree.evict_tenant(tenant, choose.randrange(40)) >= 0
            elif turn < 0.88:
                tree.evict_tenant_by_size(choose.randrange(10, 60))
            elif turn < 0.91:
                tree.evict_to_size(choose.randrange(20, 100))
            elif turn < 0.94:
                tree.evict_by_path_hash(hashed(key), choose.choice([tenant, None]))
            elif turn < 0.95:
                tree.remove_tenant(tenant)
            elif turn < 0.96:
                for path, tenants in tree.iter_entries():
                    assert tenants, path
            elif turn < 0.97:
                copy = type(tree).from_snapshot(tree.snapshot())
                assert copy.tenant_sizes() == copy.get_used_size_per_tenant()
            else:
                tree.stats()
                assert sum(tree.tenant_sizes().values()) >= 0
            done[number] += 1

        return once

    run(lambda: min(done) > times(4_000), *map(worker, range(8)))
    assert tree.tenant_sizes() == tree.get_used_size_per_tenant()
    assert tree.total_size == sum(tree.tenant_sizes().values())
    entries = list(tree.iter_entries())
    assert len(entries) == tree.node_count
    assert list(type(tree).from_snapshot(tree.snapshot()).iter_entries()) == entries
    for tenant in TENANTS:
        tree.remove_tenant(tenant)
    assert tree.stats() | {"bytes": 0} == {"tenants": 0, "nodes": 0, "size": 0, "bytes": 0}


@pytest.mark.parametrize("page", [None, 16], ids=["text", "tokens"])
def test_what_nobody_evicts_is_always_found(page: int | None) -> None:
    """The original lost live subtrees to an eviction beside them, and matched too little beside a split."""
    tree: Any = StringTree() if page is None else TokenTree(page)
    unit = page or 1
    base: Any = "漢é" * 32 if page is None else [number for number in range(64) for _ in range(unit)]
    full = len(base)
    tree.insert(base, "still")
    done = [0, 0, 0]

    def branch(choose: random.Random) -> Any:
        cut = choose.randrange(0, 65) * unit
        tail = choose.randrange(2)
        return base[:cut] + (chr(97 + tail) * 3 if page is None else [1000 + tail] * 48)

    def write(number: int) -> Callable[[], None]:
        choose = random.Random(number)

        def once() -> None:
            tree.insert(branch(choose), f"w{number}")
            done[number] += 1
            if choose.random() < 0.1:
                tree.evict_tenant(f"w{number}", choose.randrange(200))

        return once

    def read() -> None:
        assert find(tree, base).scores()["still"] == full
        assert tree.match_prefix_with_counts(base).matched == full
        done[2] += 1

    run(lambda: min(done) > times(8_000), write(0), write(1), read, read)
    assert tree.tenant_size("still") == full


def test_selects_that_wait_for_each_other() -> None:
    """No lock is held while `select` runs: one waits for what another thread can only do with the same tree."""
    tree = TokenTree()
    key = np.arange(200_000 // 16 * 16, dtype=np.uint32)
    meet = threading.Barrier(8, timeout=60)

    def select(found: Any) -> str:
        meet.wait()
        tree.evict_tenant("w0", 0)
        tree.insert_tokens(key[:64], "during")
        meet.wait()
        return "late"

    def work(number: int) -> None:
        length = len(key) if number % 2 else 16
        tree.match_and_insert_with(key[:length], select)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert tree.find(tokens=key).scores() == {"late": len(key), "during": 64}


def test_the_budget_holds_among_threads() -> None:
    budget = 400_000
    tree = StringTree(budget_bytes=budget)
    highest = inserted = 0

    def write(number: int) -> Callable[[], None]:
        choose = random.Random(number)

        def once() -> None:
            nonlocal highest, inserted
            tree.insert_text(f"{choose.randrange(5)}{choose.random()!s:0>300}", f"w{number}")
            highest = max(highest, tree.bytes)
            inserted += 1

        return once

    run(lambda: inserted > times(80_000), *map(write, range(4)))  # many times what the budget holds
    assert budget / 2 < highest < budget * 1.1
    assert tree.bytes <= budget
    assert tree.tenant_sizes() == tree.get_used_size_per_tenant()


def test_long_calls_leave_other_threads_room() -> None:
    """Python code in other threads goes on while a tree is busy with one long call."""
    tree = TokenTree(1)
    key = np.arange(5_000_000, dtype=np.uint32)
    turns = 0

    def insert() -> None:
        for tenant in range(5):
            tree.insert_tokens(key, str(tenant))

    inserting = threading.Thread(target=insert)
    inserting.start()
    while inserting.is_alive():
        turns += 1
    inserting.join()
    assert turns > 100
    assert tree.total_size == 5 * len(key)
