"""`kvatlas serve`: as a process, from its first line to its last."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.command import Run
from tests.support.engine import Engine, vllm

from kvatlas.client import Client
from kvatlas.errors import UnreachableError
from kvatlas.service.config.schema import all_keys

PATIENCE = 60.0


class Process:
    """A service, and what it has written."""

    def __init__(self, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvatlas.cli", "serve", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=os.environ | (env or {}),
            cwd=cwd,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
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

    @property
    def url(self) -> str:
        return self.wait_for(r"is listening at (https?://\S+)")[1]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """The exit status."""
        status = self._process.wait(PATIENCE)
        self._reader.join()
        assert not any("Traceback" in line for line in self.lines), self.lines
        return status

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reader.join()


@contextlib.contextmanager
def serving(*args: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Iterator[Process]:
    process = Process("--bind", "127.0.0.1:0", *args, env=env, cwd=cwd)
    try:
        yield process
    finally:
        process.kill()


def test_what_is_not_registered_is_logged() -> None:
    silent = vllm() | {"/kv_event_sources": {}}
    by_hand = "w=tcp://127.0.0.1:9,model=m,block_size=16"
    with Engine(silent) as engine:
        flags = ("--engine", f"silent={engine.url}", "--settle-timeout", "0.1")
        with serving(*flags) as process, Client(process.url) as client:
            process.wait_for(r" WARN none of the configured engines can be used")
            assert not client.ready()
            process.signal(signal.SIGTERM)
            assert process.end() == 0
        assert not any(" INFO ready: " in line for line in process.lines)
        with serving(*flags, "--stream", by_hand) as process:
            process.wait_for(r" INFO ready: 1 worker, 1 stream; not registered: silent \(no_events\)$")
            process.signal(signal.SIGTERM)
            assert process.end() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_from_start_to_end(number: signal.Signals, status: int) -> None:
    with serving() as process, Client(process.url) as client:
        assert client.health()
        client.wait_ready(PATIENCE)
        process.wait_for(r" INFO ready: 0 workers, 0 streams")
        process.signal(number)
        assert process.end() == status
        with pytest.raises(UnreachableError):
            client.health()
    assert any("engines: none yet: POST /register, or start with --engine URL" in line for line in process.lines)
    assert re.search(r" INFO stopped$", process.lines[-1])


def begin(client: socket.socket, length: int) -> None:
    """A request whose body has still to come; the service has begun with it, as it says that it waits for that."""
    head = f"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n".encode())
    said = b""
    while b"\r\n\r\n" not in said:
        more = client.recv(1000)
        assert more, said
        said += more
    assert said.startswith(b"HTTP/1.1 100 ")


def test_requests_under_way_are_finished() -> None:
    with serving() as process:
        url = httpx.URL(process.url)
        with socket.create_connection((url.host, url.port or 0), PATIENCE) as slow:
            body = b'{"model_name":"m","token_ids":[1]}'
            begin(slow, len(body))
            slow.sendall(body[:5])
            process.signal(signal.SIGTERM)
            process.wait_for("stopping: finishing open requests")
            slow.sendall(body[5:])
            assert slow.recv(1000).startswith(b"HTTP/1.1 404 ")
        assert process.end() == 0


@pytest.mark.parametrize(("second", "status"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_the_second_signal_stops_at_once(second: signal.Signals, status: int) -> None:
    with serving("--drain-timeout", "1h") as process:
        url = httpx.URL(process.url)
        with socket.create_connection((url.host, url.port or 0), PATIENCE) as slow:
            begin(slow, 1000)
            process.signal(signal.SIGTERM)
            process.wait_for("stopping: finishing open requests")
            process.signal(second)
            assert process.end() == status
    assert process.lines[-1] == "stopped immediately"


def test_requests_that_take_too_long_are_cut_off() -> None:
    with serving("--drain-timeout", "100ms") as process:
        url = httpx.URL(process.url)
        with socket.create_connection((url.host, url.port or 0), PATIENCE) as slow:
            begin(slow, 1000)
            process.signal(signal.SIGTERM)
            assert process.end() == 1
    assert "some requests were cut off" in process.lines[-1]


def test_logs_for_programs() -> None:
    with serving("--log", "json", "--stream", "w=tcp://127.0.0.1:9,model=m,block_size=16") as process:
        process.wait_for('"message": *"listening')
        process.signal(signal.SIGTERM)
        assert process.end() == 0
    lines = [json.loads(line) for line in process.lines]
    assert all({"timestamp", "level", "message"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines} <= {"INFO", "WARN", "ERROR"}


def test_the_least_that_is_logged() -> None:
    with serving("--log-level", "error") as process:
        with Client(process.url) as client:
            client.wait_ready(PATIENCE)
        process.signal(signal.SIGTERM)
        assert process.end() == 0
    assert len(process.lines) == 2  # who it is, and whom it follows


def test_keys_and_the_warning_without_one(tmp_path: Path) -> None:
    everywhere = ("--bind", "0.0.0.0:0")
    with serving(*everywhere) as process:
        process.wait_for("WARN listening on 0.0.0.0:.* without a key: .* set KVATLAS_KEY or --key-file")
        process.signal(signal.SIGTERM)
        assert process.end() == 0
    with serving(*everywhere, env={"KVATLAS_KEY": "s3cret"}) as process:
        with Client(process.url, key="s3cret") as client:
            client.wait_ready(PATIENCE)
            assert client.workers() == []
        process.wait_for("ready")
        process.signal(signal.SIGTERM)
        assert process.end() == 0
    assert not any("without a key" in line or "s3cret" in line for line in process.lines)


def test_a_file_and_variables(tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_text("[[stream]]\nworker = 'w'\nendpoint = 'tcp://127.0.0.1:9'\nblock_size = 16\n")
    model = {"KVATLAS_MODEL": "m"}
    with serving("--config", "k.toml", env=model, cwd=tmp_path) as process, Client(process.url) as client:
        (worker,) = client.workers()
    assert (worker.worker, worker.model, worker.block_size) == ("w", "m", 16)
    assert worker.source == "stream of w"


# What is refused


def test_a_port_that_is_taken_is_one_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--bind", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert address in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Error: ")


def test_a_bad_certificate_is_one_line(run: Run, tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text("nonsense")
    done = run("serve", "--bind", "127.0.0.1:0", "--tls-cert", "cert", "--tls-key", "key")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--stale-after", "soon"), 'Error: --stale-after must be a duration above 0: "30s"'),
        (
            ("--engine", "host:8000"),
            'Error: --engine: engine "host:8000": an engine is http://HOST:PORT, but the scheme',
        ),
        (("--stream", "w"), 'Error: --stream: stream "w": a stream is WORKER=tcp://HOST:PORT'),
        (
            ("--stream", "w=tcp://h:1"),
            'Error: stream of worker "w": model is missing: add model=NAME',
        ),
        (("--config", "none.toml"), "Error: cannot read none.toml: No such file or directory"),
        (("--engines-file", "none.toml"), "Error: cannot read none.toml: No such file or directory"),
        (("--key-file", "none"), "Error: http.key_file: cannot read none: No such file or directory"),
        (("--tls-cert", "c"), "Error: http.tls_key is missing"),
    ],
)
def test_what_cannot_be_used_is_one_line(run: Run, args: tuple[str, ...], message: str) -> None:
    done = run("serve", "--bind", "127.0.0.1:0", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_wrong_flag_names_the_nearest(run: Run) -> None:
    done = run("serve", "--stale-aftr", "1s")
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert "--stale-after" in done.stderr


def test_a_wrong_variable_names_the_nearest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVATLAS_STALE_AFTR", "1s")
    done = run("serve")
    assert done.returncode == 2
    assert done.stderr == "Error: unknown environment variable KVATLAS_STALE_AFTR: did you mean KVATLAS_STALE_AFTER?\n"


def test_the_settings_in_force(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVATLAS_KEY", "s3cret")
    monkeypatch.setenv("KVATLAS_PROBE_INTERVAL", "7s")
    (tmp_path / "k.toml").write_text("[streams]\nreplay_attempts = 5\n")
    done = run(
        "serve", "--config", "k.toml", "--stale-after", "90", "--engine", "http://user:pass@h:1", "--print-config"
    )
    assert done.returncode == 0, done.stderr
    assert 'stale_after = "90s"  # --stale-after\n' in done.stdout
    assert 'probe_interval = "7s"  # KVATLAS_PROBE_INTERVAL\n' in done.stdout
    assert "replay_attempts = 5  # k.toml, line 2\n" in done.stdout
    assert 'settle_timeout = "30s"\n' in done.stdout
    assert "s3cret" not in done.stdout
    assert "pass" not in done.stdout


def test_help_has_every_setting(run: Run) -> None:
    text = run("serve", "--help").stdout
    for key in all_keys():
        assert f"  {key.flag} " in text
