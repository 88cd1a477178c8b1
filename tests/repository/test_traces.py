"""Recorded traces: sources are documented, files are known by their content, and the agents' sample is made."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tools import claude_code_sample
from tools.traces import SOURCES, Source, check, main, make_agents, table

from kvatlas.lab.replay.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
MADE = "5e337a8b9a50d421c42d105218abe17db06074d6351c654f7b049d7a1223e0b1"


def test_the_page_has_the_table_of_sources() -> None:
    assert table() in (ROOT / "docs/lab/traces.md").read_text(encoding="utf-8"), "python -m tools.traces list prints it"


def test_every_recorded_workload_has_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVATLAS_TRACES", str(tmp_path))
    known = {source.file for source in SOURCES}
    for workload in WORKLOADS.values():
        if "recorded" in workload.text:
            with pytest.raises(Exception, match=r"jsonl") as raised:
                workload.make(0)
            assert any(file in str(raised.value) for file in known), workload.name


def test_files_are_known_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b'{"timestamp": 0}\n'
    source = Source("agents/some.jsonl.gz", hashlib.sha256(text).hexdigest(), "https://x", "1", "a", "MIT", "as it is")
    monkeypatch.setattr("tools.traces.SOURCES", (source,))
    packed, plain = tmp_path / "some.jsonl.gz", tmp_path / "renamed.jsonl"
    packed.write_bytes(gzip.compress(text, mtime=7))
    plain.write_bytes(text)
    assert check([tmp_path]) == 0
    assert capsys.readouterr().out.count("agents/some.jsonl.gz, as it should be") == 2
    packed.write_bytes(gzip.compress(text + b"\n"))
    assert check([packed]) == 1
    assert f"not {source.sha256}" in capsys.readouterr().err
    (tmp_path / "other.jsonl").write_bytes(b"{}")
    assert check([tmp_path / "other.jsonl"]) == 1
    assert "not a trace of the list" in capsys.readouterr().err
    packed.write_bytes(b"not gzip")
    assert check([packed, tmp_path / "gone.jsonl"]) == 1
    assert capsys.readouterr().err.count("cannot be read") == 2
    (tmp_path / "empty").mkdir()
    assert main(["check", str(tmp_path / "empty")]) == 1


def recordings(folder: Path) -> Path:
    """Recordings in the published form, generated: sub-agents, pauses, blocks of another size."""
    rng = random.Random(5)

    def request(at: float, blocks: list[int], tokens: int) -> dict[str, Any]:
        while len(blocks) * 64 < tokens:
            blocks.append(rng.randrange(10**6))
        own: dict[str, Any] = {"t": at, "in": tokens, "out": rng.randrange(1, 400)}
        own |= {"hash_ids": blocks[: tokens // 64 + 1], "think_time": rng.choice([None, rng.random() * 30])}
        own["input_types"] = rng.choice([["tool_result"], ["text"], None])
        if rng.random() < 0.7:
            own["api_time"] = rng.random() * 20
        return own

    for number in range(40):
        at, blocks, tokens = 0.0, list[int](), rng.randrange(500, 3_000)
        requests: list[dict[str, Any]] = []
        for _ in range(rng.randrange(2, 9)):
            requests.append(request(at, blocks, tokens))
            tokens += rng.randrange(3_000)
            at += rng.random() * 200 * (20 if rng.random() < 0.1 else 1)
            for _ in range(rng.randrange(1, 4) if number % 4 == 0 and rng.random() < 0.5 else 0):
                own = list[int]()
                sub = [request(turn * 5.0, own, 700 + 600 * turn) for turn in range(rng.randrange(1, 4))]
                length = rng.random() * 9_000 if rng.random() < 0.7 else None
                models = rng.choice([["m1"], ["m2"], []])
                subagent = {"t": at - rng.random(), "requests": sub, "models": models, "duration_ms": length}
                requests.append(subagent | {"tool_tokens": rng.choice([128, 500])})
        session = {"models": rng.choice([["m1"], ["m2"], []]), "tool_tokens": rng.choice([600, 1_200])}
        session |= {"block_size": 64 if number % 13 else 32, "requests": requests}
        (folder / f"trace_{number:04}.json").write_text(json.dumps(session))
    return folder


def test_the_sample_of_agents_is_made_of_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hash belongs to the sample that the program of the published figures made of these recordings."""
    out = tmp_path / "made" / "sample.jsonl.gz"
    assert make_agents(out, recordings(tmp_path), expected=MADE) == 0
    assert "the trace of the figures" in capsys.readouterr().out
    rows = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert [row["id"] for row in rows] == list(range(len(rows)))
    assert {row["kind"] for row in rows} == {"start", "tool", "user"}
    assert any("parent" in row for row in rows)
    # Of other recordings something else is made, which is said.
    (tmp_path / "trace_0003.json").unlink()
    assert make_agents(out, tmp_path, expected=MADE) == 1
    assert "of 39 recordings, and not the trace of the figures" in capsys.readouterr().err


def test_large_recordings_are_left_out_and_others_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_agents(tmp_path / "out.jsonl", tmp_path) == 1
    assert "no .json file" in capsys.readouterr().err
    good = {"models": [], "block_size": 64, "tool_tokens": 0, "requests": []}
    (tmp_path / "a.json").write_text(json.dumps(good) + " " * claude_code_sample.LARGE_FILE)
    (tmp_path / "b.json").write_text(json.dumps(good))
    assert list(claude_code_sample.read(tmp_path)) == ["b"]
    (tmp_path / "c.json").write_text("{}")
    assert make_agents(tmp_path / "out.jsonl", tmp_path) == 1
    assert "c.json: not a recorded session" in capsys.readouterr().err


def test_recordings_are_fetched_with_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "origin"
    (origin / "traces").mkdir(parents=True)
    recordings(origin / "traces")
    git = ["git", "-C", str(origin), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    source = Source("a", MADE, str(origin), "HEAD", "traces", "MIT", "")
    monkeypatch.setattr("tools.traces.AGENTS", source)
    assert make_agents(tmp_path / "out.jsonl", None, expected=MADE) == 0
    monkeypatch.setattr("tools.traces.AGENTS", Source("a", MADE, str(tmp_path / "gone"), "HEAD", "", "MIT", ""))
    assert make_agents(tmp_path / "out.jsonl", None, expected=MADE) == 1
