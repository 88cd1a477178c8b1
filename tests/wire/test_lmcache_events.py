"""Recorded events of LMCache's connector: what an engine can load by them is what LMCache finds."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvatlas import BlockIndex
from kvatlas.wire import Batch, Event, Removed, Stored, decode_batch, encode_batch

RECORDING = Path(__file__).parents[1] / "recordings" / "lmcache" / "events-0.5.6.json.gz"
STREAMS: list[Any] = json.loads(gzip.decompress(RECORDING.read_bytes()))["streams"]
PLAIN, SALTED, OWN = range(3)
BLOCK, CHUNK = 16, 256


def tokens_of(parts: list[list[int]]) -> list[int]:
    return [(seed * 1_000_003 + at * 7_919) % 200_000 for seed, count in parts for at in range(count)]


def batch(*events: Event) -> Batch:
    return decode_batch(encode_batch(list(events), timestamp=1.0))


def connectors(event: dict[str, Any]) -> Stored | Removed:
    """An event as the connector made it, with its tokens."""
    names = event["block_hashes"]
    if event["type"] == "BlockRemoved":
        return Removed(names, medium=event["medium"])
    tokens = [(first + at * 7_919) % 200_000 for first, count in event["token_ids"] for at in range(count)]
    return Stored(names, parent=event["parent_block_hash"], tokens=tokens, block_size=event["block_size"], medium="CPU")


@dataclass
class Engine:
    """An engine whose device has a prompt only while LMCache stores it."""

    prompts: list[dict[str, Any]]
    index: BlockIndex = field(default_factory=lambda: BlockIndex(block_size=BLOCK))
    refused: dict[str, int] = field(default_factory=dict)

    def compute(self, prompt: dict[str, Any], events: Sequence[Event]) -> None:
        tokens, salt = tokens_of(prompt["parts"]), prompt["salt"] or None
        full = len(tokens) // BLOCK
        names = [hash((salt, *tokens[: end * BLOCK])) & (1 << 62) - 1 for end in range(1, full + 1)]
        stored = Stored(names, parent=None, tokens=tokens[: full * BLOCK], block_size=BLOCK, salt=salt)
        self.apply(stored, *events, Removed(names))

    def apply(self, *events: Event) -> None:
        for reason, count in self.index.apply("engine", batch(*events)).refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def chunks(self, prompt: dict[str, Any]) -> int:
        """Chunks of a prompt that the engine can load."""
        found = self.index.loading.find(tokens=tokens_of(prompt["parts"]), salt=prompt["salt"] or None)
        segments = [segment for each in found for segment in each.segments]
        assert [segment[:3] for segment in segments] in ([], [(0, segments[-1].end, "cpu")] if segments else [])
        end = segments[-1].end if segments else 0
        assert end * BLOCK % CHUNK == 0
        assert [(each.device, each.host, each.used) for each in found] in ([], [(0, 0, end)])
        return end * BLOCK // CHUNK


def played(engine: Engine, stream: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Play a stream at an engine. After each step: the step, and for each prompt the chunks found here."""
    for step in stream["steps"]:
        events = [connectors(event) for event in step["events"]]
        if step["did"] == "store":
            engine.compute(stream["prompts"][step["prompt"]], events)
        else:
            engine.apply(*events)
        yield step, [engine.chunks(prompt) for prompt in stream["prompts"]]


@pytest.mark.parametrize("number", [PLAIN, OWN])
def test_without_salts_all_that_is_announced_counts(number: int) -> None:
    stream = STREAMS[number]
    hashes: dict[tuple[int | None, tuple[Any, ...]], int] = {}
    announced: set[int] = set()
    asked = held = found = 0
    is_whole = True
    engine = Engine(stream["prompts"])
    for step, got in played(engine, stream):
        is_whole = is_whole and step["did"] not in ("lose", "restart")
        for event in map(connectors, step["events"]):
            if isinstance(event, Removed):
                announced.difference_update(map(int, event.block_hashes))
                continue
            (name,) = map(int, event.block_hashes)
            hashes[None if event.parent is None else int(event.parent), tuple(event.tokens)] = name
            announced.add(name)
        for prompt, chunks, truth in zip(stream["prompts"], got, step["found"], strict=True):
            tokens, wanted, parent = tokens_of(prompt["parts"]), 0, None
            for start in range(0, len(tokens) - CHUNK + 1, CHUNK):
                parent = hashes.get((parent, tuple(tokens[start : start + CHUNK])))
                if parent not in announced:
                    break
                wanted += 1
            assert chunks == wanted
            # A connector that follows its server learns what goes. After a loss it has withdrawn more than went.
            if stream["follows"]:
                assert chunks <= truth
                assert chunks == truth or not is_whole
            asked, held, found = asked + 1, held + chunks, found + truth
    assert (asked, engine.refused) == (600, {})
    assert held > 500


def test_with_salts_a_chunk_counts_for_the_prompt_that_the_device_has() -> None:
    """LMCache announces a chunk once, whatever salts it has it under: the others are not known, and do not count."""
    stream = STREAMS[SALTED]
    asked = held = found = 0
    engine = Engine(stream["prompts"])
    for step, got in played(engine, stream):
        for chunks, truth in zip(got, step["found"], strict=True):
            assert chunks <= truth
            asked, held, found = asked + 1, held + chunks, found + truth
    assert asked > 1_000
    assert held > 0.4 * found
    assert engine.refused.keys() <= {"hidden_salt"}


PROMPT: dict[str, Any] = {"parts": [[7, 1024]], "salt": ""}
TOKENS = tokens_of(PROMPT["parts"])


def chunk(number: int, *, parent: int | None = None, **more: Any) -> Stored:
    """A chunk of the prompt, whose name is its number. By default it continues the chunk before."""
    before = parent if parent is not None else (number - 1 or None)
    tokens = TOKENS[(number - 1) * CHUNK : number * CHUNK]
    return Stored([number], parent=before, tokens=tokens, block_size=CHUNK, medium="CPU", **more)


def on_device(salt: str | None = None, lora: str | None = None, blocks: int = 64) -> Stored:
    names = [hash((salt, lora, end)) & (1 << 62) - 1 for end in range(blocks)]
    return Stored(names, parent=None, tokens=TOKENS[: blocks * BLOCK], block_size=BLOCK, salt=salt, lora=lora)


def loadable(index: BlockIndex, **space: Any) -> list[tuple[int, int, str]]:
    """The segments of the prompt that the engine has or can load."""
    found = index.loading.find(tokens=TOKENS, **space)
    return [(segment.start, segment.end, segment.tier) for each in found for segment in each.segments]


@pytest.mark.parametrize("space", [{"salt": "tenant"}, {"lora": "adapter"}])
def test_a_chunk_that_is_known_from_a_salted_prompt_alone_is_not_read_without_the_salt(space: dict[str, Any]) -> None:
    index = BlockIndex(block_size=BLOCK)
    device = on_device(**space)
    assert index.apply("e", batch(device, chunk(1), Removed(device.block_hashes))).refused == {}
    assert (loadable(index), loadable(index, **space)) == ([], [(0, 16, "cpu")])
    # The device has none of it any more, and so nothing says whose it is.
    assert index.apply("e", batch(chunk(2))).refused == {"hidden_salt": 1}
    # It has it with and without: either may be what LMCache has.
    assert index.apply("e", batch(on_device(), device, chunk(2), chunk(3))).refused == {"hidden_salt": 2}
    assert (
        index.apply("e", batch(Removed(on_device().block_hashes), chunk(2), Removed(device.block_hashes))).refused == {}
    )
    assert (loadable(index), loadable(index, **space)) == ([], [(0, 32, "cpu")])
    # Of chunk 1 the one with the salt is known, which the one without does not continue.
    plain = on_device()
    assert index.apply("e", batch(plain, chunk(3), Removed(plain.block_hashes))).refused == {}
    assert (loadable(index), loadable(index, **space)) == ([], [(0, 32, "cpu")])
    assert (
        index.apply("e", batch(Removed([1], medium="CPU"), plain, chunk(1), Removed(plain.block_hashes))).refused == {}
    )
    assert (loadable(index), loadable(index, **space)) == ([(0, 16, "cpu")], [])


def test_salts_before_the_first_chunk_are_not_kept_for_long() -> None:
    """Streams without chunks pay for their first salted blocks only; with chunks, they count from the first on."""
    device = on_device("tenant")
    for others, refused in ((4000, {}), (4200, {"hidden_salt": 1})):
        index = BlockIndex(block_size=BLOCK)
        for number in range(others):
            name = 10_000 + number
            other = Stored([name], parent=None, tokens=TOKENS[:BLOCK], block_size=BLOCK, salt=f"other-{number}")
            index.apply("e", batch(other, Removed([name])))
        assert index.apply("e", batch(device, chunk(1))).refused == refused
        # From the first chunk on, they are kept.
        again = on_device("tenant")
        assert index.apply("e", batch(again, Removed([1], medium="CPU"), chunk(1))).refused == {}


def test_the_first_salt_takes_back_what_the_device_does_not_have() -> None:
    index = BlockIndex(block_size=BLOCK)
    assert index.apply("e", batch(chunk(1), chunk(2), chunk(3))).refused == {}
    assert loadable(index) == [(0, 48, "cpu")]
    other = Stored([5], parent=None, tokens=TOKENS[-BLOCK:], block_size=BLOCK, salt="tenant")
    short = on_device(blocks=32)
    index.apply("e", batch(short, other))
    assert loadable(index) == [(0, 32, "gpu")]
    index.apply("e", batch(Removed(short.block_hashes)))
    assert loadable(index) == [(0, 32, "cpu")]


def test_a_salt_that_an_event_has_is_the_chunks() -> None:
    index = BlockIndex(block_size=BLOCK)
    index.apply("e", batch(chunk(1, salt="tenant")))
    assert (loadable(index), loadable(index, salt="tenant")) == ([], [(0, 16, "cpu")])


def test_what_is_no_chunk_stays_refused() -> None:
    index = BlockIndex(block_size=BLOCK)
    tokens = TOKENS[:40]
    for size, medium, count, reason in [
        (40, "CPU", 40, "block_size"),
        (32, "GPU", 32, "block_size"),
        (32, "CPU", 31, "token_count"),
        (8, "CPU", 8, "partial_block"),
    ]:
        event = Stored([1], parent=None, tokens=tokens[:count], block_size=size, medium=medium)
        before = BlockIndex(block_size=BLOCK)
        assert before.apply("e", batch(on_device(), event)).refused == {reason: 1}
        assert before.loading.find(tokens=TOKENS) == []
    # An engine whose own blocks have another size.
    first = Stored([1], parent=None, tokens=TOKENS[:32], block_size=32)
    again = Stored([1], parent=None, tokens=TOKENS[:32], block_size=32, medium="CPU")
    assert index.apply("e", batch(first, again)).refused == {"block_size": 2}


def test_the_device_ends_within_a_chunk_and_a_hole_ends_what_is_loaded() -> None:
    index = BlockIndex(block_size=BLOCK)
    index.apply("e", batch(on_device(blocks=20), chunk(1), chunk(2), chunk(3), chunk(4)))
    assert loadable(index) == [(0, 20, "gpu"), (20, 64, "cpu")]
    index.apply("e", batch(Removed([3], medium="CPU")))
    assert loadable(index) == [(0, 20, "gpu"), (20, 32, "cpu")]
    # LMCache looks a prompt up from its first chunk on, which the device has as well.
    index.apply("e", batch(Removed([1], medium="CPU")))
    assert loadable(index) == [(0, 20, "gpu")]
    index.apply("e", batch(chunk(1), chunk(3), chunk(3), Removed([3], medium="CPU")))
    assert loadable(index) == [(0, 20, "gpu"), (20, 32, "cpu")]


def test_chunks_in_a_pool() -> None:
    """A lifetime ends the chunks of connectors that announce no removals."""
    index = BlockIndex(block_size=BLOCK)
    index.loading.add_pool("node", members=["e", "f"], tier="cpu", lifetime=10.0)
    index.loading.set_time(0.0)
    index.apply("e", batch(on_device(blocks=1), chunk(1), chunk(2)))
    (segments,) = (it.segments for it in index.loading.find(tokens=TOKENS) if it.worker == "f")
    assert segments[0][:4] == (0, 32, "cpu", "node")
    index.loading.set_time(11.0)
    assert loadable(index) == [(0, 1, "gpu")]
