"""An engine that publishes whatever happens to a small random cache: tiers, copies, salts."""

from __future__ import annotations

import random
import threading
import time
from typing import Self

from kvatlas._native import Cleared, Removed, Stored, encode_batch
from kvatlas.sim.server import Publisher
from kvatlas.types import Tier

BLOCK = 4
Event = Stored | Removed | Cleared


class Cache:
    """A random cache: chains of blocks that share beginnings, tiers, copies, evictions of leaves, salts, clears."""

    def __init__(self, seed: int, *, salted: bool = True) -> None:
        self.random = random.Random(seed)
        self._salted = salted
        self._chains: list[list[int]] = []
        self._held: dict[int, tuple[int | None, str | None]] = {}

    def event(self) -> Event:
        """The next event of the cache, at random."""
        roll = self.random.random()
        if roll < 0.002:
            self._held.clear()
            return Cleared()
        if roll < 0.4 and self._held:
            names = self.random.sample(sorted(self._held), min(len(self._held), self.random.randint(1, 6)))
            tier: Tier = "cpu" if self.random.random() < 0.2 else "gpu"
            if tier == "gpu":
                for name in names:
                    del self._held[name]
            return Removed(names, tier=tier)
        return self._store()

    def _store(self) -> Event:
        salt = "tenant" if self._salted and self.random.random() < 0.2 else None
        prompt = self._prompt()
        names = [hash((salt, *prompt[: at + 1])) & 0xFFFF_FFFF_FFFF for at in range(len(prompt))]
        start = 0
        while start < len(prompt) - 1 and names[start] in self._held:
            start += 1
        parent = names[start - 1] if start else None
        for at in range(start, len(names)):
            self._held[names[at]] = (names[at - 1] if at else None, salt)
        tokens = [token for block in prompt[start:] for token in range(block, block + BLOCK)]
        tier: Tier = "cpu" if self.random.random() < 0.1 else "gpu"
        return Stored(names[start:], parent, tokens, BLOCK, tier=tier, salt=salt if start == 0 else None)

    def _prompt(self) -> list[int]:
        if self._chains and self.random.random() < 0.8:
            base = self.random.choice(self._chains)
            prompt = base[: self.random.randint(1, len(base))]
        else:
            prompt = []
        prompt = prompt + [self.random.randrange(50) * 100 for _ in range(self.random.randint(1, 8))]
        self._chains = [*self._chains[-40:], prompt]
        return prompt


class ReplayingEngine:
    """Publishes the events of a cache at a rate, keeps a number of batches for replays. Use as a context manager."""

    def __init__(self, seed: int, *, keeps: int, rate: float = 200.0) -> None:
        self.cache = Cache(seed)
        self.rate = rate
        self._publisher = Publisher(buffer_steps=keeps)
        self.endpoint, self.replay_endpoint = self._publisher.endpoint, self._publisher.replay_endpoint
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.paused = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def publish(self, batches: int) -> None:
        """Publish a number of batches at once."""
        with self._lock:
            for _ in range(batches):
                self._publish()

    def restart(self) -> None:
        """Go on as another process at the same addresses: an empty cache, numbers from 0."""
        with self._lock:
            self._publisher.restart()
            self.cache = Cache(self.cache.random.randrange(1 << 30))

    @property
    def last_seq(self) -> int:
        with self._lock:
            return self._publisher.next_seq - 1

    def _publish(self) -> None:
        events = [self.cache.event() for _ in range(self.cache.random.randint(1, 4))]
        self._publisher.publish(encode_batch(events, timestamp=time.time()))

    def _run(self) -> None:
        pause = random.Random(1)
        while not self._ended.wait(pause.expovariate(self.rate)):
            with self._lock:
                if not self.paused.is_set():
                    self._publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._publisher.close()
