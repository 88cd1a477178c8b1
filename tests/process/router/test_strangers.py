"""Strangers, who have not shown the key: what all of them together can take, and what keyed clients notice of it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import Engine

from . import http2
from .running import PLAIN, Router, read_rest, wait_until

KEY = "s3cret-of-the-router"
BEARER = ("authorization", f"Bearer {KEY}")
MIB = 1 << 20
MOST = 128 * MIB  # that all strangers together may take
STREAMS = 16  # that a stranger may have open
HEAD = 64 << 10

Attack = Callable[[int, contextlib.ExitStack], None]


@contextlib.contextmanager
def keyed(engine: Engine, folder: Path, *flags: str) -> Iterator[Router]:
    (folder / "key").write_text(KEY, encoding="ascii")
    with Router(engine, flags=(*PLAIN, "--key-file", str(folder / "key"), *flags)) as router:
        yield router


def metric(router: Router, name: str, port: int | None = None) -> dict[str, float]:
    """A metric by its labels, as a client with the key reads it."""
    with socket.create_connection(("127.0.0.1", port or router.port), 30) as made:
        key = "" if port else f"authorization: Bearer {KEY}\r\n"
        made.sendall(f"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}connection: close\r\n\r\n".encode())
        text = read_rest(made).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(name)]
    return {line[0].removeprefix(name): float(line[2]) for line in lines}


def requests(count: int, path: str, *fields: tuple[str, str], first: int = 1) -> bytes:
    """The heads of requests over HTTP/2, each on a stream of its own."""
    own = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "127.0.0.1"), *fields]
    block = http2.block(*own)
    flags = http2.END_HEADERS | http2.END_STREAM
    return b"".join(http2.frame(http2.HEADERS, flags, first + 2 * number, block) for number in range(count))


def start(window: int) -> bytes:
    settings = struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, window)
    return http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, settings)


def opened(port: int, stack: contextlib.ExitStack, *pieces: bytes) -> socket.socket | None:
    """A connection on which this was sent as far as it was taken, and nothing is read."""
    try:
        made = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        made.settimeout(0.5)
        for piece in pieces:
            made.sendall(piece)
    except OSError:
        return None
    return made


def unread_streams(path: str, window: int, count: int = 100) -> Attack:
    def attack(port: int, stack: contextlib.ExitStack) -> None:
        for _ in range(count):
            opened(port, stack, start(window) + requests(600, path))

    return attack


def few_streams(port: int, stack: contextlib.ExitStack) -> None:
    for _ in range(1500):
        opened(port, stack, start(0) + requests(STREAMS, "/health"))


def many_lines(port: int, stack: contextlib.ExitStack) -> None:
    """Heads that are long only once they are unpacked: one field is kept, and then said by its number."""
    field = b"\x40\x01x" + bytes([100]) + b"y" * 100
    own = http2.block((":method", "GET"), (":scheme", "http"), (":path", "/health"), (":authority", "a"))
    flags = http2.END_HEADERS | http2.END_STREAM
    for _ in range(300):
        heads = [http2.frame(http2.HEADERS, flags, 1, own + field)]
        heads += [http2.frame(http2.HEADERS, flags, 3 + 2 * number, own + b"\xbe" * 400) for number in range(15)]
        opened(port, stack, start(0) + b"".join(heads))


def unfinished_heads(port: int, stack: contextlib.ExitStack) -> None:
    for _ in range(2500):
        opened(port, stack, b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * (60 << 10))


def unfinished_heads_of_http2(port: int, stack: contextlib.ExitStack) -> None:
    own = http2.block((":method", "GET"), (":scheme", "http"), (":path", "/health"), (":authority", "a"))
    first = http2.frame(http2.HEADERS, http2.END_STREAM, 1, own)
    more = b"".join(http2.frame(9, 0, 1, http2.block(("x" + str(n), "y" * 120)) * 60) for n in range(5))
    for _ in range(1500):
        opened(port, stack, start(0) + first + more)


def idle(port: int, stack: contextlib.ExitStack) -> None:
    for number in range(6000):
        opened(port, stack, (b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", start(0))[number % 2])


def unread_answers(port: int, stack: contextlib.ExitStack) -> None:
    asked = b"GET /ui/page.css HTTP/1.1\r\nhost: a\r\n\r\n" * 10_000
    for _ in range(60):
        opened(port, stack, asked)


def unwanted_bodies(port: int, stack: contextlib.ExitStack) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    own = [(":method", "POST"), (":scheme", "http"), (":path", "/v1/chat/completions"), (":authority", "a")]
    first = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.block(*own))
    data = http2.frame(http2.DATA, 0, 1, b"y" * (16 << 10)) * 32
    for _ in range(150):
        opened(port, stack, head + b"content-length: 60000000\r\n\r\n", b"y" * MIB)
        opened(port, stack, start(0) + first, data)


def floods(port: int, stack: contextlib.ExitStack) -> None:
    """Frames that cost their sender nothing."""
    ping, settings = http2.frame(http2.PING, 0, 0, b"12345678"), http2.frame(http2.SETTINGS, 0, 0)
    priority = http2.frame(2, 0, 1, struct.pack(">IB", 0, 1))
    widened = http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))
    reset = b"".join(
        requests(1, "/health", first=number) + http2.frame(http2.RST_STREAM, 0, number, struct.pack(">I", 8))
        for number in range(1, 4000, 2)
    )
    for piece in (ping * 30_000, settings * 30_000, priority * 30_000, widened * 30_000, reset):
        for _ in range(15):
            opened(port, stack, start(0) + piece)


ATTACKS = {
    "unread health": unread_streams("/health", 0),
    "unread refusals": unread_streams("/workers", 0),
    "unread pages": unread_streams("/ui/page.css", 0),
    "a window of one": unread_streams("/nowhere", 1),
    "few streams": few_streams,
    "many lines": many_lines,
    "unfinished heads": unfinished_heads,
    "unfinished heads of HTTP/2": unfinished_heads_of_http2,
    "idle": idle,
    "unread answers": unread_answers,
    "unwanted bodies": unwanted_bodies,
    "floods": floods,
}


def is_served(router: Router) -> float:
    """Seconds that an answer to a client with the key takes."""
    begun = time.monotonic()
    assert router.ask(headers=dict([BEARER])).status == 200
    return time.monotonic() - begun


@pytest.mark.parametrize("attack", ATTACKS)
def test_all_strangers_together_take_128_mib_at_most(engine: Engine, tmp_path: Path, attack: str) -> None:
    with keyed(engine, tmp_path) as router, contextlib.ExitStack() as strangers:
        is_served(router)
        before = router.memory()
        ATTACKS[attack](router.port, strangers)
        taken = 0
        for _ in range(5):
            taken = max(taken, router.memory() - before)
            assert is_served(router) < 10
            time.sleep(0.1)
        assert taken < MOST


@needs_openssl
@pytest.mark.parametrize("hello", [b"\x16\x03\x01", b"\x16\x03\x01\x40\x00\x01\x00\xff\xf0" + b"y" * 16_379])
def test_half_a_handshake_counts_too(engine: Engine, tmp_path: Path, hello: bytes) -> None:
    cert, key = make(tmp_path, "server", "/CN=localhost", *SERVER, "-addext", "basicConstraints=critical,CA:FALSE")
    (tmp_path / "key").write_text(KEY, encoding="ascii")
    tls = ("--tls-cert", str(cert), "--tls-key", str(key), "--key-file", str(tmp_path / "key"))
    trusted = ssl.create_default_context(cafile=str(cert))
    trusted.check_hostname = False
    with Router(engine, flags=(*PLAIN, *tls), ready=False) as router, contextlib.ExitStack() as strangers:

        def is_served_over_tls() -> bool:
            try:
                with router.connect() as plain, trusted.wrap_socket(plain) as made:
                    made.sendall(f"GET /ready HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n\r\n".encode())
                    return made.recv(100).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

        wait_until(is_served_over_tls, "the router is ready")
        before, taken = router.memory(), 0
        for number in range(1500):
            opened(router.port, strangers, hello)
            if number % 100 == 0:
                taken = max(taken, router.memory() - before)
        wait_until(is_served_over_tls, "a client with the key is served")
        assert max(taken, router.memory() - before) < MOST


def test_the_listener_for_administrators_makes_one_text_of_metrics_for_all(engine: Engine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with keyed(engine, tmp_path, "--admin-bind", f"127.0.0.1:{port}") as router, contextlib.ExitStack() as strangers:
        is_served(router)
        before = router.memory()
        for _ in range(40):
            opened(port, strangers, start(0) + requests(300, "/metrics"))
        for _ in range(40):
            opened(port, strangers, b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2000)
        for _ in range(5):
            assert router.get("/health") == (200, b"ok")
            assert router.memory() - before < MOST
        # Clients that ask for it in either way get it all the same.
        assert metric(router, "kvatlas_router_connections", port)


@pytest.mark.parametrize("path", ["/health", "/workers"])
def test_a_stranger_has_few_streams(engine: Engine, tmp_path: Path, path: str) -> None:
    with keyed(engine, tmp_path) as router, http2.Connection(router.port, 0) as made:
        made.socket.sendall(requests(STREAMS, path))
        answered = [made.until(http2.HEADERS, 2 * number + 1) for number in range(STREAMS)]
        assert len(answered) == STREAMS
        with contextlib.suppress(OSError):
            made.socket.sendall(requests(1, path, first=2 * STREAMS + 1))
            while made.read() is not None:
                pass
        closed = metric(router, "kvatlas_router_strangers_closed_total")
        assert closed['{reason="too_many_streams"}'] == 1


@pytest.mark.parametrize(("window", "widened"), [(0, False), (1, False), (0, True)])
def test_an_answer_that_a_stranger_does_not_take_ends_its_connection(
    engine: Engine, tmp_path: Path, window: int, widened: bool
) -> None:
    with keyed(engine, tmp_path) as router, http2.Connection(router.port, window) as made:
        number = made.ask("GET", "/ui/page.css")
        begun = time.monotonic()
        made.socket.settimeout(0.1)
        is_over = False
        while not is_over and time.monotonic() - begun < 30:
            try:
                if widened:
                    made.widen(number, 1)
                    time.sleep(0.05)
                is_over = made.read() is None
            except TimeoutError:
                continue
            except OSError:
                is_over = True
        assert is_over
        closed = metric(router, "kvatlas_router_strangers_closed_total")
        assert closed['{reason="unread_answer"}'] == 1


def test_a_client_with_the_key_has_many_streams_at_once(engine: Engine, tmp_path: Path) -> None:
    with keyed(engine, tmp_path) as router, http2.Connection(router.port, 0) as made:
        made.socket.sendall(requests(200, "/workers", BEARER))
        answered: set[int] = set()
        while len(answered) < 200:
            got = made.read()
            assert got is not None
            if got[0] == http2.HEADERS:
                assert got[3].startswith(b"\x88"), "200"
                answered.add(got[2])
        # It keeps them for longer than a stranger may.
        time.sleep(3)
        assert metric(router, "kvatlas_router_strangers_closed_total")['{reason="unread_answer"}'] == 0
        made.widen(1, 1 << 20)
        assert made.until(http2.DATA, 1)[1]


def test_a_stranger_may_ask_one_thing_after_another(engine: Engine, tmp_path: Path) -> None:
    with keyed(engine, tmp_path) as router, http2.Connection(router.port) as made:
        for _ in range(3 * STREAMS):
            number = made.ask("GET", "/health")
            assert made.until(http2.DATA, number)[1] == b"ok"
        # With the key, it may do what others may.
        number = made.ask("GET", "/workers", b"", BEARER)
        assert made.until(http2.HEADERS, number)[1].startswith(b"\x88"), "200"


@pytest.mark.parametrize("size", [HEAD + 1, 2 * HEAD, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_head_that_is_too_large_is_told_so_in_words(engine: Engine, tmp_path: Path, size: int, end: bytes) -> None:
    with keyed(engine, tmp_path) as router, router.connect() as made:
        begun = b"GET /health HTTP/1.1\r\nhost: a\r\nx: "
        with contextlib.suppress(OSError):
            made.sendall(begun + b"y" * (size - len(begun)) + end)
        answer = read_rest(made)
        if answer:  # a client that goes on sending may find the connection reset before it has read
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert b'"head_too_large"' in answer
        assert is_served(router) < 10
