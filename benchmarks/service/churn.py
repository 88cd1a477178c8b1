"""Memory over time, with caches that are full and blocks that come and go."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .content import Chain, Engines
from .servers import Server, theirs
from .servers import ours as start_ours

WORKERS = 8
BLOCKS = 64  # a batch
HELD = 256  # chains an engine holds
PAUSE = 0.002  # seconds between batches, so that neither falls behind


def churn(python: str, minutes: float, note: Callable[[str], None]) -> dict[str, Any]:
    """Resident bytes a held block, at the tenths of the run, of both services fed by the same engines."""
    choose = np.random.default_rng(3)
    samples: dict[str, list[float]] = {}
    turned_over = 0
    with start_ours() as mine, theirs(python) as other, Engines(WORKERS, [mine, other]) as engines:
        servers: list[Server] = [mine, other]
        empty = {server.name: server.memory() for server in servers}
        held: list[deque[Chain]] = [deque() for _ in range(WORKERS)]
        began = time.monotonic()
        next_sample = 0.1
        while (elapsed := (time.monotonic() - began) / (60 * minutes)) < 1.0 or next_sample <= 1.0:
            for publisher, chains in zip(engines.publishers, held, strict=True):
                if len(chains) == HELD:
                    publisher.publish(chains.popleft().removal())
                    turned_over += BLOCKS
                chains.append(Chain.random(choose, BLOCKS))
                publisher.publish(chains[-1].payload())
                time.sleep(PAUSE)
            if elapsed >= next_sample:
                blocks = sum(len(chains) for chains in held) * BLOCKS
                for server in servers:
                    size = (server.memory() - empty[server.name]) / blocks
                    samples.setdefault(server.name, []).append(size)
                next_sample += 0.1
    for server in servers:
        shown = ", ".join(f"{size:.0f}" for size in samples[server.name])
        note(f"churn, {server.name}: bytes a held block at each tenth of {minutes:g} min: {shown}")
    return {"samples": samples, "turned_over": turned_over, "held": WORKERS * HELD * BLOCKS}
