"""Answers that are no streams and break off: a client always learns of it, and never without a status."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import Behaviour, Engine, Talk, chunk, die, head, raw, usual

from .running import PLAIN, Router, wait_until

PART = b'{"choices": [{"message": {"role": "assistant", "content": "' + b"x" * 100
CHUNKED = head("200 OK", "transfer-encoding: chunked")


def breaks(data: bytes, more: bytes = b"", *, reset: bool = False) -> Behaviour:
    """These bytes, `more` after a moment, and the end of the connection."""

    async def act(talk: Talk) -> None:
        await talk.send(data)
        await asyncio.sleep(0.01)
        if more:
            await talk.send(more)
        if reset:
            made = talk.writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            talk.abort()
        else:
            talk.writer.close()

    return act


PARTLY = {
    "short": breaks(head("200 OK", "content-length: 1000") + PART),
    "short-at-once": raw(head("200 OK", "content-length: 1000") + PART),
    "short-reset": breaks(head("200 OK", "content-length: 1000") + PART, reset=True),
    "long-short": breaks(head("200 OK", "content-length: 1000000") + PART * 5000),
    "no-last-chunk": breaks(CHUNKED + chunk(PART)),
    "no-last-chunk-at-once": raw(CHUNKED + chunk(PART)),
    "half-a-chunk": breaks(CHUNKED + b"fff\r\n" + PART),
    "malformed-chunk": breaks(CHUNKED + chunk(PART), b"garbage\r\n"),
    "malformed-chunk-end": breaks(CHUNKED + b"5\r\nhello", b"more\r\n"),
    "chunk-without-number": breaks(CHUNKED + chunk(PART), b"-5\r\nhello\r\n"),
    "endless-trailers": breaks(CHUNKED + chunk(PART), b"0\r\n" + b"x: y\r\n" * 10_000),
    "until-close-reset": breaks(head("200 OK") + PART, reset=True),
}
WHOLLY = {
    "nothing": raw(head("200 OK", "content-length: 1000")),
    "no-chunk": raw(CHUNKED),
    "malformed-first-chunk": raw(CHUNKED + b"nonsense\r\n"),
    "malformed-in-one-piece": raw(CHUNKED + chunk(PART) + b"garbage\r\n"),
    "until-close": raw(head("200 OK")),
    "until-close-stream": raw(head("200 OK", kind="text/event-stream")),
    "reset": breaks(head("200 OK", "content-length: 1000"), reset=True),
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[Router, Engine, Engine]]:
    with Engine() as engine, Engine() as other, Router(engine, other) as router:
        yield router, engine, other


@pytest.fixture
def router(fleet: tuple[Router, Engine, Engine]) -> Router:
    return fleet[0]


@pytest.fixture
def engine(fleet: tuple[Router, Engine, Engine]) -> Engine:
    fleet[1].behaviour = usual
    return fleet[1]


@pytest.fixture
def other(fleet: tuple[Router, Engine, Engine]) -> Engine:
    fleet[2].behaviour = usual
    return fleet[2]


@pytest.mark.parametrize("behaviour", PARTLY.values(), ids=PARTLY.keys())
def test_a_client_gets_the_head_of_an_answer_that_breaks_off(
    router: Router, engine: Engine, other: Engine, behaviour: Behaviour
) -> None:
    engine.behaviour = other.behaviour = behaviour
    for _ in range(10):
        answer = router.ask()
        assert answer.status in (200, 502)
        assert answer.broken == (answer.status == 200), answer
        assert answer.status == 502 or answer.headers["content-type"] == "application/json"
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


@pytest.mark.parametrize("behaviour", WHOLLY.values(), ids=WHOLLY.keys())
def test_an_answer_that_breaks_off_before_its_body_is_another_engine_s_to_give(
    router: Router, engine: Engine, other: Engine, behaviour: Behaviour
) -> None:
    engine.behaviour = behaviour
    assert [router.ask().status for _ in range(2)] == [200, 200]
    other.behaviour = behaviour
    answer = router.ask()
    assert (answer.status, answer.error["code"]) == (502, "engine_failed")


@pytest.mark.parametrize("name", ["short", "short-at-once", "short-reset", "no-last-chunk-at-once", "malformed-chunk"])
def test_a_client_of_http_2_gets_the_head_too(router: Router, engine: Engine, other: Engine, name: str) -> None:
    engine.behaviour = other.behaviour = PARTLY[name]
    for _ in range(30):
        frames = by_http2(router, b'{"model": "model", "messages": [{"role": "user", "content": "x"}]}')
        kinds = [kind for kind, _, _ in frames]
        if frames[0][2][:1] == b"\x88":  # status 200
            assert kinds[0] == HEADERS
            assert kinds[-1] == RST_STREAM
            assert PART in b"".join(payload for kind, _, payload in frames if kind == DATA)
        else:
            assert (kinds[0], frames[-1][1] & 1) == (HEADERS, 1), "an answer of the router's own, and its end"


def test_an_answer_without_a_length_that_ends_is_whole(router: Router, engine: Engine, other: Engine) -> None:
    engine.behaviour = other.behaviour = raw(head("200 OK") + b'{"choices": []}')
    answer = router.ask()
    assert (answer.status, answer.broken, answer.json) == (200, False, {"choices": []})
    engine.behaviour = other.behaviour = raw(b"HTTP/1.1 200 OK\r\n\r\n")
    assert router.ask().status == 200, "without a type, it may be empty"


@needs_openssl
def test_an_answer_that_ends_without_a_notice_of_tls_has_broken_off(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "engine", "/CN=localhost", *SERVER, "-addext", "basicConstraints=critical,CA:FALSE")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    with Engine(tls=tls) as engine, Router(engine, flags=(*PLAIN, "--upstream-ca", str(cert))) as router:
        for fields in ((), ("content-length: 1000",), ("transfer-encoding: chunked",)):
            part = chunk(PART) if "transfer-encoding: chunked" in fields else PART
            engine.behaviour = breaks(head("200 OK", *fields) + part, reset=True)
            answer = router.ask()
            assert (answer.status, answer.broken) == (200, True)
        engine.behaviour = die
        assert router.ask().status == 502


# HTTP/2, as far as it takes

DATA, HEADERS, RST_STREAM = 0, 1, 3


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def by_http2(router: Router, body: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, flags and payload of each frame of the answer to a request."""
    fields = b"\x83\x86"  # POST, http
    for index, value in ((4, b"/v1/chat/completions"), (1, b"localhost")):
        fields += bytes([index, len(value)]) + value
    asked = frame(4, 0, 0, b"") + frame(HEADERS, 4, 1, fields) + frame(DATA, 1, 1, body)
    frames: list[tuple[int, int, bytes]] = []
    with router.connect() as made:
        made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + asked)
        reader = made.makefile("rb")
        while True:
            start = reader.read(9)
            assert len(start) == 9, "the stream ends before the connection does"
            payload = reader.read(int.from_bytes(start[:3], "big"))
            kind, flags, stream = start[3], start[4], int.from_bytes(start[5:], "big")
            if stream != 1 or kind not in (DATA, HEADERS, RST_STREAM):
                continue
            frames.append((kind, flags, payload))
            if kind == RST_STREAM or flags & 1:
                return frames
