"""Answers of an engine that clients' libraries parse: every API in vLLM's form, with text or a call of a tool.

Words in a prompt tell the engine to misbehave: see `expected.ORDERS`.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.process.router.running import Router, wait_until
from tests.support.engine import Behaviour, Talk, chunk, head, reply

from .expected import ARGUMENTS, CACHED, MODEL, OUTPUT, PROMPT, REFUSAL, TEXT, TOOL, VECTOR, WORDS

_ORDER = re.compile(rb"engine:(slow|busy|refuse|cut)(?:-(\d+))?-([a-z]\w*)")

Piece = tuple[str | None, dict[str, Any]]


def wait_for_engines(router: Router) -> None:
    """Waits until no engine is left alone because it was busy."""
    wait_until(lambda: all(one["standing"] == "up" for one in router.workers()), "the engines are up")


class Engines:
    """The memory of all engines of a test: how often a request came, and which requests their clients gave up."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()
        # Those of them that were not the same request again: Claude Code asks for less where it is refused.
        self.different: dict[str, set[tuple[str, bytes]]] = defaultdict(set)
        self.given_up: set[str] = set()
        self._lock = threading.Lock()

    async def answer(self, talk: Talk) -> None:
        """The behaviour of each engine."""
        order = _ORDER.search(talk.request.body)
        if order is None:
            await _answer(talk)
            return
        what, tag = order[1].decode(), order[3].decode()
        with self._lock:
            self.tries[tag] += 1
            tries = self.tries[tag]
            self.different[tag].add((talk.request.headers.get("anthropic-beta", ""), talk.request.body))
        if what == "slow":
            # It may be left before all of that is sent.
            with contextlib.suppress(ConnectionError):
                await _answer(talk, words=2, ends=False)
            await talk.gone()
            self.given_up.add(tag)
        elif what == "busy" and tries <= int(order[2] or b"1"):
            await _refuse("503 Service Unavailable", "overloaded_error", "the engine is busy", "retry-after: 1")(talk)
        elif what == "refuse":
            await _refuse("400 Bad Request", "invalid_request_error", REFUSAL)(talk)
        elif what == "cut":
            await _answer(talk, words=2, ends=False)
            talk.abort()
        else:
            await _answer(talk)


def _refuse(status: str, kind: str, message: str, *fields: str) -> Behaviour:
    """A refusal in the form of the API that was asked."""

    async def act(talk: Talk) -> None:
        error: dict[str, Any] = {"message": message, "type": kind}
        if talk.request.path.startswith("/v1/messages"):
            await reply(status, {"type": "error", "error": error}, *fields)(talk)
        else:
            await reply(status, {"error": error | {"param": None, "code": int(status[:3])}}, *fields)(talk)

    return act


async def _answer(talk: Talk, *, words: int = len(WORDS), ends: bool = True) -> None:
    """An answer; a stream may have only its first words, and no end."""
    body = talk.request.json
    path = talk.request.path.partition("?")[0]
    if path == "/v1/messages/count_tokens":
        await reply("200 OK", {"input_tokens": PROMPT})(talk)
        return
    if path == "/v1/embeddings":
        await reply("200 OK", _embeddings(body))(talk)
        return
    if path not in _APIS:
        await reply("404 Not Found", {"detail": "Not Found"})(talk)
        return
    whole, pieces = _APIS[path]
    calls = _calls_tool(body)
    if not body.get("stream"):
        if ends:
            await reply("200 OK", whole(body, calls))(talk)
        return
    await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream; charset=utf-8"))
    seen = 0
    for name, data in pieces(body, calls):
        if not ends and seen == words:
            return
        first = b"" if name is None else f"event: {name}\n".encode()
        await talk.send(chunk(first + b"data: " + json.dumps(data).encode() + b"\n\n"))
        seen += any(f'"{word}"' in json.dumps(data) for word in WORDS)
    last = b"" if path in {"/v1/responses", "/v1/messages"} else chunk(b"data: [DONE]\n\n")
    await talk.send(last + b"0\r\n\r\n")


def _calls_tool(body: dict[str, Any]) -> bool:
    """True if there is the tool, and it was not called yet."""
    said = json.dumps(body.get("messages", body.get("input")))
    results = ('"role": "tool"', '"function_call_output"', '"tool_result"')
    return TOOL in json.dumps(body.get("tools")) and not any(result in said for result in results)


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    as_bytes = base64.b64encode(struct.pack(f"<{len(VECTOR)}f", *VECTOR)).decode()
    vector = as_bytes if body.get("encoding_format") == "base64" else VECTOR
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(texts))]
    return {"object": "list", "model": MODEL, "data": data, "usage": {"prompt_tokens": PROMPT, "total_tokens": PROMPT}}


# Chats and completions


def _usage() -> dict[str, Any]:
    counts = {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT, "total_tokens": PROMPT + OUTPUT}
    return counts | {"prompt_tokens_details": {"cached_tokens": CACHED}}


def _chat(body: dict[str, Any], calls: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else TEXT, "tool_calls": []}
    if calls:
        message["tool_calls"] = [_tool_call()]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
    return {**_chat_head("chat.completion"), "choices": [choice], "usage": _usage()}


def _tool_call() -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": TOOL, "arguments": json.dumps(ARGUMENTS)}}


def _chat_head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_790_000_000, "model": MODEL}


def _chat_pieces(body: dict[str, Any], calls: bool) -> Iterator[Piece]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if calls:
        call = _tool_call()
        arguments = call["function"]["arguments"]
        begin = call["function"] | {"arguments": ""}
        deltas.append({"tool_calls": [{"index": 0, **call, "function": begin}]})
        parts = (arguments[:6], arguments[6:])
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in parts]
    else:
        deltas += [{"content": word} for word in WORDS]
    finish = "tool_calls" if calls else "stop"
    yield from _choices(body, "chat.completion.chunk", [{"delta": delta} for delta in deltas], {"delta": {}}, finish)


def _choices(
    body: dict[str, Any], kind: str, contents: list[dict[str, Any]], last: dict[str, Any], finish: str
) -> Iterator[Piece]:
    for content in contents:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": None}
        yield None, {**_chat_head(kind), "choices": [choice]}
    yield None, {**_chat_head(kind), "choices": [{"index": 0, **last, "logprobs": None, "finish_reason": finish}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield None, {**_chat_head(kind), "choices": [], "usage": _usage()}


def _completion(body: dict[str, Any], calls: bool) -> dict[str, Any]:
    choice = {"index": 0, "text": TEXT, "finish_reason": "stop", "logprobs": None}
    return {**_chat_head("text_completion"), "choices": [choice], "usage": _usage()}


def _completion_pieces(body: dict[str, Any], calls: bool) -> Iterator[Piece]:
    yield from _choices(body, "text_completion", [{"text": word} for word in WORDS], {"text": ""}, "stop")


# Responses


def _response(body: dict[str, Any], calls: bool, status: str = "completed") -> dict[str, Any]:
    done = status == "completed"
    usage = {
        "input_tokens": PROMPT,
        "input_tokens_details": {"cached_tokens": CACHED},
        "output_tokens": OUTPUT,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": PROMPT + OUTPUT,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": status,
        "model": MODEL,
        "output": [_item(calls, status)] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "previous_response_id": None,
        "truncation": "disabled",
        "usage": usage if done else None,
    }


def _item(calls: bool, status: str) -> dict[str, Any]:
    done = status == "completed"
    if calls:
        arguments = json.dumps(ARGUMENTS) if done else ""
        about = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": TOOL}
        return {**about, "arguments": arguments, "status": status}
    content = [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}] if done else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}


def _response_pieces(body: dict[str, Any], calls: bool) -> Iterator[Piece]:
    number = itertools.count()

    def event(kind: str, **data: Any) -> Piece:
        return kind, {"type": kind, "sequence_number": next(number), **data}

    yield event("response.created", response=_response(body, calls, "in_progress"))
    yield event("response.in_progress", response=_response(body, calls, "in_progress"))
    yield event("response.output_item.added", output_index=0, item=_item(calls, "in_progress"))
    if calls:
        where: dict[str, Any] = {"item_id": "fc_1", "output_index": 0}
        arguments = json.dumps(ARGUMENTS)
        for part in (arguments[:6], arguments[6:]):
            yield event("response.function_call_arguments.delta", **where, delta=part)
        yield event("response.function_call_arguments.done", **where, name=TOOL, arguments=arguments)
    else:
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield event("response.content_part.added", **where, part=empty)
        for word in WORDS:
            yield event("response.output_text.delta", **where, delta=word, logprobs=[])
        yield event("response.output_text.done", **where, text=TEXT, logprobs=[])
        yield event("response.content_part.done", **where, part=empty | {"text": TEXT})
    yield event("response.output_item.done", output_index=0, item=_item(calls, "completed"))
    yield event("response.completed", response=_response(body, calls))


# Messages


def _message(body: dict[str, Any], calls: bool, *, is_whole: bool = True) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": TEXT}
    if calls:
        block = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": ARGUMENTS}
    usage = {"input_tokens": PROMPT - CACHED, "cache_read_input_tokens": CACHED, "cache_creation_input_tokens": 0}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [block] if is_whole else [],
        "stop_reason": ("tool_use" if calls else "end_turn") if is_whole else None,
        "stop_sequence": None,
        "usage": usage | {"output_tokens": OUTPUT if is_whole else 0},
    }


def _message_pieces(body: dict[str, Any], calls: bool) -> Iterator[Piece]:
    def event(kind: str, **data: Any) -> Piece:
        return kind, {"type": kind, **data}

    yield event("message_start", message=_message(body, calls, is_whole=False))
    if calls:
        block: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": {}}
        arguments = json.dumps(ARGUMENTS)
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in (arguments[:6], arguments[6:])]
    else:
        block = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": word} for word in WORDS]
    yield event("content_block_start", index=0, content_block=block)
    yield event("ping")
    for delta in deltas:
        yield event("content_block_delta", index=0, delta=delta)
    yield event("content_block_stop", index=0)
    stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": OUTPUT})
    yield event("message_stop")


_APIS = {
    "/v1/chat/completions": (_chat, _chat_pieces),
    "/v1/completions": (_completion, _completion_pieces),
    "/v1/responses": (_response, _response_pieces),
    "/v1/messages": (_message, _message_pieces),
}
