"""Comments to clients of streams that are long in coming: no proxy closes a connection on which something moves."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, delta, die, event, hang, head, reply, stream

from .running import DEADLINE, MESSAGES, PLAIN, Router, in_threads, wait_until
from .test_waiting import busy

QUICK = (*PLAIN, "--comment-after", "100ms")
PATIENT = (*PLAIN, "--comment-after", "1500ms")  # longer than the beginning of a stream is held back
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/generate": {"input_ids": [1, 2, 3]},
    "/inference/v1/generate": {"token_ids": [1, 2, 3]},
    "/v1/chat/completions/tokens": {"messages": MESSAGES, "tokens": [1, 2, 3]},
}


class Client:
    """A client of a stream that reads it line by line, as it comes."""

    def __init__(self, router: Router, path: str = "/v1/chat/completions", **more: Any) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=DEADLINE)
        body = {"model": MODEL, **PROMPTS[path], "stream": True, **more}
        self.connection.request(
            "POST", path, json.dumps(body), {"content-type": "application/json", "x-request-id": "mine"}
        )
        self.answer = self.connection.getresponse()

    @property
    def status(self) -> int:
        return self.answer.status

    def header(self, name: str) -> str | None:
        return self.answer.getheader(name)

    def comments(self, count: int) -> None:
        """Reads `count` comments, and nothing else."""
        for _ in range(count):
            assert self.answer.readline().startswith(b":")
            assert self.answer.readline() == b"\n"

    def rest(self) -> list[bytes]:
        """The events that come besides comments, up to the end."""
        text = self.answer.read()
        self.connection.close()
        return [one for one in text.split(b"\n\n") if one and not one.startswith(b":")]

    def message(self) -> str:
        """The message of a refusal, which is the whole answer."""
        said = json.loads(self.answer.read())
        self.close()
        return str(said["error"]["message"])

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def after(release: threading.Event, then: Behaviour) -> Behaviour:
    async def act(talk: Talk) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await then(talk)

    return act


def error(events: list[bytes], path: str) -> dict[str, Any]:
    """The error that a stream ends in, in the form of its API."""
    kind, data = events[0].split(b"\n")
    assert kind == b"event: error"
    said = json.loads(data.removeprefix(b"data: "))
    if path in ("/v1/responses", "/v1/messages"):
        assert said["type"] == "error"
        assert len(events) == 1
    else:
        assert events[1:] == [b"data: [DONE]"]
    if path == "/v1/responses":
        assert said["message"] == said["error"]["message"]
        assert said["sequence_number"] == 0
    found: dict[str, Any] = said["error"]
    return found


@pytest.mark.parametrize("path", PROMPTS)
def test_a_client_hears_something_while_an_engine_is_silent(engine: Engine, path: str) -> None:
    release = threading.Event()
    engine.behaviour = after(release, stream(3))
    with Router(engine, flags=QUICK) as router:
        client = Client(router, path)
        assert (client.status, client.header("content-type")) == (200, "text/event-stream")
        assert client.header("x-request-id") == "mine"
        assert client.header("x-kvatlas-worker") is None, "nobody knows yet"
        client.comments(3)
        release.set()
        events = client.rest()
        assert len(events) in (5, 6), "with usage, or without"
        assert events[-1] == b"data: [DONE]"
        assert router.metric("kvatlas_router_early_streams_total") == 1
        wait_until(lambda: router.in_flight() == 0, "it has ended")


def test_a_client_that_waits_in_the_router_hears_something(engine: Engine, other: Engine, tokenizer: Path) -> None:
    flags = ("--no-events", "--tokenizer", str(tokenizer), "--comment-after", "100ms")
    with Router(engine, other, flags=flags) as router, busy(router, engine, other) as releases:
        client = Client(router)
        client.comments(2)
        engine.behaviour = other.behaviour = stream(2)
        for release in releases:
            release.set()
        assert client.rest()[-1] == b"data: [DONE]"


@pytest.mark.parametrize("fails", [die, reply("503 Service Unavailable", {}), reply("429 Too Many Requests", {})])
def test_another_engine_can_still_take_it(engine: Engine, other: Engine, fails: Behaviour) -> None:
    release = threading.Event()
    asked: list[Engine] = []

    async def act(talk: Talk) -> None:
        asked.append(talk.engine)
        await (after(release, fails) if len(asked) == 1 else stream(3))(talk)

    engine.behaviour = other.behaviour = act
    with Router(engine, other, flags=QUICK) as router:
        client = Client(router)
        client.comments(2)
        release.set()
        events = client.rest()
        assert len(events) in (5, 6), "with usage, or without"
        assert events[-1] == b"data: [DONE]"
        assert len(set(asked)) == 2


@pytest.mark.parametrize("path", PROMPTS)
def test_what_no_engine_answers_is_told_as_an_event(engine: Engine, path: str) -> None:
    release = threading.Event()
    engine.behaviour = after(release, die)
    with Router(engine, flags=QUICK) as router:
        client = Client(router, path)
        client.comments(1)
        release.set()
        said = error(client.rest(), path)
        assert "engine e0" in said["message"]
        assert said["type"] == ("api_error" if path == "/v1/messages" else "server_error")
        assert router.metric("kvatlas_router_refused_requests_total", reason="engine_failed") == 1


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize(
    ("status", "body", "message", "kind"),
    [
        ("400 Bad Request", {"error": {"message": "too long"}}, "too long", "invalid_request_error"),
        ("404 Not Found", {"object": "error", "message": "no such model"}, "no such model", "not_found_error"),
        ("422 Unprocessable Entity", {"detail": "what?"}, "what?", "invalid_request_error"),
        ("500 Internal Server Error", b"oh", "oh", "server_error"),
        ("400 Bad Request", b"", "", "invalid_request_error"),
    ],
)
def test_what_an_engine_refuses_late_is_told_as_an_event(
    engine: Engine, path: str, status: str, body: Any, message: str, kind: str
) -> None:
    release = threading.Event()
    engine.behaviour = after(release, reply(status, body))
    with Router(engine, flags=QUICK) as router:
        client = Client(router, path)
        client.comments(1)
        release.set()
        said = error(client.rest(), path)
        assert said["message"].startswith(message)
        assert status[:3] in said["message"]
        assert said["type"] == ("api_error" if (path, kind) == ("/v1/messages", "server_error") else kind)


def test_an_answer_that_is_no_stream_is_an_error(engine: Engine) -> None:
    release = threading.Event()
    engine.behaviour = after(release, reply("200 OK", {"choices": []}))
    with Router(engine, flags=QUICK) as router:
        client = Client(router)
        client.comments(1)
        release.set()
        assert error(client.rest(), "/v1/chat/completions")["code"] == "no_stream"


def test_what_is_answered_in_time_comes_as_ever(engine: Engine) -> None:
    async def named(talk: Talk) -> None:
        fields = ("transfer-encoding: chunked", "x-of-the-engine: yes")
        await talk.send(head("200 OK", *fields, kind="text/event-stream; charset=utf-8"))
        await talk.send(chunk(event(delta("a")) + event(b"[DONE]")) + b"0\r\n\r\n")

    with Router(engine, flags=(*PLAIN, "--comment-after", "30s")) as router:
        engine.behaviour = named
        client = Client(router)
        assert client.header("content-type") == "text/event-stream; charset=utf-8"
        assert (client.header("x-of-the-engine"), client.header("x-kvatlas-worker")) == ("yes", "e0")
        assert len(client.rest()) == 2
        engine.behaviour = reply("400 Bad Request", {"error": {"message": "too long"}})
        refused = Client(router)
        assert (refused.status, refused.message()) == (400, "too long")
        assert router.metric("kvatlas_router_early_streams_total") == 0


@pytest.mark.parametrize(
    ("flags", "more"),
    [(QUICK, {"stream": False}), (QUICK, {"stream": None}), ((*PLAIN, "--comment-after", "0s"), {"stream": True})],
)
def test_who_gets_no_comments(engine: Engine, flags: tuple[str, ...], more: dict[str, Any]) -> None:
    async def late(talk: Talk) -> None:
        await asyncio.sleep(0.5)
        await reply("400 Bad Request", {"error": {"message": "late"}})(talk)

    engine.behaviour = late
    with Router(engine, flags=flags) as router:
        client = Client(router, **more)
        assert (client.status, client.message()) == (400, "late")


@pytest.mark.parametrize(
    ("path", "first", "token"),
    [
        (
            "/v1/responses",
            b"event: response.created\n" + event({"type": "response.created", "response": {"id": "resp_1"}}),
            b"event: response.output_text.delta\n" + event({"type": "response.output_text.delta", "delta": "a"}),
        ),
        (
            "/v1/chat/completions",
            event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
            event(delta("a")),
        ),
    ],
)
def test_comments_come_up_to_the_first_token(engine: Engine, path: str, first: bytes, token: bytes) -> None:
    release, finish = threading.Event(), threading.Event()

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream") + chunk(first))
        await after(release, lambda talk: talk.send(chunk(token)))(talk)
        await after(finish, lambda talk: talk.send(chunk(event(b"[DONE]")) + b"0\r\n\r\n"))(talk)

    engine.behaviour = act
    with Router(engine, flags=PATIENT) as router:
        client = Client(router, path)
        assert client.header("x-kvatlas-worker") == "e0", "the engine's head came in time"
        for line in first.splitlines():
            assert client.answer.readline().rstrip(b"\n") == line
        client.comments(2)
        release.set()
        while not (line := client.answer.readline()).startswith(b"data:"):
            assert line.startswith((b":", b"event:")) or line == b"\n"
        assert client.answer.readline() == b"\n"
        threading.Timer(0.5, finish.set).start()
        assert client.answer.readline() == b"data: [DONE]\n", "there are none after it"
        client.close()


def test_no_comment_stands_within_an_event(engine: Engine) -> None:
    finish = threading.Event()
    begins = event({"choices": [{"delta": {"role": "assistant"}}]})
    pieces = b"event: a\n", b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n', b"\n"

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream") + chunk(begins))
        for piece in pieces:
            # Each comes later than a comment would.
            await asyncio.sleep(2.0)
            await talk.send(chunk(piece))
        await after(finish, lambda talk: talk.send(b"0\r\n\r\n"))(talk)

    engine.behaviour = act
    with Router(engine, flags=PATIENT) as router:
        client = Client(router)
        assert client.answer.readline() + client.answer.readline() == begins
        while (line := client.answer.readline()) != pieces[0]:
            assert line == b"\n" or line.startswith(b":")
        assert client.answer.readline() + client.answer.readline() == b"".join(pieces[1:])
        client.comments(1)
        finish.set()
        client.rest()


def test_a_client_that_leaves_ends_its_request(engine: Engine) -> None:
    engine.behaviour = hang
    with Router(engine, flags=QUICK) as router:
        client = Client(router)
        client.comments(1)
        client.close()
        wait_until(lambda: len(engine.given_up) == 1, "the engine need not go on")
        wait_until(lambda: router.in_flight() == 0, "it has ended")


def test_an_engine_that_breaks_off_after_comments(engine: Engine) -> None:
    release = threading.Event()
    engine.behaviour = after(release, stream(2, after=die))
    with Router(engine, flags=QUICK) as router:
        client = Client(router)
        client.comments(1)
        release.set()
        events = client.rest()
        assert events[-1] == b"data: [DONE]"
        assert events[-2].startswith(b"event: error")


def test_many_wait_at_once(engine: Engine) -> None:
    release = threading.Event()
    engine.behaviour = after(release, stream(3))
    with Router(engine, flags=QUICK) as router:
        timer = threading.Timer(1.0, release.set)
        timer.start()

        def ask(_: int) -> None:
            assert Client(router).rest()[-1] == b"data: [DONE]"

        with in_threads(64, ask) as errors:
            pass
        timer.join()
        assert not errors, errors[0]
        assert router.metric("kvatlas_router_early_streams_total") == 64
