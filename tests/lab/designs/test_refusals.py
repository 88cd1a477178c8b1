"""Tests of what rungs refuse: with which error and code, and without a trace."""

from collections.abc import Callable
from typing import Any

import pytest

from kvatlas.errors import InvalidArgumentError, InvalidTypeError, KvatlasError, UnknownParentError
from kvatlas.lab.designs import RUNGS, PositionalIndexer, open_rung
from kvatlas.types import Layout, Search

ONE: Any = {"block_hashes": [1], "content_hashes": [10]}

REFUSED: list[tuple[Callable[[Any], object], str]] = [
    (lambda i: i.store(7, **ONE), "wrong_type"),
    (lambda i: i.store("x", block_hashes=[1]), "missing_argument"),
    (lambda i: i.store("x", **ONE, tokens=list(range(16))), "conflicting_arguments"),
    (lambda i: i.store("x", block_hashes=[1, 2], content_hashes=[1]), "length_mismatch"),
    (lambda i: i.remove(7, block_hashes=[1]), "wrong_type"),
    (lambda i: i.clear(None), "wrong_type"),
    (lambda i: i.drop(1), "wrong_type"),
]
NATIVE: list[tuple[Callable[[Any], object], str]] = [
    (lambda i: i.store("\udcff", **ONE), "invalid_string"),
    (lambda i: i.store("x", **ONE, parent=1.0), "wrong_type"),
    (lambda i: i.store("x", **ONE, lora="a"), "conflicting_arguments"),
    (lambda i: i.store("x", block_hashes=[1], tokens=[1]), "token_count"),
    (lambda i: i.store("x", block_hashes=[1], content_hashes=[-1]), "out_of_range"),
    (lambda i: i.store("x", block_hashes="12", content_hashes=[1]), "wrong_type"),
    (lambda i: i.remove("w", block_hashes=[1, "2"]), "wrong_type"),
    (lambda i: i.find(content_hashes={1: 2}), "wrong_type"),
    (lambda i: i.find(content_hashes=[2**64]), "out_of_range"),
    (lambda i: i.find(tokens=[2**32]), "out_of_range"),
    (lambda i: i.find(content_hashes=[10]).best(-1), "out_of_range"),
    (lambda i: i.find(content_hashes=[10]).best(1, "w"), "wrong_type"),
]


@pytest.mark.parametrize("name", RUNGS)
def test_refused_without_a_trace(name: str) -> None:
    index = open_rung(name)
    index.store("w", **ONE)
    index.flush()
    before = index.applied, index.stats(), index.workers()
    for call, code in REFUSED + (NATIVE if name != "dict-python" else []):
        with pytest.raises(KvatlasError) as refused:
            call(index)
        assert refused.value.code == code
        assert isinstance(refused.value, InvalidTypeError if code == "wrong_type" else InvalidArgumentError)
    assert {**before[1], "messages": 0} == {**index.stats(), "messages": 0}
    assert before[::2] == (index.applied, index.workers())


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda: open_rung("ladder"), "unknown_rung", 'unknown rung "ladder"'),
        (lambda: open_rung("dict-strict-strict"), "unknown_rung", "dict-actor"),
        (lambda: open_rung(7), "wrong_type", "name must be a str, got int"),  # type: ignore[arg-type]
        (lambda: open_rung("radix", strict=1), "wrong_type", "strict must be True or False"),  # type: ignore[arg-type]
        (lambda: open_rung("dict", event_threads=0), "out_of_range", "event_threads must be at least 1, got 0"),
        (lambda: open_rung("dict", event_threads=2**80), "out_of_range", "event_threads must be from 1 to 1024"),
        (lambda: open_rung("dict-python", jump_size=-1), "out_of_range", "jump_size must be at least 1, got -1"),
        (lambda: open_rung("radix-sharded", shards=1025), "out_of_range", "shards must be from 1 to 1024, got 1025"),
        (lambda: open_rung("grouped", group_size=2**33), "out_of_range", "group_size must be from 1 to 4294967295"),
        (lambda: open_rung("dict", block_size=0), "invalid_block_size", "block_size must be at least 1, got 0"),
        (lambda: PositionalIndexer(jump_size=0), "out_of_range", "jump_size must be at least 1, got 0"),
        (lambda: PositionalIndexer(search="leap"), "unknown_search", 'it is one of "jump", "bisect"'),  # type: ignore[arg-type]
        (lambda: PositionalIndexer(layout="tree"), "unknown_layout", 'it is one of "map", "arrays"'),  # type: ignore[arg-type]
    ],
)
def test_opening_is_refused_in_words(call: Callable[[], object], code: str, words: str) -> None:
    with pytest.raises(KvatlasError) as refused:
        call()
    assert refused.value.code == code
    assert words in str(refused.value)


def test_a_rung_that_cannot_be_strict_says_so() -> None:
    never = [name for name, rung in RUNGS.items() if rung.strict_deviations is None]
    for name in never:
        with pytest.raises(InvalidArgumentError) as refused:
            open_rung(name, strict=True)
        assert refused.value.code == "never_strict"


def test_what_a_design_refuses_is_counted() -> None:
    index = open_rung("radix-concurrent")
    index.store("w", block_hashes=[2], content_hashes=[20], parent=1)
    assert index.stats()["refused"] == 1
    assert index.workers() == {}


@pytest.mark.parametrize("layout", ["map", "arrays"])
@pytest.mark.parametrize("search", ["jump", "bisect"])
def test_positional_indexer_has_the_vendors_operations(search: Search, layout: Layout) -> None:
    index = PositionalIndexer(jump_size=4, search=search, layout=layout, strict=True)
    index.apply_stored("a", [(71, 1), (b"72", 2)])
    index.apply_stored("a", [(73, 3)], b"72")
    index.apply_stored("b", ((name, content) for name, content in [(71, 1), (-72, 2)]))
    assert index.find_matches([1, 2, 3, 4]) == {"a": 3, "b": 2}
    index.apply_removed("a", [b"72", 99])
    assert index.find_matches([1, 2, 3]) == {"a": 1, "b": 2}
    index.apply_cleared("b")
    index.apply_cleared("nobody")
    assert index.find_matches([1, 2, 3]) == {"a": 1}
    index.remove_worker("a")
    assert index.find_matches([1]) == {}
    assert index.stats() == {
        "workers": 1,
        "blocks": 0,
        "entries": 0,
        "refused": 0,
        "unknown_removals": 1,
        "messages": 0,
    }
    assert repr(index) == f"PositionalIndexer(jump_size=4, search='{search}', layout='{layout}', strict=True)"


def test_positional_indexer_names_an_unknown_parent() -> None:
    index = PositionalIndexer()
    index.apply_stored("a", [(71, 1)])
    with pytest.raises(UnknownParentError, match='worker "b" does not hold block 71') as refused:
        index.apply_stored("b", [(72, 2)], parent=71)
    assert refused.value.code == "unknown_parent"
    assert isinstance(refused.value, InvalidArgumentError | LookupError)
    assert index.find_matches([1, 2]) == {"a": 1}
    assert (index.stats()["workers"], index.stats()["refused"]) == (1, 1)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (5, "blocks must be a list of (block hash, content hash), got int"),
        ([5], "blocks[0] must be a pair (block hash, content hash), got int"),
        ([(1, 2), (1, 2, 3)], "blocks[1] must be a pair (block hash, content hash), got tuple"),
        ([(1.5, 2)], "blocks[0][0] must be an int or bytes, got float"),
        ([(1, None)], "blocks[0][1] must be an int, got NoneType"),
        ([(1, 2**64)], f"blocks[0][1] must be from 0 to 2**64 - 1, got {2**64}"),
    ],
)
def test_positional_indexer_refuses_malformed_blocks(blocks: Any, words: str) -> None:
    index = PositionalIndexer()
    with pytest.raises(KvatlasError) as refused:
        index.apply_stored("a", blocks)
    assert str(refused.value) == words
    assert index.stats()["workers"] == 0
