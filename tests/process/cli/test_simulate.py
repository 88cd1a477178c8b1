"""`kvatlas simulate`."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Run

pytest.importorskip("zmq")
pytest.importorskip("aiohttp")

from kvatlas.sim.server import Faults

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `kvatlas simulate ARGS` in an empty directory; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "kvatlas.cli", "simulate", *map(str, args)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, encoding="utf-8", cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ready(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return list(json.loads(line)["engines"])


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def test_engines_serve_until_ctrl_c(start: Start, tmp_path: Path) -> None:
    process = start("--engines", 2, "--json", "--ranks", 2, "--engines-file", "e.toml", "--cache-tokens", 1600)
    engines = ready(process)
    assert [engine["name"] for engine in engines] == ["engine-0", "engine-1"]
    for engine in engines:
        sources = get(engine["url"] + "/kv_event_sources")
        assert [sources[rank]["endpoint"].replace("*", "127.0.0.1") for rank in "01"] == engine["endpoints"]
        assert [sources[rank]["replay_endpoint"].replace("*", "127.0.0.1") for rank in "01"] == engine[
            "replay_endpoints"
        ]
    urls = [entry["url"] for entry in tomllib.loads((tmp_path / "e.toml").read_text())["engine"]]
    assert urls == [engine["url"] for engine in engines]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    for engine in engines:
        assert not Path(f"/proc/{engine['pid']}/cmdline").exists()


def test_sigterm_ends_all(start: Start) -> None:
    process = start("--engines", 1, "--json")
    [engine] = ready(process)
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert not Path(f"/proc/{engine['pid']}/cmdline").exists()


def test_a_table_for_people(start: Start) -> None:
    process = start(
        "--engines", 30, "--processes", 1, "--cache-tokens", 1600, "--replay-socket", "none", "--dialect", "sglang"
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "Serving until Ctrl-C" not in lines[-1]:
        line = process.stdout.readline()
        assert line, "".join(lines)
        lines.append(line)
    text = "".join(lines)
    assert "engine-19" in text
    assert "engine-20" not in text
    assert "and 10 more" in text
    assert "none" in text


def test_an_engine_that_ends_is_told(start: Start) -> None:
    process = start("--engines", 2, "--json")
    engines = ready(process)
    os.kill(engines[1]["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == "Error: engine-1 exited; stopping all others.\n"
    assert not Path(f"/proc/{engines[0]['pid']}/cmdline").exists()


def test_flags_reach_the_engines(start: Start) -> None:
    flags = ("--drop", 0.25, "--replay-socket-fault", "silent", "--pause-seconds", 3, "--poison-type", 0.5)
    http = ("--http-die-after", 0.125, "--role", "prefill")
    more = (
        "--dialect",
        "sglang",
        "--block-size",
        32,
        "--cache-tokens",
        77 * 32,
        "--model",
        "m",
        "--lora",
        "a",
        "--topic",
        "kv",
    )
    [engine] = ready(start("--engines", 1, "--json", *flags, *http, *more))
    faults = get(engine["url"] + "/sim/faults")
    usual = asdict(Faults())
    assert {name: value for name, value in faults.items() if value != usual[name]} == {
        "drop": 0.25,
        "http_die_after": 0.125,
        "replay_socket": "silent",
        "pause_seconds": 3,
        "poison_type": 0.5,
    }
    info = get(engine["url"] + "/server_info")
    assert (info["page_size"], info["max_total_num_tokens"], info["model_path"]) == (32, 77 * 32, "m")
    assert info["disaggregation_mode"] == "prefill"
    assert info["kv_events"]["topic"] == "kv"
    assert [model["id"] for model in get(engine["url"] + "/v1/models")["data"]] == ["m", "a"]


def test_the_tokenizer_is_written(start: Start, tmp_path: Path) -> None:
    ready(start("--engines", 1, "--json", "--tokenizer-dir", "toy"))
    assert "<|user|>" in (tmp_path / "toy" / "tokenizer.json").read_text()


@pytest.mark.parametrize("traffic", ["trace", "generated"])
def test_engines_feed_themselves(start: Start, tmp_path: Path, traffic: str) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    flags = ("--trace", "t.jsonl") if traffic == "trace" else ("--request-rate", 50)
    engines = ready(start("--engines", 2, "--json", "--speed", 50, *flags))
    deadline = time.monotonic() + 60
    while not any(get(engine["url"] + "/sim/state")["ranks"][0]["held"] for engine in engines):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--drp", 1], "Did you mean '--drop'"),
        (["--drop", 2], "'--drop': 2.0 is not in the range 0<=x<=1"),
        (["--dialect", "tgi"], "'--dialect'"),
        (["--engines", 0], "'--engines'"),
        (["--trace", "none.jsonl"], "none.jsonl"),
        (["--trace", "none.jsonl", "--request-rate", 1], "--trace and --request-rate are mutually exclusive"),
        (["--idle", "--request-rate", 1], "--request-rate and --idle are mutually exclusive"),
        (["--skip-bad"], "--skip-bad requires --trace"),
        (["--loop", "closed"], "--loop requires --trace"),
        (["--hash-bytes", "--dialect", "sglang"], "--hash-bytes requires --dialect vllm"),
        (["--replay-socket", "none", "--replay-socket-fault", "closed"], "--replay-socket-fault"),
        (["--engines", 2, "--processes", 3], "--processes 3 is more than --engines 2"),
        (["--engines-file", "."], "is a directory"),
        (["--engines-file", "no/where.toml"], "there is no directory"),
        (["--host", "my machine"], "must be an IP address"),
        (["--host", "203.0.113.1"], "203.0.113.1"),
        (["--http-port", 65535], "leaves no room"),
        (["--lora", "sim-model"], "another name"),
    ],
)
def test_what_cannot_be_used_is_named(run: Run, args: list[object], words: str) -> None:
    done = run("simulate", *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in " ".join(done.stderr.split())


def test_help_says_what_it_is(run: Run) -> None:
    text = " ".join(run("simulate", "--help").stdout.split())
    assert "POST /sim/faults" in text
    assert "kvatlas serve --engines-file" in text


def test_a_trace_from_standard_input(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
    command = [
        sys.executable,
        "-m",
        "kvatlas.cli",
        "simulate",
        "--engines",
        "2",
        "--json",
        "--speed",
        "50",
        "--trace",
        "-",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(row) + "\n")
        process.stdin.close()
        try:
            engines = ready(process)
            deadline = time.monotonic() + 60
            while not any(get(engine["url"] + "/sim/state")["ranks"][0]["held"] for engine in engines):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            process.terminate()


def test_an_error_in_standard_input_names_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvatlas.cli", "simulate", "--trace", "-"]
    done = subprocess.run(command, input="{}\n", capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: standard input, line 1: no 'timestamp'")
