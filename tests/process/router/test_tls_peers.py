"""Routers with TLS that report their requests to each other."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from pathlib import Path

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import Engine, usual

from kvatlas.sim.server.ports import free_block

from .deciding import prompt
from .running import Router, wait_until
from .test_peers import held, long, requests, text_of

pytestmark = needs_openssl

REPORTS = "kvatlas_router_peer_reports_total"


class Authority:
    """A certificate authority, and a router's certificate of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.ca, key = make(folder, name, f"/CN={name}")
        signed = ("-CA", str(self.ca), "-CAkey", str(key), *SERVER, "-addext", "basicConstraints=critical,CA:FALSE")
        self.cert, self.key = make(folder, f"{name}-router", "/CN=router", *signed)

    @property
    def flags(self) -> tuple[str, ...]:
        return "--tls-cert", str(self.cert), "--tls-key", str(self.key)

    def context(self) -> ssl.SSLContext:
        """For clients, which show the router's certificate if they are asked."""
        made = ssl.create_default_context(cafile=self.ca)
        made.load_cert_chain(self.cert, self.key)
        return made


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("own"), "own")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("foreign"), "foreign")


def broken_off(router: Router) -> threading.Thread:
    """A request at a router that is killed before it answers."""

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            router.ask(prompt(text_of(2, 100_000)) | {"stream": True})

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("peers", "more"),
    [
        ("https://127.0.0.1:{}", ()),
        ("https://127.0.0.1:{}", ("--tls-client-ca", "{ca}")),
        ("dns+https:localhost:{}", ()),
    ],
    ids=["url", "client certificates", "name"],
)
def test_what_one_has_counts_for_the_other(
    engine: Engine, other: Engine, tokenizer: Path, own: Authority, peers: str, more: tuple[str, ...]
) -> None:
    """One of the two is killed, and comes back."""
    ports = free_block("127.0.0.1"), free_block("127.0.0.1")
    flags = ("--no-events", "--policy", "kvatlas", "--tokenizer", str(tokenizer), "--upstream-ca", str(own.ca))
    tls = (*own.flags, *(flag.format(ca=own.ca) for flag in more))

    def start(number: int) -> Router:
        told = ("--peer", peers.format(ports[1 - number]))
        return Router(engine, other, flags=(*flags, *tls, *told), port=ports[number], tls=own.context())

    release = threading.Event()
    engine.behaviour = other.behaviour = held(release)
    waiting = []
    with start(0) as one:
        try:
            with start(1) as two:
                waiting.append(long(one, 1))
                wait_until(lambda: requests(two) == requests(one) and sum(requests(one)) == 1, "the other one knows")
                waiting.append(broken_off(two))
                wait_until(lambda: requests(two) == requests(one) and sum(requests(one)) == 2, "both know of both")
                wait_until(lambda: [each.metric("kvatlas_router_peers") for each in (one, two)] == [1, 1], "both have")
                two.kill()
            wait_until(lambda: sum(requests(one)) == 1, "what it had is forgotten")
            wait_until(lambda: "another router does not take this one's reports" in one.log, "it is logged")
            with start(1) as two:
                wait_until(lambda: sum(requests(two)) == 1, "it hears what the first one has")
                wait_until(lambda: "another router takes this one's reports again" in one.log, "it is logged")
                assert one.metric(REPORTS, result="bad_certificate") == 0
                # So that the threads end.
                release.set()
                wait_until(lambda: requests(two) == requests(one) == [0, 0], "it is over for both")
        finally:
            release.set()
            for thread in waiting:
                thread.join()
    engine.behaviour = other.behaviour = usual


def test_a_certificate_of_another_authority_is_counted_and_named(
    engine: Engine, own: Authority, foreign: Authority
) -> None:
    ports = free_block("127.0.0.1"), free_block("127.0.0.1")
    plain = ("--no-events", "--tokenizer", "none", "--policy", "kvatlas")
    first = (*plain, *own.flags, "--upstream-ca", str(own.ca), "--peer", f"https://127.0.0.1:{ports[1]}")
    second = (*plain, *foreign.flags, "--peer", f"http://127.0.0.1:{ports[0]}")
    with (
        Router(engine, flags=first, port=ports[0], tls=own.context()) as one,
        Router(engine, flags=second, port=ports[1], tls=foreign.context()) as two,
    ):
        wait_until(lambda: one.metric(REPORTS, result="bad_certificate") > 1, "it is counted")
        wait_until(lambda: f"127.0.0.1:{ports[1]}" in one.log and "its certificate is not accepted" in one.log, "named")
        assert "UnknownIssuer" in one.log
        assert "upstream.ca" in one.log
        assert one.log.count("its certificate is not accepted") == 1, "once, though it is tried again and again"
        assert one.metric(REPORTS, result="told") == 0
        # The other way: https is meant.
        wait_until(lambda: "it may want https instead of http" in two.log, "named")
        assert two.metric(REPORTS, result="not_taken") > 0


def test_a_wrong_key_is_counted_and_named(engine: Engine, own: Authority, tmp_path: Path) -> None:
    ports = free_block("127.0.0.1"), free_block("127.0.0.1")
    keys = {name: tmp_path / name for name in ("right", "wrong")}
    for name, path in keys.items():
        path.write_text(f"a-key-that-is-{name}\n")
        path.chmod(0o600)
    plain = ("--no-events", "--tokenizer", "none", "--policy", "kvatlas", *own.flags, "--upstream-ca", str(own.ca))
    told = ("--peer", f"https://127.0.0.1:{ports[1]}", "--peer-key-file", str(keys["wrong"]))
    admin = ("--admin-key-file", str(keys["right"]))
    with (
        Router(engine, flags=(*plain, *told), port=ports[0], tls=own.context()) as one,
        Router(engine, flags=(*plain, *admin), port=ports[1], tls=own.context()),
    ):
        wait_until(lambda: one.metric(REPORTS, result="refused") > 0, "it is counted")
        wait_until(lambda: "router.peer_key must be its key for changes" in one.log, "named")
        assert "a-key-that-is" not in one.log
