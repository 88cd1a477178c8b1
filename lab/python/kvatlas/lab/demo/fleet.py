"""Demo of failures: a fleet with NATS, a relay, two services and a router, each killed in turn.

`make demo-fleet` runs it: `python -m kvatlas.lab.demo.fleet`. Every part is a process of its own and is killed with
SIGKILL while requests continue. After each kill, the engines get no more requests, and the indexes of both services are
queried for the prompts of the last requests until their answers are right for every engine. A depth greater than the
engine's own, on an engine that the index trusts, is a wrong answer. It may take 2.5 seconds to notice a missing
message, so wrong answers are counted from 3 seconds on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from kvatlas.client import Client
from kvatlas.errors import KvatlasError, MissingExtraError
from kvatlas.lab.demo.config import MODEL, DemoConfig
from kvatlas.lab.demo.load import Load, Tally
from kvatlas.sim import EngineConfig, FleetConfig
from kvatlas.sim.server import EngineHandle, Fleet, Query, prompt_tokens

ENGINES = 4
LOAD_SECONDS = 6.0  # of requests in each part
KILLED_AFTER, BACK_AFTER = 1.5, 3.5  # seconds into it
COUNTED_AFTER = 3.0  # seconds of rest
PATIENCE = 40.0  # seconds until an index must be right again
SAMPLE = 10  # prompts that are asked for


class Part:
    """Process of the fleet that listens at a port."""

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._command, self._port = list(command), port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start or restart the process."""
        variables = os.environ | {"PYTHONWARNINGS": "ignore"}
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, env=variables)  # noqa: S603

    def wait_listening(self, timeout: float = 30.0) -> None:
        """Wait until the port of the process accepts connections.

        Raises `KvatlasError` if the process ends, or `timeout` seconds pass.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end and self._process is not None and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise KvatlasError(f"{self.name} did not start: {' '.join(self._command)}")

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        self.wait_listening()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of killing one part of the fleet.

    Attributes:
        part: Name of the killed part.
        requests: Number of requests answered meanwhile.
        failed: Number of requests without an answer.
        right_after: Seconds without requests until the answers of each index were right for every engine; None if this
            took too long.
        wrong: Number of depths, on trusted engines, greater than the engine's own depth.
    """

    part: str
    requests: int
    failed: int
    right_after: float | None
    wrong: int


class FleetDemo:
    """Fleet of the demo of failures, with all of its processes. Use as a context manager."""

    def __init__(self) -> None:
        nats = shutil.which("nats-server")
        if nats is None:
            raise MissingExtraError("the demo of a fleet needs nats-server: apt-get install nats-server")
        engine = EngineConfig(blocks=2_000)
        self._config = DemoConfig(fleet=FleetConfig(engines=ENGINES, engine=engine), request_rate=4.0)
        self._engines: Fleet = self._config.servers()
        self._stack = ExitStack()
        self._nats = nats

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvatlas-fleet-")))
            stack.enter_context(self._engines)
            ports = free_ports(5)
            urls = [flag for one in self._engines.engines for flag in ("--engine", f"{one.name}={one.url}")]
            log = f"nats://127.0.0.1:{ports[0]}"
            server = (self._nats, "-js", "-a", "127.0.0.1", "-p", str(ports[0]), "-sd", str(folder / "nats"))

            def command(name: str, port: int, *flags: str) -> tuple[str, ...]:
                return (sys.executable, "-m", "kvatlas.cli", name, "--bind", f"127.0.0.1:{port}", *flags)

            def index(name: str, port: int) -> Part:
                return Part(name, command("serve", port, "--from", log, "--snapshot-dir", str(folder / name)), port)

            self.parts = (
                Part("nats-server", server, ports[0]),
                Part("relay", command("relay", ports[1], "--publish", log, *urls), ports[1]),
                index("index-a", ports[2]),
                index("index-b", ports[3]),
                Part("router", command("router", ports[4], "--index", f"http://127.0.0.1:{ports[2]}", *urls), ports[4]),
            )
            for part in self.parts:
                stack.enter_context(part)
            self._indexes = self.parts[2:4]
            self._router = self.parts[4]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def engine(self) -> EngineHandle:
        """The engine that the demo kills."""
        return self._engines.engines[0]

    def run(self, part: Part | EngineHandle | None) -> Outcome:
        """Send requests while a part is killed and restarted.

        Then wait, without requests, until the answers of both indexes are right.
        """
        requests = self._config.workload().requests[:400]
        tally = Tally()
        load = Load(self._router.url, tally, lambda: False)
        sending = threading.Thread(target=asyncio.run, args=[load.run(requests, LOAD_SECONDS, self._config.speed)])
        sending.start()
        if part is not None:
            time.sleep(KILLED_AFTER)
            part.kill()
            time.sleep(BACK_AFTER - KILLED_AFTER)
            if isinstance(part, Part):
                part.start()
            else:
                part.respawn()
        sending.join()
        for engine in self._engines.engines:
            engine.wait_quiet()
        sent = requests[: tally.sent]
        right_after, wrong = self._settle([prompt_tokens(request) for request in sent[-SAMPLE:]])
        name = "nothing" if part is None else part.name
        return Outcome(name, tally.done, tally.failed, right_after, wrong)

    def _settle(self, prompts: Sequence[Sequence[int]]) -> tuple[float | None, int]:
        began, wrong, right = time.monotonic(), 0, False
        truth = {
            engine.name: [found.held for found in engine.match_all([Query(prompt) for prompt in prompts])]
            for engine in self._engines.engines
        }
        while not right and (rest := time.monotonic() - began) < PATIENCE:
            right = True
            for index in self._indexes:
                equal, deeper = compare(index.url, prompts, truth)
                right &= equal
                wrong += deeper if rest > COUNTED_AFTER else 0
            if not right:
                time.sleep(0.2)
        return (time.monotonic() - began if right else None), wrong


def compare(url: str, prompts: Sequence[Sequence[int]], truth: dict[str, list[int]]) -> tuple[bool, int]:
    """Compare the answers of an index with the engines' own.

    Returns True if the index trusts all engines and has all their blocks, and the number of depths that are too large.
    """
    equal, deeper = True, 0
    try:
        with Client(url) as client:
            for number, prompt in enumerate(prompts):
                answer = client.query(tokens=prompt, model=MODEL)
                depths = answer.scores()
                doubted = {one.worker for one in answer.untrusted}
                for engine, held in truth.items():
                    depth = depths.get(engine, 0)
                    equal &= engine not in doubted and depth == held[number]
                    deeper += engine not in doubted and depth > held[number]
    except (KvatlasError, httpx.HTTPError):
        return False, deeper
    return equal, deeper


def free_ports(count: int) -> list[int]:
    """Find `count` ports that are free at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def main() -> int:
    """Run the demo and print each outcome. Returns 1 if an index gave a wrong answer, or was not right in time."""
    try:
        print(f"Starting {ENGINES} simulated engines, nats-server, a relay, two indexes, a router ...")
        with FleetDemo() as demo:
            fine = True
            for part in (None, *demo.parts, demo.engine):
                done = demo.run(part)
                after = "not right in time" if done.right_after is None else f"right after {done.right_after:.1f} s"
                failed = f", {done.failed} failed" if done.failed else ""
                killed = "nothing killed" if part is None else f"killed {done.part}"
                print(
                    f"{killed:<22} {done.requests} requests{failed}; both indexes {after}; {done.wrong} wrong answers",
                    flush=True,
                )
                fine &= done.right_after is not None and done.wrong == 0
    except KvatlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
