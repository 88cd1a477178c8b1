"""Engines that answer before they have read the request: their answer counts, whatever they do with the rest."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, event, head, read_body

from .running import PLAIN, Router, wait_until

SAID = json.dumps({"error": {"message": "too large", "code": 413}}).encode()
REFUSAL = head("413 Payload Too Large", f"content-length: {len(SAID)}") + SAID
CLOSES = head("413 Payload Too Large", "connection: close", f"content-length: {len(SAID)}") + SAID
UNTIL_CLOSE = head("413 Payload Too Large", "connection: close") + SAID
# More than all the buffers between two processes hold.
LONG = {"model": MODEL, "prompt": "x" * (20 << 20)}


def says(data: bytes, then: Behaviour | None = None) -> Behaviour:
    """These bytes, before the body is read."""

    async def act(talk: Talk) -> None:
        await talk.send(data)
        if then is not None:
            await then(talk)

    return act


async def stays(talk: Talk) -> None:
    """Reads no more, and keeps the connection for as long as its engine lives."""
    await asyncio.Event().wait()


async def resets(talk: Talk) -> None:
    talk.abort()


async def reads_on(talk: Talk) -> None:
    """Reads all of the body, slowly, as one does that must before it closes."""
    talk.request.body = await read_body(talk.reader, talk.request.headers)


@pytest.fixture
def impatient(engine: Engine, other: Engine) -> Iterator[Router]:
    with Router(engine, other, flags=(*PLAIN, "--first-byte-timeout", "3s")) as made:
        yield made


@pytest.mark.parametrize(
    "eager",
    [
        says(REFUSAL, stays),
        says(CLOSES, stays),
        says(REFUSAL),
        says(CLOSES),
        says(UNTIL_CLOSE),
        says(REFUSAL, resets),
        says(REFUSAL, reads_on),
        says(b"HTTP/1.1 100 Continue\r\n\r\n" + REFUSAL, stays),
    ],
    ids=["stays", "wants-to-close", "closes", "says-and-closes", "until-close", "resets", "reads-on", "after-100"],
)
def test_an_early_answer_is_the_answer(impatient: Router, engine: Engine, other: Engine, eager: Behaviour) -> None:
    router = impatient
    engine.eager = other.eager = eager
    for _ in range(4):
        answer = router.ask(LONG, path="/v1/completions")
        assert (answer.status, answer.json["error"]["code"]) == (413, 413), answer
    assert engine.asked() == other.asked() == 2, "nothing was sent again"
    assert router.metric("kvatlas_router_retries_total") == 0
    assert router.metric("kvatlas_router_engine_faults_total") == 0
    assert {worker["standing"] for worker in router.workers()} == {"up"}
    # What was not sent as a whole ends with its connection.
    engine.eager = other.eager = None
    assert [router.ask().status for _ in range(4)] == [200] * 4
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


def test_an_answer_that_begins_early_does_not_end_the_request(impatient: Router, engine: Engine, other: Engine) -> None:
    begins = head("200 OK", "transfer-encoding: chunked", kind="text/event-stream") + chunk(event({"choices": []}))

    async def reads_and_ends(talk: Talk) -> None:
        await reads_on(talk)
        await talk.send(chunk(event({"read": len(talk.request.body)})) + chunk(event(b"[DONE]")) + b"0\r\n\r\n")

    engine.eager = other.eager = says(begins, reads_and_ends)
    body = json.dumps(LONG | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    answer = router_events(impatient, body)
    assert [json.loads(one) for one in answer[:-1]] == [{"choices": []}, {"read": len(body)}]
    assert answer[-1] == b"[DONE]"


def router_events(router: Router, body: bytes) -> list[bytes]:
    answer = router.ask(body, path="/v1/completions")
    assert (answer.status, answer.broken) == (200, False)
    return answer.events


def test_an_interim_answer_is_no_answer(impatient: Router, engine: Engine, other: Engine) -> None:
    async def goes_on(talk: Talk) -> None:
        await reads_on(talk)
        await talk.engine.behaviour(talk)

    engine.eager = other.eager = says(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", goes_on
    )
    for _ in range(2):
        answer = impatient.ask(LONG, path="/v1/completions")
        assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "ok")
    assert len(engine.last.body) == len(json.dumps(LONG))


def test_an_engine_that_reads_half_and_says_nothing_is_given_up(engine: Engine, other: Engine) -> None:
    async def reads_half(talk: Talk) -> None:
        await talk.reader.readexactly(1 << 20)
        await stays(talk)

    engine.eager = other.eager = reads_half
    with Router(engine, other, flags=(*PLAIN, "--first-byte-timeout", "1s")) as router:
        answer = router.ask(LONG, path="/v1/completions")
        assert (answer.status, answer.error["code"]) == (504, "engine_timeout")
        assert engine.asked() == other.asked() == 1
        wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


@needs_openssl
@pytest.mark.parametrize("eager", [says(REFUSAL, stays), says(CLOSES), says(REFUSAL, reads_on)])
def test_an_early_answer_over_tls(tmp_path: Path, eager: Behaviour) -> None:
    cert, key = make(tmp_path, "engine", "/CN=localhost", *SERVER, "-addext", "basicConstraints=critical,CA:FALSE")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    with (
        Engine(tls=tls) as engine,
        Router(engine, flags=(*PLAIN, "--upstream-ca", str(cert), "--first-byte-timeout", "60s")) as router,
    ):
        assert router.ask().status == 200
        engine.eager = eager
        for _ in range(2):
            answer = router.ask(LONG, path="/v1/completions")
            assert (answer.status, answer.json["error"]["code"]) == (413, 413), answer
        engine.eager = None
        assert router.ask(LONG, path="/v1/completions").status == 200
        assert router.metric("kvatlas_router_engine_faults_total") == 0
