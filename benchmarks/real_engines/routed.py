"""The router before real engines: what it expected of each prompt, and what the engine that it chose reused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from .compare import Sample
from .engine import Answered, Server
from .prober import Asking, unannounced

START = 60.0  # seconds
ROUTED = "routed: "
SETTLE = 0.15  # seconds after an answer, for its last blocks to be announced: nobody is asked whether they are there


class Front(Server):
    """The router, as something to send prompts to like an engine."""

    def __init__(self, servers: Sequence[Server], tokenizer: Path, logs: Path) -> None:
        super().__init__("router", servers[0].engine, servers[0].setup, logs)
        self._servers = servers
        self._tokenizer = tokenizer
        self._seen = threading.local()
        self.http.event_hooks = {"response": [self._note]}

    def start(self) -> None:
        """Starts `kvatlas router`, as its users would for these engines."""
        command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "router"]
        command += ["--bind", f"127.0.0.1:{self.ports.http}", "--tokenizer", str(self._tokenizer)]
        command += ["--probe-interval", "1s", "--discovery-interval", "2s"]
        command += [part for server in self._servers for part in ("--engine", f"{server.name}={server.url}")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVATLAS_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        end = time.monotonic() + START
        while self._process.poll() is None and time.monotonic() < end:
            try:
                if self.http.get("/ready", params={"strict": "1"}).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        self.kill()
        raise RuntimeError(f"the router did not become ready: see {self._log.name}")

    def _note(self, response: httpx.Response) -> None:
        self._seen.headers = response.headers

    def decided(self) -> tuple[str, int | None]:
        """Of this thread's last request: the engine that took it, and the tokens that were expected in its cache."""
        headers: httpx.Headers = self._seen.headers
        cached = headers.get("x-kvatlas-cached-tokens")
        return headers.get("x-kvatlas-worker", ""), None if cached is None else int(cached)


class RoutedProber(Asking):
    """Sends prompts through the router and notes what it said of each."""

    def __init__(self, front: Front, log: Callable[[str], None]) -> None:
        super().__init__(log)
        self._front = front

    def _compare(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        send: Callable[[], Answered],
        salt: str | None,
        adapter: str | None,
        rank: int | None,
    ) -> Answered:
        answered = send()
        worker, cached = self._front.decided()
        if answered.prompt != len(tokens):
            raise RuntimeError(f"{worker} took {answered.prompt} tokens, not {len(tokens)}")
        sample = Sample(
            scenario=ROUTED + scenario,
            worker=worker,
            prompt=len(tokens),
            block_size=server.engine.block_size,
            held=cached,
            cached=answered.cached,
            usable=cached,
            unannounced=unannounced(scenario, server),
        )
        self._add(sample)
        time.sleep(SETTLE)
        return answered
