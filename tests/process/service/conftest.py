"""A service, and engines that publish to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.engine import Publisher

from kvatlas._native import Service

from .dialect.tools import running
from .http_tools import register


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture
def publishers() -> Iterator[Callable[[], Publisher]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Publisher())


@pytest.fixture
def engine(service: Service, publishers: Callable[[], Publisher]) -> Callable[..., Publisher]:
    """Makes an engine that the service follows."""

    def make(instance: int | str, **more: Any) -> Publisher:
        publisher = publishers()
        assert register(service, instance, publisher.endpoint, **more).status == 201
        publisher.wait_for_reader()
        return publisher

    return make
