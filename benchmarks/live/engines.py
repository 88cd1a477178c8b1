"""The simulated engines of the benchmark, seen as `benchmarks.router.routers` sees engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, ServerConfig, write_tokenizer

MODEL = "model"
BLOCK = 16


@dataclass(frozen=True)
class EventsEndpoint:
    """The endpoint at which an engine announces its events."""

    endpoint: str


class LiveEngines:
    """`count` simulated engines, each a process with real sockets. Use as a context manager."""

    def __init__(self, count: int, cache_tokens: int, speed: float, folder: Path) -> None:
        self.model = write_tokenizer(folder / "model")
        engine = EngineConfig(block_size=BLOCK, blocks=cache_tokens // BLOCK)
        # Agents send prompts of up to the whole cache.
        config = ServerConfig(engine=engine, model=MODEL, speed=speed, max_model_len=cache_tokens)
        self._fleet = Fleet(count, config)

    def __enter__(self) -> Self:
        self._fleet.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._fleet.__exit__(kind, error, at)

    @property
    def engines(self) -> list[EngineHandle]:
        """Handles of the engines."""
        return list(self._fleet.engines)

    @property
    def urls(self) -> list[str]:
        """The addresses at which the engines answer."""
        return list(self._fleet.urls)

    @property
    def ports(self) -> list[int]:
        """The ports at which the engines answer."""
        return [int(url.rpartition(":")[2]) for url in self.urls]

    @property
    def publishers(self) -> list[EventsEndpoint]:
        """The endpoints at which the engines announce what they hold."""
        return [EventsEndpoint(engine.endpoint()) for engine in self.engines]

    def empty(self) -> None:
        """Wait until nothing runs, and empty all caches: each router begins alike."""
        for engine in self.engines:
            engine.wait_quiet(timeout=600.0)
            engine.reset()
