"""The fake engines, what they announce, and any other process that is measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.service.servers import free_port

from kvatlas import content_hashes, prefix_hashes
from kvatlas.sim.server import Publisher
from kvatlas.wire import Stored, encode_batch

BLOCK = 16
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Process:
    """A command that runs in a group of its own, with what it and its children take. Use as a context manager."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                cwd=log.parent,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it and all that it has started."""
        for how, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if self._process.poll() is None:
                try:
                    os.killpg(self._process.pid, how)
                    self._process.wait(seconds)
                except (subprocess.TimeoutExpired, ProcessLookupError):
                    continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True if the process has come to an end."""
        return self._process.poll() is not None

    def _group(self) -> list[list[str]]:
        """Fields of /proc/*/stat from the third one on, of each process of the group."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self._process.pid:
                found.append(fields)
        return found

    def cpu_seconds(self) -> float:
        """CPU time so far, of all its processes and threads."""
        return sum(int(fields[11]) + int(fields[12]) for fields in self._group()) / TICKS

    def memory(self) -> int:
        """Resident bytes of all its processes."""
        return sum(int(fields[21]) for fields in self._group()) * PAGE

    def said(self, characters: int = 600) -> str:
        """The end of what it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-characters:]


def post(
    port: int, path: str, body: dict[str, Any], headers: dict[str, str] | None = None, seconds: float = 5.0
) -> Any:
    """One request, and its JSON answer; OSError if there is none or it is no success."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", **(headers or {})},
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.load(answer)


def wait(ready: Callable[[], bool], process: Process, seconds: float) -> None:
    """Until it is ready; RuntimeError with what the process said if that takes too long."""
    end = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except (OSError, urllib.error.URLError, ValueError):
            pass
        if process.ended or time.monotonic() > end:
            raise RuntimeError(f"it did not answer within {seconds:.0f} s: {process.said()}")
        time.sleep(0.1)


class Engines:
    """`count` fake engines in one process, each with a socket for its events. Use as a context manager."""

    def __init__(self, program: Path, count: int, log: Path, model: str = "model") -> None:
        self.ports = [free_port() for _ in range(count)]
        self.publishers = [Publisher(replay_endpoint="tcp://127.0.0.1:*", buffer_steps=10_000) for _ in range(count)]
        command = [str(program), "--ports", ",".join(map(str, self.ports)), "--model", model]
        pairs = [(one.endpoint, one.replay_endpoint or "") for one in self.publishers]
        command += ["--events", ",".join(":".join(each.rpartition(":")[2] for each in pair) for pair in pairs)]
        self.process = Process(command, log)
        wait(
            lambda: bool(urllib.request.urlopen(f"http://127.0.0.1:{self.ports[0]}/health", timeout=1)), self.process, 5
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.close()
        for publisher in self.publishers:
            publisher.close()

    @property
    def urls(self) -> list[str]:
        """The URLs of the engines."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def interval(self, microseconds: int) -> None:
        """The time between two tokens of a stream."""
        urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports[0]}/control?interval_us={microseconds}", timeout=5
        ).close()

    def announce(self, prompts: Sequence[Sequence[int]]) -> None:
        """Have each prompt's blocks announced as stored by one engine, in turn."""
        for number, tokens in enumerate(prompts):
            whole = list(tokens[: len(tokens) // BLOCK * BLOCK])
            names = prefix_hashes(content_hashes(whole, BLOCK)).tolist()
            stored = Stored(names, None, whole, BLOCK, group_idx=0, kind="full_attention")
            self.publishers[number % len(self.publishers)].publish(encode_batch([stored], timestamp=time.time()))
