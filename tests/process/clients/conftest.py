"""Fixtures: engines that answer every API, and a router in front of them."""

from collections.abc import Iterator

import pytest
from tests.process.router.running import PLAIN, Router
from tests.support.engine import Engine

from .answers import Engines


@pytest.fixture(scope="session")
def _fleet() -> Iterator[tuple[Engines, Router]]:
    engines = Engines()
    with (
        Engine(behaviour=engines.answer) as first,
        Engine(behaviour=engines.answer) as second,
        Router(first, second, flags=PLAIN) as router,
    ):
        yield engines, router


@pytest.fixture
def engines(_fleet: tuple[Engines, Router]) -> Engines:
    return _fleet[0]


@pytest.fixture
def router(_fleet: tuple[Engines, Router]) -> Router:
    """A router in front of two engines."""
    return _fleet[1]


@pytest.fixture
def base(router: Router) -> str:
    return f"http://127.0.0.1:{router.port}"
