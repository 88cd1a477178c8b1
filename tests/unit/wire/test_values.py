"""Events as values: made, compared, shown, refused."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from kvatlas.errors import DecodeError, InvalidArgumentError, InvalidTypeError, KvatlasError
from kvatlas.types import Dialect, Tier
from kvatlas.wire import Batch, Cleared, Event, Removed, Stored, decode_batch, encode_batch


def decoded(*events: Any, rank: Any = 0) -> Batch:
    """The batch that other software's encoder makes of plain values, decoded."""
    return decode_batch(msgspec.msgpack.encode([1.5, events, rank]))


STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [1, -2, b"\x03", 2**64 - 1],
    "parent_block_hash": -9,
    "token_ids": list(range(8)),
    "block_size": 2,
    "lora_id": 4,
    "medium": "CPU_PINNED",
    "lora_name": "a",
    "extra_keys": [["a", ["image", 3], b"\x01\x02"], None, ["a", "odd"], [[1, 2, 3, 4]]],
    "group_idx": 1,
    "kv_cache_spec_kind": "mamba",
    "kv_cache_spec_sliding_window": 64,
    "locality": "LOCAL",
    "ownership": "tier-2",
    "session_id": "s",
    "lookahead_token_ids": [[1], [2], [3], []],
}


def test_every_field_is_there() -> None:
    batch = decoded(STORED, {"type": "BlockRemoved", "block_hashes": [7], "medium": None}, ["AllBlocksCleared"])
    assert (batch.timestamp, batch.rank, batch.refused) == (1.5, 0, ())
    stored, removed, cleared = batch.events
    assert isinstance(stored, Stored)
    assert stored.block_hashes == (1, -2, b"\x03", 2**64 - 1)
    assert stored.parent == -9
    assert stored.tokens == tuple(range(8))
    assert (stored.block_size, stored.tier, stored.medium) == (2, "cpu", "CPU_PINNED")
    assert (stored.lora, stored.lora_id, stored.salt) == ("a", 4, None)
    assert stored.extra_keys == ((("image", 3), b"\x01\x02"), None, ("odd",), ((b"\x94\x01\x02\x03\x04",),))
    assert (stored.group_idx, stored.kind, stored.window) == (1, "mamba", 64)
    assert (stored.locality, stored.ownership, stored.session_id) == ("LOCAL", "tier-2", "s")
    assert (stored.lookahead, stored.reused) == (((1,), (2,), (3,), ()), False)
    assert isinstance(removed, Removed)
    assert (removed.block_hashes, removed.tier, removed.medium, removed.group_idx) == ((7,), "gpu", None, None)
    assert cleared == Cleared()


def test_a_store_is_made_of_its_own_fields() -> None:
    (stored,) = decoded(STORED).events
    assert isinstance(stored, Stored)
    optional = (
        "medium",
        "lora",
        "lora_id",
        "salt",
        "extra_keys",
        "group_idx",
        "kind",
        "window",
        "session_id",
        "locality",
        "ownership",
        "lookahead",
    )
    again = Stored(
        stored.block_hashes,
        stored.parent,
        stored.tokens,
        stored.block_size,
        **{name: getattr(stored, name) for name in optional},
    )
    assert again == stored
    assert decode_batch(encode_batch([again], timestamp=0)).events == (stored,)
    for name in optional:
        others: dict[str, Any] = {other: getattr(stored, other) for other in optional if other != name}
        less = Stored(stored.block_hashes, stored.parent, stored.tokens, stored.block_size, **others)
        assert (less == stored) == (getattr(stored, name) is None)


def test_what_was_hit() -> None:
    (stored,) = decoded({**STORED, "origin": "REUSED"}).events
    assert isinstance(stored, Stored)
    assert stored.reused
    assert repr(stored).endswith("reused=True)")
    assert decode_batch(encode_batch([stored], timestamp=0)).events == (stored,)
    (stored,) = decoded({**STORED, "origin": "NEW"}).events
    assert isinstance(stored, Stored)
    assert not stored.reused


def test_pairs() -> None:
    (stored,) = decoded({**STORED, "token_ids": [[1, 2], [2, 3]]}).events
    assert isinstance(stored, Stored)
    assert stored.tokens == ((1, 2), (2, 3))
    assert Stored([1], None, [(1, 2), [2, 3]], 2) == Stored([1], None, ((1, 2), (2, 3)), 2)
    assert Stored([1], None, [(1, 2), (2, 3)], 2) != Stored([1], None, [1, 2], 2)


@pytest.mark.parametrize("tokens", [[1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], "u4"), b"\x01\0\0\0\x02\0\0\0"])
def test_tokens_as_everywhere(tokens: Any) -> None:
    assert Stored([1], None, tokens, 2) == Stored((1,), None, [1, 2], 2)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            Stored([7, b"x"], 5, [1, 2], 1),
            "Stored(block_hashes=(7, b'x'), parent=5, tokens=<2>, block_size=1, tier='gpu')",
        ),
        (
            Stored([7], None, [1], 1, tier="disk", lora="a'b", salt="s", extra_keys=[[("i", 1)]]),
            (
                "Stored(block_hashes=(7,), parent=None, tokens=<1>, block_size=1, tier='disk', lora=\"a'b\", salt='s', "
                "extra_keys=((('i', 1),),))"
            ),
        ),
        (Removed([7], group_idx=2), "Removed(block_hashes=(7,), tier='gpu', group_idx=2)"),
        (Removed([], medium="CPU"), "Removed(block_hashes=(), tier='cpu', medium='CPU')"),
        (Cleared(), "Cleared()"),
    ],
)
def test_repr(event: Event, text: str) -> None:
    assert repr(event) == text


def test_batches_and_refusals() -> None:
    batch = decoded(["AllBlocksCleared"], {"type": "Other"}, rank=None)
    assert repr(batch) == "Batch(timestamp=1.5, rank=None, events=1, refused=1)"
    (refused,) = batch.refused
    assert (refused.at, refused.events, refused.reason) == (1, 1, "unknown_event")
    assert repr(refused) == "RefusedEvent(at=1, events=1, reason='unknown_event', detail='unknown event: \"Other\"')"
    assert batch == decoded(["AllBlocksCleared"], {"type": "Other"}, rank=None)
    assert batch != decoded(["AllBlocksCleared"], rank=None)
    assert batch.events is batch.events


def test_values_do_not_change() -> None:
    for value in (Stored([1], None, [1], 1), Removed([1]), Cleared(), decoded(), decoded(5).refused[0]):
        with pytest.raises(AttributeError):
            value.block_hashes = ()  # type: ignore[union-attr, misc]
    assert hash(Cleared()) == hash(Cleared())
    with pytest.raises(TypeError):
        hash(Removed([1]))


@pytest.mark.parametrize(
    ("tier", "vllm", "sglang"),
    [
        ("gpu", "GPU", "GPU"),
        ("cpu", "CPU", "CPU_PINNED"),
        ("disk", "STORAGE", "DISK"),
        ("external", "EXTERNAL", "EXTERNAL"),
    ],
)
def test_tiers_have_the_engines_names(tier: Tier, vllm: str, sglang: str) -> None:
    events: list[Event] = [Stored([1], None, [1], 1, tier=tier), Removed([1], tier=tier)]
    mediums: dict[Dialect, str] = {"vllm": vllm, "vllm-arrays": vllm, "sglang": sglang, "sglang-arrays": sglang}
    for dialect, medium in mediums.items():
        for event in decode_batch(encode_batch(events, timestamp=0, dialect=dialect)).events:
            assert not isinstance(event, Cleared)
            assert (event.tier, event.medium) == (tier, medium)


def test_the_form_of_each_dialect() -> None:
    events: list[Event] = [
        Stored([1], None, [5], 1, lora="a", salt="s", session_id="x", group_idx=0),
        Removed([1]),
        Cleared(),
    ]

    def plain(dialect: Dialect) -> Any:
        return msgspec.msgpack.decode(encode_batch(events, timestamp=2, rank=None, dialect=dialect))

    core = {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": [5],
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
    }
    gone = [{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}, {"type": "AllBlocksCleared"}]
    vllm = {**core, "lora_name": "a", "extra_keys": [["a", "s"]], "group_idx": 0, "session_id": "x"}
    sglang = {**core, "cache_salt": "s", "session_id": "x", "lora_name": "a"}
    assert plain("vllm") == [2.0, [vllm, *gone], None]
    assert plain("sglang") == [2.0, [sglang, *gone], None]
    gone_arrays = [["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"]]
    vllm_array = ["BlockStored", [1], None, [5], 1, None, "GPU", "a", [["a", "s"]], 0, None, None]
    metadata = {"cache_salt": "s", "session_id": "x", "lora_name": "a"}
    sglang_array = ["BlockStored", [1], None, [5], 1, None, "GPU", metadata]
    assert plain("vllm-arrays") == [2.0, [vllm_array, *gone_arrays], None]
    assert plain("sglang-arrays") == [2.0, [sglang_array, *gone_arrays], None]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_payloads_of_every_kind(wrap: Callable[[bytes], Any]) -> None:
    payload = encode_batch([Cleared()], timestamp=1)
    assert decode_batch(wrap(payload)).events == (Cleared(),)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "empty_payload"),
        (b"\xc0", "not_a_batch"),
        (b"\x91\x01", "not_a_batch"),
        (b"\x93\x01", "truncated_payload"),
        (b"\x92\xc1", "malformed_payload"),
    ],
)
def test_what_is_no_batch(payload: bytes, code: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_batch(payload)
    assert caught.value.code == code
    assert isinstance(caught.value, ValueError)


ONE: Any = ([1], None, [1], 1)

REFUSED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: decode_batch("x"), "wrong_type", "payload must be bytes, got str"),  # type: ignore[arg-type]
    (
        lambda: decode_batch(np.zeros(2)),  # type: ignore[arg-type]
        "wrong_type",
        "payload must be bytes, got numpy.ndarray of float64, shape (2,)",
    ),
    (lambda: Stored("12", None, [1], 1), "wrong_type", "block_hashes must be a list of ints or bytes, got str"),  # type: ignore[arg-type]
    (lambda: Stored([1.0], None, [1], 1), "wrong_type", "block_hashes[0] must be an int or bytes, got float"),  # type: ignore[list-item]
    (
        lambda: Stored([2**64], None, [1], 1),
        "out_of_range",
        "block_hashes[0] must be from -2**63 to 2**64 - 1 to be sent, got 18446744073709551616",
    ),
    (lambda: Stored([1], "x", [1], 1), "wrong_type", "parent must be an int or bytes, got str"),  # type: ignore[arg-type]
    (lambda: Stored([1], None, [-1], 1), "out_of_range", "tokens[0] must be from 0 to 2**32 - 1, got -1"),
    (lambda: Stored([1], None, [(1, 2), (1,)], 1), "wrong_type", "tokens[1] must be a pair of ints, got tuple"),
    (lambda: Stored([1], None, [(1, -2)], 1), "out_of_range", "tokens[0][1] must be from 0 to 2**32 - 1, got -2"),
    (lambda: Stored([1], None, [1], -1), "out_of_range", "block_size must be from 0 to 2**32 - 1, got -1"),
    (
        lambda: Stored(*ONE, tier="GPU"),  # type: ignore[arg-type]
        "unknown_tier",
        'unknown tier "GPU": it is one of "gpu", "cpu", "disk", "external"',
    ),
    (
        lambda: Stored(*ONE, tier="cpu", medium="DISK"),
        "conflicting_arguments",
        'tier is "cpu", but the medium is of tier "disk": give one of them',
    ),
    (lambda: Stored(*ONE, lora=5), "wrong_type", "lora must be a str, got int"),  # type: ignore[arg-type]
    (
        lambda: Stored(*ONE, lora_id=2**63),
        "out_of_range",
        "lora_id must be from -2**63 to 2**63 - 1, got 9223372036854775808",
    ),
    (lambda: Stored(*ONE, group_idx="0"), "wrong_type", "group_idx must be an int, got str"),  # type: ignore[arg-type]
    (
        lambda: Stored(*ONE, extra_keys=5),  # type: ignore[arg-type]
        "wrong_type",
        "extra_keys must be a list of lists of keys or None, got int",
    ),
    (lambda: Stored(*ONE, extra_keys=["s"]), "wrong_type", "extra_keys[0] must be a list of keys or None, got str"),
    (
        lambda: Stored(*ONE, extra_keys=[[5]]),  # type: ignore[list-item]
        "wrong_type",
        "a key of extra_keys[0] must be (str, int), bytes, str or (bytes,), got int",
    ),
    (
        lambda: Stored(*ONE, extra_keys=[None, ["s"]]),
        "length_mismatch",
        "extra_keys has keys for block 1, but there are 1",
    ),
    (lambda: Removed(None), "wrong_type", "block_hashes must be a list of ints or bytes, got NoneType"),  # type: ignore[arg-type]
    (lambda: Removed([True]), "wrong_type", "block_hashes[0] must be an int or bytes, got bool"),
    (lambda: encode_batch(5, timestamp=0), "wrong_type", "events must be an iterable of events, got int"),  # type: ignore[arg-type]
    (
        lambda: encode_batch([5], timestamp=0),  # type: ignore[list-item]
        "wrong_type",
        "events[0] must be a Stored, Removed or Cleared of kvatlas.wire, got int",
    ),
    (
        lambda: encode_batch([], timestamp=0, dialect="x"),  # type: ignore[arg-type]
        "unknown_dialect",
        'unknown dialect "x": it is one of "vllm", "sglang", "vllm-arrays", "sglang-arrays"',
    ),
    (lambda: encode_batch([], timestamp=0, rank=-1), "out_of_range", "rank must be from 0 to 4294967295, got -1"),
]


@pytest.mark.parametrize(("call", "code", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(call: Callable[[], object], code: str, message: str) -> None:
    with pytest.raises(KvatlasError) as caught:
        call()
    assert (str(caught.value), caught.value.code) == (message, code)
    assert isinstance(caught.value, InvalidTypeError if code == "wrong_type" else InvalidArgumentError)
