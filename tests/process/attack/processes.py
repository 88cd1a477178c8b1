"""The processes under attack: each with keys, under a limit of its memory, as a production checklist asks for."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvatlas.sim.server.ports import free_block

PATIENCE = 120.0  # seconds, for what must happen in the end


@dataclass(frozen=True)
class Keys:
    """The secrets of the fleet, and the files that hold them."""

    directory: Path
    ask: str = "ask-key-0123456789"
    admin: str = "admin-key-0123456789"

    def file(self, name: str) -> str:
        """The file with one of the keys; written when first asked for."""
        path = self.directory / name
        if not path.exists():
            path.write_text(getattr(self, name) + "\n", encoding="ascii")
            path.chmod(0o600)
        return str(path)


@dataclass
class Process:
    """One command of kvatlas, with its log, its port and a limit of its address space in bytes."""

    command: str
    flags: tuple[str, ...]
    keys: Keys
    memory: int
    name: str = ""
    port: int = field(default_factory=lambda: free_block("127.0.0.1"))
    admin: int = field(default_factory=lambda: free_block("127.0.0.1"))
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", self.command]
        command += ["--bind", f"127.0.0.1:{self.port}", "--key-file", self.keys.file("ask")]
        command += ["--admin-key-file", self.keys.file("admin"), "--admin-bind", f"127.0.0.1:{self.admin}", *self.flags]
        self.name = self.name or self.command

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory, self.memory))

        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=limit
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            del self.log[:-400]

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process.poll() is None

    def ask(self, method: str, path: str, body: object = None, *, key: str | None = None) -> tuple[int, Any]:
        """A request with the admin key, or with `key`; the status and the answer, parsed if it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            headers = {"Authorization": f"Bearer {key or self.keys.admin}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        with suppress(ValueError):
            return response.status, json.loads(data)
        return response.status, data

    def wait_ready(self) -> None:
        """Waits until the process is ready.

        Raises:
            AssertionError: It ended, or is not ready in time.
        """
        self.wait(lambda: self.ask("GET", "/ready")[0] == 200, "ready")

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Waits until something is so of a process that must stay alive."""
        end = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError, http.client.HTTPException):
                if true():
                    return
            assert self.alive, f"{self.command} ended with {self.process.returncode}:\n{''.join(self.log[-30:])}"
            assert time.monotonic() < end, f"{self.command}: not {what} in time:\n{''.join(self.log[-30:])}"
            time.sleep(0.05)

    def metric(self, name: str) -> float:
        """The sum over all series of a metric; 0 if there is none."""
        status, text = self.ask("GET", "/metrics")
        assert status == 200, text
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text.decode(), re.MULTILINE)
        return sum(float(value) for value in values)

    def resident(self) -> int:
        """Resident bytes."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def highest(self) -> int:
        """The most resident bytes so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) << 10

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit code; a process that does not end in time is killed."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
