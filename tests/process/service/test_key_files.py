"""Files with keys that other users may read are used, and said."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.command import in_process
from tests.support.engine import Engine
from tests.support.forked import ForkedCommand

from .process import PATIENCE

OPEN = (0o644, 0o604, 0o660, 0o620, 0o777)
CLOSED = (0o600, 0o400, 0o640, 0o440)
FLAGS = {
    "router": ("--key-file", "--admin-key-file", "--engine-key-file", "--peer-key-file", "--index-key-file"),
    "serve": ("--key-file", "--admin-key-file", "--engine-key-file"),
    "relay": ("--key-file", "--engine-key-file"),
}
MORE = {
    "router": ("--peer", "http://127.0.0.1:9", "--index", "http://127.0.0.1:9", "--tokenizer", "none"),
    "serve": (),
    "relay": ("--publish", "nats://127.0.0.1:9"),
}


def key_file(path: Path, mode: int, key: str = "0123456789abcdef") -> str:
    path.write_text(key)
    path.chmod(mode)
    return str(path)


@contextmanager
def running(*command: str) -> Iterator[tuple[ForkedCommand, list[str]]]:
    """A running command, and its log until it listens."""
    process = ForkedCommand(*command)
    log: list[str] = []
    try:
        for line in process.stderr:
            log.append(line)
            if "listening" in line or "routes at" in line:
                break
        yield process, log
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stderr.close()


def warned(log: list[str]) -> set[str]:
    return {Path(line.partition("the key in ")[2].split(" ")[0]).name for line in log if "the key in " in line}


@pytest.mark.parametrize("command", FLAGS)
def test_each_file_that_others_may_read_is_named_at_the_start(tmp_path: Path, command: str) -> None:
    for modes, said in ((OPEN, True), (CLOSED, False)):
        flags = [command, "--bind", "127.0.0.1:0", "--admin-bind", "127.0.0.1:0", *MORE[command]]
        names = set()
        for number, flag in enumerate(FLAGS[command]):
            name = f"{flag.strip('-')}-{number}"
            # Each file has a key of its own.
            mode = modes[number % len(modes)]
            flags += [flag, key_file(tmp_path / name, mode, f"key-of-{number}-0123456789")]
            names.add(name)
        with Engine() as engine, running(*flags, "--engine", f"a={engine.url}") as (_process, log):
            assert warned(log) == (names if said else set()), "".join(log)


@needs_openssl
def test_the_key_of_a_certificate_is_a_secret_too(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server", "/CN=localhost", *SERVER)
    for mode, said in ((0o644, True), (0o600, False)):
        key.chmod(mode)
        flags = ("serve", "--bind", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
        with running(*flags) as (_process, log):
            assert bool(warned(log)) is said, "".join(log)


def test_a_file_that_is_read_again_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_file(path, 0o600)
    with running("serve", "--bind", "127.0.0.1:0", "--key-file", str(path)) as (process, log):
        assert warned(log) == set()
        key_file(path, 0o644, "another-0123456789")
        process.send_signal(signal.SIGHUP)
        began = time.monotonic()
        for line in process.stderr:
            if "the key in" in line:
                break
            assert time.monotonic() - began < PATIENCE
        assert "(mode 0644): chmod 600" in line


def test_the_check_names_them(tmp_path: Path) -> None:
    with Engine() as engine:
        flags = ("--engine", engine.url, "--no-events", "--tokenizer", "none", "--check")
        open_to_all = key_file(tmp_path / "open", 0o644)
        closed = key_file(tmp_path / "closed", 0o600)
        done = in_process("router", *flags, "--key-file", open_to_all, "--admin-key-file", closed)
        said = " ".join(done.stdout.split())
        assert "http.key_file: the key in" in said
        assert "mode 0644" in said
        assert "admin_key_file" not in said
