"""RadixTrie from Python: what it takes and gives, its nodes, and what it refuses.

What it matches and evicts is tested in `trees/crates/trees/src/radix_trie/tests.rs`.
"""

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import InvalidArgumentError, InvalidTypeError, KvatlasError
from kvatlas.trees import RadixTrie


def test_split_on_insert() -> None:
    trie = RadixTrie()
    trie.insert(["a", "b", "c"], [1, 2, 3])
    trie.insert(["a", "b", "d"], [91, 92, 4])
    assert trie.pretty_format() == ["['a', 'b']", "--['c']", "--['d']"]
    assert trie.pretty_format(print_blocks=True) == ["['a', 'b'] : [1, 2]", "--['c'] : [3]", "--['d'] : [4]"]
    assert trie.match_prefix(["a", "b", "d", "e"])[1] == [1, 2, 4]


def test_split_on_match() -> None:
    trie = RadixTrie()
    trie.insert([1, 2, 3], [10, 20, 30])
    node, blocks = trie.match_prefix([1, 2, 9])
    assert blocks == [10, 20]
    assert (node.tokens, node.blocks, node.is_leaf()) == ([1, 2], [10, 20], False)
    assert trie.pretty_format() == ["[1, 2]", "--[3]"]


def test_insert_below_a_node_that_a_match_returned() -> None:
    trie = RadixTrie()
    trie.insert([1, 2, 3], [10, 20, 30])
    node, _ = trie.match_prefix([1, 2])
    end = trie.insert(np.array([4, 5]), [40, 50], node)
    assert trie.match_prefix([1, 2, 4, 5])[1] == [10, 20, 40, 50]
    assert end.parent == node
    assert list(node.children) == [(3,), (4,)]
    assert trie.match_prefix([4, 5], node) == (end, [40, 50])
    assert trie.match_prefix([7], node) == (node, [])


def test_the_root_is_never_in_use() -> None:
    trie = RadixTrie()
    trie.mark_in_use_by(trie.root, 1)
    trie.mark_not_in_use_by(trie.root, 1)
    trie.mark_not_in_use_by(trie.root, 2)
    assert trie.root.is_root()
    assert (trie.root.parent, trie.root.tokens, trie.root.active_seqs) == (None, [], set())


def test_existing_blocks_stay_and_the_caller_learns_how_many() -> None:
    trie = RadixTrie()
    assert trie.insert_with_count([1, 2], ["a", "b"])[1] == 0
    node, kept = trie.insert_with_count([1, 2, 3], ["x", "y", "c"])
    assert kept == 2
    assert node.get_prefix_tokens_and_blocks() == ([1, 2, 3], ["a", "b", "c"])


def test_pretty_print(capsys: pytest.CaptureFixture[str]) -> None:
    trie = RadixTrie()
    trie.insert([1, 2], ["a", None])
    trie.insert([3], [0])
    trie.pretty_print()
    trie.pretty_print(print_blocks=False)
    assert capsys.readouterr().out == "[1, 2] : ['a', None]\n[3] : [0]\n[1, 2]\n[3]\n"


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8", "i2", "u1", ">i4", ">u8"])
def test_arrays_and_lists_mean_the_same(dtype: str) -> None:
    trie = RadixTrie(2)
    tokens = np.arange(100, dtype=dtype)
    node = trie.insert(tokens, np.arange(50))
    assert trie.match_prefix(tokens.tolist()) == (node, list(range(50)))
    assert trie.match_prefix(tokens) == (node, list(range(50)))
    assert trie.match_prefix(np.repeat(tokens, 2)[::2]) == (node, list(range(50)))
    assert trie.insert(tuple(tokens.tolist()), range(50)) == node


def test_tokens_may_be_strings_and_any_ints() -> None:
    trie = RadixTrie()
    odd: list[Any] = [-1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -(2**63), "a", "", "1", 1]
    trie.insert(odd, odd)
    assert trie.match_prefix(odd)[1] == odd
    assert trie.match_prefix([-1, 2**31, 5])[1] == [-1, 2**31]
    assert trie.match_prefix(np.array([-1, 2**31, 2**32 - 1]))[1] == odd[:3]
    assert trie.match_prefix(["unknown"])[1] == []
    assert trie.match_prefix([1])[1] == []
    assert trie.evict_blocks(99) == odd[3:] + odd[2:3] + odd[:2]  # split by the matches above
    trie.insert(np.array(["x", "yy"]), ["b", "c"])
    assert trie.pretty_format() == ["['x', 'yy']"]


@pytest.mark.parametrize("odd", [0, 1, 256, 257, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**60, 2**63, -1, "a"])
def test_a_list_is_read_as_a_tuple_is(odd: Any) -> None:
    """Lists have a way of their own for small ints."""
    tokens: list[Any] = [5, 128_000, odd, 0, 7]

    class Tokens(list[Any]):
        pass

    trie = RadixTrie()
    node = trie.insert(tokens, ["a", "b", "c", "d", "e"])
    assert node.tokens == tokens
    assert trie.match_prefix(tuple(tokens)) == (node, ["a", "b", "c", "d", "e"])
    assert trie.match_prefix(Tokens(tokens)) == (node, ["a", "b", "c", "d", "e"])


def test_every_reference_to_a_block_is_counted_once() -> None:
    class Block:
        pass

    blocks = [Block() for _ in range(100)]
    before = [sys.getrefcount(block) for block in blocks]
    trie = RadixTrie()
    node = trie.insert(range(100), blocks)
    trie.insert(range(100), blocks)
    found = trie.match_prefix([*range(60), 200])[1]
    assert [sys.getrefcount(block) for block in blocks] == [count + 1 + (at < 60) for at, count in enumerate(before)]
    evicted = trie.evict_blocks(30)
    del found, node
    assert [sys.getrefcount(block) for block in blocks] == [count + 1 for count in before]
    del evicted, trie
    gc.collect()
    assert [sys.getrefcount(block) for block in blocks] == before


def test_a_handle_never_means_another_node() -> None:
    """A node that lost its tail is refused: what followed its old end would follow other tokens now."""
    trie = RadixTrie()
    end = trie.insert([1, 2, 3], [1, 2, 3])
    gone = trie.insert([5], [5])
    trie.mark_in_use_by(gone, 1)
    assert trie.evict_blocks(1) == [3]
    trie.mark_not_in_use_by(gone, 1)
    assert trie.evict_blocks(9) == [1, 2, 5]
    newer = trie.insert([7], [7])
    for node in [end, gone]:
        assert node.evicted
        assert repr(node) == "TrieNode(evicted)"
        for use in (
            lambda node=node: trie.insert([8], [8], node),
            lambda node=node: trie.match_prefix([8], node),
            lambda node=node: trie.mark_in_use_by(node, 1),
            lambda node=node: trie.mark_not_in_use_by(node, 1),
            lambda node=node: node.tokens,
            lambda node=node: node.is_leaf(),
        ):
            with pytest.raises(InvalidArgumentError, match="was evicted") as refused:
                use()
            assert refused.value.code == "evicted_node"
    assert (newer.blocks, newer.active_seqs) == ([7], set())


def test_nodes_are_values() -> None:
    trie, other = RadixTrie(), RadixTrie()
    node = trie.insert([1], [1])
    assert node == trie.match_prefix([1])[0]
    assert len({node, trie.match_prefix([1])[0]}) == 1
    assert node != other.insert([1], [1])
    assert node != 1
    assert repr(node) == "TrieNode([1] : [1])"
    assert (repr(trie), bool(RadixTrie())) == ("RadixTrie(page_size=1, blocks=1, nodes=1)", True)


ANY: Any = RadixTrie  # so that calls of the wrong types can be written down
REFUSED: list[tuple[Callable[[Any, Any], object], str, str]] = [
    (lambda t, n: t.insert([1, 2, 3], [1]), "token_count", "3 tokens are not whole pages of 2: insert full pages"),
    (lambda t, n: t.insert([1, 2, 3], [1, 2, 3]), "token_count", "3 tokens are not whole pages of 2"),
    (lambda t, n: t.insert([1, 2], []), "length_mismatch", "0 blocks for 2 tokens: pages of 2 tokens need exactly 1"),
    (lambda t, n: t.insert([], [1]), "length_mismatch", "1 blocks for 0 tokens: pages of 2 tokens need exactly 0"),
    (lambda t, n: t.insert([], []), "no_tokens", "tokens must not be empty"),
    (lambda t, n: t.match_prefix([]), "no_tokens", "tokens must not be empty"),
    (lambda t, n: t.match_prefix(np.array([], dtype=np.int64)), "no_tokens", "tokens must not be empty"),
    (lambda t, n: t.insert([1, 2.0], [1]), "wrong_type", r"tokens\[1\] must be an int or a str, got float"),
    (lambda t, n: t.insert([True, 2], [1]), "wrong_type", r"tokens\[0\] must be an int or a str, got bool"),
    (lambda t, n: t.insert([1, None], [1]), "wrong_type", r"tokens\[1\] must be an int or a str, got NoneType"),
    (lambda t, n: t.insert([1, 2**64], [1]), "out_of_range", r"tokens\[1\] must be from -2\*\*63 to 2\*\*64 - 1"),
    (lambda t, n: t.insert([1, -(2**200)], [1]), "out_of_range", r"tokens\[1\] must be from"),
    (lambda t, n: t.insert(["\udc00", "a"], [1]), "invalid_string", r"tokens\[0\] contains a lone surrogate"),
    (lambda t, n: t.insert("ab", [1]), "wrong_type", "tokens must be an array or a list of ints or of strs, got str"),
    (lambda t, n: t.insert(b"ab", [1]), "wrong_type", "tokens must be an array or a list .* got bytes"),
    (lambda t, n: t.insert(7, [1]), "wrong_type", "tokens must be an array or a list .* got int"),
    (lambda t, n: t.insert(np.zeros(2), [1]), "wrong_type", r"tokens\[0\] must be an int or a str, got float"),
    (lambda t, n: t.insert(np.zeros((2, 2), int), [1]), "wrong_shape", "tokens must have one dimension"),
    (lambda t, n: t.insert([1, 2], "x"), "wrong_type", "blocks must be a list or an array, got str"),
    (lambda t, n: t.insert([1, 2], 5), "wrong_type", "blocks must be a list or an array, got int"),
    (lambda t, n: t.insert([1, 2], [1], 5), "wrong_type", "node must be a TrieNode, got int"),
    (lambda t, n: t.insert([1, 2], [1], RadixTrie().root), "foreign_node", "the node belongs to another trie"),
    (lambda t, n: t.match_prefix([1], RadixTrie().root), "foreign_node", "the node belongs to another trie"),
    (lambda t, n: t.mark_in_use_by(None, 1), "wrong_type", "node must be a TrieNode, got NoneType"),
    (lambda t, n: t.mark_in_use_by(n, "s"), "wrong_type", "seq_id must be an int, got str"),
    (lambda t, n: t.mark_in_use_by(n, 2**63), "out_of_range", "seq_id must be from"),
    (lambda t, n: t.mark_not_in_use_by(n, 3), "not_in_use", "sequence 3 does not use the node"),
    (lambda t, n: t.evict_blocks(1.0), "wrong_type", "desired_num_evicted must be an int, got float"),
    (lambda t, n: t.evict_blocks(None), "wrong_type", "desired_num_evicted must be an int, got NoneType"),
    (lambda t, n: ANY(0), "invalid_page_size", "page_size must be at least 1, got 0"),
    (lambda t, n: ANY(-3), "invalid_page_size", "page_size must be at least 1, got -3"),
    (lambda t, n: ANY(True), "wrong_type", "page_size must be an int, got bool"),
    (lambda t, n: ANY("1"), "wrong_type", "page_size must be an int, got str"),
]


@pytest.mark.parametrize(("call", "code", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(call: Callable[[Any, Any], object], code: str, message: str) -> None:
    trie = RadixTrie(2)
    node = trie.insert([1, 2, 3, 4], ["a", "b"])
    trie.mark_in_use_by(node, 9)
    with pytest.raises(KvatlasError, match=message) as refused:
        call(trie, node)
    assert refused.value.code == code
    assert isinstance(refused.value, InvalidTypeError if code == "wrong_type" else InvalidArgumentError)
    assert trie.pretty_format(print_blocks=True) == ["[1, 2, 3, 4] : ['a', 'b']"]
    assert node.active_seqs == {9}
