"""Whatever form prompts were recorded in, the trace that is made of them shares the same blocks."""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.lab.traffic import Conversion, read_traffic
from kvatlas.sim import EngineConfig, FleetConfig
from kvatlas.sim.trace import read_trace, write_trace

SIZE = 16


@dataclass
class Ask:
    """A request of a conversation: the content of each of its blocks; the last is not full."""

    at: int  # seconds
    chat: int
    turn: int
    blocks: list[int]
    before: int | None  # the request before it in its conversation

    @property
    def length(self) -> int:
        return SIZE * len(self.blocks) - 5

    @property
    def full(self) -> list[int]:
        return self.blocks[:-1]


def asks(seed: int) -> list[Ask]:
    """Conversations that begin alike and grow; the last, partial block of a prompt is replaced by what follows."""
    rng = random.Random(seed)
    fresh = itertools.count(1_000)
    made: list[Ask] = []
    chats: list[list[int]] = [[] for _ in range(5)]
    last: list[int | None] = [None] * 5
    for number in range(60):
        chat = rng.randrange(5)
        common = list(range(rng.choice([3, 3, 6])))
        before = chats[chat][:-1] if chats[chat] else common
        blocks = [*before, *(next(fresh) for _ in range(rng.randint(1, 5)))]
        made.append(Ask(10 * number + rng.randint(0, 5), chat, number, blocks, last[chat]))
        chats[chat], last[chat] = blocks, number
    return made


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def mooncake(made: list[Ask]) -> list[Any]:
    rows = [
        {"timestamp": 1_000 * each.at, "input_length": each.length, "output_length": 3, "hash_ids": each.blocks}
        for each in made
    ]
    return [{"block_size": SIZE}, *rows]


def increments(made: list[Ask], *, tokens: bool, by_parent: bool) -> list[Any]:
    rows = []
    for number, each in enumerate(made):
        kept = shared(each.blocks, made[each.before].blocks) if each.before is not None else 0
        row: dict[str, Any] = {"timestamp": 1_000 * each.at, "input_length": each.length, "output_length": 3}
        row["id"] = number
        row |= {"parent": each.before} if by_parent else {"session_id": f"chat {each.chat}"}
        row["prefix_len"] = kept * SIZE if tokens else kept
        rows.append({**row, "hash_ids": each.blocks[kept:]})
    return [{"block_size": SIZE}, *rows]


def bailian(made: list[Ask]) -> list[Any]:
    return [
        {
            "chat_id": number,
            "parent_chat_id": -1 if each.before is None else each.before,
            "timestamp": each.at + 0.25,
            "input_length": each.length,
            "output_length": 3,
            "hash_ids": each.blocks,
        }
        for number, each in enumerate(made)
    ]


def dynamo(made: list[Ask]) -> list[Any]:
    rows = []
    for each in made:
        # Its hashes are of a block and all before it.
        hashes = [hash(tuple(each.blocks[: n + 1])) & (2**64 - 1) for n in range(len(each.blocks))]
        replayed = {"trace_block_size": SIZE, "input_length": each.length, "input_sequence_hashes": hashes}
        request = {"request_id": "x", "output_tokens": 3, "request_received_ms": 1_000 * each.at, "total_time_ms": 1}
        row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1_000 * each.at}
        rows.append(row | {"request": request | {"replay": replayed}, "agent_context": {"session_id": str(each.chat)}})
    return rows


def spans(made: list[Ask]) -> list[Any]:
    rows = []
    for number, each in enumerate(made):
        # A token of a prompt is four characters here, which is what the spans say they are.
        text = "".join(f"{block:064d}" for block in each.blocks)[: 4 * each.length]
        attributes = {"gen_ai.usage.input_tokens": each.length, "gen_ai.usage.output_tokens": 3, "gen_ai.prompt": text}
        start = f"2026-11-28T00:{each.at // 60:02}:{each.at % 60:02}Z"
        rows.append({"name": "x", "start_time": start, "context": {"span_id": f"{number}"}, "attributes": attributes})
    return rows


def test_requests_in_one_array_and_in_any_order(tmp_path: Path) -> None:
    rows = mooncake(asks(1))
    (tmp_path / "x.json").write_text(json.dumps([rows[0], *rows[:0:-1]]))
    (tmp_path / "y.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one, other = (read_traffic([tmp_path / name]).trace for name in ("x.json", "y.jsonl"))
    assert (one.block, len(one.requests)) == (SIZE, 60)
    assert sorted(one.requests, key=str) == sorted(other.requests, key=str)
    assert [request.timestamp for request in one.requests] == sorted(request.timestamp for request in other.requests)


FORMS: dict[str, Callable[[list[Ask]], list[Any]]] = {
    "trace": mooncake,
    "blocks of a session": lambda made: increments(made, tokens=False, by_parent=False),
    "tokens of a session": lambda made: increments(made, tokens=True, by_parent=False),
    "blocks of a parent": lambda made: increments(made, tokens=False, by_parent=True),
    "bailian": bailian,
    "dynamo": dynamo,
    "otel": spans,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_blocks_are_shared_in_every_form(tmp_path: Path, form: str, seed: int) -> None:
    made = asks(seed)
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FORMS[form](made)))
    trace = read_traffic([tmp_path / "x.jsonl"], Conversion(block=SIZE if form == "otel" else None)).trace
    assert trace.block == SIZE
    write_trace(tmp_path / "t.jsonl", trace.requests, trace.block)
    again = read_trace(tmp_path / "t.jsonl")
    assert again.requests == trace.requests
    rows = again.requests
    assert [row.input_length for row in rows] == [each.length for each in made]
    for (one, a), (other, b) in itertools.combinations(zip(made, rows, strict=True), 2):
        expected = shared(one.full, other.full)
        assert shared(a.hash_ids[: len(one.full)], b.hash_ids[: len(other.full)]) == expected
    # And so it is replayed: one engine with much room finds what an earlier prompt had.
    fleet = FleetConfig(1, EngineConfig(SIZE, 10_000, chunk=512))
    config = ReplayConfig(fleet=fleet, policies=("round-robin",), check=0.0, loop="open")
    hits = [max((shared(each.full, old.full) for old in made[:n]), default=0) for n, each in enumerate(made)]
    assert replay(again, config).policies[0].hit_tokens == SIZE * sum(hits)


def sessions(made: list[Ask], *, delta: bool) -> list[dict[str, Any]]:
    """The conversations as recorded sessions, each with ids of its own."""
    found = []
    for chat in range(5):
        requests = []
        before: list[int] = []
        for each in (each for each in made if each.chat == chat):
            kept = shared(each.blocks, before) if delta else 0
            row = {"t": each.at, "in": each.length, "out": 3, "api_time": 1, "hash_ids": each.blocks[kept:]}
            requests.append(row | ({"prefix_len": kept} if delta else {}))
            before = each.blocks
        found.append({"id": f"chat-{chat}", "models": ["m"], "block_size": SIZE, "requests": requests})
    return found


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("form", ["a line each", "an array", "indented", "below a name", "a file each"])
@pytest.mark.parametrize("scope", ["local", "global"])
def test_several_recorded_sessions_in_one_file(tmp_path: Path, form: str, delta: bool, scope: str) -> None:
    made = asks(7)
    data = [{**each, "hash_id_scope": scope} for each in sessions(made, delta=delta)]
    if form == "a file each":
        for each in data:
            (tmp_path / f"{each['id']}.json").write_text(json.dumps(each))
    else:
        text = {
            "a line each": "\n".join(map(json.dumps, data)),
            "an array": json.dumps(data),
            "indented": "\n".join(json.dumps(each, indent=2) for each in data),
            "below a name": json.dumps({"version": 1, "traces": data}, indent=1),
        }[form]
        (tmp_path / "all.json").write_text(text)
    traffic = read_traffic([tmp_path if form == "a file each" else tmp_path / "all.json"])
    assert traffic.format == "claude-code"
    rows = {(row.session_id, row.input_length): row.hash_ids for row in traffic.trace.requests}
    assert {session for session, _ in rows} == {f"chat-{n}" for n in range(5)}
    assert len(traffic.trace.requests) == len(made)
    for one, other in itertools.combinations(made, 2):
        a, b = (rows[f"chat-{each.chat}", each.length][: len(each.full)] for each in (one, other))
        if one.chat == other.chat or scope == "global":
            assert shared(a, b) >= shared(one.full, other.full)
        else:
            assert shared(a, b) == 0
