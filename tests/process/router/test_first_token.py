"""Speeds are learnt by the first token, which is the first piece of an answer that the model has generated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, delta, event, head

from .running import PLAIN, Router, wait_until

RATE = 4000.0
"""Prompt tokens a second of the engines here, at most."""
TOKENS = 1000
TEXT = "word " * (TOKENS * 4 // 5)


def named(kind: str, **more: Any) -> bytes:
    """An event as the Responses and the Messages API have them."""
    return f"event: {kind}\n".encode() + event({"type": kind, **more})


def role() -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}


def part(**fields: Any) -> dict[str, Any]:
    return {**role(), "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


MESSAGES = [{"role": "user", "content": TEXT}]
CHAT = {"messages": MESSAGES}
COMMENT = b": the prompt is being computed\n\n"
STARTED = named("message_start", message={"role": "assistant", "content": [], "usage": {"input_tokens": 0}})
CREATED = named("response.created", response={"id": "resp_1", "output": []}) + named("response.in_progress")
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
BLOCK = {"type": "content_block_delta", "index": 0}

STREAMS: dict[str, tuple[str, dict[str, Any], bytes, bytes]] = {
    "a role": ("/v1/chat/completions", CHAT, event(role()), event(delta("a"))),
    "a comment": ("/v1/chat/completions", CHAT, COMMENT, event(delta("a"))),
    "headers": ("/v1/chat/completions", CHAT, b"", event(delta("a"))),
    "reasoning": ("/v1/chat/completions", CHAT, event(role()), event(part(reasoning_content="so"))),
    "a call": ("/v1/chat/completions", CHAT, event(role()), event(part(tool_calls=[CALL]))),
    "an empty text": (
        "/v1/completions",
        {"prompt": TEXT},
        event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}),
        event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}),
    ),
    "response.created": (
        "/v1/responses",
        {"input": TEXT},
        CREATED + named("response.output_item.added", item={"type": "message", "content": []}),
        named("response.output_text.delta", delta="a"),
    ),
    "message_start": (
        "/v1/messages",
        CHAT,
        STARTED + named("ping") + named("content_block_start", content_block={"type": "text", "text": ""}),
        named("content_block_delta", delta={"type": "text_delta", "text": "a"}),
    ),
}


def early(before: bytes, first: bytes) -> Behaviour:
    """Sends something, computes the prompt, and sends the first token."""

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        if before:
            await talk.send(chunk(before))
        await asyncio.sleep(TOKENS / RATE)
        await talk.send(chunk(first) + chunk(event(b"[DONE]")) + b"0\r\n\r\n")

    return act


@pytest.mark.parametrize("name", STREAMS)
def test_what_comes_before_the_first_token_says_nothing_of_speed(engine: Engine, name: str) -> None:
    path, body, before, first = STREAMS[name]
    engine.behaviour = early(before, first)
    with Router(engine, flags=PLAIN) as router:
        for _ in range(6):
            answer = router.ask({"model": MODEL, "max_tokens": 1, "stream": True, **body}, path=path)
            assert answer.status == 200
            assert answer.body.startswith(before + first), "all of it is passed on as it came"
        wait_until(lambda: router.in_flight() == 0, "all of it is counted")
        assert router.workers()[0]["ranks"][0]["prefill_rate"] < 2 * RATE
        decisions = json.loads(router.get("/decisions")[1])
        assert all(one["ended"]["first_token"] >= TOKENS / RATE * 0.9 for one in decisions)
        assert router.metric("kvatlas_router_first_token_seconds_count") == 6
        assert router.metric("kvatlas_router_first_token_seconds_bucket", le="0.128") == 0


def test_a_stream_without_a_token_has_no_first_one(engine: Engine) -> None:
    engine.behaviour = early(event(role()), event(delta("", "stop")))
    with Router(engine, flags=PLAIN) as router:
        assert router.ask({"model": MODEL, "stream": True, **CHAT}).status == 200
        wait_until(lambda: router.in_flight() == 0, "it is counted")
        assert json.loads(router.get("/decisions")[1])[0]["ended"]["first_token"] is None
        assert router.metric("kvatlas_router_first_token_seconds_count") == 0
