"""Clients that leave, stop reading, send too much, too little, or nothing."""

import contextlib
import json
import socket
import struct
import time

import pytest
from tests.support.engine import MODEL, Engine, hang, stream, usual, whole

from .running import MESSAGES, PLAIN, Router, in_threads, read_rest, wait_until

BODY = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
STREAMED = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()


def request(body: bytes, *fields: str, length: int | None = None, path: str = "/v1/chat/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *fields]
    lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def still_works(router: Router) -> None:
    assert router.ask().status == 200


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_ends_its_request_at_the_engine(plain: tuple[Router, Engine], how: str) -> None:
    router, engine = plain
    engine.behaviour = hang
    engine.given_up.clear()
    made = router.connect()
    made.sendall(request(BODY))
    wait_until(lambda: engine.asked() == 1, "the engine has it")
    if how == "reset":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
    wait_until(lambda: len(engine.given_up) == 1, "the engine's request is cancelled")
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
    engine.behaviour = usual
    still_works(router)


def test_a_client_that_leaves_a_stream_ends_it_at_the_engine(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    engine.behaviour = stream(1, after=hang)  # one token: it has nothing left to send when the client leaves
    engine.given_up.clear()
    answer = router.open()
    assert b"t0" in answer.readline()
    answer.connection.close()  # type: ignore[attr-defined]
    answer.close()
    wait_until(lambda: len(engine.given_up) == 1, "the engine's request is cancelled")
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


def test_a_client_that_stops_reading_holds_up_nobody_and_is_dropped(engine: Engine) -> None:
    engine.behaviour = stream(200_000)
    with Router(engine, flags=(*PLAIN, "--write-timeout", "500ms")) as router:
        before = router.memory()
        made = router.connect()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.sendall(request(STREAMED))
        wait_until(lambda: engine.asked() == 1, "the engine has it")
        time.sleep(0.2)
        engine.behaviour = usual
        still_works(router)
        wait_until(lambda: router.in_flight() == 0, "it is dropped")
        assert router.memory() - before < 32 << 20, "what it did not read is not kept"
        made.close()


def test_half_a_body_is_refused_and_not_passed_on(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    answer = router.talk(request(BODY[:20], length=len(BODY)))
    assert status_of(answer) == 408
    assert engine.asked() == 0
    with router.connect() as made:
        made.sendall(request(BODY[:20], length=len(BODY)))
        made.shutdown(socket.SHUT_WR)
        answer = read_rest(made)
        assert not answer or 400 <= status_of(answer) < 500
    assert engine.asked() == 0
    still_works(router)


def test_half_a_head_does_not_hold_a_connection_for_ever(plain: tuple[Router, Engine]) -> None:
    router, _ = plain
    with router.connect(10) as made:
        made.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        answer = read_rest(made)
        assert not answer or 400 <= status_of(answer) < 500
    still_works(router)


def test_a_body_that_comes_in_pieces_is_passed_on_whole(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    with router.connect() as made:
        for byte in request(BODY, "connection: close"):
            made.sendall(bytes([byte]))
        assert status_of(read_rest(made)) == 200
    assert engine.last.body == BODY


def test_a_chunked_body_is_passed_on_whole(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:6], BODY[6:])) + b"0\r\n\r\n"
    fields = b"host: 127.0.0.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert status_of(router.talk(b"POST /v1/chat/completions HTTP/1.1\r\n" + fields + pieces)) == 200
    assert engine.last.body == BODY


@pytest.mark.parametrize("chunked", [False, True])
def test_100_mb_are_refused_without_being_kept(plain: tuple[Router, Engine], chunked: bool) -> None:
    router, engine = plain
    before = router.memory()
    size, piece = 100 << 20, b"x" * (1 << 20)
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    with router.connect() as made:
        made.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n{framing}\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            for _ in range(100):
                made.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        answer = read_rest(made)
    if answer:  # a client that goes on sending may find the connection reset before it has read
        assert status_of(answer) == 413
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"
    assert engine.asked() == 0
    assert router.memory() - before < 40 << 20
    still_works(router)


def test_a_body_announced_too_large_is_refused_before_it_is_sent(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    answer = router.talk(request(b"", length=5 << 20))
    assert status_of(answer) == 413
    assert engine.asked() == 0


def test_10_000_headers_are_refused(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    answer = router.talk(request(BODY, *(f"x-{number}: y" for number in range(10_000))))
    assert status_of(answer) == 431
    answer = router.talk(request(BODY, "x-long: " + "y" * 200_000))
    assert status_of(answer) == 431
    assert engine.asked() == 0
    still_works(router)


def test_100_headers_are_passed_on(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    assert router.ask(headers={f"x-{number}": str(number) for number in range(100)}).status == 200
    assert engine.last.headers["x-99"] == "99"


def test_many_requests_sent_at_once_on_one_connection_are_answered_in_order(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    bodies = [
        json.dumps({"model": MODEL, "messages": [{"role": "user", "content": str(n)}]}).encode() for n in range(20)
    ]
    requests = [request(body) for body in bodies[:-1]] + [request(bodies[-1], "connection: close")]
    answer = router.talk(b"".join(requests))
    assert answer.count(b"HTTP/1.1 200 OK") == 20
    assert [one.body for one in engine.received if one.method == "POST"] == bodies


def test_1_000_clients_at_once(engine: Engine, other: Engine) -> None:
    """Complaint 50: routers that fall over at a thousand requests at once."""
    engine.behaviour = other.behaviour = stream(3, pause=0.3)
    with Router(engine, other) as router:
        sockets = []
        try:
            for _ in range(1000):
                made = router.connect()
                made.sendall(request(STREAMED, "connection: close"))
                sockets.append(made)
            answers = [read_rest(made) for made in sockets]
        finally:
            for made in sockets:
                made.close()
        assert [status_of(answer) for answer in answers] == [200] * 1000
        assert all(answer.count(b"data: ") == 5 and b"[DONE]" in answer for answer in answers)
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
        assert engine.asked() == other.asked() == 500


def test_clients_that_leave_in_all_moments_leave_nothing_behind(engine: Engine, other: Engine) -> None:
    """Complaints 7 and 17: counts of requests in flight that leak."""
    engine.behaviour = other.behaviour = stream(3, pause=0.01)
    with Router(engine, other) as router:
        whole_request = request(STREAMED)

        def leave(number: int) -> None:
            for turn in range(20):
                at = (number * 20 + turn) * 7
                with router.connect() as made:
                    made.sendall(whole_request[: at % (len(whole_request) + 40)])
                    made.settimeout(0.001 * (at % 40) + 0.001)
                    with contextlib.suppress(TimeoutError, ConnectionError):
                        made.recv(1 + at % 300)

        with in_threads(8, leave) as errors:
            pass
        assert not errors
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")
        wait_until(lambda: router.metric("kvatlas_router_connections") <= 1, "nor connected")
        assert {worker["standing"] for worker in router.workers()} == {"up"}, "the engines did nothing wrong"
        engine.behaviour = other.behaviour = whole()
        still_works(router)
