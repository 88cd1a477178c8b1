"""The ways in which engines answer a request, on good days and on bad ones."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from .talk import Behaviour, Talk

MODEL = "model"


def head(status: str = "200 OK", *fields: str, kind: str = "application/json") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", *fields, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(about: Any) -> bytes:
    return b"data: " + (about if isinstance(about, bytes) else json.dumps(about).encode()) + b"\n\n"


def delta(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}


def reply(status: str, body: Any, *fields: str, kind: str = "application/json") -> Behaviour:
    """An answer as a whole."""

    async def act(talk: Talk) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await talk.send(head(status, *fields, f"content-length: {len(data)}", kind=kind) + data)

    return act


def whole(text: str = "ok", prompt: int = 10, cached: int = 0) -> Behaviour:
    """A finished chat completion."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice]}
    return reply("200 OK", answer | {"usage": usage | details})


def stream(tokens: int = 5, pause: float = 0.0, after: Behaviour | None = None) -> Behaviour:
    """A streamed answer; `after` takes the place of its end."""

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for number in range(tokens):
            await talk.send(chunk(event(delta(f"t{number} "))))
            if pause:
                await asyncio.sleep(pause)
        if after is not None:
            await after(talk)
            return
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        last = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
        ends = event(delta("", "stop")) + event(last) + event(b"[DONE]")
        await talk.send(chunk(ends) + b"0\r\n\r\n")

    return act


async def die(talk: Talk) -> None:
    """Dies without a byte of an answer."""
    talk.abort()


async def hang(talk: Talk) -> None:
    """Takes the request and says nothing, until the other side has had enough."""
    await talk.gone()
    talk.engine.given_up.append(time.monotonic())


def slowly(data: bytes, pause: float = 0.01, piece: int = 1) -> Behaviour:
    """The behaviour of an engine that answers some bytes at a time."""

    async def act(talk: Talk) -> None:
        for at in range(0, len(data), piece):
            await talk.send(data[at : at + piece])
            await asyncio.sleep(pause)

    return act


def raw(data: bytes, *, close: bool = True) -> Behaviour:
    """These bytes, and the end of the connection."""

    async def act(talk: Talk) -> None:
        await talk.send(data)
        if close:
            talk.writer.close()

    return act


async def usual(talk: Talk) -> None:
    """An answer as the request wants it, streamed or not.

    What is no JSON object with messages or a prompt is refused.
    """
    try:
        asked = json.loads(talk.request.body)
        if not isinstance(asked, dict):
            raise TypeError("not an object")
        if not isinstance(asked.get("messages", asked.get("prompt", asked.get("input"))), list | str):
            raise TypeError("neither messages nor prompt")
        if asked.get("model", talk.engine.model) != talk.engine.model:
            error = {"message": f"The model `{asked['model']}` does not exist.", "type": "NotFoundError", "code": 404}
            await reply("404 Not Found", {"error": error})(talk)
            return
    except (ValueError, TypeError, RecursionError) as error:
        said = {"message": f"the engine says: {error}", "type": "BadRequestError", "code": 400}
        await reply("400 Bad Request", {"error": said})(talk)
        return
    await (stream(4) if asked.get("stream") is True else whole())(talk)
