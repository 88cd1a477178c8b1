"""From the engines' sockets to answers: how fast, how late, and whether anything is lost on the way."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from .content import Chain, Engines
from .servers import BLOCK, Server, theirs
from .servers import ours as start_ours

WORKERS = 32
QUIET = 3.0  # seconds without anything new, after which a flood is over


def ingest(python: str, rounds: int, batches: int, blocks: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Batches of `blocks` blocks, each a prompt of its own, from all engines' sockets into the index.

    The service is stopped (SIGSTOP) until all has been published, so that what is measured is how fast it reads, not
    how fast this process writes: from SIGCONT to the moment at which the last batch of each engine is in an answer.
    """
    choose = np.random.default_rng(1)
    payloads = [[Chain.random(choose, blocks).payload() for _ in range(batches - 1)] for _ in range(WORKERS)]
    last = Chain.random(choose, blocks)  # of every engine, so that one query tells of all
    for row in payloads:
        row.append(last.payload())
    found: dict[str, list[tuple[float, int, float, float]]] = defaultdict(list)
    what = f"ingest, batches of {blocks}"
    for _ in range(rounds):
        for server in (start_ours(), theirs(python)):
            with server, Engines(WORKERS, [server], buffer_steps=batches) as engines:
                before, busy = server.memory(), server.cpu_seconds()
                seconds = _drain(server, engines, payloads, last)
                busy = server.cpu_seconds() - busy
                size = server.memory() - before
                held = server.blocks()
                lost = WORKERS * batches - held // blocks
                found[server.name].append((held / seconds, lost, size / held, busy / held))
                note(
                    f"{what}, {server.name}: {held / seconds:,.0f} blocks/s, "
                    f"{lost} of {WORKERS * batches:,} batches lost"
                )
    mine, other = found["kvatlas"], found["dynamo.indexer"]
    result = {
        "rate": median(rate for rate, *_ in mine),
        "rate_theirs": median(rate for rate, *_ in other),
        "lost": max(lost for _, lost, *_ in mine),
        "lost_theirs": max(lost for _, lost, *_ in other),
        "bytes_a_block": median(size for *_, size, _ in mine),
        "bytes_a_block_theirs": median(size for *_, size, _ in other),
        "cpu_a_block": median(busy for *_, busy in mine),
        "cpu_a_block_theirs": median(busy for *_, busy in other),
    }
    result["rate_ratio"] = result["rate"] / result["rate_theirs"]
    note(
        f"{what}: {result['rate_ratio']:.1f}x; bytes a block {result['bytes_a_block']:.0f}, "
        f"theirs {result['bytes_a_block_theirs']:.0f}; CPU a block {result['cpu_a_block'] * 1e9:.0f} ns, "
        f"theirs {result['cpu_a_block_theirs'] * 1e9:.0f}"
    )
    return result


def steady(python: str, rounds: int, rate: int, seconds: float, note: Callable[[str], None]) -> dict[str, Any]:
    """CPU seconds of the service for each batch of one block, while 32 engines publish `rate` of them a second.

    Unlike in a flood, the service comes to the end of what there is after nearly every batch, and sleeps.
    """
    choose = np.random.default_rng(5)
    payloads = [Chain.random(choose, 1).payload() for _ in range(int(rate * seconds))]
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for server in (start_ours(), theirs(python)):
            with server, Engines(WORKERS, [server]) as engines:
                busy, due = server.cpu_seconds(), time.monotonic()
                for number, payload in enumerate(payloads):
                    engines.publishers[number % WORKERS].publish(payload)
                    due += 1 / rate
                    while due - time.monotonic() > 0:
                        time.sleep(0)
                time.sleep(0.1)
                found[server.name].append((server.cpu_seconds() - busy) / len(payloads))
    result = {name: median(each) for name, each in found.items()}
    note(
        f"CPU a one-block batch at {rate:,} a second from {WORKERS} engines: "
        + ", ".join(f"{name} {each * 1e6:.1f} us" for name, each in result.items())
    )
    return result


def _drain(server: Server, engines: Engines, payloads: list[list[bytes]], mark: Chain) -> float:
    server.stop()
    for batch in range(len(payloads[0])):
        for publisher, row in zip(engines.publishers, payloads, strict=True):
            publisher.publish(row[batch])
    time.sleep(0.5)
    start = last = time.monotonic()
    seen = 0
    server.go_on()
    while seen < WORKERS and time.monotonic() - last < QUIET:
        time.sleep(0.002)
        now = len(server.depths(mark.contents))
        if now > seen:
            seen, last = now, time.monotonic()
    return last - start


def burst(python: str, batches: int, note: Callable[[str], None]) -> dict[str, Any]:
    """One engine publishes batches of one event of one block as fast as it can, with a replay socket and without."""
    choose = np.random.default_rng(4)
    chains = [Chain.random(choose, 1) for _ in range(batches)]
    payloads = [chain.payload() for chain in chains]
    results: dict[str, Any] = {}
    for replay in (True, False):
        for server in (start_ours(), theirs(python)):
            with server, Engines(1, [server], buffer_steps=batches, replay=replay) as engines:
                for payload in payloads:
                    engines.publishers[0].publish(payload)
                lost = batches - _settled(server, batches)
            how = "with replay" if replay else "without replay"
            results[f"{server.name}, {how}"] = lost
            note(f"burst of {batches:,} one-event batches {how}, {server.name}: {lost:,} lost")
    return results


def _settled(server: Server, wanted: int) -> int:
    """Blocks held, once that stops to grow."""
    held, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        now = server.blocks()
        if now == wanted:
            return now
        if now != held:
            held, since = now, time.monotonic()
        time.sleep(0.2)
    return held


def _there(server: Server, worker: int, chain: Chain) -> bool:
    return server.depths(chain.contents).get(str(worker), 0) == len(chain.contents) * BLOCK


def lateness(rate: int, seconds: float, note: Callable[[str], None]) -> dict[str, float]:
    """Seconds from publishing to being visible in an answer, while 32 engines publish `rate` blocks a second."""
    choose = np.random.default_rng(2)
    waits: list[float] = []
    with start_ours() as server, Engines(WORKERS, [server]) as engines:
        stop = threading.Event()
        per_batch = 8
        chains = [Chain.random(choose, per_batch) for _ in range(4096)]
        payloads = [(chain.payload(), chain.removal()) for chain in chains]

        def background() -> None:
            """Blocks come and go, evenly, from all engines in turn."""
            number, due = 0, time.monotonic()
            while not stop.is_set():
                which = number % len(chains)
                worker = which % WORKERS
                engines.publishers[worker].publish(payloads[which][(number // len(chains)) % 2])
                number += 1
                due += per_batch / rate
                time.sleep(max(0.0, due - time.monotonic()))

        thread = threading.Thread(target=background)
        thread.start()
        end = time.monotonic() + seconds
        worker = 0
        while time.monotonic() < end:
            worker = (worker + 1) % WORKERS
            probe = Chain.random(choose, per_batch)
            payload = probe.payload()
            began = time.perf_counter()
            engines.publishers[worker].publish(payload)
            while not _there(server, worker, probe):
                pass
            waits.append(time.perf_counter() - began)
            time.sleep(0.005)
        stop.set()
        thread.join()
    p50, p99 = (float(np.percentile(waits, p)) for p in (50, 99))
    note(
        f"publish to visible at {rate:,} blocks/s from {WORKERS} engines: "
        f"p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms ({len(waits):,} probes)"
    )
    return {"p50": p50, "p99": p99, "probes": len(waits)}
