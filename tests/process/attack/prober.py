"""A probe as an orchestrator has it: `/health` of every listener, on a connection of its own, again and again."""

from __future__ import annotations

import http.client
import multiprocessing
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection

PAUSE = 0.2  # seconds between two questions
_CONTEXT = multiprocessing.get_context("spawn")


class Prober:
    """Probes listeners from a process of its own, whose time is not the attackers'."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        """Begin to probe the ports, each by its name."""
        self._ours, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(dict(ports), theirs), daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> dict[str, list[float]]:
        """The seconds that each answer took, by the listener; infinite for one that did not come."""
        self._ours.send(None)
        took: dict[str, list[float]] = self._ours.recv()
        self._process.join()
        return took


def _run(ports: dict[str, int], told: Connection) -> None:
    took: dict[str, list[float]] = {name: [] for name in ports}
    done = threading.Event()

    def probe(name: str, port: int) -> None:
        while not done.wait(PAUSE):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request("GET", "/health")
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            finally:
                connection.close()
            took[name].append(time.monotonic() - began if status == 200 else float("inf"))

    threads = [threading.Thread(target=probe, args=each, daemon=True) for each in ports.items()]
    for thread in threads:
        thread.start()
    told.recv()
    done.set()
    for thread in threads:
        thread.join()
    told.send(took)
