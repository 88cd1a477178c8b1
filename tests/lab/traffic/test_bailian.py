"""Bailian's usage traces, made into traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.traffic import Conversion, read_traffic
from kvatlas.sim.dependencies import Dependency


def row(chat: int, parent: int, at: float, ids: list[int], **more: Any) -> dict[str, Any]:
    made = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": 16 * len(ids) - 3}
    return made | {"output_length": 9, "type": "text", "turn": 1, "hash_ids": ids} | more


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_chats_have_sixteen_tokens_an_id_and_times_in_seconds(tmp_path: Path) -> None:
    rows = [row(0, -1, 61.114, [5, 6]), row(7, -1, 62, [9]), row(3, 0, 75.5, [5, 6, 8]), row(4, 99, 80, [1])]
    traffic = read_traffic([write(tmp_path / "b.jsonl", *rows)])
    assert (traffic.format, traffic.trace.block) == ("bailian", 16)
    assert [each.timestamp for each in traffic.trace.requests] == [0, 886, 14_386, 18_886]
    assert [each.session_id for each in traffic.trace.requests] == ["0", "7", "0", "4"]
    assert traffic.trace.requests[2].hash_ids == (5, 6, 8)
    assert not traffic.trace.closed
    assert "an open loop" in traffic.assumptions[0]


def test_chats_that_say_how_long_they_waited_make_a_closed_loop(tmp_path: Path) -> None:
    rows = [row(0, -1, 0, [5]), row(1, 0, 20, [5, 6], time_to_parent_chat=12.5)]
    traffic = read_traffic([write(tmp_path / "b.jsonl", *rows)])
    assert traffic.trace.requests[1].after == (Dependency("0", 12_500),)
    assert traffic.assumptions == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": "soon"}, r"b\.jsonl, line 2: timestamp: 'soon' is no time"),
        ({"timestamp": None}, "line 2: no 'timestamp'"),
        ({"input_length": 0}, "input_length must be a whole number from 1"),
        ({"output_length": 1.5}, "output_length must be a whole number from 0"),
        ({"hash_ids": "1 2"}, "hash_ids must be a list of whole numbers"),
        ({"hash_ids": [1]}, "1 hash_ids for input_length 45 in blocks of 16: --block-size says their size"),
        ({"chat_id": 0}, "two chats have the chat_id 0"),
    ],
)
def test_a_malformed_chat_is_named_or_left_out(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "b.jsonl", row(0, -1, 0, [5]), row(1, -1, 1, [1, 2, 3]) | change, row(2, -1, 2, [5]))
    with pytest.raises(TraceError, match=message):
        read_traffic([path])
    trace = read_traffic([path], Conversion(skip_bad=True)).trace
    assert (len(trace.requests), trace.skipped) == (2, 1)


def test_other_blocks_and_other_units(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", *(row(n, -1, 2_000 * n, [5, 6]) | {"input_length": 100} for n in range(20)))
    with pytest.raises(TraceError, match=r"a request every 2,000 s: are its times in milliseconds.*--time-unit ms"):
        read_traffic([path], Conversion(block=64))
    trace = read_traffic([path], Conversion(block=64, unit="ms")).trace
    assert (trace.block, trace.requests[-1].timestamp) == (64, 38_000)
