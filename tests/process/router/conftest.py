"""Fixtures: engines, and a router in front of two of them that the tests of a file share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.engine import Engine, usual

from .deciding import write_tokenizer
from .running import PLAIN, Router

QUICK = (*PLAIN, "--health-interval", "100ms", "--health-timeout", "30s")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Engine]:
    with Engine() as made:
        yield made


@pytest.fixture
def router(engine: Engine, other: Engine) -> Iterator[Router]:
    """A router of a test's own, in front of `engine` and `other`, that notices quickly what is wrong."""
    with Router(engine, other, flags=QUICK) as made:
        yield made


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[Router, Engine]]:
    with Engine() as engine, Router(engine, flags=(*PLAIN, "--request-timeout", "2s", "--max-body", "4MiB")) as router:
        yield router, engine


@pytest.fixture
def plain(_shared: tuple[Router, Engine]) -> tuple[Router, Engine]:
    """A router in front of one engine that answers as usual. Bodies may have 4 MiB, and take 2 s to come."""
    router, engine = _shared
    engine.behaviour = usual
    engine.received.clear()
    return router, engine


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))
