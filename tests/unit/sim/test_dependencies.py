"""Traces that say which requests wait for which."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.sim import read_trace, write_trace
from kvatlas.sim.dependencies import Dependency

HEAD = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local"}


def agentic(name: str, session: str, ids: list[int], *after: dict[str, Any], **fields: Any) -> dict[str, Any]:
    row = {"request_id": name, "play_id": session, "session_id": session, "input_length": 64 * len(ids)}
    return {**row, "output_length": 5, "hash_ids": ids, "dependencies": list(after), **fields}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain(name: int, **fields: Any) -> dict[str, Any]:
    row = {"timestamp": 10 * name, "input_length": 512, "output_length": 1, "hash_ids": [name]}
    return {**row, "session_id": "s", "id": name, **fields}


def test_rows_say_what_they_wait_for_and_survive_writing(tmp_path: Path) -> None:
    rows = (plain(0, after=[]), plain(1, after=[0], delay=700), plain(2))
    trace = read_trace(write(tmp_path / "t.jsonl", *rows))
    assert trace.closed
    assert [line.after for line in trace.requests] == [(), (Dependency(0, 700),), ()]
    write_trace(tmp_path / "again.jsonl", trace.requests)
    assert read_trace(tmp_path / "again.jsonl").requests == trace.requests


def test_a_trace_may_be_compressed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", plain(0))
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(packed).requests == read_trace(path).requests
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(TraceError, match=r"cannot read .*t\.jsonl\.gz"):
        read_trace(packed)


def test_an_agentic_trace_has_blocks_and_scopes_of_its_own(tmp_path: Path) -> None:
    spawn = {"request_id": "a", "trigger": "dispatch", "delay_ms": 5, "relation": "spawn"}
    join = {"request_id": "b", "trigger": "completion", "delay_ms": 9, "relation": "join"}
    rows = (
        agentic("c", "x", [1, 2, 3], join),
        agentic("a", "x", [1, 2], not_before_ms=40),
        agentic("b", "y", [1, 2], spawn, not_before_ms=None),
    )
    trace = read_trace(write(tmp_path / "t.jsonl", HEAD, *rows))
    assert (trace.block, trace.timed, trace.closed) == (64, False, True)
    c, a, b = trace.requests
    assert c.hash_ids[:2] == a.hash_ids
    assert not set(a.hash_ids) & set(b.hash_ids)  # of another play
    assert (a.timestamp, b.after, c.after) == (40, (Dependency("a", 5, True),), (Dependency("b", 9),))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((plain(0), plain(1, after=[7])), "waits for 7, which is not in the trace"),
        ((plain(0, after=[1]), plain(1, after=[0])), "waits for requests that wait for it"),
        ((plain(0), plain(0)), None),
        ((plain(0), plain(0), plain(1, after=[0])), "two requests are called 0"),
        ((plain(0, after=3),), "after must be a list"),
        ((plain(0, after=[0.5]),), "after must name requests by their ids"),
        (({**HEAD, "version": 1},), "version 2, is read"),
        (({**HEAD, "hash_id_scope": "some"},), "hash_id_scope must be"),
        (({**HEAD, "block_size": 0},), "block_size must be from 1"),
        ((HEAD, agentic("a", "x", [1], {"trigger": "completion"})), "without 'request_id'"),
        ((HEAD, agentic("a", "x", [1], {"request_id": "a", "trigger": "some"})), "trigger must be"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, rows: tuple[dict[str, Any], ...], message: str | None) -> None:
    path = write(tmp_path / "t.jsonl", *rows)
    if message is None:
        read_trace(path)  # no request waits: names do not matter
        return
    with pytest.raises(TraceError, match=message):
        read_trace(path)
