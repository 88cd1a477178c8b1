"""Peers by DNS: which addresses are asked, in which order of readiness, and what happens if none can give anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine.replaying import ReplayingEngine
from tests.support.waiting import until

from kvatlas.errors import ConfigError, ServiceError
from kvatlas.service import Config, HttpConfig, Service, replicas
from kvatlas.service.config import SnapshotConfig
from kvatlas.service.peer import fetch_from_any
from kvatlas.sim.server.ports import free_block

from .named import with_name
from .test_snapshots import DEADLINE, equal, flags, workers

NAME = "kvatlas-peers.test"


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the name has, to be changed by tests."""
    known: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", with_name(NAME, lambda: known))
    return known


@pytest.fixture
def no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are asked in the order that the name server gives them in."""
    monkeypatch.setattr(replicas, "resolve", lambda name, port: [row[4][0] for row in socket.getaddrinfo(name, port)])


@pytest.fixture
def port() -> int:
    return free_block("127.0.0.1")


@pytest.fixture
def start(port: int) -> Iterator[Callable[..., Service]]:
    """Starts services at one port and different addresses of this machine."""
    with ExitStack() as stack:

        def start(address: str, streams: list[str], **more: Any) -> Service:
            config = Config(http=HttpConfig(bind=f"{address}:{port}"), **more)
            return stack.enter_context(Service(streams=streams, config=config))

        yield start


def test_what_a_peer_may_be() -> None:
    assert SnapshotConfig(peer="dns:peers.llm.svc:8090").peer == "dns:peers.llm.svc:8090"
    for wrong in ("dns:peers", "dns::8090", "dns:peers:0", "dns:peers:65536", "dns:pe ers:1", "dns://peers:8090"):
        with pytest.raises(
            ConfigError,
            match=r"snapshot\.peer must be http://HOST:PORT, https://HOST:PORT, dns:NAME:PORT or dns\+https:",
        ):
            SnapshotConfig(peer=wrong)


def test_a_name_has_all_its_addresses(addresses: list[str]) -> None:
    assert replicas.resolve(NAME, 80) == []
    addresses += ["10.0.0.1", "fd00::1", "10.0.0.2"]
    assert sorted(replicas.resolve(NAME, 80)) == ["10.0.0.1", "10.0.0.2", "fd00::1"]
    # The system's own, too.
    assert set(replicas.resolve("localhost", 80)) & {"127.0.0.1", "::1"}


def test_who_asks_is_left_out() -> None:
    found = ["127.0.0.1", "127.0.0.2", "::1", "192.0.2.1", "2001:db8::1"]
    elsewhere = ["http://192.0.2.1:80", "http://[2001:db8::1]:80"]
    assert replicas.others(found, 80, "0.0.0.0:80")[-2:] == elsewhere
    assert "http://127.0.0.1:80" not in replicas.others(found, 80, "[::]:80")
    assert replicas.others(found, 80, "127.0.0.2:80") == ["http://127.0.0.1:80", "http://[::1]:80", *elsewhere]
    # Another port of this machine is another service.
    assert len(replicas.others(found, 80, "0.0.0.0:8080")) == len(found)


def test_a_name_server_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[None] = []

    def failing(*_: object, **__: object) -> list[Any]:
        asked.append(None)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", failing)
    with (tmp_path / "out").open("wb") as out:
        assert fetch_from_any(f"dns:{NAME}:80", "0.0.0.0:80", None, DEADLINE, out) is None
        assert len(asked) == 3
        asked.clear()
        with pytest.raises(ServiceError, match="cannot be resolved: Temporary failure"):
            fetch_from_any(f"dns:{NAME}:80", "0.0.0.0:80", None, 0.0, out)
        asked.clear()
        stop = threading.Event()
        stop.set()
        with pytest.raises(ServiceError, match="given up"):
            fetch_from_any(f"dns:{NAME}:80", "0.0.0.0:80", None, DEADLINE, out, stop)


@pytest.mark.usefixtures("no_order")
def test_the_first_that_is_ready_gives_its_snapshot(
    addresses: list[str], port: int, start: Callable[..., Service]
) -> None:
    with ReplayingEngine(11, keeps=1_000, rate=50) as engine:
        engine.start()
        engines = {"w0": engine}
        streams = [flag for flag in flags(engines) if flag != "--stream"]
        first = start("127.0.0.2", streams)
        first.wait_ready(DEADLINE)
        engine.publish(2_000)
        until(lambda: workers(first.address)["w0"]["seq"] >= 1_999, "read")
        # One that is not there any more, one that waits for an engine that never answers, itself, and the right one.
        waiting = start("127.0.0.3", ["w0=tcp://127.0.0.1:9,replay_endpoint=tcp://127.0.0.1:9,model=m,block_size=4"])
        addresses += ["127.0.0.9", "127.0.0.3", "127.0.0.4", "127.0.0.2"]
        second = start("127.0.0.4", streams, snapshot=SnapshotConfig(peer=f"dns:{NAME}:{port}"))
        second.wait_ready(DEADLINE)
        assert waiting.waiting() is not None
        equal(second.address, first.address, engines)
        snapshot = workers(second.address)["w0"]["snapshot"]
        assert (snapshot["from"], snapshot["outcome"]) == ("peer", "kept")


def test_alone_it_begins_without(addresses: list[str], port: int, start: Callable[..., Service]) -> None:
    with ReplayingEngine(12, keeps=1_000, rate=50) as engine:
        engine.start()
        streams = [flag for flag in flags({"w0": engine}) if flag != "--stream"]
        for known in ([], ["127.0.0.2"], ["127.0.0.2", "127.0.0.9"]):
            addresses[:] = known
            service = start("127.0.0.2", streams, snapshot=SnapshotConfig(peer=f"dns:{NAME}:{port}"))
            service.wait_ready(DEADLINE)
            assert "snapshot" not in workers(service.address)["w0"]
            service.close()


def test_one_that_refuses_is_named(
    addresses: list[str], port: int, start: Callable[..., Service], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("admin")
    refusing = Service(config=Config(http=HttpConfig(bind=f"127.0.0.2:{port}", admin_key_file=key)))
    addresses += ["127.0.0.2"]
    with refusing, (tmp_path / "out").open("wb") as out:
        refusing.wait_ready(DEADLINE)
        message = rf"no replica behind dns:{NAME}:{port} gives its snapshot: http://127\.0\.0\.2:{port} .*status 401"
        with pytest.raises(ServiceError, match=message):
            fetch_from_any(f"dns:{NAME}:{port}", "0.0.0.0:80", None, DEADLINE, out)
        assert fetch_from_any(f"dns:{NAME}:{port}", "0.0.0.0:80", "admin", DEADLINE, out) is not None
