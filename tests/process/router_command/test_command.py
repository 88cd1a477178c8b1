"""`kvatlas router`: as a process, from its first line to its last."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.engine import Engine, vllm

from kvatlas.cli.router import router as command
from kvatlas.sim.server import Fleet

PATIENCE = 60.0


class Process:
    """A router, and what it has written."""

    def __init__(self, *args: object) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "router", "--bind", "127.0.0.1:0", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=dict(os.environ),
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches."""
        deadline = time.monotonic() + PATIENCE
        while True:
            over = not self._reader.is_alive()
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert not over, self.lines
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def end(self) -> int:
        """The exit status."""
        status = self.process.wait(PATIENCE)
        self._reader.join()
        assert not any("Traceback" in line for line in self.lines), self.lines
        return status


@contextmanager
def routing(*args: object) -> Iterator[Process]:
    made = Process(*args)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def complete(url: str, tokens: int) -> int:
    body = {"model": "sim-model", "prompt": [1, 2, 3], "max_tokens": tokens}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def test_from_the_first_line_to_the_last(fleet: Fleet, tokenizer: Path) -> None:
    engines = [flag for url in fleet.urls for flag in ("--engine", url)]
    with routing(*engines, "--tokenizer", tokenizer) as process:
        url = process.wait_for(r"routes at (http://\S+)/v1")[1]
        process.wait_for(r"policy: kvatlas; engines' events are followed; tokenizer")
        process.wait_for("ready: 2 workers, 2 streams")
        assert complete(url, 3) == 3
        # A long answer is under way when it is told to stop: it is finished.
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(complete(url, 10_000)))
        asking.start()
        deadline = time.monotonic() + PATIENCE
        while not any(state.running for engine in fleet.engines for state in engine.state()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0, process.lines
        asking.join()
        assert answers == [10_000]
        assert any("stopped" in line for line in process.lines)


def test_json_logs_and_no_events(fleet: Fleet) -> None:
    with routing("--engine", fleet.urls[0], "--log", "json", "--no-events", "--tokenizer", "none") as process:
        process.wait_for("ready")
        process.process.send_signal(signal.SIGINT)
        assert process.end() == 130
        assert all(json.loads(line)["level"] for line in process.lines), process.lines
        assert not any("publishes no" in line for line in process.lines)


def test_hints_are_those_of_a_router() -> None:
    silent = vllm() | {"/kv_event_sources": 404}
    with Engine(silent) as engine, routing("--engine", engine.url) as process:
        process.wait_for(r"--replay-port 5757 to `kvatlas router` \(or events_port")
        process.wait_for(r" WARN no configured engine's events can be followed: engines are chosen by load only$")
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0
    assert not any("kvatlas serve" in line or "can be used" in line for line in process.lines)


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--policy", "kvatlsa"], 2, "no policy 'kvatlsa': did you mean 'kvatlas'"),
        (["--policy", "gone:Policy"], 2, "cannot load policy 'gone:Policy'"),
        (["--policy", "round-robin", "--policy-option", "x=1"], 2, "has no option"),
        (["--tokenizer", "./gone"], 1, "there is no ./gone"),
        (["--engine", "nonsense"], 2, "an engine is http://HOST:PORT"),
        (["--record", "/nowhere/at/all"], 1, "cannot record decisions in /nowhere/at/all"),
    ],
)
def test_what_cannot_be_used(flags: list[str], status: int, words: str) -> None:
    done = CliRunner().invoke(command, ["--bind", "127.0.0.1:0", *flags])
    assert done.exit_code == status, done.output
    assert words in done.output
