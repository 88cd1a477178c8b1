"""Tests of what the trees refuse: with which error and code, in which words, and without a trace."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import InvalidArgumentError, InvalidTypeError, KvatlasError
from kvatlas.trees import StringTree, TokenTree, hash_node_path, hash_token_path

from .prompts import find

Call = Callable[[Any], object]
TOKEN_KINDS = "an array of uint32, int32, uint64 or int64, bytes of little-endian uint32s, or a list of ints"
POLICIES = 'it is one of "lru", "lfu", "fifo", "mru", "filo", "priority"'
PAGES = "page_size must be a power of two from 1 to 128, got"
PRIORITIES = "priority must be from -2147483648 to 2147483647, got"

BOTH: list[tuple[Call, str, str]] = [
    (lambda t: t.evict_tenant("w", -1), "out_of_range", "max_size must be at least 0, got -1"),
    (lambda t: t.evict_tenant("w", 1.0), "wrong_type", "max_size must be an int, got float"),
    (lambda t: t.evict_tenant("w", True), "wrong_type", "max_size must be an int, got bool"),
    (lambda t: t.evict_tenant(None, 0), "wrong_type", "tenant must be a str, got NoneType"),
    (lambda t: t.evict_tenant_by_size("0"), "wrong_type", "max_size must be an int, got str"),
    (lambda t: t.evict_tenant_by_size(-5), "out_of_range", "max_size must be at least 0, got -5"),
    (lambda t: t.evict_to_size(None), "wrong_type", "max_size must be an int, got NoneType"),
    (lambda t: t.evict_to_size(-1), "out_of_range", "max_size must be at least 0, got -1"),
    (lambda t: t.evict_to_bytes(-1), "out_of_range", "max_bytes must be at least 0, got -1"),
    (lambda t: t.evict_to_bytes("1 GB"), "wrong_type", "max_bytes must be an int, got str"),
    (lambda t: t.evict_by_path_hash(-1), "out_of_range", "path_hash must be from 0 to 2**64 - 1, got -1"),
    (lambda t: t.evict_by_path_hash(2**64), "out_of_range", f"path_hash must be from 0 to 2**64 - 1, got {2**64}"),
    (lambda t: t.evict_by_path_hash("a"), "wrong_type", "path_hash must be an int, got str"),
    (lambda t: t.evict_by_path_hash(0, 7), "wrong_type", "tenant must be a str, got int"),
    (lambda t: t.remove_tenant(7), "wrong_type", "tenant must be a str, got int"),
    (lambda t: t.remove_tenant("\udcff"), "invalid_string", "tenant contains a lone surrogate"),
    (lambda t: t.tenant_size(b"w"), "wrong_type", "tenant must be a str, got bytes"),
    (lambda t: setattr(t, "budget_bytes", -1), "out_of_range", "budget_bytes must be at least 0, got -1"),
    (lambda t: setattr(t, "budget_bytes", "1"), "wrong_type", "budget_bytes must be an int, got str"),
    (lambda t: type(t)(policy="LRU"), "unknown_policy", f'unknown policy "LRU": {POLICIES}'),
    (lambda t: type(t)(policy=""), "unknown_policy", f'unknown policy "": {POLICIES}'),
    (lambda t: type(t)(policy=None), "wrong_type", "policy must be a str, got NoneType"),
    (lambda t: type(t)(budget_bytes=-1), "out_of_range", "budget_bytes must be at least 0, got -1"),
    (lambda t: type(t)(budget_bytes=1.5), "wrong_type", "budget_bytes must be an int, got float"),
    (lambda t: type(t).from_snapshot("text"), "wrong_type", "snapshot must be bytes, got str"),
    (lambda t: type(t).from_snapshot(None), "wrong_type", "snapshot must be bytes, got NoneType"),
    (
        lambda t: type(t).from_snapshot(np.zeros(4)),
        "wrong_type",
        "snapshot must be bytes, got numpy.ndarray of float64, shape (4,)",
    ),
    (
        lambda t: type(t).from_snapshot(t.snapshot(), budget_bytes=-1),
        "out_of_range",
        "budget_bytes must be at least 0, got -1",
    ),
]

TEXTS: list[tuple[Call, str, str]] = [
    (lambda t: t.insert_text(b"abc", "w"), "wrong_type", "text must be a str, got bytes"),
    (lambda t: t.insert_text(None, "w"), "wrong_type", "text must be a str, got NoneType"),
    (lambda t: t.insert_text(["a"], "w"), "wrong_type", "text must be a str, got list"),
    (lambda t: t.insert_text("ab\ud800", "w"), "invalid_string", "text contains a lone surrogate"),
    (lambda t: t.insert("ab\ud800", "w"), "invalid_string", "text contains a lone surrogate"),
    (lambda t: t.insert_text("abx", None), "wrong_type", "tenant must be a str, got NoneType"),
    (lambda t: t.insert_text("abx", "\ud800"), "invalid_string", "tenant contains a lone surrogate"),
    (lambda t: t.insert_text("abx", "w", priority=2**31), "out_of_range", f"{PRIORITIES} 2147483648"),
    (lambda t: t.insert_text("abx", "w", priority=-(2**31) - 1), "out_of_range", f"{PRIORITIES} -2147483649"),
    (lambda t: t.insert_text("abx", "w", priority=1.0), "wrong_type", "priority must be an int, got float"),
    (lambda t: t.insert_text("abx", "w", priority=None), "wrong_type", "priority must be an int, got NoneType"),
    (lambda t: t.match_prefix_with_counts("a\udfff"), "invalid_string", "text contains a lone surrogate"),
    (lambda t: t.match_prefix_with_counts(1), "wrong_type", "text must be a str, got int"),
    (lambda t: t.prefix_match("a\udfff"), "invalid_string", "text contains a lone surrogate"),
    (lambda t: t.prefix_match_legacy(b""), "wrong_type", "text must be a str, got bytes"),
    (lambda t: t.prefix_match_tenant("abc", 1), "wrong_type", "tenant must be a str, got int"),
    (lambda t: t.find(text="\udc00"), "invalid_string", "text contains a lone surrogate"),
    (lambda t: t.depths(7), "wrong_type", "text must be a str, got int"),
    (lambda t: t.find(text="abc").best(-1), "out_of_range", "top_k must be at least 0, got -1"),
    (lambda t: t.find(text="abc").best(1, "w"), "wrong_type", "among must be an iterable of str, got str"),
    (lambda t: t.match_and_insert("abx", 1), "wrong_type", "tenant must be a str, got int"),
    (lambda t: t.match_and_insert("a\udc00", "w"), "invalid_string", "text contains a lone surrogate"),
    (lambda t: t.match_and_insert_with("abx", "w"), "wrong_type", "select must be callable, got str"),
    (lambda t: t.match_and_insert_with("abx", None), "wrong_type", "select must be callable, got NoneType"),
    (lambda _: hash_node_path(b"abc"), "wrong_type", "text must be a str, got bytes"),  # type: ignore[arg-type]
    (lambda _: hash_node_path("\ud800"), "invalid_string", "text contains a lone surrogate"),
]

TOKENS: list[tuple[Call, str, str]] = [
    (lambda t: t.insert_tokens("abc", "w"), "wrong_type", f"tokens must be {TOKEN_KINDS}, got str"),
    (lambda t: t.insert_tokens(None, "w"), "wrong_type", f"tokens must be {TOKEN_KINDS}, got NoneType"),
    (lambda t: t.insert([1] * 15 + [-1], "w"), "out_of_range", "tokens[15] must be from 0 to 2**32 - 1, got -1"),
    (lambda t: t.insert([2**32] * 16, "w"), "out_of_range", "tokens[0] must be from 0 to 2**32 - 1, got 4294967296"),
    (
        lambda t: t.insert_tokens(np.array([1, -1] * 8), "w"),
        "out_of_range",
        "tokens[1] must be from 0 to 2**32 - 1, got -1",
    ),
    (
        lambda t: t.insert_tokens(np.zeros((2, 16), np.uint32), "w"),
        "wrong_shape",
        "tokens must have one dimension, got an array of 2 dimensions",
    ),
    (
        lambda t: t.insert_tokens(np.zeros(16), "w"),
        "wrong_type",
        f"tokens must be {TOKEN_KINDS}, got numpy.ndarray of float64, shape (16,)",
    ),
    (
        lambda t: t.insert_tokens(b"123", "w"),
        "token_bytes",
        "tokens are bytes of little-endian uint32s, 4 for each; got 3 bytes",
    ),
    (lambda t: t.insert_tokens([1.0] * 16, "w"), "wrong_type", "tokens[0] must be an int, got float"),
    (lambda t: t.insert_tokens([True] * 16, "w"), "wrong_type", "tokens[0] must be an int, got bool"),
    (lambda t: t.insert_tokens([9] * 16, 5), "wrong_type", "tenant must be a str, got int"),
    (lambda t: t.insert_tokens([9] * 16, "w", priority=2**40), "out_of_range", f"{PRIORITIES} {2**40}"),
    (lambda t: t.match_prefix_with_counts(5), "wrong_type", f"tokens must be {TOKEN_KINDS}, got int"),
    (lambda t: t.prefix_match([-5]), "out_of_range", "tokens[0] must be from 0 to 2**32 - 1, got -5"),
    (lambda t: t.prefix_match_legacy("a"), "wrong_type", f"tokens must be {TOKEN_KINDS}, got str"),
    (lambda t: t.prefix_match_tenant([1], None), "wrong_type", "tenant must be a str, got NoneType"),
    (lambda t: t.find(tokens={1: 2}), "wrong_type", f"tokens must be {TOKEN_KINDS}, got dict"),
    (lambda t: t.match_and_insert([9] * 16, 5), "wrong_type", "tenant must be a str, got int"),
    (lambda t: t.match_and_insert_with([9] * 16, 5), "wrong_type", "select must be callable, got int"),
    (lambda _: TokenTree(0), "invalid_page_size", f"{PAGES} 0"),
    (lambda _: TokenTree(-16), "invalid_page_size", f"{PAGES} -16"),
    (lambda _: TokenTree(24), "invalid_page_size", f"{PAGES} 24"),
    (lambda _: TokenTree(256), "invalid_page_size", f"{PAGES} 256"),
    (lambda _: TokenTree(2**70), "invalid_page_size", f"{PAGES} {2**70}"),
    (lambda _: TokenTree(16.0), "wrong_type", "page_size must be an int, got float"),  # type: ignore[arg-type]
    (lambda _: TokenTree(None), "wrong_type", "page_size must be an int, got NoneType"),  # type: ignore[arg-type]
    (lambda _: hash_token_path([-1]), "out_of_range", "tokens[0] must be from 0 to 2**32 - 1, got -1"),
]


def texts() -> StringTree:
    tree = StringTree(budget_bytes=10**9)
    tree.insert_text("abc", "w")
    tree.insert_text("abd", "v")
    return tree


def tokens() -> TokenTree:
    tree = TokenTree(budget_bytes=10**9)
    tree.insert_tokens(range(32), "w")
    tree.insert_tokens([*range(16), *range(100, 116)], "v")
    return tree


CASES = [(texts, *case) for case in BOTH + TEXTS] + [(tokens, *case) for case in BOTH + TOKENS]


@pytest.mark.parametrize(
    ("make", "call", "code", "message"), CASES, ids=[f"{make.__name__}: {message}" for make, _, _, message in CASES]
)
def test_refused_without_a_trace(make: Callable[[], Any], call: Call, code: str, message: str) -> None:
    tree = make()
    before = tree.snapshot(), tree.stats(), tree.budget_bytes
    with pytest.raises(KvatlasError) as caught:
        call(tree)
    assert (str(caught.value), caught.value.code) == (message, code)
    assert isinstance(caught.value, InvalidTypeError if code == "wrong_type" else InvalidArgumentError)
    assert (tree.snapshot(), tree.stats(), tree.budget_bytes) == before


@pytest.mark.parametrize("make", [texts, tokens])
def test_the_signatures_are_as_documented(make: Callable[[], Any]) -> None:
    tree = make()
    key = "abcd" if isinstance(tree, StringTree) else [1] * 16
    for call in (
        lambda: tree.insert(key),
        lambda: tree.insert(key, "w", 5),
        lambda: tree.insert(key, "w", weight=5),
        lambda: tree.match_and_insert(key),
        tree.find,
        tree.evict_tenant,
        lambda: type(tree)(16, "lru"),
        lambda: tree.from_snapshot(tree.snapshot(), 5),
        lambda: type(find(tree, key))(),
        lambda: type(tree.match_prefix_with_counts(key))(),
        lambda: type(tree.iter_entries())(),
    ):
        with pytest.raises(TypeError):
            call()
    for name in ("page_size", "policy", "bytes", "node_count", "total_size"):
        with pytest.raises(AttributeError):
            setattr(tree, name, 1)
    assert tree.stats() == make().stats()


def test_whose_own_code_fails() -> None:
    class FailingSequence:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, at: int) -> int:
            raise LookupError("the source broke")

    tree: Any = TokenTree()
    with pytest.raises((LookupError, InvalidTypeError)):
        tree.insert_tokens(FailingSequence(), "w")
    with pytest.raises(RuntimeError, match="the names broke"):
        tree.find(tokens=[1] * 16).best(
            1, (_ for _ in iter(lambda: (_ for _ in ()).throw(RuntimeError("the names broke")), 0))
        )
    assert tree.tenants() == []
