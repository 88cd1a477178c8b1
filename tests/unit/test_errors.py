"""Tests of what is refused: with which error and code, in which words, and without a trace."""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvatlas import BlockIndex, errors
from kvatlas.errors import InvalidArgumentError, InvalidTypeError, KvatlasError
from kvatlas.events import Clear, Drop, Remove, Store

ONE: Any = {"block_hashes": [1], "content_hashes": [10]}
NAME_KINDS = "a list of ints or bytes, or an integer array"
CONTENT_KINDS = "a uint64 array or a list of ints"
TIERS = 'it is one of "gpu", "cpu", "disk", "external"'


def failing() -> Iterator[Any]:
    yield Store("x", [1], [10])
    raise LookupError("the source broke")


REFUSED: list[tuple[Callable[[Any], object], str, str]] = [
    (lambda i: i.store(7, **ONE), "wrong_type", "worker must be a str, got int"),
    (lambda i: i.store(b"w", **ONE), "wrong_type", "worker must be a str, got bytes"),
    (lambda i: i.store(None, **ONE), "wrong_type", "worker must be a str, got NoneType"),
    (lambda i: i.store("\udcff", **ONE), "invalid_string", "worker contains a lone surrogate"),
    (lambda i: i.store("x", **ONE, rank=-1), "out_of_range", "rank must be from 0 to 4294967295, got -1"),
    (lambda i: i.store("x", **ONE, rank=2**32), "out_of_range", "rank must be from 0 to 4294967295, got 4294967296"),
    (lambda i: i.store("x", **ONE, rank=True), "wrong_type", "rank must be an int, got bool"),
    (lambda i: i.store("x", **ONE, rank=1.0), "wrong_type", "rank must be an int, got float"),
    (lambda i: i.store("x", **ONE, rank=None), "wrong_type", "rank must be an int, got NoneType"),
    (lambda i: i.store("x", **ONE, tier="GPU"), "unknown_tier", f'unknown tier "GPU": {TIERS}'),
    (lambda i: i.store("x", **ONE, tier=""), "unknown_tier", f'unknown tier "": {TIERS}'),
    (lambda i: i.store("x", **ONE, tier=None), "wrong_type", "tier must be a str, got NoneType"),
    (lambda i: i.store("x", **ONE, parent=1.0), "wrong_type", "parent must be an int or bytes, got float"),
    (lambda i: i.store("x", **ONE, parent=False), "wrong_type", "parent must be an int or bytes, got bool"),
    (lambda i: i.store("x", **ONE, parent="1"), "wrong_type", "parent must be an int or bytes, got str"),
    (lambda i: i.store("x", **ONE, parent=[1]), "wrong_type", "parent must be an int or bytes, got list"),
    (
        lambda i: i.store("x", **ONE, lora="a"),
        "conflicting_arguments",
        "lora and salt can only be used with tokens; content_hashes already include them",
    ),
    (
        lambda i: i.store("x", **ONE, salt="a"),
        "conflicting_arguments",
        "lora and salt can only be used with tokens; content_hashes already include them",
    ),
    (
        lambda i: i.store("x", **ONE, tokens=list(range(16))),
        "conflicting_arguments",
        "store takes either content_hashes or tokens, not both",
    ),
    (lambda i: i.store("x", block_hashes=[1]), "missing_argument", "store needs content_hashes or tokens"),
    (
        lambda i: i.store("x", block_hashes=[1, 2], content_hashes=[1]),
        "length_mismatch",
        "2 block hashes but 1 content hashes: a store needs one content hash for each block hash",
    ),
    (
        lambda i: i.store("x", block_hashes=[1], content_hashes=np.array([1, 2], "u8")),
        "length_mismatch",
        "1 block hashes but 2 content hashes: a store needs one content hash for each block hash",
    ),
    (
        lambda i: i.store("x", block_hashes=[1, 2], tokens=list(range(31))),
        "token_count",
        "31 tokens for 2 block hashes: blocks of 16 tokens need exactly 32",
    ),
    (
        lambda i: i.store("x", block_hashes=[1], tokens=list(range(32))),
        "token_count",
        "32 tokens for 1 block hashes: blocks of 16 tokens need exactly 16",
    ),
    (
        lambda i: i.store("x", block_hashes=[], tokens=[1]),
        "token_count",
        "1 tokens for 0 block hashes: blocks of 16 tokens need exactly 0",
    ),
    (
        lambda i: i.store("x", block_hashes=[1], tokens=[-1] * 16),
        "out_of_range",
        "tokens[0] must be from 0 to 2**32 - 1, got -1",
    ),
    (
        lambda i: i.store("x", block_hashes=[1], tokens=[1] * 16, lora=5),
        "wrong_type",
        "lora must be a str, got int",
    ),
    (
        lambda i: i.store("x", block_hashes=b"12", content_hashes=[1]),
        "wrong_type",
        f"block_hashes must be {NAME_KINDS}, got bytes",
    ),
    (
        lambda i: i.store("x", block_hashes="12", content_hashes=[1]),
        "wrong_type",
        f"block_hashes must be {NAME_KINDS}, got str",
    ),
    (
        lambda i: i.store("x", block_hashes=5, content_hashes=[1]),
        "wrong_type",
        f"block_hashes must be {NAME_KINDS}, got int",
    ),
    (
        lambda i: i.store("x", block_hashes={1: 2}, content_hashes=[1]),
        "wrong_type",
        f"block_hashes must be {NAME_KINDS}, got dict",
    ),
    (
        lambda i: i.store("x", block_hashes=np.array([1.0]), content_hashes=[1]),
        "wrong_type",
        f"block_hashes must be {NAME_KINDS}, got numpy.ndarray of float64, shape (1,)",
    ),
    (
        lambda i: i.store("x", block_hashes=[1, None], content_hashes=[1, 2]),
        "wrong_type",
        "block_hashes[1] must be an int or bytes, got NoneType",
    ),
    (
        lambda i: i.store("x", block_hashes=[1, 2.0], content_hashes=[1, 2]),
        "wrong_type",
        "block_hashes[1] must be an int or bytes, got float",
    ),
    (
        lambda i: i.store("x", block_hashes=[True], content_hashes=[1]),
        "wrong_type",
        "block_hashes[0] must be an int or bytes, got bool",
    ),
    (
        lambda i: i.store("x", block_hashes=[1], content_hashes=[-1]),
        "out_of_range",
        "content_hashes[0] must be from 0 to 2**64 - 1, got -1",
    ),
    (lambda i: i.remove(7, block_hashes=[1]), "wrong_type", "worker must be a str, got int"),
    (lambda i: i.remove("w", block_hashes=None), "wrong_type", f"block_hashes must be {NAME_KINDS}, got NoneType"),
    (
        lambda i: i.remove("w", block_hashes=[1, "2"]),
        "wrong_type",
        "block_hashes[1] must be an int or bytes, got str",
    ),
    (lambda i: i.remove("w", block_hashes=[1], rank=-1), "out_of_range", "rank must be from 0 to 4294967295, got -1"),
    (lambda i: i.remove("w", block_hashes=[1], tier="ram"), "unknown_tier", f'unknown tier "ram": {TIERS}'),
    (
        lambda i: i.remove("w", block_hashes=np.zeros((1, 1), "u8")),
        "wrong_shape",
        "block_hashes must have one dimension, got an array of 2 dimensions",
    ),
    (lambda i: i.clear(None), "wrong_type", "worker must be a str, got NoneType"),
    (lambda i: i.clear("w", rank="0"), "wrong_type", "rank must be an int, got str"),
    (lambda i: i.clear("w", rank=2**32), "out_of_range", "rank must be from 0 to 4294967295, got 4294967296"),
    (lambda i: i.clear("w", tier="ssd"), "unknown_tier", f'unknown tier "ssd": {TIERS}'),
    (lambda i: i.clear("w", tier=1), "wrong_type", "tier must be a str, got int"),
    (lambda i: i.drop(1), "wrong_type", "worker must be a str, got int"),
    (lambda i: i.find(content_hashes={1: 2}), "wrong_type", f"content_hashes must be {CONTENT_KINDS}, got dict"),
    (lambda i: i.find(content_hashes=b""), "wrong_type", f"content_hashes must be {CONTENT_KINDS}, got bytes"),
    (lambda i: i.find(content_hashes=[1, 2.5]), "wrong_type", "content_hashes[1] must be an int, got float"),
    (
        lambda i: i.find(content_hashes=[2**64]),
        "out_of_range",
        f"content_hashes[0] must be from 0 to 2**64 - 1, got {2**64}",
    ),
    (lambda i: i.find(tokens=[1], lora=b"a"), "wrong_type", "lora must be a str, got bytes"),
    (lambda i: i.find(tokens=[2**32]), "out_of_range", f"tokens[0] must be from 0 to 2**32 - 1, got {2**32}"),
    (lambda i: i.find(content_hashes=[10]).best(-1), "out_of_range", "top_k must be at least 0, got -1"),
    (lambda i: i.find(content_hashes=[10]).best(None), "wrong_type", "top_k must be an int, got NoneType"),
    (lambda i: i.find(content_hashes=[10]).best(True), "wrong_type", "top_k must be an int, got bool"),
    (lambda i: i.find(content_hashes=[10]).best(1, "w"), "wrong_type", "among must be an iterable of str, got str"),
    (lambda i: i.find(content_hashes=[10]).best(1, 5), "wrong_type", "among must be an iterable of str, got int"),
    (lambda i: i.find(content_hashes=[10]).best(1, ["w", 5]), "wrong_type", "among[1] must be a str, got int"),
    (lambda i: i.apply(None), "wrong_type", "events must be an iterable of kvatlas.events, got NoneType"),
    (
        lambda i: i.apply([Store("x", [1], [1]), "drop"]),
        "wrong_type",
        "events[1] must be a Store, Remove, Clear or Drop of kvatlas.events, got str",
    ),
    (
        lambda i: i.apply([Drop("w"), Store("x", [1], [1, 2])]),
        "length_mismatch",
        "1 block hashes but 2 content hashes: a store needs one content hash for each block hash",
    ),
    (
        lambda i: i.apply([Drop("w"), Remove("w", [1.0])]),  # type: ignore[list-item]
        "wrong_type",
        "block_hashes[0] must be an int or bytes, got float",
    ),
    (lambda i: i.apply([Drop("w"), Clear("w", tier="x")]), "unknown_tier", f'unknown tier "x": {TIERS}'),  # type: ignore[arg-type]
    (
        lambda i: i.apply([Drop("w"), Clear("w", rank=-1)]),
        "out_of_range",
        "rank must be from 0 to 4294967295, got -1",
    ),
    (lambda i: i.apply([Drop("w"), Drop(None)]), "wrong_type", "worker must be a str, got NoneType"),  # type: ignore[arg-type]
    (lambda _: BlockIndex(0), "invalid_block_size", "block_size must be at least 1, got 0"),
    (lambda _: BlockIndex(-1), "invalid_block_size", "block_size must be at least 1, got -1"),
    (lambda _: BlockIndex(2**32), "out_of_range", "block_size must be from 1 to 4294967295, got 4294967296"),
    (lambda _: BlockIndex("16"), "wrong_type", "block_size must be an int, got str"),  # type: ignore[arg-type]
    (lambda _: BlockIndex(16, 1), "wrong_type", "count_copies must be True or False, got int"),  # type: ignore[arg-type]
]


def contents(index: BlockIndex) -> tuple[object, ...]:
    """All there is to know, save the bytes: memory that is no longer used is given back a little later."""
    return index.dump(), {**index.stats(), "bytes": 0}, index.workers()


@pytest.mark.parametrize(("call", "code", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused_without_a_trace(call: Callable[[Any], object], code: str, message: str) -> None:
    index = BlockIndex()
    index.store("w", block_hashes=[1, 2], content_hashes=[10, 20])
    before = contents(index)
    with pytest.raises(KvatlasError) as caught:
        call(index)
    assert (str(caught.value), caught.value.code) == (message, code)
    assert isinstance(caught.value, InvalidTypeError if code == "wrong_type" else InvalidArgumentError)
    assert contents(index) == before


def test_errors_in_a_list_of_events_name_the_place() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BlockIndex().apply([Drop("w"), Clear("w", rank=-1)])
    assert caught.value.__notes__ == ["in events[1]"]


def test_errors_of_the_callers_own_code_pass_through() -> None:
    index = BlockIndex()
    with pytest.raises(LookupError, match="the source broke"):
        index.apply(failing())
    assert index.workers() == {}


def test_the_signatures_are_as_documented() -> None:
    index: Any = BlockIndex()
    for call in (
        lambda: index.store("w", [1], [10]),
        lambda: index.store("w", content_hashes=[1]),
        lambda: index.store("w", block_hashes=[1], content_hashes=[1], medium="gpu"),
        lambda: index.remove("w"),
        lambda: index.clear("w", 0),
        lambda: index.find([1]),
        index.drop,
    ):
        with pytest.raises(TypeError):
            call()
    assert index.workers() == {}


def test_the_hierarchy() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.InvalidTypeError, TypeError)
    assert issubclass(errors.IndexFullError, RuntimeError)
    for name in errors.__all__:
        error = getattr(errors, name)
        assert issubclass(error, KvatlasError)
        assert isinstance(error("message").code, str)
        copied = pickle.loads(pickle.dumps(error("message", "some_code")))
        assert (type(copied), str(copied), copied.code) == (error, "message", "some_code")


@pytest.mark.parametrize(("profile", "warns"), [("debug", True), ("release", False)])
def test_a_debug_build_says_so(profile: str, warns: bool) -> None:
    program = f"""
import sys, types
native = types.ModuleType("kvatlas._native")
for name in ("BlockIndex", "Match", "content_hashes", "prefix_hashes"):
    setattr(native, name, object)
native.__version__, native.build_profile = "0", {profile!r}
sys.modules["kvatlas._native"] = native
import kvatlas
"""
    # -W goes before the tests' own filter, which keeps this warning out of what they start.
    command = [sys.executable, "-W", "default::RuntimeWarning", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("RuntimeWarning: kvatlas is a debug build" in run.stderr) == warns
