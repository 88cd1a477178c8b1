"""RadixTrie against the plain model, with random operations; and from many threads."""

import gc
import random
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import InvalidArgumentError
from kvatlas.trees import RadixTrie, TrieNode

from .trie_model import Key, TrieModel

EMPTY: Key = ()


class Block:
    """A block that is nothing but itself."""


def kinds(choose: random.Random, tokens: list[int]) -> Any:
    """The tokens in one of the ways they may come."""
    ways: list[Callable[[], Any]] = [
        lambda: tokens,
        lambda: tuple(tokens),
        lambda: np.array(tokens, dtype=choose.choice(["u4", "i4", "u8", "i8", "i2", ">i4", ">u8"])),
        lambda: np.repeat(np.array(tokens), 2)[::2],
    ]
    return choose.choice(ways)()


@pytest.mark.parametrize("seed", range(60))
def test_random_operations(seed: int) -> None:
    choose = random.Random(seed)
    page = choose.choice([1, 1, 2, 3, 16])
    symbols: list[Any] = choose.choice([[1, 2], [0, 2**31 - 1, 2**31], ["a", "b"], [-1, 2**64 - 1, "x", 7]])
    trie, model = RadixTrie(page), TrieModel(page)
    marks: list[tuple[TrieNode, int, Key]] = []
    held: dict[TrieNode, Key] = {trie.root: ()}
    for number in range(120):
        base_node, base = trie.root, EMPTY
        if choose.random() < 0.3:
            base_node, base = choose.choice(list(held.items()))
        tokens = [choose.choice(symbols) for _ in range(choose.randint(1, 6 * page))]
        plain = all(isinstance(token, int) and 0 <= token < 2**15 for token in symbols)
        what = choose.random()
        if what < 0.4:
            tokens = tokens[: max(1, len(tokens) // page) * page] + [symbols[0]] * max(0, page - len(tokens))
            blocks = [Block() for _ in range(len(tokens) // page)]
            node, kept = trie.insert_with_count(kinds(choose, tokens) if plain else tokens, blocks, base_node)
            full = (*base, *tokens)
            known = len(model.match(full)) - len(base) // page
            model.insert(full, [None] * (len(base) // page) + blocks)
            assert kept == known
            assert node.get_prefix_tokens_and_blocks()[0] == list(full)
            held[node] = full
        elif what < 0.7:
            node, blocks = trie.match_prefix(kinds(choose, tokens) if plain else tokens, base_node)
            full = (*base, *tokens)
            expected = model.match(full)[len(base) // page :]
            assert len(blocks) == len(expected)
            assert all(one is other for one, other in zip(blocks, expected, strict=True))
            end = full[: len(base) + len(blocks) * page]
            held[node] = end
            if end and choose.random() < 0.4:
                trie.mark_in_use_by(node, number)
                model.mark(end, number)
                marks.append((node, number, end))
        elif what < 0.85 and marks:
            node, user, end = marks.pop(choose.randrange(len(marks)))
            trie.mark_not_in_use_by(node, user)
            model.release(end, user)
        else:
            wanted = choose.randint(0, 12)
            assert trie.get_evictable_blocks() == model.evictable()
            evicted, expected = trie.evict_blocks(wanted), model.evict(wanted)
            assert len(evicted) == len(expected)
            assert all(one is other for one, other in zip(evicted, expected, strict=True))
            gone = {node for node, end in held.items() if end and end not in model.pages}
            assert all(node.evicted == (node in gone) for node in held)
            held = {node: end for node, end in held.items() if node not in gone}
        assert len(trie) == len(model.pages)
        assert trie.get_all_blocks() == {entry.block for entry in model.pages.values()}
        for node, end in held.items():
            # What the trie still lets in means what it meant when it was given out.
            assert tuple(node.get_prefix_tokens_and_blocks()[0]) == end
            assert node.active_seqs == (model.pages[end].users if end else set())


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
