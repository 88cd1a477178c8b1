"""Prompts of every kind are tokenized, by the engine as by a tokenizer here; what is not is counted and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, Talk, reply, whole

from kvatlas.sim.server import Publisher

from .deciding import exact, expected, stored
from .running import Router, wait_until

TEXT = "some words that are said again and again, " * 8
METRIC = "kvatlas_router_prompts_without_tokens_total"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    "a text": ("/v1/completions", {"prompt": TEXT}),
    "a list": ("/v1/completions", {"prompt": [TEXT]}),
    "several": ("/v1/completions", {"prompt": [TEXT, TEXT + "?"]}),
    "responses": ("/v1/responses", {"input": TEXT}),
    "items": ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]}),
    "messages": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": TEXT}]}),
    "blocks": (
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]},
    ),
    "embeddings": ("/v1/embeddings", {"input": [TEXT]}),
}


async def by_letter(talk: Talk) -> None:
    """An engine whose tokens are bytes, and which makes nothing of a chat but its contents."""
    if talk.request.path != "/tokenize":
        await whole()(talk)
        return
    asked = talk.request.json
    text = asked.get("prompt")
    if text is None:
        text = "".join(message["content"] for message in asked["messages"])
    await reply("200 OK", {"tokens": list(text.encode()), "count": len(text)})(talk)


@pytest.mark.parametrize("by", ["engine", "here"])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_prompt_finds_what_is_cached(
    engine: Engine, other: Engine, tokenizer: Path, name: str, by: str
) -> None:
    path, body = KINDS[name]
    engine.behaviour = other.behaviour = by_letter
    with Publisher() as one, Publisher() as two:
        flags = exact(tokenizer, (engine, one), (other, two))
        if by == "engine":
            at = flags.index("--tokenizer")
            flags = (*flags[:at], *flags[at + 2 :])
        with Router(engine, other, flags=flags) as router:
            router.wait_followed()
            two.publish(stored(TEXT))

            wait_until(lambda: expected(router, TEXT + "?")["e1"] > 0, "it is known")
            answer = router.ask({"model": MODEL, **body}, path=path)
            assert answer.status == 200, answer
            assert answer.headers["x-kvatlas-worker"] == "e1"
            assert int(answer.headers["x-kvatlas-cached-tokens"]) >= len(TEXT) // 16 * 16 - 16
            assert router.metric(METRIC) == 0


def test_what_is_not_tokenized_is_counted_by_path_and_said_once(engine: Engine) -> None:
    async def act(talk: Talk) -> None:
        await (reply("404 Not Found", {}) if talk.request.path == "/tokenize" else whole())(talk)

    engine.behaviour = act
    stored_answer = {"input": "a", "previous_response_id": "resp_1"}
    with Router(engine, flags=("--no-events",)) as router:
        for _ in range(3):
            assert router.ask().status == 200
            assert router.ask({"model": MODEL, **stored_answer}, path="/v1/responses").status == 200
        assert router.metric(METRIC, endpoint="chat", reason="not_answered") == 3
        assert router.metric(METRIC, endpoint="responses", reason="stored") == 3
        assert router.metric(METRIC) == 6
        wait_until(lambda: "resp" in router.log and "not_answered" in router.log, "it is said")
        assert router.log.count("prompts are not tokenized") == 2


SKIPPING: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt_logprobs": ("/v1/chat/completions", {**KINDS["chat"][1], "prompt_logprobs": 0}),
    "of completions": ("/v1/completions", {"prompt": TEXT, "prompt_logprobs": 3}),
    "echo": ("/v1/completions", {"prompt": TEXT, "echo": True, "logprobs": 0}),
    "a chat's echo": ("/v1/chat/completions", {**KINDS["chat"][1], "echo": True}),
}
READING: dict[str, tuple[str, dict[str, Any]]] = {
    "null": ("/v1/chat/completions", {**KINDS["chat"][1], "prompt_logprobs": None}),
    "echo alone": ("/v1/completions", {"prompt": TEXT, "echo": True}),
    "logprobs alone": ("/v1/completions", {"prompt": TEXT, "logprobs": 5}),
    "a start": ("/v1/completions", {"prompt": TEXT, "return_logprob": True, "logprob_start_len": 0}),
}


def test_an_engine_that_skips_its_cache_is_not_credited_with_it(engine: Engine, tokenizer: Path) -> None:
    with Publisher() as one, Router(engine, flags=exact(tokenizer, (engine, one))) as router:
        router.wait_followed()
        one.publish(stored(TEXT))

        def cached(path: str, body: dict[str, Any]) -> int:
            answer = router.ask({"model": MODEL, **body}, path=path)
            assert answer.status == 200, answer
            return int(answer.headers["x-kvatlas-cached-tokens"])

        wait_until(lambda: cached(*KINDS["chat"]) > 0, "it is known")
        for name, (path, body) in SKIPPING.items():
            assert cached(path, body) == 0, name
            assert json.loads(router.get("/decisions")[1])[0]["tokens"] == len(TEXT), name
        assert router.metric(METRIC, reason="skips_cache") == len(SKIPPING)
        for name, (path, body) in READING.items():
            assert cached(path, body) > 0, name


def test_a_body_of_the_messages_api_is_explained_as_such(engine: Engine, tokenizer: Path) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 9,
        "system": [{"type": "text", "text": TEXT}],
        "tools": [{"name": "f", "description": "does it", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]},
        ],
    }
    with Router(engine, flags=("--no-events", "--tokenizer", str(tokenizer))) as router:
        answer = router.ask(body, path="/explain")
        assert answer.status == 200
        assert answer.json["tokens"] == len(TEXT) + len("go") + len("done")
        assert answer.json["blocks"] > 0
        assert router.metric(METRIC) == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_an_engine_renders_the_requests_of_agents(engine: Engine, path: str) -> None:
    async def act(talk: Talk) -> None:
        if talk.request.path == f"{path}/render":
            await reply("200 OK", {"request_id": "r", "token_ids": list(range(77)), "features": None})(talk)
        else:
            await whole()(talk)

    engine.behaviour = act
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": TEXT}], "input": TEXT, "odd": [1]}
    with Router(engine, flags=("--no-events",)) as router:
        assert router.ask(body, path=path).status == 200
        assert json.loads(router.get("/decisions")[1])[0]["tokens"] == 77
        assert router.metric(METRIC) == 0
    assert [one.path for one in engine.received if one.method == "POST"] == [f"{path}/render", path]
    assert next(one.json for one in engine.received if one.path.endswith("/render")) == body


def test_an_engine_that_renders_nothing_is_asked_for_the_chat(engine: Engine) -> None:
    async def act(talk: Talk) -> None:
        if talk.request.path.endswith("/render"):
            await reply("404 Not Found", {"detail": "Not Found"})(talk)
        else:
            await by_letter(talk)

    engine.behaviour = act
    body = {"model": MODEL, "max_tokens": 9, "system": "ab", "messages": [{"role": "user", "content": "cd"}]}
    with Router(engine, flags=("--no-events",)) as router:
        assert router.ask(body, path="/v1/messages").status == 200
        # It is the same engine when its settings are given once more.
        assert router.ask({"name": "e0", "url": engine.url}, path="/engines").status == 201
        wait_until(lambda: router.get("/ready")[0] == 200, "it is known again what the engine serves")
        assert router.ask(body, path="/v1/messages").status == 200
        assert [one["tokens"] for one in json.loads(router.get("/decisions")[1])] == [4, 4]
        assert router.metric(METRIC) == 0
    asked = [one.path for one in engine.received if one.method == "POST" and one.path != "/v1/messages"]
    assert asked == ["/v1/messages/render", "/tokenize", "/tokenize"]


def test_what_an_engine_said_instead_of_tokens_is_logged(engine: Engine) -> None:
    async def act(talk: Talk) -> None:
        is_asked = talk.request.path.endswith("/render")
        await (reply("400 Bad Request", {"error": "no"}) if is_asked else whole())(talk)

    engine.behaviour = act
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "cd"}]}
    with Router(engine, flags=("--no-events",)) as router:
        for _ in range(3):
            assert router.ask(body, path="/v1/messages").status == 200
        assert router.metric(METRIC, endpoint="messages", reason="not_answered") == 3
        said = "answered 400 at /v1/messages/render; e0 answered no tokens at /tokenize"
        wait_until(lambda: said in router.log, "it is said")
        assert router.log.count("answered 400 at /v1/messages/render") <= 2
