"""Fill a service from simulated engines, kill it, and measure until another one is whole: from disk, then from a peer.

Engines keep few batches, so that what they cannot send again is known from the snapshot alone. One of the services is
never killed: in the end all must have the same fingerprints as it has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import zmq

from kvatlas._native import Removed, Stored, build_profile, encode_batch
from kvatlas.sim.server.sockets import EventSockets, SocketConfig, wanted

BLOCK = 4
CHAIN = 100
KEEPS = 500
DEADLINE = 180.0


class Engines:
    """All engines, in one thread."""

    def __init__(self, count: int, rate: float) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(2)
        config = SocketConfig("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", buffer_steps=KEEPS)
        self.all = [EventSockets(self._context, config) for _ in range(count)]
        for engine in self.all:
            engine.open()
        self._rate = rate
        self._random = random.Random(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.paused = threading.Event()
        self.paused.set()
        self._live: list[list[int]] = [[] for _ in self.all]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def flags(self) -> list[str]:
        """The flags that tell a service of the engines."""
        flags = []
        for at, engine in enumerate(self.all):
            about = f"replay_endpoint={engine.replay_endpoint},model=m,block_size={BLOCK}"
            flags += ["--stream", f"w{at}={engine.endpoint},{about}"]
        return flags

    def fill(self, blocks: int, copies: int) -> None:
        """Give each engine `blocks` blocks, in chains of 100 that `copies` engines hold."""
        for _ in range(blocks * len(self.all) // (copies * CHAIN)):
            holders = self._random.sample(self.all, copies)
            names = [self._random.getrandbits(64) for _ in range(CHAIN)]
            tokens = [self._random.getrandbits(31) for _ in range(CHAIN * BLOCK)]
            payload = encode_batch([Stored(names, None, tokens, BLOCK)], timestamp=time.time())
            with self._lock:
                for engine in holders:
                    engine.send(engine.record(payload), payload)

    def step(self) -> None:
        """One batch: a block more, or one less."""
        at = self._random.randrange(len(self.all))
        live = self._live[at]
        if len(live) > 50:
            events: list[Stored | Removed] = [Removed([live.pop(0)])]
        else:
            name = self._random.getrandbits(64)
            live.append(name)
            events = [Stored([name], None, [self._random.getrandbits(31) for _ in range(BLOCK)], BLOCK)]
        payload = encode_batch(events, timestamp=time.time())
        engine = self.all[at]
        engine.send(engine.record(payload), payload)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            with self._lock:
                for engine in self.all:
                    while (request := engine.request()) is not None:
                        start = wanted(request)
                        if start is not None:
                            engine.answer(request, engine.kept(start))
                now = time.monotonic()
                if self.paused.is_set():
                    due = now
                while due < now:
                    self.step()
                    due += 1 / self._rate
            time.sleep(0.002)

    def last(self) -> list[int]:
        """The last batch of each."""
        with self._lock:
            return [engine.next_seq - 1 for engine in self.all]

    def close(self) -> None:
        """End the thread and the sockets."""
        self._ended.set()
        self._thread.join()
        for engine in self.all:
            engine.close()
        self._context.destroy(linger=0)


class Service:
    """`kvatlas serve` as a process."""

    def __init__(self, port: int, *flags: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.begun = time.monotonic()
        command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", "serve", "--bind", f"127.0.0.1:{port}", *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def get(self, path: str) -> Any:
        """An answer in JSON."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def ready(self) -> float:
        """Seconds from its start until it is ready, with all streams read."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            try:
                if self.get("/ready?strict=1")["ready"]:
                    return time.monotonic() - self.begun
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("it is not ready in time")

    def streams(self) -> dict[str, dict[str, Any]]:
        """The stream of each worker."""
        return {worker["instance_id"]: worker["streams"]["0"] for worker in self.get("/workers")}

    def through(self, last: list[int]) -> None:
        """Wait until it has applied these batches."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            streams = self.streams()
            if all(streams[f"w{at}"]["seq"] == seq and streams[f"w{at}"]["trusted"] for at, seq in enumerate(last)):
                return
            time.sleep(0.02)
        raise RuntimeError("it has not read everything in time")

    def metric(self, name: str) -> float:
        """A number of `/metrics`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def kill(self) -> None:
        """Kill the service at once, as `kill -9` does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def words(service: Service) -> dict[str, str]:
    """The fingerprint of each worker."""
    return {name: stream["fingerprints"]["0"] for name, stream in service.streams().items()}


def main() -> int:
    """Run it and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot", description=__doc__)
    parser.add_argument("--workers", type=int, default=100, help="simulated engines (100)")
    parser.add_argument("--blocks", type=int, default=100_000, help="blocks of each (100,000)")
    parser.add_argument("--copies", type=int, default=4, help="engines that hold the same block (4)")
    parser.add_argument("--rate", type=float, default=1_000, help="live batches a second, all engines together (1,000)")
    parser.add_argument("--rounds", type=int, default=2, help="kills, and new replicas (2)")
    parser.add_argument("--port", type=int, default=18_090)
    given = parser.parse_args()
    engines = Engines(given.workers, given.rate)
    services: list[Service] = []
    try:
        with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as directory:
            run(given, engines, Path(directory), services)
    finally:
        for service in services:
            service.kill()
        engines.close()
    return 0


def run(given: argparse.Namespace, engines: Engines, directory: Path, services: list[Service]) -> None:
    """All phases."""
    flags = engines.flags()
    every = ["--snapshot-dir", str(directory), "--snapshot-every", "2s"]
    control = Service(given.port, *flags)
    services.append(control)
    control.ready()
    time.sleep(1)  # subscriptions take effect
    begun = time.monotonic()
    filling = threading.Thread(target=engines.fill, args=(given.blocks, given.copies))
    filling.start()
    filling.join()
    control.through(engines.last())
    held = sum(stream["blocks"] for stream in control.streams().values())
    print(f"{held:,} blocks of {given.workers} workers in {time.monotonic() - begun:.1f} s ({build_profile} build)")

    # The first one with a snapshot begins with a copy of the control's: engines do not keep what was before.
    first = Service(given.port + 1, *flags, *every, "--peer-snapshot", control.url)
    services.append(first)
    report("from a peer, no live streams", first.ready(), control, first, engines)
    writes = first.metric("kvatlas_snapshot_writes_total")
    engines.paused.clear()
    while first.metric("kvatlas_snapshot_writes_total") < writes + 2:
        time.sleep(0.1)
    size, blocks, distinct, took = (
        first.metric(f"kvatlas_snapshot_{name}")
        for name in ("bytes", "blocks", "distinct_blocks", "last_write_seconds")
    )
    print(f"snapshot: {size:,.0f} bytes, {size / distinct:.2f} a distinct block, {size / blocks:.2f} a held one")
    print(f"snapshot: written in {took:.2f} s with {given.rate:,.0f} live batches/s")

    ready = []
    for _ in range(given.rounds):
        first.kill()
        services.remove(first)
        first = Service(given.port + 1, *flags, *every)
        services.append(first)
        ready.append(first.ready())
        report("killed, from disk, live", ready[-1], control, first, engines)
        while first.metric("kvatlas_snapshot_writes_total") < 1:
            time.sleep(0.1)
    print(f"from disk: {statistics.median(ready):.2f} s from the start of the process to ready (median)")

    first.kill()
    services.remove(first)
    ready = []
    for _ in range(given.rounds):
        other = Service(given.port + 2, *flags, "--peer-snapshot", control.url)
        services.append(other)
        ready.append(other.ready())
        report("new replica from a peer, live", ready[-1], control, other, engines)
        other.kill()
        services.remove(other)
    print(f"from a peer: {statistics.median(ready):.2f} s from the start of the process to ready (median)")


def report(what: str, ready: float, control: Service, other: Service, engines: Engines) -> None:
    """Check that it holds what the one holds that was never killed."""
    was_paused = engines.paused.is_set()
    engines.paused.set()
    time.sleep(0.05)
    last = engines.last()
    control.through(last)
    other.through(last)
    streams = other.streams()
    kept = sum((stream.get("snapshot") or {}).get("outcome") == "kept" for stream in streams.values())
    same = words(control) == words(other)
    print(f"{what}: ready after {ready:.2f} s, {kept} of {len(streams)} streams kept, equal: {same}", flush=True)
    if not same:
        raise RuntimeError("they are not equal")
    if not was_paused:
        engines.paused.clear()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
