"""The blocks that a RadixTrie keeps for Python: none is lost among threads, and each goes when it should."""

import gc
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvatlas.errors import InvalidArgumentError
from kvatlas.trees import RadixTrie


class Block:
    """A block that is nothing but itself."""


def test_from_many_threads_nothing_is_lost() -> None:
    trie = RadixTrie(2)
    blocks = iter(range(10**9))
    lock = threading.Lock()
    free: list[int] = []

    def take(count: int) -> list[int]:
        with lock:
            return [next(blocks) for _ in range(count)]

    def sequence(seed: int) -> int:
        choose = random.Random(seed)
        given = 0
        for number in range(150):
            tokens = [choose.randint(0, 2) for _ in range(2 * choose.randint(1, 20))]
            user = seed * 1000 + number
            mine = take(len(tokens) // 2)
            given += len(mine)
            try:
                node, kept = trie.insert_with_count(np.array(tokens), mine)
                trie.mark_in_use_by(node, user)
            except InvalidArgumentError as error:
                if error.code != "evicted_node":
                    raise
                # Evicted by another thread between the two calls.
                with lock:
                    free.extend(mine[:kept])
                continue
            with lock:
                free.extend(mine[:kept])
            matched, found = trie.match_prefix(tokens)
            assert matched == node
            assert len(found) == len(mine)
            assert found[kept:] == mine[kept:]
            trie.mark_not_in_use_by(node, user)
            if number % 3 == 0:
                evicted = trie.evict_blocks(choose.randint(1, 30))
                with lock:
                    free.extend(evicted)
        return given

    with ThreadPoolExecutor(6) as pool:
        given = sum(pool.map(sequence, range(6)))
    kept = trie.get_all_blocks()
    assert len(kept) == len(trie)
    assert len(free) + len(kept) == given
    assert set(free) | kept == set(range(given))
    assert set(trie.evict_blocks(10**30)) == kept
    assert trie.pretty_format() == []


def test_blocks_that_use_the_trie_when_they_go() -> None:
    trie = RadixTrie()
    seen = []

    class Nosy:
        def __del__(self) -> None:
            seen.append(len(trie))

    trie.insert([1, 2], [Nosy(), Nosy()])
    trie.insert([1, 2], [Nosy(), Nosy()])
    assert seen == [2, 2]
    trie.evict_blocks(5)
    assert seen == [2, 2, 0, 0]


def test_a_cycle_through_the_trie_is_collected() -> None:
    block = Block()
    trie = RadixTrie()
    node = trie.insert([1], [block])
    block.trie, block.node = trie, node  # type: ignore[attr-defined]
    watch = weakref.ref(block), weakref.ref(trie), weakref.ref(node)
    del block, trie, node
    gc.collect()
    assert [reference() for reference in watch] == [None, None, None]


def test_references_are_given_back() -> None:
    block = Block()
    watch = weakref.ref(block)
    trie = RadixTrie()
    trie.insert([1], [block])
    del block
    assert watch() is not None
    trie.match_prefix([1])
    trie.evict_blocks(1)
    assert watch() is None
