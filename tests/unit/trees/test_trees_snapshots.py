"""The nodes of a tree as entries, and a tree as bytes."""

from typing import Any

import pytest

from kvatlas.errors import InvalidArgumentError
from kvatlas.trees import (
    StringTree,
    TokenTree,
)


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
    """Entries are inserted instead of the original's merge, whose times mean nothing in another process."""
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
