"""Whatever the native module is given, it answers or raises an exception of Python's: never a panic.

A panic would be a `PanicException`, which is a BaseException and no Exception, so that nothing below would catch it.
"""

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvatlas import _native
from kvatlas.events import Clear, Drop, Remove, Store

INDEX = _native.BlockIndex(4)
INDEX.store("w", block_hashes=[1, 2], content_hashes=[10, 20])
JUNK: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    16,
    2**31,
    2**32 - 1,
    2**63,
    2**64,
    -(2**80),
    0.5,
    float("nan"),
    "",
    "w",
    "gpu",
    "lru",
    "\udc00",
    b"",
    b"\x93\xcb",
    bytearray(7),
    memoryview(b"abcd")[::2],
    [],
    [1, 2],
    [2**64, -1],
    [None],
    [[1], []],
    [("image", 1)],
    (1, "a"),
    {},
    {"a": 1},
    set(),
    range(8),
    iter([1]),
    np.array([], np.uint64),
    np.arange(8, dtype=np.uint32),
    np.arange(8, dtype=">u8"),
    np.arange(16, dtype=np.int64)[::2],
    np.array([0.5]),
    np.zeros((2, 2), np.uint64),
    np.frombuffer(b"123456789", np.uint8)[1:],
    np.array(["a"]),
    object(),
    type,
    lambda *_: None,
    Store("w", [3], [30], parent=2),
    Store("w", [b"x"], [2**64 - 1], rank=2**32 - 1, tier="disk"),
    Remove("w", [1, 99]),
    Clear("w"),
    Drop("w"),
    [Store("v", [1, 2], [1])],
    INDEX,
    INDEX.find(content_hashes=[10]),
    _native.Stored([1], None, [1, 2, 3, 4], 4),
    _native.decode_batch(_native.encode_batch([_native.Stored([1], None, [1, 2, 3, 4], 4)], timestamp=1)),
]
MAKERS: dict[str, Callable[[], Any]] = {
    "BlockIndex": lambda: _native.BlockIndex(4),
    "Match": lambda: INDEX.find(content_hashes=[10, 20]),
    "PositionalIndexer": _native.PositionalIndexer,
    "RadixTrie": lambda: _native.RadixTrie(2),
    "Rung": lambda: _native.Rung("radix", block_size=4),
    "StringTree": _native.StringTree,
    "SyncPrefixHashTable": lambda: _native.SyncPrefixHashTable(block_size=16),
    "TokenTree": lambda: _native.TokenTree(4),
}
FUNCTIONS = [
    "content_hashes", "decode_batch", "encode_batch", "hash_node_path", "hash_token_path", "keyed_content_hashes",
    "prefix_hashes",
]  # fmt: skip
CLASSES = [*MAKERS, "Cleared", "Plan", "Removed", "Stored"]


def call(choose: random.Random, function: Callable[..., Any]) -> Any:
    """Every argument that must be given, and some of the others."""
    positional, named = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL or (
            parameter.default is not parameter.empty and choose.random() < 0.6
        ):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = choose.choice(JUNK)
        else:
            positional.append(choose.choice(JUNK))
    try:
        return function(*positional, **named)
    except Exception:  # noqa: BLE001 - any exception is right, a PanicException is none
        return None


@pytest.mark.parametrize("name", MAKERS)
def test_methods(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # save() takes names of files
    choose = random.Random(name)
    for _ in range(25):
        one = MAKERS[name]()
        methods = [m for m in dir(one) if not m.startswith("_") and callable(getattr(one, m))]
        for _ in range(80):
            answer = call(choose, getattr(one, choose.choice(methods)))
            repr(answer)
        repr(one)


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_functions_and_constructors(name: str) -> None:
    choose = random.Random(name)
    for _ in range(2000):
        repr(call(choose, getattr(_native, name)))
