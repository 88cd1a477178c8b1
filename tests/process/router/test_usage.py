"""Tests of what engines say of an answer's tokens, wherever and in whichever words, and what clients see of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, delta, event, hang, head, reply

from .running import MESSAGES, PLAIN, Router, wait_until


@pytest.fixture
def router(engine: Engine) -> Any:
    with Router(engine, flags=PLAIN) as made:
        yield made


def counted(router: Router) -> tuple[float, float]:
    """Prompt tokens, and those of them that were cached."""
    wait_until(lambda: router.in_flight() == 0, "all of it is counted")
    return tuple(router.metric(f"kvatlas_router_engine_{name}_tokens_total") for name in ("prompt", "cached"))  # type: ignore[return-value]


def events(*pieces: bytes, length: bool = False) -> Behaviour:
    """A stream of these pieces."""

    async def act(talk: Talk) -> None:
        if length:
            whole = b"".join(pieces)
            await talk.send(head("200 OK", f"content-length: {len(whole)}", kind="text/event-stream") + whole)
            return
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for piece in pieces:
            await talk.send(chunk(piece))
        await talk.send(b"0\r\n\r\n")

    return act


def named(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **more})


USAGE = {"prompt_tokens": 165, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 160}}
LAST = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
CACHED = {"input_tokens": 5, "cache_read_input_tokens": 160}


@pytest.mark.parametrize(
    "behaviour",
    [
        reply("200 OK", {"type": "message", "content": [], "usage": {**CACHED, "output_tokens": 1}}),
        events(
            named("message_start", message={"content": [], "usage": {**CACHED, "output_tokens": 0}}),
            named("content_block_delta", delta={"type": "text_delta", "text": "a"}),
            named("message_delta", usage={"input_tokens": 5, "output_tokens": 1}),
            named("message_stop"),
        ),
        reply("200 OK", {"type": "message", "usage": {"input_tokens": 2, "cache_creation_input_tokens": 3} | CACHED}),
    ],
    ids=["whole", "stream", "written"],
)
def test_messages_count_what_was_cached_beside_the_input(router: Router, engine: Engine, behaviour: Behaviour) -> None:
    engine.behaviour = behaviour
    body = {"model": MODEL, "max_tokens": 1, "messages": MESSAGES}
    assert router.ask(body, path="/v1/messages").status == 200
    prompt, cached = counted(router)
    assert (prompt, cached) in ((165, 160), (168, 160))


@pytest.mark.parametrize("behind", [100, 100_000, 2_000_000])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_is_seen_whatever_stands_behind_it(router: Router, engine: Engine, behind: int, stream: bool) -> None:
    usage = {"input_tokens": 165, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 160}}
    answer = {"id": "resp_1", "usage": usage, "output": [{"type": "message", "text": 'so "usage": ' + "x" * behind}]}
    engine.behaviour = reply("200 OK", answer)
    if stream:
        engine.behaviour = events(named("response.completed", response=answer))
    asked = router.ask({"model": MODEL, "input": "a", "stream": stream}, path="/v1/responses")
    assert asked.status == 200
    assert len(asked.body) > behind
    assert counted(router) == (165, 160)


@pytest.mark.parametrize("length", [False, True])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_is_asked_for_and_kept_from_who_did_not(
    router: Router, engine: Engine, options: dict[str, Any] | None, length: bool
) -> None:
    said = event(delta("a")) + event(delta("", "stop"))
    engine.behaviour = events(said, event(LAST), event(b"[DONE]"), length=length)
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "stream": True}
    if options is not None:
        body["stream_options"] = options
    answer = router.ask(body)
    assert engine.last.json == {**body, "stream_options": {"include_usage": True}}
    assert answer.body == said + event(b"[DONE]")
    assert not answer.broken
    assert counted(router) == (165, 160)


IDS = {"id": "chatcmpl-1", "object": "chat.completion.chunk"}


@pytest.mark.parametrize("pause", [0.0, 0.01])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "last",
    [
        json.dumps({**IDS, "usage": USAGE}),
        json.dumps({"usage": USAGE}),
        json.dumps({**IDS, "choices": None, "usage": USAGE}),
        json.dumps({"usage": USAGE, "choices": [], **IDS}),
        json.dumps({"usage": USAGE, "x": {"choices": [1]}, "timings": {"ms": 1.5}, "error": None}),
        json.dumps({**IDS, "choices": [], "usage": USAGE}, indent=1).replace("\n", " "),
        json.dumps({**IDS, "choices": [], "usage": USAGE}, separators=(",", ":")),
        json.dumps({**IDS, "choices": [], "usage": {**USAGE, "cost": {"usd": 0.1}}, "service_tier": None}),
    ],
    ids=["no-choices", "nothing-else", "null", "other-order", "more", "spaces", "dense", "more-usage"],
)
def test_usage_is_hidden_in_every_form(router: Router, engine: Engine, last: str, ends: str, pause: float) -> None:
    said = event(delta("a")) + event(delta("", "stop"))
    whole = said + f"event: message\nid: 7\ndata:{last}\n\n".encode() + event(b"[DONE]")
    whole, expected = (text.replace(b"\n", ends.encode()) for text in (whole, said + event(b"[DONE]")))
    cut = len(whole) - len(last) - 40

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for piece in (whole[:cut], whole[cut : cut + 25], whole[cut + 25 :]):
            await talk.send(chunk(piece))
            await asyncio.sleep(pause)
        await talk.send(b"0\r\n\r\n")

    engine.behaviour = act
    answer = router.ask({"model": MODEL, "messages": MESSAGES, "stream": True})
    assert answer.body == expected
    assert counted(router) == (165, 160)


@pytest.mark.parametrize(
    "said",
    [
        {**delta("a"), "usage": USAGE},
        {**IDS, "choices": [], "usage": None},
        {**IDS, "choices": [], "error": {"message": "x"}, "usage": USAGE},
    ],
    ids=["choices", "null", "error"],
)
def test_what_has_more_than_usage_is_not_hidden(router: Router, engine: Engine, said: dict[str, Any]) -> None:
    whole = event(delta("a")) + b"event: message\nretry: 5\n" + event(said) + b"id: 9\n\n" + event(b"[DONE]")
    engine.behaviour = events(whole)
    assert router.ask({"model": MODEL, "messages": MESSAGES, "stream": True}).body == whole


def test_usage_in_between_is_not_asked_for(router: Router, engine: Engine) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    router.ask({**body, "stream_options": {"continuous_usage_stats": True}})
    asked = {"continuous_usage_stats": False, "include_usage": True}
    assert engine.last.json == {**body, "stream_options": asked}, "an engine would say it only where the end does"
    both = {"continuous_usage_stats": True, "include_usage": True}
    router.ask({**body, "stream_options": both})
    assert engine.last.json == {**body, "stream_options": both}


def test_usage_that_was_asked_for_comes(router: Router, engine: Engine) -> None:
    said = event(delta("a")) + event(LAST) + event(b"[DONE]")
    engine.behaviour = events(said)
    asked = {"model": MODEL, "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    sent = json.dumps(asked).encode()
    assert router.ask(sent).body == said
    assert engine.last.body == sent, "the body goes on as it is"


def test_usage_beside_a_choice_is_not_hidden(router: Router, engine: Engine) -> None:
    said = event({**delta("a", "stop"), "usage": USAGE}) + event(b"[DONE]")
    engine.behaviour = events(said)
    assert router.ask({"model": MODEL, "messages": MESSAGES, "stream": True}).body == said
    assert counted(router) == (165, 160)


def test_engines_need_not_be_asked(engine: Engine) -> None:
    with Router(engine, flags=(*PLAIN, "--ask-usage", "off")) as router:
        sent = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
        assert router.ask(sent).status == 200
        assert engine.last.body == sent


def test_requests_are_those_for_engines_by_status(router: Router, engine: Engine) -> None:
    metric = "kvatlas_router_requests_total"
    for path in ("/metrics", "/workers", "/router", "/", "/ui", "/health", "/v1/models", "/nothing"):
        router.get(path)
    assert router.metric(metric) == 0
    assert router.ask().status == 200
    engine.behaviour = reply("400 Bad Request", {"error": {"message": "no"}})
    assert router.ask().status == 400
    engine.behaviour = reply("500 Internal Server Error", {"error": {"message": "no"}})
    assert router.ask().status == 500
    assert [router.metric(metric, status=status) for status in ("2xx", "4xx", "5xx", "none")] == [1, 1, 1, 0]
    assert json.loads(router.get("/router")[1])["requests"] == 3


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/responses", {"input": "a"}, {"type": "error", "code": "engine_failed", "sequence_number": 1}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, {"type": "error"}),
        ("/v1/chat/completions", {"messages": MESSAGES}, {}),
    ],
)
def test_streams_that_break_off_say_so_in_their_own_words(
    router: Router, engine: Engine, path: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        await talk.send(chunk(named("response.created")))
        talk.writer.close()

    engine.behaviour = act
    answer = router.ask({"model": MODEL, "stream": True, **body}, path=path)
    is_chat = path == "/v1/chat/completions"
    assert answer.body.endswith(b"data: [DONE]\n\n") == is_chat
    assert b"event: error\n" in answer.body
    error = json.loads(answer.events[-2 if is_chat else -1])
    assert expected.items() <= error.items()
    if path == "/v1/messages":
        assert error["error"]["type"] == "api_error"
        assert error["error"]["message"]


def test_a_client_that_leaves_before_its_answer_is_counted_without_a_status(router: Router, engine: Engine) -> None:
    engine.behaviour = hang
    with router.connect() as made:
        body = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
        made.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: engine.asked() == 1, "it is at the engine")
    wait_until(lambda: router.metric("kvatlas_router_requests_total", status="none") == 1, "it is counted")
