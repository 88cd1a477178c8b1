"""Batches applied to an index from Python. What each kind of event means is tested with the decoder."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvatlas import BlockIndex, content_hashes
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.events import Clear, Drop
from kvatlas.types import Dialect
from kvatlas.wire import Batch, Cleared, Event, Removed, Stored, decode_batch, encode_batch, keyed_content_hashes

SIX = [1, 2, 3, 4, 5, 6]


def batch(*events: Event, rank: int | None = 0, dialect: Dialect = "vllm") -> Batch:
    return decode_batch(encode_batch(events, timestamp=1, rank=rank, dialect=dialect))


def salted(index: BlockIndex, worker: str = "w", rank: int = 0) -> None:
    """Two blocks of a prompt under a salt, which vLLM shows on the first of them only."""
    index.apply(worker, batch(Stored([10, 11], None, SIX[:4], 2, salt="s"), rank=rank))


def goes_on(index: BlockIndex, worker: str = "w", rank: int = 0) -> int:
    """The depth of the prompt under the salt once its third block is stored without showing it."""
    index.apply(worker, batch(Stored([12], 11, SIX[4:], 2), rank=rank))
    return index.find(tokens=SIX, salt="s").by_rank().get((worker, rank), 0)


def test_the_tally() -> None:
    index = BlockIndex(2)
    events: list[Event] = [Stored([1, 2], None, [1, 2, 3, 4], 2), Removed([2, 3]), Stored([4], 1, [3, 4], 4), Cleared()]
    tally = index.apply("w", batch(*events))
    assert (tally.events, tally.stored_blocks, tally.removed_blocks, tally.clears) == (3, 2, 2, 1)
    assert (tally.refused, tally.upper_bound) == ({"block_size": 1}, False)
    assert repr(tally) == (
        "Tally(events=3, stored_blocks=2, removed_blocks=2, clears=1, refused={'block_size': 1}, upper_bound=False)"
    )
    assert tally == BlockIndex(2).apply("other", batch(*events))
    assert tally != index.apply("w", batch(*events[:3]))


def test_what_could_not_be_decoded_is_in_the_tally() -> None:
    payload = encode_batch([Cleared()], timestamp=1, rank=None)[:-1]
    assert BlockIndex().apply("w", decode_batch(payload[:-3])).refused == {"truncated": 1}


def test_the_rank() -> None:
    index = BlockIndex(2)
    store = Stored([1], None, [1, 2], 2)
    index.apply("w", batch(store, rank=3))
    index.apply("x", batch(store, rank=3), rank=5)
    index.apply("y", batch(store, rank=None))
    assert index.find(tokens=[1, 2]).by_rank() == {("w", 3): 1, ("x", 5): 1, ("y", 0): 1}


def test_each_stream_remembers_its_own() -> None:
    index = BlockIndex(2)
    salted(index)
    salted(index, rank=1)
    salted(index, "v")
    assert (goes_on(index), goes_on(index, rank=1), goes_on(index, "v")) == (3, 3, 3)
    assert index.find(tokens=SIX).depth == 0


@pytest.mark.parametrize(
    "forget",
    [
        lambda index: index.clear("w"),
        lambda index: index.clear("w", rank=1),
        lambda index: index.drop("w"),
        lambda index: index.apply([Clear("w", 1)]),
        lambda index: index.apply([Drop("w")]),
        lambda index: index.clear("w", tier="gpu"),
        lambda index: index.apply("w", batch(Cleared(), rank=1)),
    ],
)
def test_what_is_cleared_is_forgotten(forget: Any) -> None:
    index = BlockIndex(2)
    salted(index, rank=1)
    forget(index)
    # The chain's beginning comes back, without a salt this time, and so does what follows.
    index.apply("w", batch(Stored([12], 11, SIX[4:], 2), Stored([10, 11], None, SIX[:4], 2), rank=1))
    assert index.find(tokens=SIX).by_rank() == {("w", 1): 3}
    assert index.find(tokens=SIX, salt="s").by_rank() == {}


@pytest.mark.parametrize(
    "keep",
    [
        lambda index: index.clear("w", rank=1),
        lambda index: index.clear("v"),
        lambda index: index.clear("w", tier="cpu"),
        lambda index: index.drop("v"),
        lambda index: index.apply([Clear("w", 1), Drop("v")]),
    ],
)
def test_what_is_not_cleared_is_kept(keep: Any) -> None:
    index = BlockIndex(2)
    salted(index)
    keep(index)
    assert goes_on(index) == 3


def test_hybrid_models_are_an_upper_bound() -> None:
    index = BlockIndex(2)
    full = Stored([1], None, [1, 2], 2, group_idx=0, kind="full_attention")
    window = Stored([1], None, [1, 2], 2, group_idx=1, kind="sliding_window", window=2)
    assert not index.apply("w", batch(full)).upper_bound
    tally = index.apply("w", batch(window, Removed([1], group_idx=1)))
    assert (tally.upper_bound, tally.refused) == (True, {"other_group": 2})
    assert index.apply("w", batch()).upper_bound
    assert not index.apply("v", batch(full)).upper_bound
    index.clear("w")
    assert not index.apply("w", batch(full)).upper_bound


def test_images_are_found_by_their_keys() -> None:
    index = BlockIndex(2)
    keys = [None, [("a" * 64, 0)], [("a" * 64, -2), ("my-picture", 1)]]
    index.apply("w", batch(Stored([1, 2, 3], None, SIX, 2, lora="l", extra_keys=keys)))
    assert index.find(tokens=SIX, lora="l").depth == 1
    assert index.find(content_hashes=keyed_content_hashes(SIX, 2, keys, "l")).depth == 3
    assert index.find(content_hashes=keyed_content_hashes(SIX, 2, keys)).depth == 0
    assert index.find(content_hashes=keyed_content_hashes(SIX, 2, [None, [("b" * 64, 0)]], lora="l")).depth == 1
    other = [None, keys[1], [("my-picture", -1), ("a" * 64, 1)]]
    assert index.find(content_hashes=keyed_content_hashes(SIX, 2, other, "l")).depth == 2


def test_keyed_content_hashes() -> None:
    plain = content_hashes([*SIX, 7], 2, "a", "b")
    assert (keyed_content_hashes([*SIX, 7], 2, [], "a", "b") == plain).all()
    assert (keyed_content_hashes([*SIX, 7], 2, [None, [], None, None], "a", "b") == plain).all()
    # The vector that routers share: `mm_hash` 0xDEADBEEF on the tokens 1, 2, 3, 4.
    digest = f"{0xDEADBEEF:016x}" + "0" * 48
    assert keyed_content_hashes([1, 2, 3, 4], 4, [[(digest, 0)]]).tolist() == [15207512089340001072]
    kinds: list[Any] = [("x", 0), b"x", "x", (b"x",)]
    assert len({keyed_content_hashes([1], 1, [[key]]).tolist()[0] for key in kinds}) == 4
    with pytest.raises(InvalidArgumentError, match="extra_keys has keys for block 1, but 1 are full"):
        keyed_content_hashes([1, 2, 3], 2, [None, ["x"]])


def test_refused_without_a_trace() -> None:
    index: Any = BlockIndex(2)
    salted(index)
    before = index.dump(), index.workers()
    one = batch(Stored([1], None, [1, 2], 2))
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: index.apply(7, one), InvalidTypeError, "worker must be a str, got int"),
        (lambda: index.apply([], one), InvalidTypeError, "worker must be a str, got list"),
        (lambda: index.apply("v", b""), InvalidTypeError, "batch must be a Batch of kvatlas.wire, got bytes"),
        (lambda: index.apply("v", one, rank=-1), InvalidArgumentError, "rank must be from 0 to 4294967295, got -1"),
        (
            lambda: index.apply([], rank=1),
            InvalidArgumentError,
            "rank can only be used with a batch; events have their own rank",
        ),
        (lambda: index.apply("v", one, 0), TypeError, "takes from 1 to 2 positional arguments"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()
    assert (index.dump(), index.workers()) == before
    assert index.apply([]) is None


def test_many_streams_at_once() -> None:
    index = BlockIndex(2)
    store = batch(*(Stored([n], n - 1 if n else None, [n, n], 2, salt=None if n else "s") for n in range(300)))
    clear = batch(Cleared())

    def feed(worker: str) -> None:
        for _ in range(5):
            index.apply(worker, clear)
            index.apply(worker, store)

    threads = [threading.Thread(target=feed, args=(f"w{n % 3}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in ("w0", "w1", "w2"):
        index.apply(worker, clear)
        index.apply(worker, store)
    prompt = [token for n in range(300) for token in (n, n)]
    assert index.find(tokens=prompt, salt="s").scores() == {"w0": 300, "w1": 300, "w2": 300}
