"""Dynamo's request trace, made into a trace."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.traffic import Conversion, read_traffic
from kvatlas.sim.dependencies import Dependency

SCHEMA = "dynamo.request.trace.v1"
HOUR = 1_764_000_000_000


def row(at: int, took: int, hashes: list[int], length: int, **context: str) -> dict[str, Any]:
    """A record of a request that came at `at` ms, with its duration in ms."""
    replay = {"trace_block_size": 16, "input_length": length, "input_sequence_hashes": hashes}
    request = {"request_id": f"r{at}", "model": "m", "output_tokens": 5, "replay": replay}
    request |= {"request_received_ms": HOUR + at, "total_time_ms": took}
    made = {"schema": SCHEMA, "event_type": "request_end", "event_time_unix_ms": HOUR + at + took, "request": request}
    return made | ({"agent_context": context} if context else {})


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_requests_of_sessions_wait_for_each_other(tmp_path: Path) -> None:
    tool = {"schema": SCHEMA, "event_type": "tool_end", "event_time_unix_ms": HOUR}
    path = write(
        tmp_path / "t.jsonl",
        row(3_000, 500, [1, 2, 7, 8], 60, session_id="a"),
        row(0, 1_000, [1, 2, 3], 40, session_id="a"),
        tool,
        {"timestamp": HOUR, "event": row(1_500, 250, [9], 16, session_id="b", parent_session_id="a")},
        row(100, 5, [-1], 16),
    )
    traffic = read_traffic([path])
    assert traffic.format == "dynamo"
    assert traffic.trace.block == 16
    first, alone, child, joined = traffic.trace.requests
    assert [each.timestamp for each in traffic.trace.requests] == [0, 100, 1_500, 3_000]
    assert (first.hash_ids, alone.hash_ids) == ((1, 2, 3), (2**64 - 1,))
    assert (first.input_length, first.output_length) == (40, 5)
    assert child.after == (Dependency(first.id or 0, 500),)
    assert set(joined.after) == {Dependency(first.id or 0, 2_000), Dependency(child.id or 0, 1_250)}
    assert traffic.assumptions == ["1 records of other kinds than request_end were left out."]


def test_older_records_name_programs(tmp_path: Path) -> None:
    rows = [
        row(0, 100, [1], 16, session_id="run", program_id="run:planner"),
        row(500, 100, [1, 5], 32, session_id="run", program_id="run:reader", parent_program_id="run:planner"),
        row(900, 100, [1, 2], 32, session_id="run", program_id="run:planner"),
    ]
    path = write(tmp_path / "t.jsonl", *(each | {"schema": "dynamo.agent.trace.v1"} for each in rows))
    first, reader, second = read_traffic([path]).trace.requests
    assert [each.session_id for each in (first, reader, second)] == ["run:planner", "run:reader", "run:planner"]
    assert reader.after == (Dependency(first.id or 0, 400),)
    assert set(second.after) == {Dependency(first.id or 0, 800), Dependency(reader.id or 0, 300)}


def test_segments_are_read_together(tmp_path: Path) -> None:
    for number in range(2):
        text = json.dumps(row(1_000 * number, 5, [1, number + 2], 32)) + "\n"
        (tmp_path / f"t.{number:06}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert len(read_traffic([tmp_path]).trace.requests) == 2
    assert len(read_traffic(sorted(tmp_path.iterdir())).trace.requests) == 2


def test_a_record_without_its_beginning_begins_before_its_end(tmp_path: Path) -> None:
    first, second = row(0, 1_000, [1], 16), row(5_000, 400, [1, 2], 32)
    for each in (first, second):
        del each["request"]["request_received_ms"]
    del second["request"]["total_time_ms"]
    times = [each.timestamp for each in read_traffic([write(tmp_path / "t.jsonl", first, second)]).trace.requests]
    assert times == [0, 5_400]


def changed(**more: Any) -> dict[str, Any]:
    made = row(0, 5, [1, 2], 32)
    made["request"] |= more
    return made


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (changed(replay=None), r"t\.jsonl, line 2: no 'replay': Dynamo records hashes where"),
        (
            changed(replay={"trace_block_size": 0}),
            "line 2: request.replay.trace_block_size must be a whole number from 1",
        ),
        (
            changed(replay={"trace_block_size": 32, "input_length": 32, "input_sequence_hashes": [1]}),
            "trace_block_size is 32, before it was 16: --model takes the requests of one model",
        ),
        (changed(replay={"trace_block_size": 16, "input_length": "x"}), "request.replay.input_length must be a whole"),
        (
            changed(replay={"trace_block_size": 16, "input_length": 64, "input_sequence_hashes": [1]}),
            "1 request.replay.input_sequence_hashes for input_length 64 in blocks of 16",
        ),
        (changed(request_received_ms=-5), "request.request_received_ms must be a whole number from 0"),
        ({"schema": SCHEMA, "event_type": "request_end"}, "no 'request'"),
        ({"schema": "dynamo.request.trace.v9"}, "no record of the schema dynamo.request.trace.v1"),
        ([], "no record of the schema"),
    ],
)
def test_a_malformed_record_is_named_or_left_out(tmp_path: Path, bad: Any, message: str) -> None:
    path = write(tmp_path / "t.jsonl", row(0, 5, [1], 16), bad, row(9, 5, [1, 2], 32))
    with pytest.raises(TraceError, match=message):
        read_traffic([path])
    trace = read_traffic([path], Conversion(skip_bad=True)).trace
    assert (len(trace.requests), trace.skipped) == (2, 1)


def test_one_model_of_several(tmp_path: Path) -> None:
    other = changed(model="n", replay={"trace_block_size": 64, "input_length": 64, "input_sequence_hashes": [5]})
    path = write(tmp_path / "t.jsonl", row(0, 5, [1], 16), other)
    assert read_traffic([path], Conversion(model="n")).trace.block == 64
