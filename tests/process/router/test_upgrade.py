"""A router that takes over from another on one host: both accept from a socket that stays open."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TypeAlias

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import MODEL, Engine

from kvatlas.sim.server.ports import free_block

from .running import DEADLINE, PLAIN, wait_until

Address: TypeAlias = tuple[str, int]
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]})
STREAMED = json.dumps(json.loads(BODY) | {"stream": True})
COMMAND = (sys.executable, "-m", "kvatlas.cli", "router")
# What systemd does before it starts a program: the socket is file 3, and LISTEN_PID the process.
PASSED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as made:
        yield made


class ActivatedRouter:
    """A router that was started with a listening socket, as systemd starts a service."""

    def __init__(self, folder: Path, name: str, listening: socket.socket, engine: Engine, *flags: str) -> None:
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.told.bind(str(folder / name))
        self.told.settimeout(DEADLINE)
        bind = "{}:{}".format(*listening.getsockname())
        command = [sys.executable, "-c", PASSED, str(listening.fileno()), *COMMAND, "--bind", bind]
        command += ["--engine", engine.url, *PLAIN, *flags]
        self.log = (folder / f"{name}.log").open("w+")
        self.process = subprocess.Popen(
            command,
            pass_fds=[listening.fileno()],
            stderr=self.log,
            env={"PATH": "/usr/bin:/bin", "NOTIFY_SOCKET": str(folder / name)},
        )

    def heard(self) -> str:
        """The next message to systemd."""
        return self.told.recv(4096).decode()

    def logged(self) -> str:
        return Path(self.log.name).read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.told.close()
        self.log.close()


class Clients:
    """Clients that ask without a pause: half on a connection that they keep, half on new ones."""

    def __init__(self, address: Address, count: int, tls: ssl.SSLContext | None) -> None:
        self._address, self._tls = address, tls
        self.answered = [0] * count
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def _run(self, number: int) -> None:
        keeps, body = number % 2 == 0, STREAMED if number % 3 == 0 else BODY
        kept = None
        while not self._stop.is_set():
            made = kept or connect(self._address, self._tls)
            try:
                made.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
                answer = made.getresponse()
                text = answer.read()
                if answer.status != 200 or (body is STREAMED and not text.endswith(b"[DONE]\n\n")):
                    self.failed.append(f"client {number}: {answer.status} {text[-200:]!r}")
                closes = answer.will_close
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"client {number}, {'kept' if kept else 'new'} connection: {error!r}")
                closes = True
            self.answered[number] += 1
            kept = made if keeps and not closes else None
            if kept is None:
                made.close()
        if kept is not None:
            kept.close()

    def wait_for_more(self, more: int) -> None:
        """Waits until each client has had this number of answers more."""
        wanted = [count + more for count in self.answered]
        wait_until(lambda: all(a >= b for a, b in zip(self.answered, wanted, strict=True)), "all clients are answered")

    def stop(self) -> None:
        """Let them ask no more; all of them have their answers then."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def connect(address: Address, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    host, port = address
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=DEADLINE)
    return http.client.HTTPSConnection(host, port, timeout=DEADLINE, context=tls)


def requests_in(address: Address, tls: ssl.SSLContext | None) -> float:
    """The requests that the router which answers there has had."""
    connection = connect(address, tls)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("kvatlas_router_requests_total"))


@pytest.mark.parametrize("has_tls", [False, pytest.param(True, marks=needs_openssl)], ids=["plain", "tls"])
def test_no_request_fails_while_a_router_takes_over(
    tmp_path: Path, listening: socket.socket, engine: Engine, has_tls: bool
) -> None:
    address: Address = listening.getsockname()
    flags: tuple[str, ...] = ("--drain-delay", "1s")
    tls = None
    if has_tls:
        cert, key = make(tmp_path, "router", "/CN=router", *SERVER)
        flags += ("--tls-cert", str(cert), "--tls-key", str(key))
        tls = ssl.create_default_context(cafile=cert)
    with ActivatedRouter(tmp_path, "a", listening, engine, *flags) as old:
        assert old.heard() == "READY=1"
        with Clients(address, 8, tls) as clients:
            clients.wait_for_more(20)
            assert requests_in(address, tls) > 0
            with ActivatedRouter(tmp_path, "b", listening, engine, *flags) as new:
                assert new.heard() == "READY=1"
                clients.wait_for_more(20)
                old.process.send_signal(signal.SIGTERM)
                stopping, extended = old.heard().split("\n")
                assert stopping == "STOPPING=1"
                assert extended == f"EXTEND_TIMEOUT_USEC={91 * 10**6}", "drain_delay, drain_timeout and 30 s"
                assert old.process.wait(DEADLINE) == 0, old.logged()
                clients.wait_for_more(20)
                assert requests_in(address, tls) > 0
                assert clients.failed == []
                # And back to a third one, for which the second makes place.
                with ActivatedRouter(tmp_path, "c", listening, engine, *flags) as third:
                    assert third.heard() == "READY=1"
                    new.process.send_signal(signal.SIGTERM)
                    assert new.process.wait(DEADLINE) == 0, new.logged()
                    clients.wait_for_more(20)
                    clients.stop()
                    assert clients.failed == []


def test_connections_wait_while_a_router_restarts(tmp_path: Path, listening: socket.socket, engine: Engine) -> None:
    address: Address = listening.getsockname()
    with ActivatedRouter(tmp_path, "a", listening, engine) as old:
        assert old.heard() == "READY=1"
        old.process.send_signal(signal.SIGTERM)
        assert old.process.wait(DEADLINE) == 0
    connection = http.client.HTTPConnection(*address, timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", BODY, {"content-type": "application/json"})
        with ActivatedRouter(tmp_path, "b", listening, engine):
            assert connection.getresponse().status == 200


def test_a_socket_at_another_address_is_refused(tmp_path: Path, listening: socket.socket, engine: Engine) -> None:
    other = f"127.0.0.1:{free_block('127.0.0.1')}"
    with ActivatedRouter(tmp_path, "a", listening, engine, "--bind", other) as router:
        assert router.process.wait(DEADLINE) == 1
        said = router.logged()
    assert f"systemd passed a listening socket at 127.0.0.1:{listening.getsockname()[1]}" in said
    assert other in said
    assert "ListenStream=" in said


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="there is no systemd-socket-activate")
def test_systemds_own_activation(engine: Engine) -> None:
    bind = f"127.0.0.1:{free_block('127.0.0.1')}"
    command = ["systemd-socket-activate", "-l", bind, *COMMAND, "--bind", bind, "--engine", engine.url, *PLAIN]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        host, _, port = bind.rpartition(":")

        def is_healthy() -> bool:
            with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=DEADLINE)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200

        wait_until(is_healthy, "it answers on systemd's socket")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
