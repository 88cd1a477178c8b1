"""The trees from Python: names of the originals, values, forms of prompts, `select`.

What they match and evict is tested in `trees/crates/trees/tests/trees`.
"""

from typing import Any

import numpy as np
import pytest

from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.trees import (
    StringTree,
    TokenTree,
    TreeMatch,
)

from .prompts import pages


def answer(found: TreeMatch) -> tuple[str | None, int, int]:
    return found.tenant, found.matched, found.input


def test_names_of_the_originals() -> None:
    texts = StringTree()
    texts.insert_text("hello world", "w1")
    assert answer(texts.match_prefix_with_counts("hello there")) == ("w1", 6, 11)
    assert texts.prefix_match("hello") == "w1"
    assert texts.prefix_match_legacy("hello there") == ("hello ", "w1")
    assert texts.prefix_match_tenant("hello there", "w1") == "hello "
    assert texts.prefix_match_tenant("hello there", "w2") == ""
    assert texts.tenant_char_size("w1") == 11
    assert texts.get_tenant_char_count() == texts.get_used_size_per_tenant() == {"w1": 11}
    assert texts.evict_by_tenant("w1", 5) == 11

    tokens = TokenTree()
    tokens.insert_tokens(pages(1, 2), "w1")
    assert answer(tokens.match_prefix_with_counts(pages(1, 3))) == ("w1", 16, 32)
    assert tokens.prefix_match(pages(1)) == "w1"
    assert tokens.prefix_match_legacy(pages(1, 3)) == (pages(1), "w1")
    assert tokens.prefix_match_tenant(pages(1, 3), "w1") == 16
    assert tokens.tenant_token_size("w1") == 32
    assert tokens.get_tenant_token_counts() == tokens.get_used_size_per_tenant() == {"w1": 32}
    assert tokens.evict_tenant("w1", 31) == 32
    assert (tokens.page_size, tokens.policy, texts.policy) == (16, "lru", "lru")


def test_a_match_says_how_much_of_what() -> None:
    tree = TokenTree()
    tree.insert_tokens(list(range(31)), "w")
    found = tree.match_prefix_with_counts(list(range(31)))
    assert (found.tenant, found.matched, found.input, found.paged) == ("w", 16, 31, 16)
    assert found.hit_ratio == 16 / 31
    assert found.paged_ratio == 1.0  # all that could be cached is
    nothing = tree.match_prefix_with_counts([])
    assert (nothing.hit_ratio, nothing.paged_ratio, nothing.tenant) == (0.0, 0.0, None)


def test_matches_are_values() -> None:
    tree = StringTree()
    tree.insert_text("ab'c", "it's")
    one, two, other = (tree.match_prefix_with_counts(text) for text in ("ab", "ab", "abx"))
    assert one == two != other
    assert len({one, two, other}) == 2
    assert one != ("it's", 2, 2, 2)
    assert repr(one) == """TreeMatch(tenant="it's", matched=2, input=2, paged=2)"""
    assert repr(tree.match_prefix_with_counts("z")) == "TreeMatch(tenant=None, matched=0, input=1, paged=1)"
    assert repr(tree.find(text="abx")) == "TreeDepths(depth=2, length=3, unit='characters', tenants=1)"
    assert repr(tree) == "StringTree(policy='lru', tenants=1, nodes=1, size=4)"
    assert repr(TokenTree(64, policy="filo")) == "TokenTree(page_size=64, policy='filo', tenants=0, nodes=0, size=0)"
    with pytest.raises(AttributeError):
        one.tenant = "x"  # type: ignore[misc]


def test_everyone_has_a_depth() -> None:
    tree = StringTree()
    for tenant, text in [("a", "system prompt, question"), ("b", "system prompt"), ("c", "systems"), ("d", "other")]:
        tree.insert_text(text, tenant)
    found = tree.find(text="system prompt, answer")
    assert found.scores() == {"a": 15, "b": 13, "c": 6}
    assert (found.depth, found.length) == (15, 21)
    assert found.best(2) == [("a", 15), ("b", 13)]
    assert found.best(9, among={"c", "b", "e"}) == [("b", 13), ("c", 6)]
    tree.clear()
    assert found.scores() == {"a": 15, "b": 13, "c": 6}  # the answer of its moment


def test_asking_by_find_changes_nothing() -> None:
    tree = StringTree()
    tree.insert_text("old", "w")
    tree.insert_text("new", "w")
    before = tree.snapshot()
    assert tree.find(text="old").depth == 3
    assert tree.depths("old") == {"w": 3}
    assert tree.snapshot() == before
    tree.match_prefix_with_counts("old")  # this one is a use
    tree.evict_tenant("w", 3)
    assert tree.tenant_char_size("w") == 3
    assert tree.find(text="old").depth == 3


@pytest.mark.parametrize("tokens", [pages(3, 4), np.array(pages(3, 4), np.uint32), np.array(pages(3, 4), np.int64)])
def test_tokens_in_any_form(tokens: Any) -> None:
    tree = TokenTree()
    tree.insert(tokens, "w")
    gaps = np.repeat(np.array(tokens), 2)[::2]
    assert tree.find(tokens=gaps).scores() == tree.find(tokens=tuple(pages(3, 4))).scores() == {"w": 32}
    assert tree.find(tokens=np.array(pages(3, 4), "<u4").tobytes()).depth == 32


# select


def test_select_is_asked_once_and_obeyed() -> None:
    tree = StringTree()
    tree.insert_text("prompt", "a")
    seen: list[TreeMatch] = []

    def select(found: TreeMatch) -> str | None:
        seen.append(found)
        return "b"

    found = tree.match_and_insert_with("prompt one", select)
    assert seen == [found]
    assert answer(found) == ("a", 6, 10)
    assert tree.find(text="prompt one").scores() == {"b": 10, "a": 6}
    tree.match_and_insert_with("prompt two", lambda _: None)
    assert tree.total_size == 16


class OutOfOrderError(Exception):
    pass


@pytest.mark.parametrize("length", [6, 1_000_000])
def test_what_select_raises_comes_through(length: int) -> None:
    tree = StringTree()
    text = "prompt".ljust(length, "!")
    tree.insert_text("prompt", "a")

    def select(found: TreeMatch) -> str:
        raise OutOfOrderError(found.matched)

    with pytest.raises(OutOfOrderError, match="6"):
        tree.match_and_insert_with(text, select)
    assert tree.tenant_sizes() == {"a": 6}
    wrong: Any
    for wrong in (7, b"a", ["a"], False):
        with pytest.raises(InvalidTypeError, match="select must return the tenant as a str, or None; it returned "):
            tree.match_and_insert_with(text, lambda _: wrong)  # noqa: B023
    with pytest.raises(InvalidArgumentError, match="what select returned contains a lone surrogate"):
        tree.match_and_insert_with(text, lambda _: "\ud800")
    with pytest.raises(KeyboardInterrupt):
        tree.match_and_insert_with(text, lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert tree.tenant_sizes() == {"a": 6}


@pytest.mark.parametrize("length", [10, 1_000_000])
def test_select_may_use_the_tree(length: int) -> None:
    tree = TokenTree()
    key = np.arange(length // 16 * 16 + 16, dtype=np.uint32)
    tree.insert_tokens(key, "a")

    def select(found: TreeMatch) -> str:
        assert tree.find(tokens=key).best() == [(found.tenant, found.matched)]
        tree.remove_tenant("a")
        tree.insert_tokens(key[:16], "b")
        tree.match_and_insert(key, "c")
        tree.match_and_insert_with(key, lambda _: "d")
        tree.evict_tenant("c", 0)
        assert tree.get_used_size_per_tenant() == {"b": 16, "d": len(key)}
        tree.clear()
        return "e"

    assert tree.match_and_insert_with(key, select).matched == len(key)
    assert tree.find(tokens=key).scores() == {"e": len(key)}
