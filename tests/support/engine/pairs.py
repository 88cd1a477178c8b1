"""The halves of a prefill and decode pair, with the rules by which SGLang 0.5.23 and vLLM refuse requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

from .behaviour import reply, whole
from .server import Engine
from .talk import Talk

Half = Literal["prefill", "decode"]
BOOTSTRAP_PORT = 8998
SHARED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate")
"""The paths at which SGLang takes the fields of a hand-over."""
ALONE = (
    *("/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/encode", "/classify"),
    "/v1/audio/transcriptions",
)
"""The paths at which its model computes, and takes none."""
NO_ROOM = "Invalid request: Disaggregated request received without bootstrap room id."
PATIENCE = 10.0  # seconds that a decode engine waits for its prefill engine


class Rooms:
    """The rooms of a pair: those that the prefill engine was asked for."""

    def __init__(self) -> None:
        self.opened: set[int] = set()
        self.news = asyncio.Condition()


def sglang_pair(prefill: Engine, decode: Engine) -> None:
    """Makes two engines a pair of SGLang's."""
    rooms = Rooms()
    halves: tuple[tuple[Engine, Half], ...] = ((prefill, "prefill"), (decode, "decode"))
    for engine, half in halves:
        about = {"version": "0.5.23", "disaggregation_mode": half, "disaggregation_bootstrap_port": BOOTSTRAP_PORT}
        engine.answers |= {"/server_info": about, "/get_server_info": about}
        engine.behaviour = _SglangHalf(half, rooms)


def vllm_pair(prefill: Engine, decode: Engine) -> None:
    """Makes two engines a pair of vLLM's; the prefill engine answers nothing but what it hands over."""

    async def give(talk: Talk) -> None:
        asked = _object(talk.request.body)
        if not (asked.get("kv_transfer_params") or {}).get("do_remote_decode"):
            await _refuse(talk, "this engine only computes prompts for others")
            return
        answer = {
            "choices": [{"text": "x", "finish_reason": "length"}],
            "kv_transfer_params": {"remote_block_ids": [1]},
        }
        await reply("200 OK", answer)(talk)

    prefill.behaviour = give
    decode.behaviour = whole()
    for engine in (prefill, decode):
        engine.answers["/version"] = {"version": "0.33.0"}


class _SglangHalf:
    """One half's answers."""

    def __init__(self, half: Half, rooms: Rooms) -> None:
        self._half = half
        self._rooms = rooms

    async def __call__(self, talk: Talk) -> None:
        path, asked = talk.request.route, _object(talk.request.body)
        if path in ALONE:
            await _refuse(talk, NO_ROOM)
            return
        if path not in SHARED:
            known = path in ("/tokenize", "/v1/tokenize", "/detokenize", "/v1/messages/count_tokens")
            await (reply("200 OK", {"tokens": [5, 6]}) if known else reply("404 Not Found", {"detail": "Not Found"}))(
                talk
            )
            return
        rooms = asked.get("bootstrap_room")
        if rooms is None:
            await _refuse(talk, NO_ROOM)
            return
        rooms = rooms if isinstance(rooms, list) else [rooms]
        shapes = {len(asked[name]) if isinstance(asked[name], list) else 1 for name in _FIELDS}
        if shapes != {_batch(asked)} or len(set(rooms)) != len(rooms):
            await _refuse(talk, f"{len(rooms)} rooms for {_batch(asked)} sequences")
            return
        if asked["bootstrap_port"] not in (BOOTSTRAP_PORT, [BOOTSTRAP_PORT] * len(rooms)):
            await _refuse(talk, f"nobody listens at port {asked['bootstrap_port']}")
            return
        if self._half == "prefill" and asked.get("previous_response_id"):
            await _refuse(talk, "the response was not found")
            return
        async with self._rooms.news:
            if self._half == "prefill":
                self._rooms.opened.update(rooms)
                self._rooms.news.notify_all()
            else:
                met = self._rooms.news.wait_for(lambda: self._rooms.opened.issuperset(rooms))
                await asyncio.wait_for(met, PATIENCE)
        await whole()(talk)


_FIELDS = ("bootstrap_room", "bootstrap_host", "bootstrap_port")


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}


def _batch(asked: dict[str, Any]) -> int:
    """The sequences that a request asks for."""
    prompts = [asked.get(name) for name in ("prompt", "text", "input_ids")]
    lists = [one for one in prompts if isinstance(one, list) and one and isinstance(one[0], list | str)]
    parameters = asked.get("sampling_params") or {}
    parameters = parameters[0] if isinstance(parameters, list) else parameters
    return (len(lists[0]) if lists else 1) * int(asked.get("n") or parameters.get("n") or 1)


async def _refuse(talk: Talk, message: str) -> None:
    error = {"object": "error", "message": message, "type": "BadRequestError", "code": 400}
    await reply("400 Bad Request", error)(talk)
