"""Simulated engines, and their tokenizer as files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("aiohttp")

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig, write_tokenizer

FAST = EngineConfig(prefill_rate=1e6, decode_rate=1e4, blocks=4_000)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer of simulated engines."""
    return write_tokenizer(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two engines, in a process."""
    with Fleet(2, ServerConfig(engine=FAST), processes=1) as fleet:
        yield fleet
