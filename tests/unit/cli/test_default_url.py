"""The server that commands ask without `--url`: a service, or a router if only one of those listens."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from tests.support.engine import closed_port

from kvatlas.cli import service_options
from kvatlas.cli.service_options import asking


@contextmanager
def listening() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def asked(monkeypatch: pytest.MonkeyPatch, service: str, router: str, url: str | None = None) -> str:
    monkeypatch.setattr(service_options, "DEFAULT_URL", service)
    monkeypatch.setattr(service_options, "ROUTER_URL", router)
    with asking(url, None, None, 10.0, {}) as client:
        return client.url


def test_a_router_is_found_if_no_service_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as one, listening() as other, closed_port() as port, closed_port() as second:
        closed, nothing = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{second}"
        assert asked(monkeypatch, closed, one) == one
        assert asked(monkeypatch, one, other) == one, "a service comes first"
        assert asked(monkeypatch, closed, nothing) == closed, "errors name the service"
        assert asked(monkeypatch, one, other, url=closed) == closed, "a URL that is given is never changed"
