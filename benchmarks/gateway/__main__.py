"""Measures what `kvatlas epp` adds to a real Envoy: `python -m benchmarks.gateway --envoy PROGRAM`.

One client asks, one request at a time: through an Envoy alone, and through one that asks a picker, in turns of some
hundred requests each. An engine that answers at once is behind both. JSON on stdout: the medians of each turn, and what
the picker adds to the median of a round, over all rounds. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gateway.envoy import Envoy, Gateway

from kvatlas.sim.server.ports import free_block

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "target/router-bench/engine"
SIZES = {"1 KB": 1_000, "48 KB": 48_000}
LIMITS = {"1 KB": 0.5, "48 KB": 1.5}  # milliseconds that a picker may add at the median
MODES = {
    "duplex": Gateway(),
    "duplex, answers not shown": Gateway(response="NONE"),
    "buffered, answers not shown": Gateway(request="BUFFERED", response="NONE"),
}


class Client:
    """A connection on which requests follow each other."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: bytes) -> float:
        """Milliseconds from the first byte of a request to the last of its answer."""
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        whole = head.encode() + b"\r\n\r\n" + body
        began = time.perf_counter()
        self._socket.sendall(whole)
        got = b""
        while not _is_whole(got):
            piece = self._socket.recv(65_536)
            if not piece:
                raise SystemExit(f"the connection ended: {got[:200]!r}")
            got += piece
        took = (time.perf_counter() - began) * 1000
        if not got.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"not answered: {got[:400]!r}")
        return took


def _is_whole(answer: bytes) -> bool:
    head, end, rest = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    fields = head.lower()
    if b"transfer-encoding: chunked" in fields:
        return rest.endswith(b"0\r\n\r\n")
    length = fields.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return len(rest) >= int(length)


@contextmanager
def picker(engine: int, more: list[str]) -> Iterator[int]:
    """A `kvatlas epp` in front of an engine. Returns the port that gateways ask at."""
    port = free_block("127.0.0.1", 4)
    ports = [f"--grpc-port={port}", f"--grpc-health-port={port + 1}", f"--metrics-port={port + 2}"]
    own = [f"--bind=127.0.0.1:{port + 3}", "--secure-serving=false", "--no-events", "--log-level=error"]
    command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "epp", "--engine", f"http://127.0.0.1:{engine}"]
    with subprocess.Popen([*command, *ports, *own, *more], stderr=subprocess.DEVNULL) as process:
        try:
            _until_ready(port + 2)
            yield port
        finally:
            process.kill()


def _until_ready(port: int) -> None:
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port)) as asked:
                asked.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                if asked.recv(64).startswith(b"HTTP/1.1 200 "):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the picker is not ready")


def body_of(size: int) -> bytes:
    about = {"model": "model", "prompt": "", "max_tokens": 1}
    return json.dumps(about | {"prompt": "a" * (size - len(json.dumps(about)))}).encode()


def measure(through: dict[str, str], requests: int, rounds: int) -> dict[str, Any]:
    """Medians and 99th percentiles by the size of the body and the way, in turns."""
    told: dict[str, Any] = {}
    for name, size in SIZES.items():
        body = body_of(size)
        turns: dict[str, list[list[float]]] = {way: [] for way in through}
        clients = {way: Client(url) for way, url in through.items()}
        for client in clients.values():
            for _ in range(requests // 4):
                client.ask(body)
        for _ in range(rounds):
            for way, client in clients.items():
                turns[way].append([client.ask(body) for _ in range(requests)])
        medians = {way: [statistics.median(turn) for turn in its] for way, its in turns.items()}
        alone = medians.pop("alone")
        told[name] = {"alone": {"p50_ms": _rounded(alone)}}
        for way, its in medians.items():
            added = [one - other for one, other in zip(its, alone, strict=True)]
            tails = [statistics.quantiles(turn, n=100)[98] for turn in turns[way]]
            told[name][way] = {
                "p50_ms": _rounded(its),
                "p99_ms": _rounded(tails),
                "added_p50_ms": round(statistics.median(added), 3),
                "added_least_ms": round(min(added), 3),
                "within_limit": statistics.median(added) <= LIMITS[name],
            }
    return told


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]


def main() -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envoy", help="Envoy's program; else what ENVOY names, or the one on the path")
    parser.add_argument("--requests", type=int, default=300, help="requests of a turn")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way")
    parser.add_argument("--tokenizer", default="none", help="as for the picker")
    given = parser.parse_args()
    if given.envoy:
        os.environ["ENVOY"] = given.envoy
    if not ENGINE.exists():
        raise SystemExit(f"{ENGINE} is not there: make {ENGINE.relative_to(ROOT)}")
    with ExitStack() as stack:
        engine = free_block("127.0.0.1")
        process = stack.enter_context(subprocess.Popen([ENGINE, "--ports", str(engine)], stdout=subprocess.DEVNULL))
        stack.callback(process.kill)
        asked = stack.enter_context(picker(engine, ["--tokenizer", given.tokenizer]))
        through = {"alone": stack.enter_context(Envoy(Gateway(), [], [engine])).url}
        for name, mode in MODES.items():
            through[name] = stack.enter_context(Envoy(mode, [asked], [engine])).url
        before = os.getloadavg()
        told = measure(through, given.requests, given.rounds)
        about = {"cores": os.cpu_count(), "load_before": before, "load_after": os.getloadavg()}
        print(json.dumps({"tokenizer": given.tokenizer, "requests": given.requests, **about, "sizes": told}, indent=2))


if __name__ == "__main__":
    main()
