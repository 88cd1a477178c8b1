"""Connections: who keeps a place, who has to give way, and the listener that is for administrators only."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator

from tests.support.waiting import until

from .dialect.tools import DEADLINE, Connection, ask, running
from .process import address_of, serving

KEY = {"Authorization": "Bearer k"}


@contextlib.contextmanager
def idlers(address: str, number: int) -> Iterator[list[Connection]]:
    """Connections over which nothing comes."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Connection(address)) for _ in range(number)]


def test_the_first_byte_comes_within_seconds() -> None:
    with running() as service, Connection(service.address) as used:
        assert used.ask("GET", "/health").status == 200
        start = time.monotonic()
        with Connection(service.address) as quiet:
            assert quiet.is_closed()
        assert time.monotonic() - start > 4
        assert used.ask("GET", "/health").status == 200, "one that was used may be idle for longer"


def test_connections_without_a_key_give_way() -> None:
    with running(key="k", max_connections=20) as service:
        with Connection(service.address) as known:
            assert known.ask("GET", "/workers", headers=KEY).status == 200
            with idlers(service.address, 40) as strangers:
                for stranger in strangers[:5]:
                    stranger.send(b"GET /workers HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer wrong\r\n\r\n")
                assert ask(service.address, "GET", "/workers", headers=KEY).status == 200
                assert known.ask("GET", "/workers", headers=KEY).status == 200, "whoever showed the key stays"
                metrics = known.ask("GET", "/metrics", headers=KEY).body.decode()
                # Evicted, which is before the strangers' time is over.
                evicted = re.search(r"kvatlas_http_connections_evicted_total (\d+)", metrics)
                assert evicted
                assert int(evicted[1]) >= 20
        assert ask(service.address, "GET", "/health").status == 200


def test_probes_have_a_door_of_their_own() -> None:
    with running(key="k", max_connections=2, admin_bind="127.0.0.1:0") as service:
        admin = service.admin_address
        assert admin
        assert admin != service.address
        with Connection(service.address) as first, Connection(service.address) as second:
            for client in (first, second):
                assert client.ask("GET", "/workers", headers=KEY).status == 200
            # The main listener is full of known clients; others do not get in.
            for path in ("/health", "/ready", "/metrics"):
                assert ask(admin, "GET", path).status == 200, path
        for method, path in (
            ("GET", "/workers"),
            ("GET", "/dump"),
            ("POST", "/register"),
            ("POST", "/query"),
            ("GET", "/"),
        ):
            answer = ask(admin, method, path, headers=KEY)
            assert (answer.status, answer.code) == (404, "unknown_path"), path
        assert ask(admin, "GET", "/metrics", headers={"Host": "evil.example"}).code == "wrong_host"
        with idlers(admin, 100):
            assert ask(service.address, "GET", "/health").status == 200, "and the other way round"


def test_without_an_admin_door_there_is_none() -> None:
    with running() as service:
        assert service.admin_address is None


def test_a_service_that_stops_is_not_ready_before_it_is_gone() -> None:
    with serving("--drain-delay", "5s", "--admin-bind", "127.0.0.1:0") as process:
        address, _ = address_of(process)
        admin, _ = address_of(process)
        assert admin != address
        assert ask(address, "GET", "/ready").status == 200
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        until(lambda: ask(address, "GET", "/ready").status == 503)
        assert ask(admin, "GET", "/ready").status == 503
        for _ in range(5):
            assert ask(address, "GET", "/workers").status == 200, "it still answers"
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 0
        assert time.monotonic() - start >= 5


def test_bodies_that_stop_share_one_memory() -> None:
    mib = 1 << 20
    with (
        running(max_body=4 * mib, body_memory=16 * mib, request_timeout=60.0) as service,
        contextlib.ExitStack() as stack,
    ):
        begun = (
            b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        stopped = [stack.enter_context(Connection(service.address)) for _ in range(8)]
        for made in stopped:
            made.send(begun % (4 * mib) + b" " * (3 * mib))

        def metric(name: str) -> int:
            metrics = ask(service.address, "GET", "/metrics").body.decode()
            return sum(int(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\d+)$", metrics, re.MULTILINE))

        until(lambda: metric("kvatlas_http_body_bytes") > 8 * mib)
        assert metric("kvatlas_http_body_bytes") <= 16 * mib
        query = b'{"model_name": "m", "token_ids": [1]}' + b" " * 100_000
        assert ask(service.address, "POST", "/query", query).status == 404, "it is read, and nobody has that model"
        until(lambda: metric("kvatlas_http_bodies_refused_total") > 0)
