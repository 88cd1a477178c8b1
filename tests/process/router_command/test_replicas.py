"""A router's own index over restarts, and between routers: as with services, which have tests of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.process.service.test_snapshots import compare
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import Engine
from tests.support.engine.replaying import BLOCK, ReplayingEngine
from tests.support.waiting import until

from kvatlas.errors import ServiceError
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.router.config import UpstreamConfig
from kvatlas.service import Config, HttpConfig, Service
from kvatlas.service.config import SnapshotConfig, Stream
from kvatlas.service.peer import _is_ready, fetch

DEADLINE = 60.0


@pytest.fixture
def engine() -> Iterator[ReplayingEngine]:
    """An engine that has announced more than its replay buffer still has."""
    with ReplayingEngine(21, keeps=1_000, rate=50) as engine:
        engine.start()
        yield engine


@pytest.fixture
def start(engine: ReplayingEngine) -> Iterator[Callable[..., Router]]:
    """Starts routers that follow it."""
    followed = f"w0={engine.endpoint},replay_endpoint={engine.replay_endpoint},model=m,block_size={BLOCK}"
    with ExitStack() as stack:

        def start(key: str | None = None, admin_key: str | None = None, **more: Any) -> Router:
            tls = {name: more.pop(name) for name in ("tls_cert", "tls_key", "tls_client_ca") if name in more}
            http = RouterHttpConfig(bind="127.0.0.1:0", key=key, admin_key=admin_key, **tls)
            section = RouterSection(tokenizer="none")
            config = RouterConfig(http=http, router=section, static_streams=(Stream.of(followed),), **more)
            return stack.enter_context(Router(config=config))

        yield start


def stream(router: Router | Service) -> dict[str, Any]:
    """The only stream, as the native part tells of it."""
    listed = json.loads(router._native.workers())
    return dict(listed[0]["streams"]["0"]) if listed else {}


def is_through(router: Router | Service, engine: ReplayingEngine) -> bool:
    told = stream(router)
    return bool(told) and told["seq"] == engine.last_seq and bool(told["trusted"])


def equal(router: Router | Service, other: Router, engine: ReplayingEngine) -> None:
    """Both have applied all, and hold the same: by their words, and block by block."""
    engine.paused.set()
    until(lambda: is_through(router, engine) and is_through(other, engine), "through")
    assert stream(router)["fingerprints"] == stream(other)["fingerprints"]
    assert not stream(router)["partial"]
    for deep in ((), ("--deep",)):
        compared = compare(*deep, router.url, other.url)
        assert (compared.returncode, compared.stderr) == (0, ""), compared.stdout
        assert ("block by block" if deep else "fingerprints") in compared.stdout
    engine.paused.clear()


def test_a_router_gives_its_blocks_to_routers_and_services(
    start: Callable[..., Router], engine: ReplayingEngine
) -> None:
    first = start()
    until(lambda: stream(first).get("trusted"), "live")
    engine.publish(2_000)
    until(lambda: stream(first)["seq"] >= 1_999, "read")
    second = start(snapshot=SnapshotConfig(peer=first.url))
    equal(second, first, engine)
    told = stream(second)["snapshot"]
    assert (told["from"], told["outcome"]) == ("peer", "kept")
    # A service takes them as well, so a move from one to the other loses nothing.
    streams = [
        f"w0={engine.endpoint},replay_endpoint={engine.replay_endpoint},model=m,block_size={BLOCK}",
    ]
    config = Config(http=HttpConfig(bind="127.0.0.1:0"), snapshot=SnapshotConfig(peer=second.url))
    with Service(streams=streams, config=config) as service:
        equal(service, second, engine)
        assert stream(service)["snapshot"]["outcome"] == "kept"
    # In parts, as HTTP has it.
    whole = httpx.get(f"{first.url}/snapshot", timeout=DEADLINE)
    assert (whole.status_code, whole.headers["content-type"]) == (200, "application/zstd")
    ranged = {"Range": "bytes=10-19", "If-Range": whole.headers["etag"]}
    part = httpx.get(f"{first.url}/snapshot", headers=ranged, timeout=DEADLINE)
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    assert httpx.head(f"{first.url}/snapshot", timeout=DEADLINE).status_code == 200
    beyond = httpx.get(f"{first.url}/snapshot", headers={"Range": "bytes=999999999-"}, timeout=DEADLINE)
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "range_not_satisfiable")


@needs_openssl
@pytest.mark.parametrize("peer", ["https://127.0.0.1:{}", "dns+https:localhost:{}"])
def test_a_router_begins_with_the_blocks_of_another_process_with_tls(
    start: Callable[..., Router], engine: ReplayingEngine, tmp_path: Path, peer: str
) -> None:
    """The router shows its own certificate. Who does not trust the other's gets nothing."""
    ca, ca_key = make(tmp_path, "own", "/CN=own")
    signed = ("-CA", str(ca), "-CAkey", str(ca_key), "-addext", "basicConstraints=critical,CA:FALSE")
    cert, key = make(tmp_path, "router", "/CN=router", *SERVER, *signed)
    http = HttpConfig(bind="127.0.0.1:0", tls_cert=cert, tls_key=key, tls_client_ca=ca)
    followed = f"w0={engine.endpoint},replay_endpoint={engine.replay_endpoint},model=m,block_size={BLOCK}"
    with Service(streams=[followed], config=Config(http=http)) as first:
        first.wait_ready(DEADLINE)
        engine.publish(2_000)
        until(lambda: stream(first)["seq"] >= 1_999, "read")
        snapshot = SnapshotConfig(peer=peer.format(first.address.rpartition(":")[2]), peer_timeout=DEADLINE)
        second = start(tls_cert=cert, tls_key=key, snapshot=snapshot, upstream=UpstreamConfig(ca=ca))
        until(lambda: is_through(second, engine) and is_through(first, engine), "through")
        assert stream(second)["fingerprints"] == stream(first)["fingerprints"]
        told = stream(second)["snapshot"]
        assert (told["from"], told["outcome"]) == ("peer", "kept")
        with (tmp_path / "x").open("wb") as out, pytest.raises(ServiceError, match="its certificate is not trusted"):
            fetch(first.url, None, DEADLINE, out, failures=1)


def test_a_router_that_restarts_begins_with_its_snapshot(
    start: Callable[..., Router], engine: ReplayingEngine, tmp_path: Path
) -> None:
    control = start()
    first = start(snapshot=SnapshotConfig(dir=tmp_path))
    until(lambda: stream(first).get("trusted") and stream(control).get("trusted"), "live")
    engine.publish(2_000)
    until(lambda: stream(first)["seq"] >= 1_999, "read")
    # The time between snapshots is a minute: this one is written when it is stopped.
    assert first.drain(DEADLINE)
    assert (tmp_path / "kvatlas.snapshot").stat().st_size > 1_000
    second = start(snapshot=SnapshotConfig(dir=tmp_path))
    equal(second, control, engine)
    told = stream(second)["snapshot"]
    assert (told["from"], told["outcome"]) == ("disk", "kept")


def test_the_key_for_changes_is_needed(start: Callable[..., Router], tmp_path: Path) -> None:
    router = start(key="ask", admin_key="admin")
    until(lambda: stream(router).get("trusted"), "live")
    with (tmp_path / "x").open("wb") as out:
        for key, status in ((None, 401), ("ask", 403)):
            with pytest.raises(
                ServiceError, match=f"status {status}, .*send the service's (admin )?key|status {status}"
            ):
                fetch(router.url, key, DEADLINE, out)
        assert fetch(router.url, "admin", DEADLINE, out) > 0


def test_a_router_without_an_index_says_so(tmp_path: Path) -> None:
    config = RouterConfig(
        http=RouterHttpConfig(bind="127.0.0.1:0"), router=RouterSection(tokenizer="none", no_events=True)
    )
    with Router(config=config) as router, (tmp_path / "x").open("wb") as out:
        with pytest.raises(ServiceError, match=r"status 404, this router follows no events itself"):
            fetch(router.url, None, DEADLINE, out)
        assert httpx.get(f"{router.url}/ready", timeout=DEADLINE).json()["index_ready"] is None
        assert httpx.post(f"{router.url}/snapshot", timeout=DEADLINE).status_code == 405


def test_who_knows_no_more_is_not_asked(start: Callable[..., Router]) -> None:
    """A router takes requests as soon as an engine does; its index may not be whole by then."""
    router = start()
    until(lambda: stream(router).get("trusted"), "live")
    until(lambda: httpx.get(f"{router.url}/ready", timeout=DEADLINE).json()["index_ready"], "ready")
    waiting = start(snapshot=SnapshotConfig(peer="http://127.0.0.1:9", peer_timeout=60))
    assert httpx.get(f"{waiting.url}/ready", timeout=DEADLINE).json()["index_ready"] is False
    told: dict[str, Any] = {"ready": True}
    with Engine({"/ready": told}) as peer:
        assert _is_ready(peer.url, DEADLINE)
        for index_ready, is_asked in ((True, True), (False, False), (None, False)):
            told["index_ready"] = index_ready
            assert _is_ready(peer.url, DEADLINE) is is_asked
        peer.answers["/ready"] = 503
        assert not _is_ready(peer.url, DEADLINE)
