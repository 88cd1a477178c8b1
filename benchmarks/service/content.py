"""The content of the benchmark's engines, as payloads and as queries."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvatlas import content_hashes, prefix_hashes
from kvatlas.sim.server import Publisher
from kvatlas.wire import Removed, Stored, encode_batch

from .servers import BLOCK, DEADLINE, Server


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive blocks from the start of a prompt."""

    tokens: NDArray[np.uint32]
    contents: list[int]
    names: list[int]

    @classmethod
    def random(cls, choose: np.random.Generator, blocks: int) -> Chain:
        """A chain of random tokens."""
        tokens = choose.integers(0, 128_000, blocks * BLOCK, dtype=np.uint32)
        contents = content_hashes(tokens, BLOCK)
        return cls(tokens, contents.tolist(), prefix_hashes(contents).tolist())

    def stored(self, start: int, stop: int) -> Stored:
        """The event that stores a part of it."""
        return Stored(
            self.names[start:stop],
            self.names[start - 1] if start else None,
            self.tokens[start * BLOCK : stop * BLOCK].tolist(),
            BLOCK,
            group_idx=0,
            kind="full_attention",
        )

    def payload(self, start: int = 0, stop: int | None = None) -> bytes:
        """A batch that stores a part of it."""
        stop = len(self.names) if stop is None else stop
        return encode_batch([self.stored(start, stop)], timestamp=time.time())

    def removal(self) -> bytes:
        """A batch that removes it, a block an event and the last block first, as vLLM does."""
        removed = [Removed([name], group_idx=0) for name in reversed(self.names)]
        return encode_batch(removed, timestamp=time.time())


class Engines:
    """Publishers, one an engine, registered with some servers."""

    def __init__(self, count: int, servers: list[Server], *, buffer_steps: int = 10_000, replay: bool = True) -> None:
        self._stack = ExitStack()
        self.publishers = []
        for worker in range(count):
            publisher = Publisher(replay_endpoint="tcp://127.0.0.1:*" if replay else None, buffer_steps=buffer_steps)
            self.publishers.append(self._stack.enter_context(publisher))
            for server in servers:
                server.register(worker, publisher.endpoint, publisher.replay_endpoint)
        time.sleep(1.0)  # until the subscriptions are there: one of the two cannot ask for what came before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def wait_for(server: Server, chain: Chain, workers: int, blocks: int | None = None) -> None:
    """Wait until `workers` workers hold the chain, or its first `blocks` blocks."""
    wanted = (len(chain.contents) if blocks is None else blocks) * BLOCK
    end = time.monotonic() + DEADLINE
    while sum(depth >= wanted for depth in server.depths(chain.contents).values()) < workers:
        if time.monotonic() > end:
            raise RuntimeError(f"{server.name} does not know of the content after {DEADLINE:g} s")
        time.sleep(0.01)
