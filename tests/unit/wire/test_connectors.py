"""Batches of engines whose connectors keep blocks elsewhere: chunks, clears that name no tier, names alone, pools."""

from typing import Any

import msgspec
import pytest

from kvatlas import BlockIndex
from kvatlas.types import Loadable
from kvatlas.wire import Batch, decode_batch

TOKENS = list(range(8))
Event = dict[str, Any]
CLEARED: Event = {"type": "AllBlocksCleared"}


def stored(start: int, end: int, medium: str = "GPU", salt: str | None = None, **more: Any) -> Event:
    """Blocks of one token each, named from 1 on."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(start + 1, end + 1)),
        "parent_block_hash": start or None,
        "token_ids": TOKENS[start:end],
        "block_size": 1,
        "medium": medium,
        "extra_keys": [[salt]] + [None] * (end - start - 1) if salt else None,
        **more,
    }


def removed(*names: int, **more: Any) -> Event:
    return {"type": "BlockRemoved", "block_hashes": list(names), **more}


def batch(events: list[Event]) -> Batch:
    return decode_batch(msgspec.msgpack.encode([1.5, events, 0]))


def told(*batches: list[Event], **offloading: Any) -> BlockIndex:
    """An index that has heard batches of one engine."""
    index = BlockIndex(block_size=1)
    index.loading.set_offloading("w", **offloading)
    for events in batches:
        assert index.apply("w", batch(events)).refused == {}
    return index


def found(index: BlockIndex, worker: str = "w") -> Loadable:
    return {it.worker: it for it in index.loading.find(tokens=TOKENS)}[worker]


LOCAL = {"medium": "CPU", "locality": "LOCAL"}


def test_a_clear_after_events_of_a_connector_that_has_clears_is_the_connectors() -> None:
    index = told([stored(0, 4), stored(0, 4, **LOCAL)], [stored(4, 5), stored(4, 5, **LOCAL), CLEARED])
    assert (found(index).device, found(index).host) == (5, 0)
    index = told([stored(0, 4), stored(0, 4, **LOCAL)], [removed(4, **LOCAL), CLEARED])
    assert (found(index).device, found(index).host) == (4, 0)


def test_the_second_clear_of_a_reset_is_the_connectors() -> None:
    index = told([stored(0, 4), stored(0, 4, **LOCAL)], [CLEARED, stored(0, 2), CLEARED])
    assert (found(index).device, found(index).host) == (2, 0)


@pytest.mark.parametrize("events", [[CLEARED], [stored(4, 5), CLEARED], [CLEARED, CLEARED]])
def test_any_other_clear_is_the_engines(events: list[Event]) -> None:
    index = told([stored(0, 4), stored(0, 4, **LOCAL)], events)
    assert (found(index).device, found(index).host, found(index).may_hold_more) == (0, 0, True)


def test_a_clear_of_an_engine_whose_events_are_not_marked_as_local_means_all() -> None:
    """SGLang's events of all tiers come in any order."""
    index = told([stored(0, 4), stored(0, 4, "CPU")], [stored(4, 5, "CPU"), CLEARED])
    assert (found(index).device, found(index).host) == (0, 0)


@pytest.mark.parametrize(("keeps", "host", "may_hold_more"), [(True, 4, False), (False, 0, False), (None, 0, True)])
def test_what_a_reset_leaves_is_what_is_said(keeps: bool | None, host: int, may_hold_more: bool) -> None:
    index = told([stored(0, 4), stored(0, 4, "CPU")], [CLEARED], resets_keep=keeps)
    assert (found(index).device, found(index).host, found(index).may_hold_more) == (0, host, may_hold_more)


def test_salts_of_what_a_reset_leaves_are_remembered() -> None:
    index = told([stored(0, 2, salt="s"), stored(0, 2, "CPU")], [CLEARED], [stored(2, 4, "CPU")], resets_keep=True)
    (salted,) = index.loading.find(tokens=TOKENS, salt="s")
    assert (salted.host, found(index).host) == (4, 0)


def test_chunks_are_as_long_as_stores_show() -> None:
    index = told([stored(0, 8)], [stored(0, 4, "CPU"), stored(4, 8, "CPU")])
    assert found(index).host == 8
    index.apply("w", batch([removed(8, medium="CPU")]))
    assert found(index).host == 4
    # A store of two blocks: so chunks have two.
    index.apply("w", batch([stored(4, 6, "CPU")]))
    assert found(index).host == 6
    index.loading.set_offloading("w", host_chunk=4)
    assert found(index).host == 4


def test_chunks_of_a_pool_are_as_long_as_its_members_stores_show() -> None:
    index = BlockIndex(block_size=1)
    index.loading.add_pool("folder", members=["a", "b"])
    folder = {"medium": "STORAGE", "locality": "REMOTE"}
    index.apply("a", batch([stored(0, 8), stored(0, 4, **folder), stored(4, 8, **folder)]))
    assert found(index, "b").depth == 8
    index.apply("a", batch([removed(8, **folder)]))
    assert found(index, "b").depth == 4
    # Pools that are added later have them too, and what is said of a pool counts for more.
    index.loading.add_pool("other", members=["b", "a"], tier="disk")
    index.loading.add_pool("folder", members=["a", "b"], chunk=1)
    assert found(index, "b").depth == 7


def test_names_alone_mean_what_a_pool_has_under_them() -> None:
    index = BlockIndex(block_size=1)
    index.loading.add_pool("folder", members=["a", "b"], chunk=2)
    folder = {"medium": "STORAGE", "locality": "REMOTE"}
    for worker, events in (
        ("a", [stored(0, 4), stored(0, 4, **folder)]),
        ("b", [stored(0, 1)]),
        (
            "b",
            [stored(0, 0, "CPU") | {"block_hashes": [2, 4], "block_size": 0}],
        ),  # promoted by an engine that has never had them
        ("a", [CLEARED]),
    ):
        assert index.apply(worker, batch(events)).refused == {}
    index.loading.set_offloading("b", host_chunk=2)
    tiers = [(it.start, it.end, it.tier) for it in found(index, "b").segments]
    assert tiers == [(0, 1, "gpu"), (1, 4, "cpu")]
    assert [(it.end, it.pool) for it in found(index, "a").segments] == [(4, "folder")]
