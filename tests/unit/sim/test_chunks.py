"""Chunks that an offloading tier holds: every rule of `kvatlas.sim.chunks`, and look-ups by whole chunks."""

from kvatlas.sim.chunks import ChunkStore, leading_blocks, leading_chunks


def of(*chunks: tuple[int, ...], slots: int | None = None) -> ChunkStore:
    store = ChunkStore(slots)
    for chunk in chunks:
        assert store.add(chunk) == []
    return store


def test_a_chunk_has_the_name_of_its_last_block() -> None:
    store = of((1, 2), (3, 4))
    assert [name in store for name in (1, 2, 3, 4)] == [False, True, False, True]
    assert len(store) == 2


def test_the_least_recently_used_chunk_is_evicted_first() -> None:
    store = of((1,), (2,), (3,), slots=3)
    store.use([1])
    assert store.add((4,)) == [(2,)]
    # Of one prompt, the last chunk goes before the earlier ones.
    store.use([1, 3, 4])
    assert [store.add((5,)), store.add((6,)), store.add((7,))] == [[(4,)], [(3,)], [(1,)]]


def test_a_chunk_in_use_is_not_evicted() -> None:
    store = of((1,), (2,), slots=2)
    store.pin(1)
    store.pin(1)
    assert store.add((3,)) == [(2,)]
    store.pin(3)
    assert store.add((4,)) is None
    store.unpin(1)
    assert store.add((4,)) is None
    store.unpin(1)
    assert store.add((4,)) == [(1,)]


def test_what_is_dropped_or_cleared_is_gone() -> None:
    store = of((1,), (2,))
    store.discard(1)
    store.discard(7)
    assert 1 not in store
    store.pin(2)
    store.clear()
    assert len(store) == 0


def test_a_look_up_goes_on_chunk_by_chunk_through_the_tiers_in_order() -> None:
    names = list(range(1, 11))
    first, second = {2, 4, 8}, {4, 6}
    assert leading_chunks(names, 0, 2, [first, second]) == [0, 0, 1, 0]
    assert leading_blocks(names, 0, 2, [first, second]) == 8
    # A look-up that begins within a chunk needs that whole chunk; an incomplete chunk at the end does not count.
    assert leading_blocks(names, 3, 2, [first]) == 4
    assert leading_blocks(names, 5, 2, [first]) == 5
    assert leading_blocks(names, 9, 4, [{4, 8, 12}]) == 9
    assert leading_chunks(names, 10, 2, [first]) == []
