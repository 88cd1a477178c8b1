"""Traces whose rows have the new blocks of a prompt only."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.sim.trace import read_trace


def row(length: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": ids} | more


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


FIRST = row(1_100, [1, 2, 3], session_id="a", id="first")


@pytest.mark.parametrize("prefix", [2, 1_024, 1_100])
@pytest.mark.parametrize("link", [{"session_id": "a"}, {"parent": "first"}, {"parent_id": "first", "session_id": "b"}])
def test_blocks_or_tokens_of_the_prompt_before(tmp_path: Path, prefix: int, link: dict[str, str]) -> None:
    path = write(tmp_path / "t.jsonl", FIRST, row(2_000, [7, 8], prefix_len=prefix, **link))
    assert read_trace(path).requests[1].hash_ids == (1, 2, 7, 8)


def test_sessions_go_on_with_what_they_had_last(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        row(1_000, [1, 2], session_id="a", prefix_len=0),
        row(1_000, [5, 6], session_id="b", prefix_len=0),
        row(1_500, [3], session_id="a", prefix_len=2),
        row(600, [9], session_id="a", prefix_len=1),
        row(512, [], session_id="b", prefix_len=1),
        row(600, [4], prefix_len=None) | {"hash_ids": [4, 9]},
    )
    found = [request.hash_ids for request in read_trace(path).requests]
    assert found == [(1, 2), (5, 6), (1, 2, 3), (1, 9), (5,), (4, 9)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            row(3_000, [7], prefix_len=2, session_id="a"),
            "prefix_len 2 and 1 hash_ids for input_length 3000, which has 6",
        ),
        (row(4_000, [7], prefix_len=7, session_id="a"), "prefix_len 7 is more than the 3 blocks of 512"),
        (row(1_000, [7], prefix_len=1, session_id="z"), "no request before it is 'z'"),
        (row(1_000, [7], prefix_len=1), "prefix_len needs a session_id, or a parent"),
        (row(1_000, [7], prefix_len=-1, session_id="a"), "prefix_len must be a whole number from 0, not -1"),
        (row(1_000, [7], prefix_len="1", session_id="a"), "prefix_len must be a whole number from 0, not '1'"),
    ],
)
def test_what_cannot_be_spelled_out_is_refused(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.jsonl", FIRST, bad)
    with pytest.raises(TraceError, match=f"line 2: .*{message}"):
        read_trace(path)
    assert read_trace(path, skip_bad=True).skipped == 1
