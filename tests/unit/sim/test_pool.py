"""The rules of the block pool, one test each."""

import random

import pytest

from kvatlas.sim import BlockPool


def run(pool: BlockPool, names: list[int], *, partial: int = 0) -> tuple[list[int], list[int]]:
    """A request that hits what it can, computes the rest, and has `partial` blocks that it never fills."""
    hits = pool.lookup(names)
    pool.touch(hits)
    taken, removed = pool.take(len(names) - len(hits) + partial)
    pool.fill(taken[: len(taken) - partial], names[len(hits) :])
    return hits + taken, removed


def test_a_block_is_referenced_while_used_and_keeps_its_content_when_free() -> None:
    pool = BlockPool(4)
    chain, removed = run(pool, [1, 2, 3])
    assert (pool.free, removed) == (1, [])
    pool.release(chain)
    assert pool.free == 4
    assert pool.lookup([1, 2, 3, 9]) == chain
    assert pool.cached == 3


def test_shared_blocks_are_free_only_when_the_last_user_is_done() -> None:
    pool = BlockPool(4)
    first, _ = run(pool, [1, 2])
    second, _ = run(pool, [1, 2])
    assert first == second
    pool.release(first)
    assert pool.free == 2
    pool.release(second)
    assert pool.free == 4


def test_released_blocks_go_to_the_back_last_of_the_chain_first() -> None:
    pool = BlockPool(5)
    a, _ = run(pool, [1, 2, 3])
    b, _ = run(pool, [4])
    pool.release(a)
    pool.release(b)
    never_used = 4
    assert pool.queue_order() == [never_used, *reversed(a), *b]


def test_blocks_that_hold_nothing_go_to_the_front() -> None:
    pool = BlockPool(4)
    chain, _ = run(pool, [1, 2], partial=1)
    pool.release(chain)
    assert pool.queue_order() == [chain[2], 3, chain[1], chain[0]]


def test_a_hit_takes_a_block_out_of_the_queue_and_makes_it_the_youngest_again() -> None:
    pool = BlockPool(4)
    a, _ = run(pool, [1, 2])
    b, _ = run(pool, [3, 4])
    pool.release(a)
    pool.release(b)
    again, _ = run(pool, [1, 2])
    assert pool.queue_order() == [b[1], b[0]]
    pool.release(again)
    assert pool.queue_order() == [b[1], b[0], a[1], a[0]]


def test_content_goes_only_when_its_block_is_taken_leaf_first() -> None:
    pool = BlockPool(3)
    chain, _ = run(pool, [1, 2, 3])
    pool.release(chain)
    _, removed = pool.take(1)
    assert removed == [3]
    assert pool.lookup([1, 2, 3]) == chain[:2]
    _, removed = pool.take(2)
    assert removed == [2, 1]


def test_equal_blocks_are_copies_and_each_is_removed_once() -> None:
    pool = BlockPool(4)
    blocks, _ = pool.take(3)
    for block in blocks:
        pool.fill([block], [7])
    assert pool.copies(7) == 3
    assert pool.cached == 1
    assert pool.lookup([7]) == blocks[:1]
    pool.release(blocks)
    _, removed = pool.take(4)
    assert removed == [7, 7, 7]
    assert pool.copies(7) == 0
    assert pool.lookup([7]) == []


def test_a_lookup_finds_the_oldest_copy_left() -> None:
    pool = BlockPool(3)
    blocks, _ = pool.take(3)
    for block in blocks:
        pool.fill([block], [7])
    pool.release(blocks[:1])
    pool.take(1)
    assert pool.lookup([7]) == [blocks[1]]
    pool.release(blocks[2:])
    pool.take(1)
    assert pool.lookup([7]) == [blocks[1]]
    assert pool.copies(7) == 1


def test_a_lookup_stops_at_the_first_gap() -> None:
    pool = BlockPool(4)
    blocks, _ = pool.take(3)
    pool.fill(blocks, [1, 3, 4])
    assert pool.depth([1, 2, 3, 4]) == 1
    assert pool.depth([2, 1]) == 0


def test_no_more_can_be_taken_than_is_free() -> None:
    pool = BlockPool(2)
    pool.take(1)
    with pytest.raises(RuntimeError, match="2 blocks wanted, 1 free"):
        pool.take(2)


def test_reset_is_refused_while_blocks_are_in_use() -> None:
    pool = BlockPool(2)
    chain, _ = run(pool, [1])
    assert not pool.reset()
    pool.release(chain)
    assert pool.reset()
    assert pool.cached == 0
    assert pool.take(2)[1] == []


def test_a_pool_has_blocks() -> None:
    with pytest.raises(ValueError, match="at least 1 block"):
        BlockPool(0)


class LiteralPool:
    """The rules of a block pool, as plainly as they can be put: lists, searched from end to end."""

    def __init__(self, blocks: int) -> None:
        self.queue = list(range(blocks))
        self.refs = dict.fromkeys(range(blocks), 0)
        self.held: list[tuple[int, int]] = []  # (name, block), oldest first

    def lookup(self, names: list[int]) -> list[int]:
        found = []
        for name in names:
            blocks = [block for held, block in self.held if held == name]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.queue:
                self.queue.remove(block)
            self.refs[block] += 1

    def take(self, count: int) -> tuple[list[int], list[int]]:
        taken, removed = self.queue[:count], []
        del self.queue[:count]
        for block in taken:
            self.refs[block] = 1
            removed += [name for name, held in self.held if held == block]
            self.held = [(name, held) for name, held in self.held if held != block]
        return taken, removed

    def fill(self, blocks: list[int], names: list[int]) -> None:
        self.held += zip(names, blocks, strict=True)

    def release(self, chain: list[int]) -> None:
        for block in reversed(chain):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                if any(held == block for _, held in self.held):
                    self.queue.append(block)
                else:
                    self.queue.insert(0, block)


@pytest.mark.parametrize("seed", range(20))
def test_the_pool_is_the_literal_pool(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([3, 8, 30])
    pool, literal = BlockPool(size), LiteralPool(size)
    running: list[list[int]] = []
    for _ in range(600):
        if running and (rng.random() < 0.5 or pool.free == 0):
            chain = running.pop(rng.randrange(len(running)))
            pool.release(chain)
            literal.release(chain)
        else:
            family = rng.randrange(3)
            names = [family * 100 + i for i in range(rng.randint(1, 6))]
            # As engines do: the last block of an aligned prompt is computed again.
            hits = pool.lookup(names[:-1])
            assert hits == literal.lookup(names[:-1])
            partial = rng.randint(0, 1)
            new = len(names) - len(hits) + partial
            if new + pool.idle(hits) > pool.free:
                continue
            for each in (pool, literal):
                each.touch(hits)
            taken = pool.take(new)
            assert taken == literal.take(new)
            for each in (pool, literal):
                each.fill(taken[0][: new - partial], names[len(hits) :])
            running.append(hits + taken[0])
        assert pool.free == len(literal.queue)
        assert pool.cached == len({name for name, _ in literal.held})
        if rng.random() < 0.1:
            assert pool.queue_order() == literal.queue
