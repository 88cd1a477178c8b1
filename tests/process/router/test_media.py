"""Prompts with images and sounds: what comes before the first of them counts, and nothing after it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, Talk, reply, whole

from kvatlas.sim.server import Publisher

from .deciding import exact, expected, stored
from .running import Router, in_threads, wait_until

IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode()


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("image", {"type": "image_url", "image_url": {"url": IMAGE}}),
        ("audio", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    ],
)
def test_depth_ends_where_an_image_begins(
    engine: Engine, other: Engine, tokenizer: Path, reason: str, part: dict[str, object]
) -> None:
    """Complaint 46: requests with images that never find what is held of them."""
    before, after = "what was said before the picture " * 16, " and what is said of it" * 16
    with (
        Publisher() as one,
        Publisher() as two,
        Router(engine, other, flags=exact(tokenizer, (engine, one), (other, two))) as router,
    ):
        router.wait_followed()
        one.publish(stored(before))
        two.publish(stored(before + after))  # the prompt, if the image were nothing
        wait_until(lambda: expected(router, before + after + "?")["e1"] > len(before), "it is known")
        wait_until(lambda: expected(router, before + "?")["e0"] > 0, "it is known")
        # Templates of plain texts put all images of a message before its text: the message before is what is safe.
        messages: list[dict[str, Any]] = [{"role": "system", "content": before}]
        messages += [{"role": "user", "content": [part, {"type": "text", "text": after}]}]
        asked = {"model": MODEL, "messages": messages, "max_tokens": 1}
        metric = "kvatlas_router_prompts_without_tokens_total"
        counted = router.metric(metric, reason=reason)
        candidates = router.ask(asked, path="/explain").json["candidates"]
        cached = {candidate["worker"]: candidate["cached_tokens"] for candidate in candidates}
        assert 0 < cached["e0"] == cached["e1"] <= len(before)
        assert router.metric(metric, reason=reason) == counted + 1
        answer = router.ask(asked)
        assert int(answer.headers["x-kvatlas-cached-tokens"]) == cached["e0"]
        assert json.loads(router.get("/decisions")[1])[0]["tokens"] > cached["e0"], "the rest is estimated"


B64 = base64.b64encode(bytes(range(256)) * 1200).decode()
URL = "data:image/jpeg;base64," + B64
SOURCE = {"type": "base64", "media_type": "image/jpeg", "data": B64}
HEAVY: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]},
    ),
    "audio": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": B64}}]}]},
    ),
    "responses": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]},
    ),
    "messages": (
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image", "source": SOURCE}]}]},
    ),
    "a tool's answer": (
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "see", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": SOURCE}]}
                    ],
                },
            ],
        },
    ),
    "embeddings": ("/v1/completions", {"prompt_embeds": B64}),
}


@pytest.mark.parametrize("flags", [(), ("--tokenizer", "none"), ("--policy", "least-loaded")], ids=" ".join)
@pytest.mark.parametrize("name", HEAVY)
def test_images_are_no_text_of_their_bytes(engine: Engine, other: Engine, name: str, flags: tuple[str, ...]) -> None:
    """400 kB in base64 are no 100,000 tokens: all requests run at once, and no engine is asked to tokenize an image."""
    path, body = HEAVY[name]
    count = 24 if not flags else 8
    held = threading.Event()

    async def hold(talk: Talk) -> None:
        if talk.request.path == "/tokenize":
            await reply("200 OK", {"tokens": [1, 2, 3], "count": 3})(talk)
            return
        while not held.is_set():
            await asyncio.sleep(0.01)
        await whole(prompt=300)(talk)

    engine.behaviour = other.behaviour = hold

    def generating() -> int:
        requests = [*engine.received, *other.received]
        return sum(1 for one in requests if one.method == "POST" and one.path != "/tokenize")

    with Router(engine, other, flags=("--no-events", *flags)) as router:

        def ask(_: int) -> None:
            assert router.ask({"model": MODEL, **body}, path=path).status == 200

        with in_threads(count, ask) as errors:
            try:
                wait_until(lambda: generating() == count, "all are at the engines")
            finally:
                held.set()
        assert not errors
        for one in (*engine.received, *other.received):
            assert one.path != "/tokenize" or len(one.body) < 10_000
        tokens = [one["tokens"] for one in json.loads(router.get("/decisions")[1])]
        assert max(tokens) < 5000
        # What engines count is learnt.
        wait_until(lambda: router.in_flight() == 0, "all of it is counted")
        assert router.ask({"model": MODEL, **body}, path=path).status == 200
        assert json.loads(router.get("/decisions")[1])[0]["tokens"] < 400


def test_an_engine_tokenizes_what_stands_before_an_image(engine: Engine) -> None:
    """Engines' `/tokenize` writes the same placeholders for whatever image."""
    tokens = list(range(64))

    async def act(talk: Talk) -> None:
        await (reply("200 OK", {"tokens": tokens, "count": 64}) if talk.request.path == "/tokenize" else whole())(talk)

    engine.behaviour = act
    system = {"role": "system", "content": "look closely"}
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}
    with Router(engine, flags=("--no-events",)) as router:
        assert router.ask({"model": MODEL, "messages": [system, picture, system]}).status == 200
        asked = [one.json for one in engine.received if one.path == "/tokenize"]
        assert asked == [{"model": MODEL, "messages": [system], "add_generation_prompt": False}]
        metric = "kvatlas_router_prompts_without_tokens_total"
        assert router.metric(metric, endpoint="chat", reason="image") == 1
        assert router.metric(metric) == 1
        # The same beginning is there again, whatever the image is.
        second = {**picture, "content": [{"type": "image_url", "image_url": {"url": IMAGE[:-4] + "AAAA"}}]}
        answer = router.ask({"model": MODEL, "messages": [system, second]})
        assert 0 < int(answer.headers["x-kvatlas-cached-tokens"]) <= 64
