"""The trees, one behaviour a test; among them each defect of the originals that is mended."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.trees import (
    GLOBAL_EVICTION_HASH,
    StringTree,
    TokenTree,
    TreeMatch,
    hash_node_path,
    hash_token_path,
)
from kvatlas.types import EvictionPolicy

from .pairs import find

PAGE = 16


def pages(*numbers: int) -> list[int]:
    """A page of each of these tokens."""
    return [number for number in numbers for _ in range(PAGE)]


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


def test_characters_are_whole() -> None:
    tree = StringTree()
    tree.insert_text("漢字😀", "a")  # the first bytes of 漢 and 潢 are the same
    tree.insert_text("潢字", "b")
    tree.insert_text("漢字😁", "c")
    assert tree.tenant_sizes() == {"a": 3, "b": 2, "c": 3}
    assert answer(tree.match_prefix_with_counts("漢字😂")) == ("a", 2, 3)
    assert tree.prefix_match_legacy("漢字😂") == ("漢字", "a")
    assert [path for path, _ in tree.iter_entries()] == ["漢字", "漢字😀", "漢字😁", "潢字"]


def test_characters_are_not_normalized() -> None:
    tree = StringTree()
    tree.insert_text("caf\u00e9\0\n", "composed")
    tree.insert_text("cafe\u0301", "decomposed")
    assert tree.find(text="caf\u00e9\0\n").scores() == {"composed": 6, "decomposed": 3}


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64, 128])
def test_tokens_match_in_whole_pages(page_size: int) -> None:
    tree = TokenTree(page_size)
    tree.insert_tokens(range(256), "w")
    assert tree.tenant_token_size("w") == 256
    query = [*range(200), 7, *range(201, 256)]
    assert answer(tree.match_prefix_with_counts(query)) == ("w", 200 // page_size * page_size, 256)
    tree.insert_tokens(query, "v")
    assert tree.find(tokens=range(256)).scores() == {"w": 256, "v": 200 // page_size * page_size}


def test_less_than_a_page_is_nothing() -> None:
    tree = TokenTree()
    tree.insert_tokens(range(15), "w")
    tree.insert_tokens([], "w")
    StringTree().insert_text("", "w")
    assert (tree.tenants(), tree.node_count) == ([], 0)
    called = []
    tree.match_and_insert_with(range(15), lambda found: called.append(found))
    assert [answer(found) for found in called] == [(None, 0, 15)]
    tree.insert_tokens(range(16), "w")
    assert answer(tree.match_prefix_with_counts(range(15))) == (None, 0, 15)


@pytest.mark.parametrize("tokens", [pages(3, 4), np.array(pages(3, 4), np.uint32), np.array(pages(3, 4), np.int64)])
def test_tokens_in_any_form(tokens: Any) -> None:
    tree = TokenTree()
    tree.insert(tokens, "w")
    gaps = np.repeat(np.array(tokens), 2)[::2]
    assert tree.find(tokens=gaps).scores() == tree.find(tokens=tuple(pages(3, 4))).scores() == {"w": 32}
    assert tree.find(tokens=np.array(pages(3, 4), "<u4").tobytes()).depth == 32


def test_what_is_held_is_not_counted_again() -> None:
    """The original added the whole length at each repeat, and then evicted all that its busiest workers had."""
    tree = TokenTree()
    for _ in range(1000):
        tree.insert_tokens(range(1024), "w")
    assert tree.get_tenant_token_counts() == {"w": 1024}
    tree.insert_tokens(range(64), "w")  # a beginning of it
    assert tree.get_tenant_token_counts() == {"w": 1024}
    assert tree.evict_tenant_by_size(10_000) == 0
    assert tree.find(tokens=range(1024)).depth == 1024


def test_shared_nodes_do_not_stop_eviction() -> None:
    """The original took one node of a path that another worker has too, and then stopped."""
    tree = TokenTree()
    for tenant in ("a", "b"):
        for length in (1, 2, 3):
            tree.insert_tokens(pages(*range(length)), tenant)
    assert tree.evict_tenant("a", 0) == 48
    assert tree.tenant_sizes() == {"b": 48}
    assert tree.find(tokens=pages(0, 1, 2)).scores() == {"b": 48}


def test_eviction_takes_the_ends_first() -> None:
    """The original's evict_by_tenant took the oldest nodes wherever they were, beginnings before their ends."""
    tree = StringTree()
    for text in ("abc", "abcdef", "abcdefghi"):
        tree.insert_text(text, "w")
    tree.match_prefix_with_counts("abcdefghi")
    assert tree.evict_by_tenant("w", 7) == 3
    assert tree.find(text="abcdefghi").scores() == {"w": 6}
    assert tree.evict_by_tenant("w", 5) == 3
    assert tree.find(text="abcdefghi").scores() == {"w": 3}


def test_who_has_gone_is_not_found() -> None:
    """The original kept empty nodes, and named workers that had nothing, or one called "empty"."""
    tree = StringTree()
    tree.insert_text("prompt", "gone")
    assert tree.remove_tenant("gone") == 6
    assert answer(tree.match_prefix_with_counts("prompt")) == (None, 0, 6)
    assert (tree.node_count, tree.tenants(), tree.tenant_sizes()) == (0, [], {})
    tree.insert_text("prompt", "empty")  # a name like any other
    assert answer(tree.match_prefix_with_counts("prompt")) == ("empty", 6, 6)
    tree.evict_tenant("empty", 0)
    assert answer(tree.match_prefix_with_counts("prompt")) == (None, 0, 6)
    assert answer(tree.match_prefix_with_counts("")) == (None, 0, 0)
    assert tree.tenants() == []


def test_who_has_it_longest_answers() -> None:
    tree = StringTree()
    tree.insert_text("prompt", "first")
    tree.insert_text("prompt and more", "second")
    tree.insert_text("prompt", "third")
    assert {tree.prefix_match("prompt") for _ in range(50)} == {"first"}
    assert tree.prefix_match("prompt and") == "second"
    tree.remove_tenant("first")
    assert {tree.prefix_match("prompt") for _ in range(50)} == {"second"}
    tree.insert_text("prompt", "first")
    assert tree.prefix_match("prompt") == "second"


def test_match_and_insert_is_both() -> None:
    one, two = TokenTree(), TokenTree()
    keys = [range(64), range(128), [*range(70), *pages(9)], pages(1), range(10), range(64)]
    for key, tenant in zip(keys, itertools.cycle("ab")):
        found = one.match_prefix_with_counts(key)
        one.insert_tokens(key, tenant)
        assert two.match_and_insert(key, tenant) == found
    assert one.snapshot() == two.snapshot()


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


# eviction


def three(tree: StringTree) -> None:
    """Leaves named by what they are first in: "a" came first, "b" was used last, "c" least often."""
    for text in ("a", "b", "c"):
        tree.insert_text(text, "w")
    for text in ("a", "b", "a", "a", "c", "b"):
        tree.match_prefix_with_counts(text)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("lru", "acb"), ("mru", "bca"), ("fifo", "abc"), ("filo", "cba"), ("lfu", "cba"), ("priority", "acb")],
)
def test_policies(policy: EvictionPolicy, order: str) -> None:
    tree = StringTree(policy=policy)
    three(tree)
    gone = ""
    for left in (2, 1, 0):
        before = [path for path, _ in tree.iter_entries()]
        assert tree.evict_tenant("w", left) == 1
        gone += next(path for path in before if not tree.find(text=path).depth)
    assert gone == order


def test_priorities() -> None:
    tree = StringTree(policy="priority")
    tree.insert_text("system prompt", "w", priority=5)
    tree.insert_text("chat", "w")
    tree.insert_text("batch", "w", priority=-5)
    tree.insert_text("batch of two", "w", priority=2)
    order = []
    while tree.tenants():
        before = [path for path, _ in tree.iter_entries()]
        tree.evict_to_size(tree.total_size - 1)
        order.append(next(path for path in before if tree.find(text=path).depth < len(path)))
    assert order == ["chat", "batch of two", "batch", "system prompt"]


def test_eviction_over_all_tenants() -> None:
    tree = StringTree()
    for text, tenant in [("1111", "a"), ("2222", "b"), ("3333", "a"), ("1111", "b")]:
        tree.insert_text(text, tenant)
    assert tree.total_size == 16
    assert tree.evict_to_size(9) == 8
    assert tree.tenant_sizes() == {"a": 4, "b": 4}
    assert tree.find(text="1111").scores() == {"b": 4}
    assert tree.evict_to_size(0) == 8
    assert tree.evict_to_size(0) == 0


def test_eviction_for_each_tenant() -> None:
    tree = StringTree()
    for at in range(10):
        for number, tenant in enumerate("abc"[: 1 + at % 3]):
            tree.insert_text(chr(0x4E00 + 3 * at + number) + "1234", tenant)
    assert tree.tenant_sizes() == {"a": 50, "b": 30, "c": 15}
    assert tree.evict_tenant_by_size(28) == 25 + 5
    assert tree.tenant_sizes() == {"a": 25, "b": 25, "c": 15}


def test_path_hashes() -> None:
    assert GLOBAL_EVICTION_HASH == 0
    assert hash_node_path("") == hash_token_path([]) == 0xA6A1F9F5B94913AF
    assert hash_node_path("hello") == 0x928286B33D168FEA
    assert hash_token_path([1, 2, 3]) == 0x20CB7C4A90F407DF
    assert hash_token_path(np.array([1, 2, 3], np.int64)) == 0x20CB7C4A90F407DF
    text = "漢字" * 100_000  # 6 bytes: whole tokens, and long enough to be hashed without the GIL
    assert hash_node_path(text) == hash_token_path(np.frombuffer(text.encode(), "<u4"))


def test_eviction_by_path_hash() -> None:
    tree = StringTree()
    for text, tenant in [("abc", "a"), ("abcdef", "a"), ("abcdef", "b"), ("abcxyz", "b"), ("other", "a")]:
        tree.insert_text(text, tenant)
    assert tree.evict_by_path_hash(hash_node_path("ab")) == 0  # inside an edge
    assert tree.evict_by_path_hash(hash_node_path("nowhere")) == 0
    assert tree.evict_by_path_hash(hash_node_path("abcdef"), "c") == 0
    assert tree.evict_by_path_hash(hash_node_path("abcdef"), "a") == 3
    assert tree.find(text="abcdef").scores() == {"b": 6, "a": 3}
    assert tree.evict_by_path_hash(hash_node_path("abc"), "b") == 9  # with all that is below
    assert tree.tenant_sizes() == {"a": 8}
    assert tree.evict_by_path_hash(hash_node_path("abc")) == 3
    assert tree.evict_by_path_hash(GLOBAL_EVICTION_HASH, "b") == 0
    assert tree.evict_by_path_hash(GLOBAL_EVICTION_HASH) == 5
    assert (tree.tenants(), tree.node_count) == ([], 0)

    tokens = TokenTree()
    tokens.insert_tokens(pages(1, 2), "a")
    tokens.insert_tokens(pages(1, 3), "b")
    assert tokens.evict_by_path_hash(hash_token_path(pages(1, 3))) == 16
    assert tokens.tenant_sizes() == {"a": 32, "b": 16}
    assert tokens.evict_by_path_hash(np.uint64(hash_token_path(pages(1)))) == 48


# budgets


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (StringTree, lambda at: f"{at % 7} {at:0200}"),
        (TokenTree, lambda at: np.repeat(np.array([at % 7, at], np.uint32), 64)),
    ],
    ids=["text", "tokens"],
)
def test_the_budget_holds_after_every_insert(make: Callable[..., Any], key: Callable[[int], Any]) -> None:
    budget = 300_000
    tree = make(budget_bytes=budget)
    assert tree.budget_bytes == budget
    for at in range(3000):
        tree.match_and_insert(key(at), f"w{at % 5}")
        assert tree.bytes <= budget
        found = find(tree, key(at))
        assert found.best() == [(f"w{at % 5}", found.length)]
    assert tree.bytes > budget / 2
    assert tree.tenant_sizes() == tree.get_used_size_per_tenant()
    tree.budget_bytes = budget // 2
    assert tree.bytes <= budget / 2
    tree.budget_bytes = None
    assert tree.budget_bytes is None
    for at in range(3000):
        tree.insert(key(at), "w")
    assert tree.bytes > budget
    kept = tree.evict_to_bytes(budget)
    assert kept > 0
    assert tree.bytes <= budget


# entries


def test_entries_are_made_one_by_one() -> None:
    tree = StringTree()
    for text in ("b", "a", "ab", "aé"):
        tree.insert_text(text, "w")
    entries = tree.iter_entries()
    assert iter(entries) is entries
    assert next(entries)[0] == "a"
    assert next(entries) == ("ab", [("w", 3)])
    tree.remove_tenant("w")
    assert list(entries) == []
    assert list(entries) == []


def test_entries_keep_their_tree() -> None:
    tree = TokenTree(1)
    tree.insert_tokens([1, 2], "b")
    tree.insert_tokens([1, 2], "a")
    tree.insert_tokens([1], "b")
    entries = tree.iter_entries()
    del tree
    names = [(path, [tenant for tenant, _ in tenants]) for path, tenants in entries]
    assert names == [([1], ["a", "b"]), ([1, 2], ["a", "b"])]


def test_entries_make_the_tree_again() -> None:
    """What to do instead of the original's merge, whose times mean nothing in another process."""
    tree, other = StringTree(), StringTree()
    for text, tenant in [("ab", "a"), ("abcde", "b"), ("abcxy", "a"), ("é", "c")]:
        tree.insert_text(text, tenant)
    other.insert_text("abc", "a")
    for path, tenants in tree.iter_entries():
        for tenant, _ in tenants:
            other.insert_text(path, tenant)
    assert other.tenant_sizes() == {"a": 5, "b": 5, "c": 1}
    assert other.find(text="abcxy").scores() == tree.find(text="abcxy").scores()


# snapshots


def sample() -> list[Any]:
    texts, tokens = StringTree(policy="filo"), TokenTree(4, policy="lfu")
    for at in range(40):
        texts.match_and_insert("ab" * (at % 7) + "é" * (at % 3), f"w{at % 4}")
        tokens.match_and_insert([at % 3] * 8 + [at] * 4, f"w{at % 4}")
    return [texts, tokens, StringTree(), TokenTree()]


@pytest.mark.parametrize("tree", sample(), ids=["text", "tokens", "no text", "no tokens"])
def test_snapshots(tree: Any) -> None:
    snapshot = tree.snapshot()
    assert tree.snapshot() == snapshot
    for given in (snapshot, bytearray(snapshot), memoryview(snapshot)):
        copy = type(tree).from_snapshot(given)
        assert copy.snapshot() == snapshot
        assert list(copy.iter_entries()) == list(tree.iter_entries())
        assert copy.tenant_sizes() == copy.get_used_size_per_tenant() == tree.tenant_sizes()
        assert (copy.policy, copy.budget_bytes) == (tree.policy, None)
    assert type(tree).from_snapshot(snapshot, budget_bytes=10**9).budget_bytes == 10**9


@pytest.mark.parametrize("tree", sample(), ids=["text", "tokens", "no text", "no tokens"])
def test_damaged_snapshots_are_refused(tree: Any) -> None:
    snapshot = tree.snapshot()
    damaged = [snapshot[:length] for length in range(len(snapshot))]
    damaged += [snapshot + b"\0", snapshot * 2, snapshot[:4] + b"\xff" * 40]
    for at in range(len(snapshot)):
        for bit in (0, 7):
            damaged.append(snapshot[:at] + bytes([snapshot[at] ^ (1 << bit)]) + snapshot[at + 1 :])
    for wrong in damaged:
        with pytest.raises(InvalidArgumentError) as caught:
            type(tree).from_snapshot(wrong)
        assert caught.value.code == "invalid_snapshot"


def test_snapshots_of_the_other_tree_are_refused() -> None:
    texts, tokens, *_ = sample()
    for one, other in [(texts, tokens), (tokens, texts)]:
        with pytest.raises(InvalidArgumentError) as caught:
            type(one).from_snapshot(other.snapshot())
        assert caught.value.code == "invalid_snapshot"
