"""`kvatlas serve` as a process, started as its users would for these engines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from kvatlas import Client
from kvatlas.client import StreamStatus

from .engine import Server, free_ports
from .launch import MODEL

ENDS = 60.0  # seconds within which it ends, on a machine with much else to do
STALE_AFTER = 10.0  # seconds; the default of 30 is longer than the run should wait


class Index:
    """The service, following engines by their URLs; by their events ports too if they do not report their sockets.

    `flags`: given to it besides.
    """

    def __init__(self, servers: Sequence[Server], place: Path, flags: Sequence[str] = ()) -> None:
        self._servers = servers
        self._place = place
        self.flags = flags
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client()
        self.by_url = all(server.reports_sockets() for server in servers)

    def start(self) -> None:
        """Starts it and waits until its answers are complete."""
        (self._port,) = free_ports(1, apart=1)
        command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "serve", "--bind", f"127.0.0.1:{self._port}"]
        command += ["--stale-after", f"{STALE_AFTER:.0f}s", "--probe-interval", "1s", "--discovery-interval", "2s"]
        command += [*self._engines(), *self.flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVATLAS_")}
        with (self._place / f"kvatlas-{self._port}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.client = Client(f"http://127.0.0.1:{self._port}")
        self.client.wait_ready(300)

    def _engines(self) -> list[str]:
        if self.by_url:
            return [part for server in self._servers for part in ("--engine", f"{server.name}={server.url}")]
        file = self._place / f"engines-{self._port}.toml"  # of this run only
        file.write_text(
            "\n".join(
                f'[[engine]]\nname = "{server.name}"\nurl = "{server.url}"\n'
                f"events_port = {server.ports.events}\nreplay_port = {server.ports.replay}\n"
                for server in self._servers
            ),
            encoding="utf-8",
        )
        return ["--engines-file", str(file)]

    def stop(self) -> None:
        """Ends it; what it knew is gone."""
        self.client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(ENDS)
            self._process = None

    def instance(self, worker: str, tokens: Sequence[int], *, lora: str | None, salt: str | None) -> dict[str, Any]:
        """All that it says of a prompt in one engine, and `state` of the engine's stream; empty if it has nothing."""
        asked = {"model_name": MODEL, "token_ids": list(tokens), "lora_name": lora, "cache_salt": salt, "age": True}
        answer = httpx.post(f"http://127.0.0.1:{self._port}/query", json=asked, trust_env=False).raise_for_status()
        found: dict[str, Any] = answer.json()["instances"].get(worker, {})
        return found

    def stream(self, worker: str, rank: int = 0) -> StreamStatus | None:
        """The status of an engine's stream, once there is one."""
        for each in self.client.workers():
            if each.worker == worker:
                return next((stream for stream in each.streams if stream.rank == rank), None)
        return None

    def wait(self, worker: str, *, trusted: bool, timeout: float = 60.0, epoch: int | None = None) -> float:
        """Waits until the index trusts what it knows of an engine, or until it does not, and says how long it took."""
        start = time.monotonic()
        while True:
            stream = self.stream(worker)
            if stream is not None and stream.trusted == trusted and (epoch is None or stream.epoch > epoch):
                return time.monotonic() - start
            if time.monotonic() - start > timeout:
                state = "unknown" if stream is None else stream.state
                raise RuntimeError(f"after {timeout:.0f} s, {worker} is {state}, trusted should be {trusted}")
            time.sleep(0.1)
