"""A prompt that does not fit into an engine's context is never sent there, and refused where it fits nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, Talk, reply, whole

from .conftest import QUICK
from .running import Answer, Router, wait_until

SHORT, LONG = 100, 1000
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES, EMBEDDINGS = "/v1/messages", "/v1/responses", "/v1/embeddings"


async def by_letter(talk: Talk) -> None:
    """An engine whose tokens are bytes, and which makes nothing of a chat but its contents."""
    asked = talk.request.json
    text = asked.get("prompt") or "".join(str(one["content"]) for one in asked.get("messages", ()))
    if talk.request.path != "/tokenize":
        await whole(prompt=len(text))(talk)
        return
    await reply("200 OK", {"tokens": list(text.encode()), "count": len(text)})(talk)


def say_length(engine: Engine, length: int | None) -> None:
    card = {"id": MODEL, "object": "model"}
    engine.answers["/v1/models"] = {"data": [card if length is None else card | {"max_model_len": length}]}
    engine.behaviour = by_letter


@contextmanager
def fleet(tokenizer: str, *lengths: int | None) -> Iterator[tuple[Router, list[Engine]]]:
    """Engines of these lengths. What is asked is known by the tokenizer, or by the engines' own."""
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine()) for _ in lengths]
        for engine, length in zip(engines, lengths, strict=True):
            say_length(engine, length)
        flags = (*(flag for flag in QUICK if flag not in ("--tokenizer", "none", "--policy", "round-robin")),)
        router = stack.enter_context(Router(*engines, flags=(*flags, "--tokenizer", tokenizer)))
        wait_until(lambda: [one["max_model_len"] for one in router.workers()] == list(lengths), "lengths are known")
        yield router, engines


@pytest.fixture(params=["here", "engine"])
def by(request: pytest.FixtureRequest, tokenizer: Path) -> str:
    return str(tokenizer) if request.param == "here" else "engine"


def body(path: str, size: int, **more: Any) -> dict[str, Any]:
    text = "x" * size
    messages = [{"role": "user", "content": text}]
    prompt: dict[str, dict[str, Any]] = {
        CHAT: {"messages": messages},
        MESSAGES: {"messages": messages},
        COMPLETIONS: {"prompt": text},
    }
    given: dict[str, Any] = prompt.get(path, {"input": text})
    return {"model": MODEL, **given, **more}


def sent(engines: list[Engine], path: str) -> list[int]:
    return [engine.times(path) for engine in engines]


def ask(router: Router, path: str, size: int, **more: Any) -> Answer:
    return router.ask(body(path, size, **more), path=path)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_a_long_prompt_goes_where_it_fits(by: str, path: str) -> None:
    with fleet(by, SHORT, LONG) as (router, engines):
        for number in range(6):
            assert ask(router, path, SHORT + 1 + number).status == 200
        assert sent(engines, path) == [0, 6]
        for _ in range(6):
            assert ask(router, path, SHORT // 2).status == 200
        assert sum(sent(engines, path)) == 12


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_a_prompt_that_fits_nowhere_is_refused_at_once(by: str, path: str) -> None:
    with fleet(by, SHORT, LONG) as (router, engines):
        refused = ask(router, path, LONG + 1)
        assert refused.status == 400
        error = refused.error
        field = {CHAT: "messages", COMPLETIONS: "prompt"}.get(path, "input")
        assert (error["type"], error["code"], error["param"]) == (
            "invalid_request_error",
            "context_length_exceeded",
            field,
        )
        assert f"{LONG + 1} tokens > {LONG} maximum" in error["message"]
        assert f"maximum context length is {LONG} tokens" in error["message"]
        assert sent(engines, path) == [0, 0]
        # One token at least is generated; an embedding needs none.
        assert ask(router, path, LONG).status == (200 if path == EMBEDDINGS else 400)
        assert ask(router, path, LONG - 1).status == 200


def test_the_answer_needs_room_too(by: str) -> None:
    with fleet(by, SHORT, LONG) as (router, engines):
        assert ask(router, CHAT, 50, max_tokens=50).status == 200
        for name in ("max_tokens", "max_completion_tokens"):
            assert ask(router, CHAT, 50, **{name: 51}).status == 200
        assert engines[1].times(CHAT) >= 2
        refused = ask(router, CHAT, 50, max_tokens=LONG)
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        assert f"50 + {LONG} > {LONG}" in refused.error["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (COMPLETIONS, {"truncate_prompt_tokens": 10}),
        (COMPLETIONS, {"truncate_prompt_tokens": -1}),
        (EMBEDDINGS, {"truncate_prompt_tokens": 50}),
        (RESPONSES, {"truncation": "auto"}),
        (RESPONSES, {"max_output_tokens": 5000}),
    ],
)
def test_what_may_be_cut_is_the_engines_to_say(by: str, path: str, more: dict[str, Any]) -> None:
    with fleet(by, SHORT) as (router, engines):
        assert ask(router, path, SHORT // 2 if "max_output_tokens" in more else SHORT * 2, **more).status == 200
        assert sent(engines, path) == [1]


def test_what_is_not_counted_is_the_engines_to_say(by: str) -> None:
    with fleet(by, SHORT) as (router, engines):
        several = {"model": MODEL, "input": ["x" * 90, "y" * 90]}
        assert router.ask(several, path=EMBEDDINGS).status == 200
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
        content = [{"type": "text", "text": "what?"}, image]
        assert router.ask({"model": MODEL, "messages": [{"role": "user", "content": content}]}).status == 200
        assert (sent(engines, EMBEDDINGS), sent(engines, CHAT)) == ([1], [1])


def test_engines_that_do_not_say_their_length_get_all(by: str) -> None:
    with fleet(by, SHORT, None) as (router, engines):
        for _ in range(4):
            assert ask(router, CHAT, LONG).status == 200
        assert sent(engines, CHAT) == [0, 4]


def test_engines_that_count_other_tokens_get_all(tokenizer: Path) -> None:
    with fleet(str(tokenizer), SHORT) as (router, (engine,)):
        engine.behaviour = whole(prompt=7)
        assert ask(router, CHAT, SHORT).status == 400
        assert ask(router, CHAT, 50).status == 200
        wait_until(
            lambda: ask(router, CHAT, SHORT).status == 200, "the engine decides, as the router's count is not its own"
        )


def test_nothing_is_refused_without_tokens() -> None:
    with fleet("none", SHORT) as (router, engines):
        assert ask(router, CHAT, LONG).status == 200
        assert sent(engines, CHAT) == [1]


def test_sglang_says_its_length_elsewhere_and_may_cut_prompts(tokenizer: Path) -> None:
    info = {"kv_events": None, "version": "0.5.23", "context_length": SHORT}
    with fleet(str(tokenizer), None) as (router, (engine,)):
        engine.answers["/server_info"] = info
        router.call("POST", "/engines", {"url": engine.url, "name": "again"})
        router.call("DELETE", "/engines/e0")
        wait_until(lambda: router.workers()[0]["max_model_len"] == SHORT, "it is known")
        assert ask(router, CHAT, SHORT).error["code"] == "context_length_exceeded"
        engine.answers["/server_info"] = info | {"allow_auto_truncate": True}
        router.call("POST", "/engines", {"url": engine.url, "name": "third"})
        router.call("DELETE", "/engines/again")
        wait_until(lambda: router.ask(body(CHAT, SHORT)).status == 200, "it is cut there")


def test_the_longest_context_is_listed() -> None:
    with fleet("none", SHORT, LONG, None) as (router, _):
        card = router.call("GET", f"/v1/models/{MODEL}")[1]
        assert card["max_model_len"] == LONG
