"""The two services as processes: ours and the other one, started, asked and measured in the same way."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

MODEL = "model"
BLOCK = 16
DEADLINE = 30.0  # seconds, for anything that ought to be quick
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A running service. Use as a context manager."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        self.name = name
        self.port = port
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._connection: http.client.HTTPConnection | None = None
        end = time.monotonic() + DEADLINE
        while True:
            try:
                self.get("/health")
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    self.close()
                    raise RuntimeError(f"{name} did not start: {' '.join(command)}") from None
                time.sleep(0.05)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        if self._connection is not None:
            self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One request on a connection that is kept."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._connection = None
            raise OSError(str(error)) from error

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        return self.request("GET", path)[1]

    def register(self, worker: int, endpoint: str, replay: str | None) -> None:
        """Tells it of an engine."""
        body = {"instance_id": worker, "endpoint": endpoint, "model_name": MODEL, "block_size": BLOCK}
        if replay is not None:
            body["replay_endpoint"] = replay
        status, answer = self.request("POST", "/register", json.dumps(body).encode())
        if status != 201:
            raise RuntimeError(f"{self.name} refused a registration: {status} {answer!r}")

    def depths(self, hashes: list[int]) -> dict[str, int]:
        """Tokens that each worker holds of a prompt."""
        status, answer = self.request("POST", "/query_by_hash", hash_query(hashes))
        if status == 404:
            return {}
        found: dict[str, Any] = json.loads(answer)
        return {worker: max(ranks.values()) for worker, ranks in found["scores"].items()}

    def blocks(self) -> int:
        """Blocks that it holds, over all workers, as its dump has them."""
        return self.get("/dump").count(b'"tokens_hash"')

    def stop(self) -> None:
        """Let it do nothing, for a while."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it do again."""
        self._process.send_signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """CPU time so far, of all its threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_memory(self) -> int:
        """The most resident bytes so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(peak) << 10

    def metric(self, name: str) -> float:
        """The sum of a metric's values over its labels; ours only."""
        lines = (line.rpartition(" ") for line in self.get("/metrics").decode().splitlines())
        return sum(float(value) for key, _, value in lines if key.partition("{")[0] == name)


def hash_query(hashes: list[int]) -> bytes:
    """The body of a /query_by_hash; the other service takes signed numbers only."""
    signed = [h - 2**64 if h >= 2**63 else h for h in hashes]
    return json.dumps({"block_hashes": signed, "model_name": MODEL}).encode()


def token_query(tokens: list[int]) -> bytes:
    """The body of a /query."""
    return json.dumps({"token_ids": tokens, "model_name": MODEL}).encode()


def ours(*flags: str) -> Server:
    """Our service."""
    port = free_port()
    command = [sys.executable, "-m", "kvatlas.cli", "serve", "--bind", f"127.0.0.1:{port}", *flags]
    return Server("kvatlas", command, port)


def theirs(python: str) -> Server:
    """The standalone indexer of ai-dynamo."""
    port = free_port()
    return Server("dynamo.indexer", [python, "-m", "dynamo.indexer", "--port", str(port)], port)
