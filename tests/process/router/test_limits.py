"""Each limit on what a client sends means what it says: in the router and in the service, over HTTP/1.1 and HTTP/2."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator

import pytest
from tests.process.service.dialect.tools import running
from tests.support.engine import MODEL, Engine

from . import http2
from .running import MESSAGES, PLAIN, Router, read_rest

BODY = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
JSON = ("content-type", "application/json")
HEAD = 16 << 10
LINES = 40


@pytest.fixture(scope="module")
def limited() -> Iterator[tuple[Router, Engine]]:
    flags = (*PLAIN, "--max-head", str(HEAD), "--max-headers", str(LINES))
    with Engine() as engine, Router(engine, flags=flags) as router:
        yield router, engine


@pytest.fixture(scope="module")
def ports(limited: tuple[Router, Engine]) -> Iterator[dict[str, int]]:
    with running() as service:
        yield {"router": limited[0].port, "service": int(service.address.rpartition(":")[2])}


def talk(port: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.05)
            with contextlib.suppress(ConnectionError):
                made.sendall(piece)
        return read_rest(made)


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


def asked(*lines: str, version: str = "1.1", path: str = "/health") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/{version}", *lines, "connection: close", "", ""]).encode()


@pytest.mark.parametrize("server", ["router", "service"])
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (asked("host: a"), 200),
        (asked("host: "), 200),
        (asked("host: [::1]:80"), 200),
        (asked(version="1.0"), 200),
        (asked(), 400),
        (asked("host: a", "host: a"), 400),
        (asked("host: a", "Host: b"), 400),
        (asked("host: a", "host: b", version="1.0"), 400),
        (asked("host: a, b"), 400),
        (asked("host: a b"), 400),
        (asked("host: u@a"), 400),
        (asked("host: a/b"), 400),
        (asked(path="http://a/health"), 400),
        (asked("host: a", path="http://a/health"), 200),
    ],
)
def test_a_request_has_one_host(ports: dict[str, int], server: str, request_: bytes, status: int) -> None:
    got = statuses(talk(ports[server], request_))
    # A server on loopback without a key answers to names of this machine only.
    assert got in ([status], [421] if status == 200 else [status])


def ambiguous(*lines: str) -> bytes:
    return "\r\n".join(["POST /query HTTP/1.1", "host: localhost", *lines, "", "0", "", ""]).encode()


CHUNKED, LENGTH = "transfer-encoding: chunked", "content-length: 5"


@pytest.mark.parametrize("server", ["router", "service"])
@pytest.mark.parametrize("both", [(CHUNKED, LENGTH), (LENGTH, CHUNKED), (LENGTH.title(), CHUNKED.upper())])
def test_a_request_has_one_framing(ports: dict[str, int], server: str, both: tuple[str, str]) -> None:
    whole = ambiguous(*both)
    before = asked("host: localhost").replace(b"connection: close\r\n", b"")
    for pieces in ([whole], [whole[:40], whole[40:]], [whole[:1], whole[1:60], whole[60:]], [before + whole]):
        answer = talk(ports[server], *pieces, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        got = statuses(answer)
        assert got[-1] == 400, answer
        assert len(got) == (2 if pieces == [before + whole] else 1), "what follows is no request of its own"
        assert b"ambiguous_framing" in answer


@pytest.mark.parametrize(("server", "most"), [("router", HEAD), ("service", 64 << 10)])
def test_a_head_has_so_many_bytes_at_most(ports: dict[str, int], server: str, most: int) -> None:
    def of(length: int) -> bytes:
        bare = asked("host: localhost", "x: ")
        return asked("host: localhost", "x: " + "y" * (length - len(bare)))

    assert statuses(talk(ports[server], of(most))) == [200]
    for more in (1, 1000, most // 2):
        whole = of(most + more)
        for pieces in ([whole], [whole[: most // 2], whole[most // 2 :]], [whole[:-1], whole[-1:]]):
            assert statuses(talk(ports[server], *pieces)) == [431], (more, len(pieces))


def test_a_head_has_so_many_lines_at_most(limited: tuple[Router, Engine]) -> None:
    router, engine = limited
    engine.received.clear()
    lines = [f"x-{number}: y" for number in range(LINES - 2)]
    assert statuses(router.talk(asked("host: localhost", *lines))) == [200]
    assert statuses(router.talk(asked("host: localhost", *lines, "z: y"))) == [431]
    with http2.Connection(router.port) as made:
        fields = [(f"x-{number}", "y") for number in range(LINES)]
        number = made.ask("POST", "/v1/chat/completions", BODY, *fields, JSON)
        # No status of the static table: by its name's number, in Huffman's code.
        assert made.until(http2.HEADERS, number)[1].startswith(b"\x48\x83i\x90\xff"), "431"
        number = made.ask("POST", "/v1/chat/completions", BODY, *fields[:-1], JSON)
        assert made.until(http2.HEADERS, number)[1].startswith(b"\x88"), "200"
    assert engine.asked() == 1


def test_an_idle_connection_of_http2_ends_by_the_idle_timeout(engine: Engine) -> None:
    flags = (*PLAIN, "--request-timeout", "500ms", "--idle-timeout", "3s")
    with Router(engine, flags=flags) as router, http2.Connection(router.port) as made:
        time.sleep(1.5)
        number = made.ask("POST", "/v1/chat/completions", BODY, JSON)
        assert made.until(http2.DATA, number)[1], "half of the time may pass without a request"
        got = [made.read() for _ in range(2)]
        kinds = [frame[0] if frame else None for frame in got]
        assert kinds[-1] is None or http2.GOAWAY in kinds


def test_what_comes_between_requests_does_not_keep_a_connection(engine: Engine) -> None:
    with Router(engine, flags=(*PLAIN, "--idle-timeout", "1s")) as router, http2.Connection(router.port) as made:
        made.socket.settimeout(0.1)
        end = time.monotonic() + 60
        over = False
        while not over:
            assert time.monotonic() < end, "pings keep it"
            try:
                made.socket.sendall(http2.frame(http2.PING, 0, 0, b"12345678"))
                over = not made.socket.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                over = True
