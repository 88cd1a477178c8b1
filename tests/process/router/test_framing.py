"""Requests that two readers could read in two ways: none may reach an engine as what the router did not see."""

import json

import pytest
from tests.support.engine import MODEL, Engine

from . import http2
from .running import MESSAGES, Router

BODY = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
HIDDEN = b"POST /v1/hidden HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}"
SIZE = len(BODY)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (SIZE, BODY)


def post(fields: bytes, body: bytes, line: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    return line + b"\r\nhost: 127.0.0.1\r\n" + fields + b"\r\n" + body


# What must be refused, and the connection closed: nothing after it may be read as a request.
REFUSED = {
    "length and chunked": post(b"content-length: 4\r\ntransfer-encoding: chunked\r\n", CHUNKS),
    "chunked and length": post(b"transfer-encoding: chunked\r\ncontent-length: 4\r\n", CHUNKS),
    "two lengths": post(b"content-length: %d\r\ncontent-length: %d\r\n" % (SIZE, SIZE + 5), BODY),
    "two lengths in one": post(b"content-length: %d, %d\r\n" % (SIZE, SIZE + 5), BODY),
    "length with a sign": post(b"content-length: +%d\r\n" % SIZE, BODY),
    "negative length": post(b"content-length: -1\r\n", BODY),
    "length in hex": post(b"content-length: 0x%x\r\n" % SIZE, BODY),
    "length with a space": post(b"content-length: 1 0\r\n", BODY),
    "endless length": post(b"content-length: 99999999999999999999999\r\n", BODY),
    "empty length": post(b"content-length: \r\n", BODY),
    "space before the colon": post(b"content-length : %d\r\n" % SIZE, BODY),
    "coding not chunked": post(b"transfer-encoding: gzip\r\n", CHUNKS),
    "chunked is not last": post(b"transfer-encoding: chunked, gzip\r\n", CHUNKS),
    "chunked misspelt": post(b"transfer-encoding: xchunked\r\n", CHUNKS),
    "chunked with a control": post(b"transfer-encoding: \x0bchunked\r\n", CHUNKS),
    "folded field": post(b"content-length: 0\r\nx-folded: a\r\n transfer-encoding: chunked\r\n", CHUNKS),
    "field without a name": post(b": %d\r\ncontent-length: %d\r\n" % (SIZE, SIZE), BODY),
    "field with a zero": post(b"x-zero: a\x00b\r\ncontent-length: %d\r\n" % SIZE, BODY),
    "bare return in a field": post(b"x-return: a\rtransfer-encoding: chunked\r\ncontent-length: %d\r\n" % SIZE, BODY),
    "bad chunk size": post(b"transfer-encoding: chunked\r\n", b"zz\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "negative chunk size": post(b"transfer-encoding: chunked\r\n", b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "endless chunk size": post(b"transfer-encoding: chunked\r\n", b"f" * 40 + b"\r\n" + BODY),
    "chunk longer than its size": post(b"transfer-encoding: chunked\r\n", b"2\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "two spaces in the line": post(b"content-length: %d\r\n" % SIZE, BODY, b"POST  /v1/chat/completions HTTP/1.1"),
    "no version": post(b"content-length: %d\r\n" % SIZE, BODY, b"POST /v1/chat/completions"),
    "version 3": post(b"content-length: %d\r\n" % SIZE, BODY, b"POST /v1/chat/completions HTTP/3.0"),
    "control in the path": post(b"content-length: %d\r\n" % SIZE, BODY, b"POST /v1/chat\x01 HTTP/1.1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ambiguous_framing_is_refused_and_the_connection_closed(plain: tuple[Router, Engine], name: str) -> None:
    router, engine = plain
    answer = router.talk(REFUSED[name] + HIDDEN)
    posted = [one for one in engine.received if one.method == "POST"]
    assert not posted, "no engine sees any of it"
    assert answer.count(b"HTTP/1.1 ") <= 1, "what comes after it is no request"
    if answer:
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505")), answer[:100]
    assert router.ask().status == 200


# What may be read in one way only, whatever its looks.
READ = {
    "the same length twice": post(b"content-length: %d\r\ncontent-length: %d\r\n" % (SIZE, SIZE), BODY),
    "chunk with an extension": post(b"transfer-encoding: chunked\r\n", b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (SIZE, BODY)),
    "chunked in capitals": post(b"Transfer-Encoding: CHUNKED\r\n", CHUNKS),
    "trailer": post(b"transfer-encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\nx-trailer: 1\r\n\r\n" % (SIZE, BODY)),
    "leading empty line": b"\r\n" + post(b"content-length: %d\r\n" % SIZE, BODY),
}


# Another request, after whose answer the router closes: all of the first one's has come then.
CLOSES = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("name", READ)
def test_unusual_framing_is_read_right_or_refused(plain: tuple[Router, Engine], name: str) -> None:
    router, engine = plain
    answer = router.talk(READ[name] + CLOSES)
    posted = [one for one in engine.received if one.method == "POST"]
    if answer.startswith(b"HTTP/1.1 200"):
        assert [(one.path, one.body) for one in posted] == [("/v1/chat/completions", BODY)]
    else:
        assert answer.startswith(b"HTTP/1.1 4"), answer[:100]
        assert not posted
    assert router.ask().status == 200


def test_fields_between_two_hops_are_not_passed_on(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    hop = {"connection": "x-private, close", "x-private": "1", "keep-alive": "9", "te": "trailers", "upgrade": "h2c"}
    secret = {"proxy-authorization": "Basic eA=="}
    assert router.ask(headers={**hop, **secret, "x-public": "1"}).status == 200
    got = engine.last.headers
    assert got["x-public"] == "1"
    assert not {"x-private", "keep-alive", "te", "upgrade", "proxy-authorization"} & set(got)
    assert "close" not in got.get("connection", "")


def test_a_name_that_needs_quoting_does_not_break_the_head_to_the_engine(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    answer = router.talk(
        post(
            b"content-length: %d\r\nconnection: close\r\n" % SIZE, BODY, b"POST /v1/chat/completions?a=%0d%0aX HTTP/1.1"
        )
    )
    assert answer.startswith(b"HTTP/1.1 200")
    assert engine.last.path == "/v1/chat/completions?a=%0d%0aX"


@pytest.mark.parametrize(
    ("authority", "host", "status"),
    [
        ("127.0.0.1", None, 200),
        ("127.0.0.1", "127.0.0.1", 200),
        ("LocalHost", "localhost", 200),
        (None, "127.0.0.1", 200),
        ("127.0.0.1", "elsewhere", 400),
        ("elsewhere", "127.0.0.1", 400),
        (None, None, 400),
        (None, "a/b", 400),
    ],
)
def test_a_request_over_http2_names_one_host(
    plain: tuple[Router, Engine], authority: str | None, host: str | None, status: int
) -> None:
    fields = [] if host is None else [("host", host)]
    with http2.Connection(plain[0].port) as made:
        number = made.ask("GET", "/health", b"", *fields, authority=authority)
        head = made.until(http2.HEADERS, number)[1]
    # The status is the first field of the head, by its number in the static table (RFC 7541, appendix A).
    assert head[0] == {200: 0x88, 400: 0x8C}[status]
