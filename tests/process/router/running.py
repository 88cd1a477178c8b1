"""The router as a process of its own, and clients that can be as rude as they like."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.support.command import in_process
from tests.support.engine import MODEL, Engine
from tests.support.forked import ForkedCommand

DEADLINE = 60.0
MESSAGES = [{"role": "user", "content": "hello"}]
# No events, no tokens, all engines alike: what the byte path needs. Tests of decisions say otherwise.
PLAIN = ("--no-events", "--tokenizer", "none", "--policy", "round-robin")


class Router:
    """A running router; use as a context manager."""

    def __init__(
        self,
        *engines: Engine,
        flags: tuple[str, ...] = PLAIN,
        ready: bool = True,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Start it. `tls`: with which it is asked, if it has a certificate."""
        self.tls = tls
        names = [f"e{number}" for number in range(len(engines))]
        self.engines = dict(zip(names, engines, strict=True))
        command = ["router", "--bind", f"127.0.0.1:{port}", *flags]
        for name, engine in self.engines.items():
            command += ["--engine", f"{name}={engine.url}"]
        self.log = ""
        self._opened: list[http.client.HTTPConnection] = []
        self.process = ForkedCommand(*command)
        try:
            self.port = self._address()
            threading.Thread(target=self._read_on, daemon=True).start()
            if ready:
                self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def _address(self) -> int:
        for line in self.process.stderr:
            self.log += line
            if found := re.search(r"(?:routes at|listening on) \S*127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        raise AssertionError(f"it ended before it listened: {self.log}")

    def _read_on(self) -> None:
        with contextlib.suppress(ValueError):
            for line in self.process.stderr:
                self.log += line

    def wait_ready(self) -> None:
        wait_until(lambda: self.get("/ready")[0] == 200, "the router is ready")

    def wait_followed(self) -> None:
        """Until all engines' events are followed; its log says so."""
        wait_until(lambda: "ready: " in self.log, "the engines' events are followed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._opened:
            connection.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()

    def kill(self) -> None:
        """kill -9."""
        self.__exit__()

    def connect(self, timeout: float = DEADLINE) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def client(self, timeout: float = DEADLINE) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.tls)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = self.client()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request, with a body in JSON if there is one; what is answered in JSON."""
        connection = self.client()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json"} if data else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def ask(
        self,
        body: Any = None,
        *,
        path: str = "/v1/chat/completions",
        headers: dict[str, str] | None = None,
        timeout: float = DEADLINE,
    ) -> Answer:
        """One request on a connection of its own, and its whole answer."""
        asked = {"model": MODEL, "messages": MESSAGES} if body is None else body
        data = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        connection = self.client(timeout)
        try:
            connection.request("POST", path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            try:
                text = answer.read()
                broken = False
            except http.client.IncompleteRead as error:
                text, broken = error.partial, True
            except ConnectionError:
                text, broken = b"", True
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text, broken)
        finally:
            connection.close()

    def open(self, body: Any = None, **more: Any) -> http.client.HTTPResponse:
        """A streamed request; the answer's head has come, its body can be read as it comes."""
        asked = {"model": MODEL, "messages": MESSAGES, "stream": True, **more} if body is None else body
        connection = self.client()
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})
        self._opened.append(connection)
        answer = connection.getresponse()
        answer.connection = connection  # type: ignore[attr-defined]  # kept alive with the answer
        return answer

    def send(self, body: Any) -> None:
        """A request whose answer nothing waits for: its connection stays open until the router ends."""
        connection = self.client()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        self._opened.append(connection)

    def talk(self, data: bytes, *, timeout: float = DEADLINE) -> bytes:
        """Sends bytes, and reads what comes until the router closes, or has said nothing for a while."""
        with self.connect(timeout) as made:
            with contextlib.suppress(ConnectionError):
                made.sendall(data)
            return read_rest(made)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the series that have these labels."""
        status, text = self.get("/metrics")
        assert status == 200
        total, there = 0.0, False
        for line in text.decode().splitlines():
            key, _, value = line.rpartition(" ")
            found, _, rest = key.partition("{")
            if found == name:
                there = True
                if all(f'{label}="{wanted}"' in rest for label, wanted in labels.items()):
                    total += float(value)
        assert there, f"no metric {name}"
        return total

    def workers(self) -> list[dict[str, Any]]:
        """The router's account of its engines: `GET /workers`."""
        said: list[dict[str, Any]] = json.loads(self.get("/workers")[1])
        return said

    def in_flight(self) -> float:
        return self.metric("kvatlas_router_engine_requests_in_flight")

    def memory(self) -> int:
        """Resident bytes of the router's process."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


class Answer:
    """An answer of the router, as it came back."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, broken: bool) -> None:
        self.status, self.headers, self.body, self.broken = status, headers, body, broken

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.body[:300]!r}{', broken off' if self.broken else ''})"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a refusal; every one has a message for people."""
        error: dict[str, Any] = self.json["error"]
        assert error["message"]
        return error

    @property
    def events(self) -> list[bytes]:
        """Data of the events, which must all be whole."""
        *events, rest = self.body.split(b"\n\n")
        assert not rest, f"the last event is not whole: {rest!r}"
        lines = [line for one in events for line in one.split(b"\n")]
        return [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]


def read_rest(made: socket.socket) -> bytes:
    """Until the other side closes, or says nothing within the socket's timeout."""
    data = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while piece := made.recv(65536):
            data += piece
    return data


def wait_until(true: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Wait until something is so. Not a measure of time: the limit is far away."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if true():
                return
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def in_threads(count: int, do: Callable[[int], None]) -> Iterator[list[BaseException]]:
    """Runs `do` several times at once. Returns the errors."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            do(number)
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        for thread in threads:
            thread.join()


def ask_by_command(router: Router, command: str, *more: str, option: str = "--url") -> subprocess.CompletedProcess[str]:
    """Runs `kvatlas` in this process, with the router's address as the value of an option."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return in_process(command, option, f"http://127.0.0.1:{router.port}", *more)
