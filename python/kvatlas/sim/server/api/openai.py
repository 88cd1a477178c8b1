"""OpenAI's completions and chat routes, answered in simulated time with letters of a toy tokenizer."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from kvatlas.errors import RequestFailedError, RequestRefusedError
from kvatlas.sim.server import tokens
from kvatlas.sim.server.api.bodies import error_response, flag, number, read_object, text, token_ids
from kvatlas.sim.server.api.legs import Leg, Legs
from kvatlas.sim.server.api.mishaps import CUT, EARLY, SLOW, cut
from kvatlas.sim.server.core import ServedRequest
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.rank import Rank
from kvatlas.sim.server.transfer import TransferOrder, read_order

_COMPLETION_TOKENS = 16
_CHAT_TOKENS = 128
_BILLING = "x-anthropic-billing-header"  # the line with which an agent names itself, which vLLM leaves out
_LONGEST_ANSWER = 1 << 20


def routes(engine: ServedEngine) -> list[web.RouteDef]:
    """Routes of completions and chat, of tokenization and, for vLLM, of rendering."""
    api = _OpenAI(engine)
    render = []
    if engine.config.dialect == "vllm":
        render = [
            web.post("/v1/completions/render", api.render_completion),
            web.post("/v1/chat/completions/render", api.render_chat),
            web.post("/v1/messages/render", api.render_messages),
            web.post("/v1/responses/render", api.render_responses),
        ]
    return [
        *render,
        web.post("/v1/completions", api.completions),
        web.post("/v1/chat/completions", api.chat),
        web.post("/tokenize", api.tokenize),
        web.post("/detokenize", api.detokenize),
    ]


@dataclass(frozen=True, slots=True)
class _CompletionRequest:
    """Parsed and checked request for a completion or a chat answer."""

    chat: bool
    model: str
    prompt: list[int]
    output: int
    lora: str | None
    salt: str | None
    rank: int | None
    seed: int | None
    stream: bool
    with_usage: bool
    finish: str  # why the answer ends where it does
    leg: Leg | None = None  # if another engine computes the prompt, or gives the answer
    order: TransferOrder | None = None  # its sender's order about loads and pulls


class _OpenAI:
    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self.config = engine.config
        self.legs = Legs(engine)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        return await self._answer(request, self._asked(request, body, _prompt(body.get("prompt")), chat=False))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        return await self._answer(request, self._asked(request, body, self._conversation(body), chat=True))

    async def render_completion(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        return web.json_response([self._rendered(body, _prompt(body.get("prompt")), "cmpl")])

    async def render_chat(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        return web.json_response(self._rendered(body, self._conversation(body), "chatcmpl"))

    async def render_messages(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        chat: dict[str, object] = {"messages": [*_system_prompt(body.get("system")), *_listed(body.get("messages"))]}
        return web.json_response(self._rendered(body, self._conversation(chat), "chatcmpl"))

    async def render_responses(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else _listed(given)
        instructions = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        return web.json_response(self._rendered(body, self._conversation({"messages": instructions + items}), "resp"))

    def _conversation(self, body: dict[str, object]) -> list[int]:
        return _conversation(body, leaves_out_billing=self.config.dialect == "vllm")

    def _rendered(self, body: dict[str, object], prompt: list[int], kind: str) -> dict[str, object]:
        """Answer of vLLM's render routes, with the token ids of a prompt. `kind`: prefix of the request's id."""
        model = text(body, "model") or self.engine.model
        name = f"{kind}-{uuid.uuid4().hex}"
        return {"request_id": name, "model": model, "token_ids": prompt, "features": None, "sampling_params": {}}

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        if "messages" in body:
            ids = self._conversation(body)
        elif (prompt := text(body, "prompt")) is not None:
            ids = tokens.encode(prompt)
        else:
            raise RequestRefusedError("prompt (a string) or messages is missing", param="prompt")
        return web.json_response({"count": len(ids), "max_model_len": self.config.longest, "tokens": ids})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        return web.json_response({"prompt": tokens.decode(token_ids(body.get("tokens"), "tokens"))})

    # Understanding what is asked

    def _asked(
        self, request: web.Request, body: dict[str, object], prompt: list[int], *, chat: bool
    ) -> _CompletionRequest:
        config = self.config
        serves = self.engine.model
        model = text(body, "model") or serves
        if model != serves and model not in config.loras:
            raise RequestRefusedError(f"The model `{model}` does not exist.", param="model", status=404)
        if not prompt:
            raise RequestRefusedError("the prompt has no tokens", param="messages" if chat else "prompt")
        if (number(body, "n", 1, 1 << 10) or 1) != 1:
            raise RequestRefusedError("n must be 1: this engine returns one answer per request", param="n")
        name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        output = number(body, name, 1, _LONGEST_ANSWER)
        room = config.longest - len(prompt)
        if output is None:
            output = max(min(_CHAT_TOKENS if chat else _COMPLETION_TOKENS, room), 1)
        if output > room:
            raise RequestRefusedError(
                f"This model's maximum context length is {config.longest} tokens. However, you requested {output} "
                f"output tokens and your prompt contains {len(prompt)} input tokens.",
                "too_long",
                param=name,
            )
        options = body.get("stream_options")
        if options is not None and not isinstance(options, dict):
            raise RequestRefusedError("stream_options must be an object", param="stream_options")
        stream = flag(body, "stream")
        if options and not stream:
            raise RequestRefusedError("stream_options can only be used with stream", param="stream_options")
        leg = self.legs.read(body)
        if leg is not None and leg.gives and config.dialect == "sglang":
            output = 1  # whatever was asked for: the other engine goes on from there
        return _CompletionRequest(
            chat=chat,
            model=model,
            prompt=prompt,
            output=output,
            lora=model if model != serves else None,
            salt=self._salt(body),
            rank=self._rank(request),
            seed=number(body, "seed", -(1 << 63), (1 << 63) - 1),
            stream=stream,
            with_usage=flag(options or {}, "include_usage"),
            finish="stop" if chat and body.get(name) is None else "length",
            leg=leg,
            order=read_order(body.get("kv_transfer_params")) if config.dialect == "vllm" else None,
        )

    def _salt(self, body: dict[str, object]) -> str | None:
        salt = text(body, "cache_salt")
        if salt == "":
            raise RequestRefusedError("cache_salt must not be empty: omit it", param="cache_salt")
        return salt

    def _rank(self, request: web.Request) -> int | None:
        header = request.headers.get("X-data-parallel-rank")
        if header is None:
            return None
        try:
            rank = int(header)
        except ValueError:
            # vLLM ignores what is not a number.
            if self.config.dialect == "vllm":
                return None
            raise RequestRefusedError(f"X-Data-Parallel-Rank must be a whole number, not {header!r}") from None
        if not 0 <= rank < self.config.ranks:
            raise RequestRefusedError(f"X-data-parallel-rank must be from 0 to {self.config.ranks - 1}, not {rank}")
        return rank

    # Answering

    async def _answer(self, request: web.Request, asked: _CompletionRequest) -> web.StreamResponse:
        leg, received = asked.leg, False
        if leg is not None and not leg.gives:
            await self.legs.fetch(leg, len(asked.prompt))
            received = True
        number, pull = asked.rank, None
        if asked.order is not None and asked.order.source is not None:
            chosen = self.engine.choose_rank(number)
            number = chosen.number
            pull = await chosen.ask_peer(asked.order.source, asked.prompt, asked.lora, asked.salt)
        rank, live = self.engine.submit(
            asked.prompt,
            asked.output,
            lora=asked.lora,
            salt=asked.salt,
            rank=number,
            seed=asked.seed,
            received=received,
            order=asked.order,
            pull=pull,
        )
        more: dict[str, object] = {}
        if leg is not None and leg.gives:
            with self.legs.giving(leg, live) as given:
                if asked.stream:
                    response = await _stream(request, asked, rank, live)
                    given()
                    return response
                if (failure := await _finish(rank, live)) is not None:
                    return failure
                more = given()
        elif asked.stream:
            return await _stream(request, asked, rank, live)
        elif (failure := await _finish(rank, live)) is not None:
            return failure
        whole = tokens.decode(live.tokens[live.prompt_tokens :])
        content: dict[str, object] = (
            {"message": {"role": "assistant", "content": whole}} if asked.chat else {"text": whole}
        )
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": asked.finish}
        return web.json_response({**_head(asked, chunk=False), "choices": [choice], "usage": _usage(live), **more})


async def _finish(rank: Rank, live: ServedRequest) -> web.Response | None:
    """Wait for the end of a request. Returns an error answer if the request fails; None otherwise."""
    try:
        await rank.finish(live)
    except RequestFailedError as error:
        return error_response(503, str(error), "service_unavailable")
    return None


async def _stream(
    request: web.Request, asked: _CompletionRequest, rank: Rank, live: ServedRequest
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    head = _head(asked, chunk=True)
    rest: dict[str, object] = {"usage": None} if asked.with_usage else {}
    output = rank.output(live)
    try:
        await response.prepare(request)
        sent = 0
        if EARLY in request:
            await response.write(b": the prompt is being computed\n\n")
        async for content in _chunks(asked, output, early=EARLY in request):
            if request.get(CUT) == sent:
                return cut(request, response)
            await response.write(_event({**head, "choices": [content], **rest}))
            sent += 1
            if SLOW in request:
                await asyncio.sleep(request[SLOW])
        if CUT in request:  # a slow machine has put all tokens into fewer events
            return cut(request, response)
        if asked.with_usage:
            await response.write(_event({**head, "choices": [], "usage": _usage(live)}))
        await response.write(b"data: [DONE]\n\n")
    except RequestFailedError as error:
        # The status is already sent, so an event reports the failure, and [DONE] is left out.
        failure = {"message": str(error), "type": "service_unavailable", "param": None, "code": 503}
        await response.write(_event({"error": failure}))
    finally:
        await output.aclose()
    await response.write_eof()
    return response


async def _chunks(
    asked: _CompletionRequest, output: AsyncIterator[list[int]], *, early: bool
) -> AsyncIterator[dict[str, object]]:
    """Choices (OpenAI's field) of the chunks of a streamed answer.

    The role of a chat's answer comes with the first token, or earlier if `early`.
    """
    role: dict[str, object] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    if asked.chat and early:
        yield {"index": 0, **role}
    sent = 0
    async for new in output:
        if asked.chat and not early and not sent:
            yield {"index": 0, **role}
        sent += len(new)
        piece = tokens.decode(new)
        content: dict[str, object] = {"delta": {"content": piece}} if asked.chat else {"text": piece}
        finish = asked.finish if sent == asked.output else None
        yield {"index": 0, **content, "logprobs": None, "finish_reason": finish}


def _event(data: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _head(asked: _CompletionRequest, *, chunk: bool) -> dict[str, object]:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if asked.chat else "text_completion"
    name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": asked.model}


def _usage(live: ServedRequest) -> dict[str, object]:
    return {
        "prompt_tokens": live.prompt_tokens,
        "completion_tokens": live.output_tokens,
        "total_tokens": live.prompt_tokens + live.output_tokens,
        "prompt_tokens_details": {"cached_tokens": live.hit_tokens},
    }


def _prompt(value: object) -> list[int]:
    """Parse a prompt to token ids. It is a string, a list of token ids, or a list with one of these."""
    if value is None:
        raise RequestRefusedError("prompt is missing", param="prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) != 1:
            raise RequestRefusedError(
                "this engine accepts one prompt per request: send them one by one", param="prompt"
            )
        value = value[0]
    return tokens.encode(value) if isinstance(value, str) else token_ids(value, "prompt")


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _system_prompt(system: object) -> list[object]:
    """System message that vLLM makes from a Messages API system prompt, without billing lines.

    Returns an empty list if there is no text.
    """
    blocks = [system] if isinstance(system, str) else [_text_of(block) for block in _listed(system)]
    text = "".join(block for block in blocks if not block.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _text_of(block: object) -> str:
    return str(block.get("text") or "") if isinstance(block, dict) else ""


def _conversation(body: dict[str, object], *, leaves_out_billing: bool) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRefusedError("messages must be a list with at least one message", param="messages")
    read: list[tuple[str, str]] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise RequestRefusedError(f"{where} must be an object", param=where)
        role = message.get("role")
        if not isinstance(role, str) or role not in tokens.ROLES:
            raise RequestRefusedError(f"{where}.role must be one of {', '.join(tokens.ROLES)}", param=f"{where}.role")
        content = _content(message.get("content"), f"{where}.content")
        if leaves_out_billing and role == "system" and content.startswith(_BILLING):
            content = content.partition("\n")[2]
        read.append((role, content))
    return tokens.chat(read)


def _content(value: object, where: str) -> str:
    """Text of a message whose content is a string or a list of text parts. `where`: name of the field, for errors."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestRefusedError(f"{where} must be a string or a list of parts", param=where)
    texts: list[str] = []
    for part in value:
        if not (
            isinstance(part, dict)
            and part.get("type") in ("text", "input_text", "output_text")
            and isinstance(part.get("text"), str)
        ):
            raise RequestRefusedError(f"{where} must be text: this engine accepts no other content", param=where)
        texts.append(part["text"])
    return "".join(texts)
