"""SyncPrefixHashTable from Python: what it takes and gives, settings, and what is refused.

What it answers is tested in `trees/crates/trees/src/prefix_table/tests.rs`.
"""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from kvatlas.errors import ConfigError, InvalidArgumentError, InvalidTypeError, KvatlasError
from kvatlas.trees import AllBlocksCleared, BlockRemoved, BlockStored, SyncPrefixHashTable

VARIABLES = {
    "AIBRIX_SYNC_MAX_CONTEXTS": ("max_contexts", 1000),
    "AIBRIX_SYNC_MAX_PREFIXES_PER_CONTEXT": ("max_prefixes_per_context", 10_000),
    "AIBRIX_SYNC_EVICTION_INTERVAL_SECONDS": ("eviction_interval", 60.0),
    "AIBRIX_SYNC_EVICTION_DURATION_MINUTES": ("eviction_duration", 1200.0),
    "AIBRIX_PREFIX_CACHE_BLOCK_SIZE": ("block_size", 16),
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def table() -> Iterator[SyncPrefixHashTable]:
    with SyncPrefixHashTable(block_size=4, seed=7) as table:
        yield table
    assert table.closed


def tokens(*values: int) -> list[bytes]:
    """Blocks of 4 bytes, each a token."""
    return [value.to_bytes(4, "big") for value in values]


def store(table: SyncPrefixHashTable, pod: str, names: list[int], *values: int, parent: int | None = None) -> int:
    event = BlockStored(
        block_hashes=names, model_name="m", source_pod=pod, parent_block_hash=parent, tokens=tokens(*values)
    )
    return table.process_block_stored(event)


def remove(table: SyncPrefixHashTable, pod: str, *names: int) -> None:
    table.process_block_removed(BlockRemoved(block_hashes=names, model_name="m", source_pod=pod))


def match(table: SyncPrefixHashTable, *values: int, ready: Any = None) -> dict[str, int]:
    return table.match_prefix("m", -1, b"".join(tokens(*values)), ready)[0]


def test_hashes_are_those_of_the_contract(table: SyncPrefixHashTable) -> None:
    hashes = table.get_prefix_hashes(b"aaaabbbbcc")
    first = xxhash.xxh64_intdigest((7).to_bytes(8, "little") + b"aaaa", 7)
    second = xxhash.xxh64_intdigest(first.to_bytes(8, "little") + b"bbbb", 7)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [first, second]
    assert table.get_prefix_hashes(b"").tolist() == table.get_prefix_hashes(b"abc").tolist() == []


def test_token_ids_are_big_endian_numbers(table: SyncPrefixHashTable) -> None:
    ids = [1, 256, 2**32 - 1, 70_000]
    raw = b"".join(tokens(*ids))
    kinds: list[Any] = [ids, np.array(ids), np.array(ids, dtype=np.uint32), bytearray(raw), memoryview(raw)]
    for given in kinds:
        assert table.get_prefix_hashes(given).tolist() == table.get_prefix_hashes(raw).tolist()


def test_the_answer_has_all_hashes_and_only_ready_pods(table: SyncPrefixHashTable) -> None:
    store(table, "a", [1, 2], 1, 2)
    store(table, "b", [1], 1)
    prompt = b"".join(tokens(1, 2, 3, 4))
    percents, hashes = table.match_prefix("m", -1, prompt, ["a", "b", "unknown"])
    assert percents == {"a": 50, "b": 25}
    assert hashes.tolist() == table.get_prefix_hashes(prompt).tolist()
    assert table.match_prefix("m", -1, prompt, {"b": object()})[0] == {"b": 25}
    assert table.match_prefix("m", -1, prompt, [])[0] == {}
    assert table.match_prefix("m", -1, prompt)[0] == {"a": 50, "b": 25}
    for model, lora in [("m", 0), ("other", -1)]:
        percents, hashes = table.match_prefix(model, lora, prompt)
        assert (percents, len(hashes)) == ({}, 4)
    assert table.match_prefix("m", -1, b"")[0] == {}


def test_events_say_what_pods_hold(table: SyncPrefixHashTable) -> None:
    assert store(table, "a", [1, 2], 1, 2) == 2
    assert store(table, "a", [3], 3, parent=2) == 1
    assert store(table, "b", [9], 9, parent=8) == 0
    assert match(table, 1, 2, 3) == {"a": 100}
    remove(table, "a", 3, 4)
    assert match(table, 1, 2, 3) == {"a": 66}
    table.add_prefix("m", 3, "a", table.get_prefix_hashes([1]))
    stats = table.stats()
    assert (stats["prefixes"], stats["contexts"], stats["pods"]) == (3, 2, 2)
    assert (stats["unknown_parents"], stats["unknown_removals"]) == (1, 1)
    table.process_all_blocks_cleared(AllBlocksCleared(source_pod="a", model_name="m", lora_id=3))
    assert table.stats()["contexts"] == 1
    table.process_all_blocks_cleared(AllBlocksCleared(source_pod="a"))
    assert table.stats()["contexts"] == 0


@pytest.mark.parametrize("name", [-3, 2**64 - 1, b"a digest", b""])
def test_names_are_ints_and_bytes(table: SyncPrefixHashTable, name: int | bytes) -> None:
    def stored(names: list[int | bytes], value: int, parent: int | bytes | None) -> int:
        return table.process_block_stored(
            BlockStored(
                block_hashes=names, model_name="m", source_pod="a", parent_block_hash=parent, tokens=tokens(value)
            )
        )

    assert stored([name], 1, None) == stored([5], 2, name) == 1
    assert match(table, 1, 2) == {"a": 100}
    table.process_block_removed(BlockRemoved(block_hashes=[name], model_name="m", source_pod="a"))
    assert match(table, 1, 2) == {}


def test_blocks_of_the_engine_may_be_multiples_and_nothing_else() -> None:
    table = SyncPrefixHashTable()  # 16 bytes, 4 tokens
    event = BlockStored(block_hashes=[1, 2], model_name="m", source_pod="a", tokens=[list(range(16)), bytes(64)])
    assert table.process_block_stored(event) == 2
    assert table.match_prefix("m", -1, list(range(16)))[0] == {"a": 100}
    assert table.match_prefix("m", -1, list(range(12)) + [0] * 4)[0] == {"a": 75}
    assert table.stats()["prefixes"] == 8
    table.process_block_removed(BlockRemoved(block_hashes=[1], model_name="m", source_pod="a"))
    assert table.stats()["prefixes"] == 4
    large = SyncPrefixHashTable(block_size=128)
    with pytest.raises(InvalidArgumentError, match=r"block 1 of the event has 64 bytes .* of this table have 128"):
        large.process_block_stored(
            BlockStored(block_hashes=[1, 2], model_name="m", source_pod="a", tokens=[bytes(128), bytes(64)])
        )
    assert large.stats()["contexts"] == 0


def test_seeds_are_random_unless_given() -> None:
    seeds = {SyncPrefixHashTable().seed for _ in range(10)}
    assert len(seeds) == 10
    assert SyncPrefixHashTable(seed=2**64 - 1).seed == 2**64 - 1


def test_a_table_in_a_thread_of_its_own_evicts_and_ends() -> None:
    def threads() -> int:
        found = 0
        for task in Path("/proc/self/task").iterdir():
            try:
                found += "kvatlas-evict" in (task / "comm").read_text()
            except OSError:
                continue
        return found

    def wait(until: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not until():
            assert time.monotonic() < end
            time.sleep(0.01)

    before = threads()
    tables = [SyncPrefixHashTable(block_size=4, eviction_interval=0.02, eviction_duration=0.2) for _ in range(3)]
    wait(lambda: threads() == before + 3)  # a thread names itself when it first runs
    store(tables[0], "a", [1], 1)
    wait(lambda: not tables[0].stats()["prefixes"])
    assert tables[0].stats()["evicted_by_age"] == 1
    wait(lambda: not tables[0].stats()["contexts"])
    tables[1].close()
    wait(lambda: threads() == before + 2)
    gone = weakref.ref(tables[2])
    tables.clear()
    gc.collect()
    assert gone() is None
    wait(lambda: threads() == before)


def test_variables_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SyncPrefixHashTable()
    assert {name: getattr(table, name) for name, _ in VARIABLES.values()} == dict(VARIABLES.values())
    for number, name in enumerate(VARIABLES, 2):
        monkeypatch.setenv(name, str(number))
    table = SyncPrefixHashTable(max_contexts=9)
    assert [getattr(table, name) for name, _ in VARIABLES.values()] == [9, 3, 4.0, 300.0, 6]


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "", "9" * 30])
def test_a_bad_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f'{name} must be a whole number from 1 to .*, got "{value}"'):
        SyncPrefixHashTable()


class Half:
    """An event that lacks what an event must have."""

    model_name, lora_id = "m", -1


def stored(**changed: Any) -> BlockStored:
    fields: dict[str, Any] = {"block_hashes": [1], "model_name": "m", "source_pod": "a", "tokens": [b"1234"]}
    return BlockStored(**(fields | changed))


ANY: Any = SyncPrefixHashTable  # so that calls of the wrong types can be written down
REFUSED: list[tuple[Callable[[Any], object], str, str]] = [
    (
        lambda t: t.process_block_stored(stored(block_hashes=[1, 2])),
        "length_mismatch",
        "2 block hashes but tokens of 1",
    ),
    (lambda t: t.process_block_stored(stored(tokens=[])), "length_mismatch", "1 block hashes but tokens of 0 blocks"),
    (lambda t: t.process_block_stored(stored(tokens=[b""])), "token_bytes", "block 0 of the event has 0 bytes"),
    (lambda t: t.process_block_stored(stored(tokens=[b"123"])), "token_bytes", "block 0 of the event has 3 bytes"),
    (lambda t: t.process_block_stored(stored(tokens=b"1234")), "wrong_type", "tokens must be"),
    (
        lambda t: t.process_block_stored(stored(tokens="1234")),
        "wrong_type",
        "tokens must be a list of one item for each",
    ),
    (lambda t: t.process_block_stored(stored(tokens=None)), "wrong_type", "tokens must be a list of one item"),
    (lambda t: t.process_block_stored(stored(tokens=[[2**32]])), "out_of_range", r"tokens\[0\] must be from 0 to"),
    (lambda t: t.process_block_stored(stored(tokens=[1.5])), "wrong_type", "tokens must be"),
    (
        lambda t: t.process_block_stored(stored(block_hashes=["x"])),
        "wrong_type",
        r"block_hashes\[0\] must be an int or b",
    ),
    (
        lambda t: t.process_block_stored(stored(parent_block_hash=1.0)),
        "wrong_type",
        "parent_block_hash must be an int or",
    ),
    (lambda t: t.process_block_stored(stored(model_name=None)), "wrong_type", "model_name must be a str, got NoneType"),
    (lambda t: t.process_block_stored(stored(source_pod=b"a")), "wrong_type", "source_pod must be a str, got bytes"),
    (lambda t: t.process_block_stored(stored(lora_id="x")), "wrong_type", "lora_id must be an int, got str"),
    (lambda t: t.process_block_stored(stored(lora_id=2**63)), "out_of_range", "lora_id must be from"),
    (lambda t: t.process_block_stored(Half()), "wrong_type", "an event must have a field source_pod"),
    (lambda t: t.process_block_stored({}), "wrong_type", "an event must have a field model_name; dict has none"),
    (lambda t: t.process_block_removed(None), "wrong_type", "an event must have a field model_name; NoneType"),
    (lambda t: t.process_block_removed(AllBlocksCleared(source_pod="a")), "wrong_type", "model_name must be a str"),
    (lambda t: t.process_all_blocks_cleared(None), "wrong_type", "an event must have a field source_pod"),
    (lambda t: t.match_prefix(1, -1, b""), "wrong_type", "model must be a str, got int"),
    (lambda t: t.match_prefix("m", None, b""), "wrong_type", "lora_id must be an int, got NoneType"),
    (lambda t: t.match_prefix("m", -1, "text"), "wrong_type", "tokens must be"),
    (lambda t: t.match_prefix("m", -1, [-1]), "out_of_range", r"tokens\[0\] must be from 0 to"),
    (lambda t: t.match_prefix("m", -1, b"", "a"), "wrong_type", "ready_pods must be names of pods or None, got str"),
    (lambda t: t.match_prefix("m", -1, b"", 5), "wrong_type", "ready_pods must be names of pods or None, got int"),
    (lambda t: t.match_prefix("m", -1, b"", [5]), "wrong_type", "ready_pods must be a str, got int"),
    (lambda t: t.get_prefix_hashes(np.zeros(3)), "wrong_type", "tokens must be"),
    (lambda t: t.add_prefix("m", -1, "a", [1.0]), "wrong_type", r"content_hashes\[0\] must be an int"),
    (lambda t: t.add_prefix("m", -1, None, [1]), "wrong_type", "pod must be a str, got NoneType"),
    (lambda t: t.remove_prefix("m", -1, 1), "wrong_type", "pod must be a str, got int"),
    (lambda t: ANY(max_contexts=0), "invalid_config", "max_contexts must be a whole number from 1"),
    (lambda t: ANY(max_contexts=-1), "invalid_config", "max_contexts must be .* got -1"),
    (lambda t: ANY(max_prefixes_per_context=0), "invalid_config", "max_prefixes_per_context must be"),
    (lambda t: ANY(block_size=2**40), "invalid_config", "block_size must be .* got 1099511627776"),
    (lambda t: ANY(block_size=4.0), "wrong_type", "block_size must be an int, got float"),
    (lambda t: ANY(eviction_interval=0), "invalid_config", "eviction_interval must be more than 0"),
    (lambda t: ANY(eviction_interval=float("nan")), "invalid_config", "eviction_interval must be"),
    (lambda t: ANY(eviction_duration=-1), "invalid_config", "eviction_duration must be more than 0"),
    (lambda t: ANY(eviction_duration=1e12), "invalid_config", "eviction_duration must be"),
    (
        lambda t: ANY(eviction_duration="1"),
        "wrong_type",
        "eviction_duration must be a number of seconds",
    ),
    (lambda t: ANY(seed=-1), "invalid_config", r"seed must be from 0 to 2\*\*64 - 1, got -1"),
]


@pytest.mark.parametrize(("call", "code", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(table: SyncPrefixHashTable, call: Callable[[Any], object], code: str, message: str) -> None:
    store(table, "a", [1], 1)
    before = table.stats()
    with pytest.raises(KvatlasError, match=message) as refused:
        call(table)
    assert refused.value.code == code
    assert isinstance(refused.value, InvalidTypeError if code == "wrong_type" else InvalidArgumentError)
    assert (table.stats(), match(table, 1)) == (before, {"a": 100})


def test_long_calls_leave_other_threads_room() -> None:
    table = SyncPrefixHashTable(max_prefixes_per_context=1 << 20)
    prompt = bytes(64 << 20)
    turns = 0
    working = threading.Thread(target=table.match_prefix, args=("m", -1, prompt))
    working.start()
    while working.is_alive():
        turns += 1
    working.join()
    assert turns > 100
