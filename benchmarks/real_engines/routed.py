"""The router before real engines: what it expected of each prompt, and what the engine that it chose reused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from .compare import Sample
from .engine import EngineAnswer, Server
from .prober import PromptSender, unannounced

START = 300.0  # seconds
FOLLOWED = 20.0  # seconds within which events are followed, unless what they say is not believed
ROUTED = "routed: "
SETTLE = 0.15  # seconds after an answer for its last blocks to be announced, which cannot be asked for


class Front(Server):
    """The router, as something to send prompts to like an engine; with its defaults, if no tokenizer is given."""

    def __init__(
        self, servers: Sequence[Server], logs: Path, tokenizer: Path | None = None, flags: Sequence[str] = ()
    ) -> None:
        super().__init__("router", servers[0].engine, servers[0].setup, logs)
        self._servers = servers
        self._tokenizer = tokenizer
        self._flags = flags
        self._seen = threading.local()
        self.http.event_hooks = {"response": [self._note]}

    def start(self) -> None:
        """Starts `kvatlas router`, as its users would for these engines."""
        command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "router"]
        command += ["--bind", f"127.0.0.1:{self.ports.http}"]
        command += [] if self._tokenizer is None else ["--tokenizer", str(self._tokenizer)]
        command += ["--probe-interval", "1s", "--discovery-interval", "2s", *self._flags]
        command += self._engines()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVATLAS_")}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        end = time.monotonic() + START
        while self._process.poll() is None and time.monotonic() < end:
            try:
                if self.http.get("/ready").is_success:
                    self._wait_followed()
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        self.kill()
        raise RuntimeError(f"the router did not become ready: see {self._log.name}")

    def _engines(self) -> list[str]:
        """The engines, with the addresses at which others pull from them."""
        if not any(server.setup.offload and server.setup.offload.pulls for server in self._servers):
            return [part for server in self._servers for part in ("--engine", f"{server.name}={server.url}")]
        file = self._log.with_name(f"engines-{self.ports.http}.toml")
        file.write_text(
            "".join(
                f'[[engine]]\nname = "{server.name}"\nurl = "{server.url}"\npull = "127.0.0.1:{server.ports.pulls}"\n'
                for server in self._servers
            ),
            encoding="utf-8",
        )
        return ["--engines-file", str(file)]

    def _wait_followed(self) -> None:
        """Waits until the router trusts what it knows of all engines' caches: it takes requests before."""
        end = time.monotonic() + FOLLOWED
        while time.monotonic() < end:
            ranks = [rank["trusted"] for worker in self.http.get("/workers").json() for rank in worker["ranks"]]
            if ranks and all(ranks):
                return
            time.sleep(0.1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_about: object) -> None:
        self.stop()

    def metrics(self, name: str) -> float:
        """The sum of a metric over its series."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split()[0] == name)

    def _note(self, response: httpx.Response) -> None:
        self._seen.headers = response.headers

    def decided(self) -> tuple[str, int | None]:
        """The engine that took this thread's last request, and the tokens that were expected in its cache."""
        headers: httpx.Headers = self._seen.headers
        cached = headers.get("x-kvatlas-cached-tokens")
        return headers.get("x-kvatlas-worker", ""), None if cached is None else int(cached)


class RoutedProber(PromptSender):
    """Sends prompts through the router and notes what it said of each."""

    def __init__(self, front: Front, log: Callable[[str], None]) -> None:
        super().__init__(log)
        self._front = front

    def _compare(
        self,
        scenario: str,
        server: Server,
        tokens: Sequence[int],
        send: Callable[[], EngineAnswer],
        salt: str | None,
        adapter: str | None,
        rank: int | None,
    ) -> EngineAnswer:
        answered = send()
        if answered.prompt != len(tokens):
            raise RuntimeError(f"{self._front.decided()[0]} took {answered.prompt} tokens, not {len(tokens)}")
        self._note(scenario, server, answered)
        return answered

    def pictured(self, scenario: str, server: Server, messages: Sequence[dict[str, Any]], *, stream: bool) -> str:
        """Compares one answer to messages with images, whose tokens only the engine reports, and returns it."""
        answered, said = server.chat(messages, stream=stream)
        self._note(scenario, server, answered)
        return said

    def posted(self, scenario: str, server: Server, path: str, body: dict[str, Any], *, stream: bool) -> None:
        """Compares one answer to a body of whichever API."""
        self._note(scenario, server, server.post(path, body, stream=stream))

    def _note(self, scenario: str, server: Server, answered: EngineAnswer) -> None:
        worker, cached = self._front.decided()
        sample = Sample(
            scenario=ROUTED + scenario,
            worker=worker,
            prompt=answered.prompt,
            block_size=server.engine.block_size,
            held=cached,
            cached=answered.cached,
            usable=cached,
            unannounced=unannounced(scenario, server),
        )
        self._add(sample)
        time.sleep(SETTLE)
