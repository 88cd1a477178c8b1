"""Content and prefix hashes: published vectors, an independent implementation, every kind of input."""

import array
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvatlas import content_hashes, prefix_hashes
from kvatlas.errors import InvalidArgumentError, InvalidTypeError

ONE_TO_EIGHT = list(range(1, 9))
PLAIN = [14643705804678351452, 16777012769546811212]


@pytest.mark.parametrize(
    ("lora", "salt", "expected"),
    [
        (None, None, PLAIN),
        ("", "", PLAIN),
        ("my-lora", None, [15671544057904749233, 7919241211032067838]),
        (None, "tenant-a", [5738685477468498325, 11202231085456067787]),
        ("my-lora", "tenant-a", [6157910915076630503, 3256431856703716508]),
    ],
)
def test_published_vectors(lora: str | None, salt: str | None, expected: list[int]) -> None:
    assert content_hashes(ONE_TO_EIGHT, 4, lora, salt).tolist() == expected
    assert content_hashes(ONE_TO_EIGHT, block_size=4, lora=lora, salt=salt).tolist() == expected


def test_published_prefix_vector() -> None:
    assert prefix_hashes(PLAIN).tolist() == [PLAIN[0], 4945711292740353085]


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=700),
    st.integers(1, 300),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
def test_against_an_independent_xxhash(tokens: list[int], block_size: int, lora: str | None, salt: str | None) -> None:
    seed = 1337
    if lora:
        seed += xxhash.xxh3_64_intdigest(lora.encode(), seed=0)
    if salt:
        seed += xxhash.xxh3_64_intdigest(salt.encode(), seed=1)
    full = len(tokens) // block_size
    blocks = [tokens[i * block_size : (i + 1) * block_size] for i in range(full)]
    contents = [xxhash.xxh3_64_intdigest(struct.pack(f"<{block_size}I", *block), seed=seed % 2**64) for block in blocks]
    assert content_hashes(tokens, block_size, lora, salt).tolist() == contents
    prefixes = contents[:1]
    for content in contents[1:]:
        prefixes.append(xxhash.xxh3_64_intdigest(struct.pack("<QQ", prefixes[-1], content), seed=1337))
    assert prefix_hashes(contents).tolist() == prefixes


def strided(dtype: str) -> Callable[[list[int]], Any]:
    return lambda items: np.repeat(np.array(items, dtype), 2)[::2]


def misaligned(items: list[int]) -> Any:
    return np.frombuffer(b"?" + struct.pack(f"<{len(items)}I", *items), "<u4", offset=1)


def packed(items: list[int]) -> bytes:
    return struct.pack(f"<{len(items)}I", *items)


TOKENS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "range": lambda items: range(items[0], items[-1] + 1),
    "list of numpy ints": lambda items: list(np.array(items, "u2")),
    "uint32": lambda items: np.array(items, "u4"),
    "int32": lambda items: np.array(items, "i4"),
    "uint64": lambda items: np.array(items, "u8"),
    "int64": lambda items: np.array(items, "i8"),
    "array I": lambda items: array.array("I", items),
    "array q": lambda items: array.array("q", items),
    "bytes": packed,
    "bytearray": lambda items: bytearray(packed(items)),
    "memoryview": lambda items: memoryview(packed(items)),
    "misaligned memoryview": lambda items: memoryview(b"?" + packed(items))[1:],
    "memoryview of ints": lambda items: memoryview(array.array("i", items)),
    "strided": strided("u4"),
    "strided int64": strided("i8"),
    "backwards": lambda items: np.array(items[::-1], "u4")[::-1],
    "misaligned": misaligned,
    "big-endian": lambda items: np.array(items, ">u4"),
    "big-endian int64": lambda items: np.array(items, ">i8"),
    "little-endian": lambda items: np.array(items, "<u4"),
    "read-only": lambda items: np.frombuffer(packed(items), "<u4"),
}


@pytest.mark.parametrize("kind", TOKENS)
def test_every_kind_of_tokens(kind: str) -> None:
    hashes = content_hashes(TOKENS[kind](ONE_TO_EIGHT), 4)
    assert hashes.tolist() == PLAIN
    assert hashes.dtype == np.uint64
    assert hashes.flags.writeable
    assert hashes.flags.owndata


@pytest.mark.parametrize("kind", ["list", "uint32", "int32", "uint64", "int64", "bytes"])
def test_no_tokens(kind: str) -> None:
    assert content_hashes(TOKENS[kind](ONE_TO_EIGHT)[:0], 4).tolist() == []


def test_partial_block_is_dropped() -> None:
    assert content_hashes(ONE_TO_EIGHT[:7], 4).tolist() == PLAIN[:1]
    assert content_hashes(ONE_TO_EIGHT[:3], 4).tolist() == []
    assert content_hashes(ONE_TO_EIGHT, 9).tolist() == []
    assert content_hashes(ONE_TO_EIGHT, 2**32 - 1).tolist() == []


@pytest.mark.parametrize(
    "contents",
    [
        tuple(PLAIN),
        np.array(PLAIN, "u8"),
        np.array(PLAIN, ">u8"),
        np.repeat(np.array(PLAIN, "u8"), 3)[::3],
        array.array("Q", PLAIN),
        [np.uint64(content) for content in PLAIN],
        memoryview(array.array("Q", PLAIN)),
    ],
)
def test_every_kind_of_content_hashes(contents: Any) -> None:
    assert prefix_hashes(contents).tolist() == [PLAIN[0], 4945711292740353085]


def test_no_content_hashes() -> None:
    assert prefix_hashes([]).tolist() == []
    assert prefix_hashes(np.array([], "u8")).tolist() == []


TOKEN_KINDS = "an array of uint32, int32, uint64 or int64, bytes of little-endian uint32s, or a list of ints"


@pytest.mark.parametrize(
    ("tokens", "error", "code", "message"),
    [
        (None, InvalidTypeError, "wrong_type", f"tokens must be {TOKEN_KINDS}, got NoneType"),
        ("12", InvalidTypeError, "wrong_type", f"tokens must be {TOKEN_KINDS}, got str"),
        (7, InvalidTypeError, "wrong_type", f"tokens must be {TOKEN_KINDS}, got int"),
        ({1: 2}, InvalidTypeError, "wrong_type", f"tokens must be {TOKEN_KINDS}, got dict"),
        ({1, 2}, InvalidTypeError, "wrong_type", f"tokens must be {TOKEN_KINDS}, got set"),
        (
            np.array([1.0]),
            InvalidTypeError,
            "wrong_type",
            f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of float64, shape (1,)",
        ),
        (
            np.array([True]),
            InvalidTypeError,
            "wrong_type",
            f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of bool, shape (1,)",
        ),
        (
            np.array([1], "u1"),
            InvalidTypeError,
            "wrong_type",
            f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of uint8, shape (1,)",
        ),
        (
            np.array([1], "O"),
            InvalidTypeError,
            "wrong_type",
            f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of object, shape (1,)",
        ),
        (
            np.array(["2020-01-01"], "M8[D]"),
            InvalidTypeError,
            "wrong_type",
            f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of datetime64[D], shape (1,)",
        ),
        ([1, "2"], InvalidTypeError, "wrong_type", "tokens[1] must be an int, got str"),
        ([1, 2.0], InvalidTypeError, "wrong_type", "tokens[1] must be an int, got float"),
        ([True], InvalidTypeError, "wrong_type", "tokens[0] must be an int, got bool"),
        ([np.True_], InvalidTypeError, "wrong_type", "tokens[0] must be an int, got numpy.bool of bool, shape ()"),
        ([None], InvalidTypeError, "wrong_type", "tokens[0] must be an int, got NoneType"),
        ([[1]], InvalidTypeError, "wrong_type", "tokens[0] must be an int, got list"),
        ([1, -1], InvalidArgumentError, "out_of_range", "tokens[1] must be from 0 to 2**32 - 1, got -1"),
        ([2**32], InvalidArgumentError, "out_of_range", "tokens[0] must be from 0 to 2**32 - 1, got 4294967296"),
        ((2**70,), InvalidArgumentError, "out_of_range", f"tokens[0] must be from 0 to 2**32 - 1, got {2**70}"),
        (
            np.array([5, -6], "i4"),
            InvalidArgumentError,
            "out_of_range",
            "tokens[1] must be from 0 to 2**32 - 1, got -6",
        ),
        (np.array([5, -6]), InvalidArgumentError, "out_of_range", "tokens[1] must be from 0 to 2**32 - 1, got -6"),
        (
            np.array([2**32], "u8"),
            InvalidArgumentError,
            "out_of_range",
            "tokens[0] must be from 0 to 2**32 - 1, got 4294967296",
        ),
        (
            np.zeros((2, 2), "u4"),
            InvalidArgumentError,
            "wrong_shape",
            "tokens must have one dimension, got an array of 2 dimensions",
        ),
        (
            np.array(7, "u4"),
            InvalidTypeError,
            "wrong_type",
            f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of uint32, shape ()",
        ),
        (
            b"12345",
            InvalidArgumentError,
            "token_bytes",
            "tokens are bytes of little-endian uint32s, 4 for each; got 5 bytes",
        ),
    ],
)
def test_wrong_tokens(tokens: Any, error: type[Exception], code: str, message: str) -> None:
    with pytest.raises(error) as caught:
        content_hashes(tokens, 4)
    assert (str(caught.value), caught.value.code) == (message, code)  # type: ignore[attr-defined]


CONTENT_KINDS = "a uint64 array or a list of ints"


@pytest.mark.parametrize(
    ("contents", "code", "message"),
    [
        (None, "wrong_type", f"content_hashes must be {CONTENT_KINDS}, got NoneType"),
        (b"12345678", "wrong_type", f"content_hashes must be {CONTENT_KINDS}, got bytes"),
        (
            np.array([1, 2]),
            "wrong_type",
            f"content_hashes must be {CONTENT_KINDS}, got numpy.ndarray of int64, shape (2,)",
        ),
        (
            np.array([1], "u4"),
            "wrong_type",
            f"content_hashes must be {CONTENT_KINDS}, got numpy.ndarray of uint32, shape (1,)",
        ),
        ([1, True], "wrong_type", "content_hashes[1] must be an int, got bool"),
        ([-1], "out_of_range", "content_hashes[0] must be from 0 to 2**64 - 1, got -1"),
        ([1, 2**64], "out_of_range", f"content_hashes[1] must be from 0 to 2**64 - 1, got {2**64}"),
        (np.zeros((1, 1), "u8"), "wrong_shape", "content_hashes must have one dimension, got an array of 2 dimensions"),
    ],
)
def test_wrong_content_hashes(contents: Any, code: str, message: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidArgumentError)) as caught:
        prefix_hashes(contents)
    assert (str(caught.value), caught.value.code) == (message, code)


@pytest.mark.parametrize(
    ("block_size", "code", "message"),
    [
        (0, "invalid_block_size", "block_size must be at least 1, got 0"),
        (-16, "invalid_block_size", "block_size must be at least 1, got -16"),
        (-(2**80), "invalid_block_size", f"block_size must be at least 1, got {-(2**80)}"),
        (2**32, "out_of_range", "block_size must be from 1 to 4294967295, got 4294967296"),
        (True, "wrong_type", "block_size must be an int, got bool"),
        (16.0, "wrong_type", "block_size must be an int, got float"),
        (None, "wrong_type", "block_size must be an int, got NoneType"),
    ],
)
def test_wrong_block_size(block_size: Any, code: str, message: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidArgumentError)) as caught:
        content_hashes([1], block_size)
    assert (str(caught.value), caught.value.code) == (message, code)


def test_names_must_be_strings() -> None:
    with pytest.raises(InvalidTypeError, match="lora must be a str, got int"):
        content_hashes([1], 1, lora=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="salt must be a str, got bytes"):
        content_hashes([1], 1, salt=b"s")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="salt contains a lone surrogate") as caught:
        content_hashes([1], 1, salt="\ud800")
    assert caught.value.code == "invalid_string"


def test_long_inputs_leave_other_threads_room() -> None:
    tokens = np.zeros(64 << 20, "u4")
    hashing = threading.Thread(target=content_hashes, args=(tokens, 16))
    hashing.start()
    turns = 0
    while hashing.is_alive():
        turns += 1
    hashing.join()
    assert turns > 1000
