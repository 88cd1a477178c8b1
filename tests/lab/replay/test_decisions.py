"""Tests of what another policy would have done with what a router recorded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.lab.replay.decisions import RECORDED, RecordedChoices, about_record, read_decisions
from kvatlas.sim import EngineConfig, FleetConfig


def line(**changes: Any) -> dict[str, Any]:
    row = {
        "t": 10.0,
        "id": 1,
        "model": "m",
        "tokens": 40,
        "block_size": 16,
        "hashes": ["00000000000000aa", "00000000000000bb"],
        "worker": "http://a:1",
        "rank": 0,
        "cached": 16,
        "output": 4,
        "first_token": 0.5,
    }
    return {**row, **changes}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_record_is_read(tmp_path: Path) -> None:
    rows = [
        line(),
        line(t=9.0, worker="http://b:1", output=None, cached=None, first_token=None),
        line(t=12.0, model="other"),
        line(t=13.0, hashes=None),
        line(t=14.0, rank=1),
    ]
    record = read_decisions(write(tmp_path / "r.jsonl", rows))
    assert record.workers == ["http://a:1", "http://a:1#1", "http://b:1"]
    assert record.chosen == [2, 0, 1]
    assert [r.timestamp for r in record.trace.requests] == [0, 1000, 5000]
    assert record.trace.requests[1].hash_ids == (0xAA, 0xBB)
    assert record.trace.block == 16
    assert record.left_out == 2
    text = " ".join(about_record(record))
    assert "50.0 %" not in text
    assert "40.0 % of the prompt tokens were cached" in text
    assert "2 decisions were left out" in text
    assert len(read_decisions(tmp_path / "r.jsonl", model="other").chosen) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no decisions"),
        ("{", "r.jsonl:1: not JSON"),
        ("[]", "r.jsonl:1: must be an object"),
        ("time,tokens", "r.jsonl:1: not JSON: the file looks like CSV"),
        ('{"timestamp": 0, "hash_ids": [1]}', "r.jsonl:1: a request of a trace, not a decision"),
        (json.dumps(line(hashes=["zz"])), "r.jsonl:1: t, tokens"),
        (json.dumps(line(tokens=-1)), "r.jsonl:1: t, tokens"),
    ],
)
def test_what_is_no_record_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(TraceError, match=message):
        read_decisions(tmp_path / "r.jsonl")
    with pytest.raises(TraceError, match="no decisions for model 'x', but for m"):
        read_decisions(write(tmp_path / "s.jsonl", [line()]), model="x")


def test_another_policy_would_have_found_more(tmp_path: Path) -> None:
    # Two conversations in turns, each turn sent to the wrong engine.
    rows, prompts = [], {0: list(range(1, 60)), 1: list(range(1001, 1060))}
    for turn in range(20):
        who = turn % 2
        prompts[who] += range(5000 + 10 * turn, 5004 + 10 * turn)
        names = [f"{name:016x}" for name in prompts[who]]
        worker = f"w{(turn // 2 + who) % 2}"
        rows.append(line(t=float(20 * turn), tokens=16 * len(names) + 3, hashes=names, worker=worker))
    record = read_decisions(write(tmp_path / "r.jsonl", rows))
    fleet = FleetConfig(2, EngineConfig(block_size=16, blocks=1_000, chunk=512))
    config = replace(ReplayConfig(), fleet=fleet, policies=("kvatlas",), check=0.0)
    did, would = replay(record.trace, config, first=RecordedChoices(record.chosen)).policies
    assert did.policy == RECORDED
    assert would.hit_rate > did.hit_rate > 0.5
    assert would.ttft.mean < did.ttft.mean
    assert would.hit_rate == pytest.approx(would.bound_rate, abs=0.05)
