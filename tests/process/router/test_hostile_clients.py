"""Clients that hold on to what others need: engine slots, connections, memory."""

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Engine, hang, stream, usual

from . import http2
from .running import MESSAGES, PLAIN, Router, read_rest, wait_until

BODY = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
STREAMED = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
JSON = ("content-type", "application/json")
MIB = 1 << 20


def head(length: int, *fields: str) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *fields]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


# HTTP/2: windows


def never(made: http2.Connection, number: int) -> None:
    del made, number


def by_the_byte(made: http2.Connection, number: int) -> None:
    """A byte of window now and then, for ever."""
    with contextlib.suppress(OSError):
        while True:
            made.widen(number, 1)
            time.sleep(0.05)


@pytest.mark.parametrize(("window", "widen"), [(0, never), (1, never), (0, by_the_byte), (3, by_the_byte)])
def test_an_answer_that_is_not_taken_frees_its_engine(
    engine: Engine, window: int, widen: Callable[[http2.Connection, int], None]
) -> None:
    engine.behaviour = stream(20_000, pause=0.001)
    flags = (*PLAIN, "--write-timeout", "1s")
    with Router(engine, flags=flags) as router, http2.Connection(router.port, window) as made:
        number = made.ask("POST", "/v1/chat/completions", STREAMED, JSON)
        threading.Thread(target=widen, args=(made, number), daemon=True).start()
        wait_until(lambda: router.in_flight() == 1, "the engine is at work")
        assert made.until(http2.RST_STREAM, number)
        wait_until(lambda: router.in_flight() == 0, "the engine is free")
        assert router.metric("kvatlas_router_stalled_streams_total") == 1
        # Others of the connection live on.
        engine.behaviour = usual
        number = made.ask("POST", "/v1/chat/completions", BODY, JSON)
        made.widen(number, 1 << 20)
        assert made.until(http2.DATA, number)[1]


def test_the_window_of_a_connection_has_its_limit_too(engine: Engine) -> None:
    engine.behaviour = stream(20_000)
    flags = (*PLAIN, "--write-timeout", "1s")
    with Router(engine, flags=flags) as router, http2.Connection(router.port, 1 << 20) as made:
        streams = [made.ask("POST", "/v1/chat/completions", STREAMED, JSON) for _ in range(3)]
        reset: set[int] = set()
        while len(reset) < 3:
            got = made.read()
            assert got is not None
            if got[0] == http2.RST_STREAM:
                reset.add(got[2])
        assert reset == set(streams)
        wait_until(lambda: router.in_flight() == 0, "the engine is free")


def test_a_client_of_http2_that_does_not_read_its_socket_is_dropped(engine: Engine) -> None:
    engine.behaviour = stream(200_000)
    with (
        Router(engine, flags=(*PLAIN, "--write-timeout", "1s")) as router,
        http2.Connection(router.port, (1 << 31) - 1) as made,
    ):
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.widen(0, (1 << 31) - 1 - 65_535)
        made.ask("POST", "/v1/chat/completions", STREAMED, JSON)
        wait_until(lambda: engine.asked() == 1, "the engine has it")
        wait_until(lambda: router.in_flight() == 0, "the engine is free")


def test_a_slow_client_that_takes_its_answer_gets_all_of_it(engine: Engine) -> None:
    engine.behaviour = stream(500)
    with Router(engine, flags=(*PLAIN, "--write-timeout", "2s")) as router, http2.Connection(router.port, 0) as made:
        number = made.ask("POST", "/v1/chat/completions", STREAMED, JSON)
        data = b""
        while True:
            # 64 KiB in 16 pieces, each within the limit, all of them beyond it.
            made.widen(number, 4096)
            made.widen(0, 4096)
            kind, flags, of, payload = made.read() or (None, 0, 0, b"")
            assert kind in (http2.HEADERS, http2.DATA, http2.WINDOW_UPDATE)
            data += payload if kind == http2.DATA else b""
            if of == number and flags & http2.END_STREAM:
                break
        assert data.endswith(b"data: [DONE]\n\n")


def test_a_client_of_http1_that_reads_by_the_byte_is_dropped(engine: Engine) -> None:
    engine.behaviour = stream(500_000)
    with Router(engine, flags=(*PLAIN, "--write-timeout", "1s")) as router, socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", router.port))
        made.sendall(head(len(STREAMED)) + STREAMED)
        wait_until(lambda: engine.asked() == 1, "the engine has it")
        over = threading.Event()

        def read() -> None:
            with contextlib.suppress(OSError):
                while not over.wait(0.01) and made.recv(1):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            wait_until(lambda: router.in_flight() == 0, "the engine is free")
        finally:
            over.set()
            reader.join()


# HTTP/1.1: ends of what a client sends


@pytest.mark.parametrize("begun", [False, True], ids=["before-the-answer", "in-the-answer"])
@pytest.mark.parametrize(("version", "chunked"), [("1.1", False), ("1.1", True), ("1.0", False)])
def test_a_client_that_ends_what_it_sends_has_left(
    plain: tuple[Router, Engine], version: str, chunked: bool, begun: bool
) -> None:
    router, engine = plain
    engine.behaviour = stream(1, after=hang) if begun else hang
    engine.given_up.clear()
    whole = head(len(STREAMED)).replace(b"1.1\r\n", version.encode() + b"\r\n", 1) + STREAMED
    if chunked:
        whole = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        whole += b"%x\r\n%s\r\n0\r\n\r\n" % (len(STREAMED), STREAMED)
    asked = engine.asked()
    with router.connect() as made:
        made.sendall(whole)
        wait_until(lambda: engine.asked() == asked + 1, "the engine has it")
        if begun:
            assert made.recv(7) == b"HTTP/1."
        made.shutdown(socket.SHUT_WR)
        wait_until(lambda: len(engine.given_up) == 1, "the engine's request is cancelled")
        while made.recv(4096):  # The connection ends, too.
            pass
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
    engine.behaviour = usual


# Places


def test_strangers_give_way_to_clients_with_a_key(engine: Engine, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret", encoding="ascii")
    flags = (*PLAIN, "--key-file", str(key), "--max-connections", "30")
    with Router(engine, flags=flags, ready=False) as router, contextlib.ExitStack() as strangers:
        wait_until(lambda: router.get("/ready")[0] == 200, "the router is ready")
        for number in range(40):
            made = strangers.enter_context(router.connect())
            # Idle after an open route, half a head, half a body, nothing at all.
            begun = (b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", b"GET /health HT", head(100) + b"{", b"")[number % 4]
            with contextlib.suppress(ConnectionError):
                made.sendall(begun)
        for _ in range(5):
            answer = router.ask(headers={"authorization": "Bearer s3cret"}, timeout=30)
            assert answer.status == 200
        status, text = router.get("/health")
        assert (status, text) == (200, b"ok")


# Memory


def test_bodies_that_stop_share_one_memory_and_hold_up_nobody(engine: Engine) -> None:
    flags = (*PLAIN, "--max-body", "16MiB", "--body-memory", "64MiB")
    with Router(engine, flags=flags) as router, contextlib.ExitStack() as stopped:
        router.ask()
        before = router.memory()
        sockets = [stopped.enter_context(router.connect()) for _ in range(12)]
        piece = b" " * (15 * MIB)

        def send(made: socket.socket) -> None:
            with contextlib.suppress(OSError):
                made.sendall(head(16 * MIB) + piece)

        senders = [threading.Thread(target=send, args=(made,), daemon=True) for made in sockets]
        for sender in senders:
            sender.start()
        wait_until(lambda: router.metric("kvatlas_router_body_bytes") > 30 * MIB, "the memory is in use")
        for _ in range(20):
            assert router.ask(timeout=30).status == 200
            assert router.metric("kvatlas_router_body_bytes") <= 64 * MIB
        assert router.memory() - before < 110 * MIB
        # A large one that comes is served: one that has stopped gives way, as soon as it is known that it has stopped.
        whole = json.dumps({"model": MODEL, "messages": MESSAGES, "pad": " " * (8 * MIB)}).encode()
        wait_until(lambda: router.ask(whole).status == 200, "a large one is served")
        refused = router.metric("kvatlas_router_bodies_refused_total")
        assert refused > 0
        for made in sockets:
            made.settimeout(0.5)
        answers = [read_rest(made) for made in sockets]
        told = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503 ")]
        assert told
        assert all(b"retry-after: " in answer.lower() and b'"body_memory"' in answer for answer in told)


def test_a_limit_on_the_address_space_ends_no_router(engine: Engine) -> None:
    with Router(engine, flags=PLAIN) as router, contextlib.ExitStack() as stopped:
        router.ask()
        pages = int(Path(f"/proc/{router.process.pid}/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + 160 * MIB
        resource.prlimit(router.process.pid, resource.RLIMIT_AS, (limit, limit))
        sockets = [stopped.enter_context(router.connect()) for _ in range(10)]
        piece = b" " * (58 * MIB)

        def send(made: socket.socket) -> None:
            with contextlib.suppress(OSError):
                made.sendall(head(59 * MIB) + piece)

        senders = [threading.Thread(target=send, args=(made,), daemon=True) for made in sockets]
        for sender in senders:
            sender.start()
        for _ in range(10):
            assert router.ask(timeout=30).status == 200
            time.sleep(0.3)
        assert router.process.poll() is None
