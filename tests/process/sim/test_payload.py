"""Payloads, byte by byte where the engines' bytes are known."""

import random

import msgspec
import pytest

from kvatlas.sim.server.events import Batch, Cleared, Dialect, Event, Removed, Stored
from kvatlas.sim.server.payload import encode, garbage, rows, undecodable, unknown

DIALECTS: tuple[Dialect, ...] = ("vllm", "vllm-arrays", "sglang", "sglang-arrays")
STORED = Stored([10, 11], None, [1, 2, 3, 4], "a", "s")


def payload(*events: Event, dialect: Dialect = "vllm", rank: int = 0) -> bytes:
    return encode(rows(events, block_size=2, dialect=dialect), timestamp=1.0, rank=rank)


def decoded(*events: Event, dialect: Dialect) -> list[object]:
    timestamp, found, rank = msgspec.msgpack.decode(payload(*events, dialect=dialect))
    assert (timestamp, rank) == (1.0, 0)
    return list(found)


def test_the_clear_of_the_facts() -> None:
    want = "93 cb3ff0000000000000 91 81a474797065b0416c6c426c6f636b73436c6561726564 00"
    assert payload(Cleared()) == payload(Cleared(), dialect="sglang") == bytes.fromhex(want)


def test_the_removal_of_the_facts() -> None:
    want = (
        "93 cb3ff0000000000000 91 84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573"
        "91cf8000000000000005 a66d656469756d a3475055 a967726f75705f696478 00 01"
    )
    assert payload(Removed([2**63 + 5]), rank=1) == bytes.fromhex(want)


def test_vllm_writes_a_wide_map_for_a_store() -> None:
    assert payload(STORED).startswith(
        bytes.fromhex("93 cb3ff0000000000000 91 de000b a474797065 ab426c6f636b53746f726564")
    )


def test_vllm_store() -> None:
    [event] = decoded(STORED, dialect="vllm")
    assert isinstance(event, dict)
    assert isinstance(event.pop("lora_id"), int)
    assert event == {
        "type": "BlockStored",
        "block_hashes": [10, 11],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "medium": "GPU",
        "lora_name": "a",
        "extra_keys": [["a", "s"], ["a"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_a_continued_chain_does_not_repeat_the_salt_in_vllm_but_does_in_sglang() -> None:
    [vllm] = decoded(Stored([12], 11, [5, 6], None, "s"), dialect="vllm")
    [sglang] = decoded(Stored([12], 11, [5, 6], None, "s"), dialect="sglang")
    assert isinstance(vllm, dict)
    assert isinstance(sglang, dict)
    assert vllm["extra_keys"] == [None]
    assert sglang["cache_salt"] == "s"


def test_sglang_store_leaves_out_what_is_unset() -> None:
    [event] = decoded(Stored([-1], None, [1, 2], None, None), dialect="sglang")
    assert event == {
        "type": "BlockStored",
        "block_hashes": [-1],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
    }


def test_positional_arrays() -> None:
    vllm = decoded(STORED, Removed([10]), Cleared(), dialect="vllm-arrays")
    number = vllm[0][5] if isinstance(vllm[0], list) else None
    assert vllm == [
        [
            "BlockStored",
            [10, 11],
            None,
            [1, 2, 3, 4],
            2,
            number,
            "GPU",
            "a",
            [["a", "s"], ["a"]],
            0,
            "full_attention",
            None,
        ],
        ["BlockRemoved", [10], "GPU", 0],
        ["AllBlocksCleared"],
    ]
    assert decoded(STORED, Removed([10]), dialect="sglang-arrays") == [
        ["BlockStored", [10, 11], None, [1, 2, 3, 4], 2, None, "GPU", {"cache_salt": "s", "lora_name": "a"}],
        ["BlockRemoved", [10], "GPU"],
    ]


def test_sglang_merges_neighbours_and_vllm_does_not() -> None:
    for engine, want in (("sglang", 3), ("vllm", 6)):
        batch = Batch("sglang" if engine == "sglang" else "vllm")
        batch.remove([1])
        batch.remove([2, 3])
        batch.store(Stored([4], None, [1], None, None))
        batch.store(Stored([5], 4, [2], None, None))
        batch.store(Stored([6], None, [3], None, None))
        events = batch.take()
        assert len(events) == want, engine
        assert batch.take() == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_poisoned_batch_is_still_msgpack_and_keeps_the_rest(dialect: Dialect) -> None:
    good = rows([Removed([10])], block_size=2, dialect=dialect)
    for seed in range(50):
        chance = random.Random(seed)
        for bad in (undecodable(chance, dialect), unknown(chance, dialect)):
            _, found, _ = msgspec.msgpack.decode(encode([bad, *good], timestamp=0.0, rank=0))
            assert len(found) == 2
            assert found[1] == msgspec.msgpack.decode(msgspec.msgpack.encode(good[0]))


def test_garbage_is_no_batch() -> None:
    for seed in range(100):
        data = garbage(random.Random(seed))
        try:
            value = msgspec.msgpack.decode(data)
        except msgspec.DecodeError:
            continue
        assert not isinstance(value, list)
