"""Engines at the addresses of a name."""

import socket
from typing import Any

import pytest
from tests.support.engine import Engine, vllm
from tests.support.waiting import until

from kvatlas.service import Config, DiscoveryConfig

from .fake_native import Starter, started
from .named import with_name

NAME = "engines.test"


def test_the_addresses_of_a_name_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["127.0.0.1"]
    asked = 0

    def known() -> list[str]:
        nonlocal asked
        asked += 1
        if addresses == ["away"]:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return addresses

    monkeypatch.setattr(socket, "getaddrinfo", with_name(NAME, known))
    start = Starter()
    with Engine(vllm()) as engine:
        source = f"dns:{NAME}:{engine.port}"
        settings: dict[str, Any] = {"interval": 0.05, "timeout": 60, "dns_interval": 0.05, "linger": 0.05}
        with started(start, config=Config(discovery=DiscoveryConfig(sources=(source,), **settings))):
            native = start.native
            name = f"127.0.0.1:{engine.port}"
            until(lambda: native.endpoints() and not native.holds)
            assert {worker for worker, _rank in native.endpoints()} == {name}
            # A name server that does not answer ends nothing.
            addresses[:] = ["away"]
            until(lambda: native.sources[source]["state"] == "away")
            assert native.sources[source]["code"] == "no_name_server"
            before = asked
            until(lambda: asked > before + 3)
            assert native.log == [("register", name, 0)]
            # An address that is missing does, after a while: its pod may only have been not ready.
            addresses[:] = []
            until(lambda: not native.endpoints())
            until(lambda: native.sources[source]["state"] == "following")
            assert native.sources[source]["counts"]["unlisted"] == 1
            addresses[:] = ["127.0.0.1", "::1"]
            until(lambda: (f"[::1]:{engine.port}", None) in native.reports and native.endpoints())
