"""A service, and engines that publish to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from kvatlas._native import Service

from .dialect.tools import (
    Publisher,
    running,
)
from .http_tools import register


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def publishers(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Callable[[], Publisher]]:
    made: list[Publisher] = []

    def make() -> Publisher:
        made.append(Publisher(context))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


@pytest.fixture
def engine(service: Service, publishers: Callable[[], Publisher]) -> Callable[..., Publisher]:
    """Makes an engine that the service follows."""

    def make(instance: int | str, **more: Any) -> Publisher:
        publisher = publishers()
        assert register(service, instance, publisher.endpoint, **more).status == 201
        publisher.wait_for_subscriber()
        return publisher

    return make
