"""Routes of engines that the router asks about prompts: what they answer instead of tokens has a second way."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, die, hang, reply, whole

from .running import Router, ask_by_command, wait_until
from .test_tokenizing import METRIC, by_letter

TEXT = "what an agent says, again and again, " * 8
FLAGS = ("--no-events", "--health-interval", "100ms", "--health-timeout", "30s")
DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
REFUSED = {"error": {"message": DISABLED, "type": "PermissionDeniedError", "param": None, "code": 403}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "max_tokens": 9,
        "system": [{"type": "text", "text": "brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}],
    },
    "/v1/responses": {
        "instructions": "brief.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}],
    },
}


async def late(talk: Talk) -> None:
    """Answers as it should, after longer than anybody waits."""
    await asyncio.sleep(3.0)
    await rendered(talk)


async def rendered(talk: Talk) -> None:
    await reply("200 OK", {"token_ids": list(range(77))})(talk)


INSTEAD: dict[str, Behaviour] = {
    "403 of stock vLLM 0.33": reply("403 Forbidden", REFUSED),
    "401": reply("401 Unauthorized", {"error": "Unauthorized"}),
    "404": reply("404 Not Found", {"detail": "Not Found"}),
    "405": reply("405 Method Not Allowed", {"detail": "Method Not Allowed"}),
    "a redirect": reply("307 Temporary Redirect", b"", "location: /login"),
    "400": reply("400 Bad Request", {"error": {"message": "extra fields are not permitted"}}),
    "422": reply("422 Unprocessable Entity", {"detail": []}),
    "500": reply("500 Internal Server Error", {"error": "no"}),
    "501": reply("501 Not Implemented", {"error": "no"}),
    "503": reply("503 Service Unavailable", b""),
    "a page": reply("200 OK", b"<html>sign in</html>", kind="text/html"),
    "no tokens": reply("200 OK", {"token_ids": None}),
    "nothing": reply("204 No Content", b""),
    "a closed connection": die,
    "silence": hang,
    "a late answer": late,
}


def at_render(answer: Behaviour, otherwise: Behaviour = by_letter) -> Behaviour:
    """An engine that answers like this where it should render a request."""

    async def act(talk: Talk) -> None:
        await (answer if talk.request.path.endswith("/render") else otherwise)(talk)

    return act


def known_tokens(router: Router) -> int:
    """The tokens of the last prompt, as the router knows them."""
    return int(json.loads(router.get("/decisions")[1])[0]["tokens"])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", INSTEAD)
def test_what_is_not_rendered_is_read_as_a_chat(engine: Engine, name: str, path: str) -> None:
    engine.behaviour = at_render(INSTEAD[name])
    with Router(engine, flags=FLAGS) as router:
        for _ in range(2):
            began = time.monotonic()
            assert router.ask({"model": MODEL, **BODIES[path]}, path=path).status == 200
            assert time.monotonic() - began < 2.5
            assert known_tokens(router) == len("brief." + TEXT)
        assert router.metric(METRIC) == 0
        assert json.loads(router.get("/router")[1])["unread_prompts"] is None
        if name not in ("400", "422", "500", "503", "a closed connection"):
            assert "--enable-scale-out" in router.log


def test_a_slow_route_holds_back_those_who_come_before_that_is_known(engine: Engine) -> None:
    """A request waits half a second at most for it, and the next ones do not wait."""
    engine.behaviour = at_render(hang)
    body, took = {"model": MODEL, **BODIES["/v1/messages"]}, []
    with Router(engine, flags=FLAGS) as router:
        for _ in range(6):
            began = time.monotonic()
            assert router.ask(body, path="/v1/messages").status == 200
            took.append(time.monotonic() - began)
    assert 0.4 < took[0] < 2.5
    assert sorted(took)[2] < 0.4
    assert engine.times("/v1/messages/render") == 1


def test_a_slow_tokenize_is_left_alone_as_well(engine: Engine) -> None:
    async def act(talk: Talk) -> None:
        await (hang if talk.request.path == "/tokenize" else whole())(talk)

    engine.behaviour = act
    took = []
    with Router(engine, flags=FLAGS) as router:
        for _ in range(8):
            began = time.monotonic()
            assert router.ask().status == 200
            took.append(time.monotonic() - began)
        assert sum(one > 0.45 for one in took) <= 5, took
        asked = "kvatlas_router_engine_prompt_questions_total"
        assert 3 <= router.metric(asked, path="/tokenize", result="late") <= 4  # one more on a machine with much to do


def test_an_engine_that_comes_back_with_the_flag_is_asked_again(engine: Engine) -> None:
    engine.behaviour = at_render(INSTEAD["403 of stock vLLM 0.33"])
    body = {"model": MODEL, **BODIES["/v1/messages"]}
    with Router(engine, flags=FLAGS) as router:
        assert router.ask(body, path="/v1/messages").status == 200
        engine.stop()
        wait_until(lambda: router.workers()[0]["standing"] == "down", "it is down")
        engine.behaviour = at_render(rendered)
        engine.start()
        wait_until(lambda: router.workers()[0]["standing"] == "up", "it is back")

        def is_used() -> bool:
            return router.ask(body, path="/v1/messages").status == 200 and known_tokens(router) == 77

        wait_until(is_used, "it renders")


def test_a_route_is_tried_again_beside_the_requests(engine: Engine) -> None:
    """An engine with an unnoticed restart, or a proxy that was mended."""
    engine.behaviour = at_render(hang)
    body = {"model": MODEL, **BODIES["/v1/responses"]}
    with Router(engine, flags=FLAGS) as router:
        assert router.ask(body, path="/v1/responses").status == 200
        engine.behaviour = at_render(rendered)

        def is_used() -> bool:
            time.sleep(0.2)
            return router.ask(body, path="/v1/responses").status == 200 and known_tokens(router) == 77

        wait_until(is_used, "it renders", seconds=30)


def test_another_engine_is_asked_if_one_does_not_tell(engine: Engine, other: Engine) -> None:
    async def fails(talk: Talk) -> None:
        await (reply("500 Internal Server Error", b"") if talk.request.path == "/tokenize" else whole())(talk)

    engine.behaviour, other.behaviour = fails, by_letter
    with Router(engine, other, flags=FLAGS) as router:
        for _ in range(5):
            assert router.ask().status == 200
            assert known_tokens(router) == len("hello")
        assert router.metric(METRIC) == 0


def test_what_cannot_be_read_is_a_condition_with_its_share(engine: Engine) -> None:
    async def act(talk: Talk) -> None:
        is_asked = talk.request.path == "/tokenize" or talk.request.path.endswith("/render")
        await (reply("403 Forbidden", REFUSED) if is_asked else whole())(talk)

    engine.behaviour = act
    with Router(engine, flags=FLAGS) as router:
        for _ in range(4):
            assert router.ask({"model": MODEL, **BODIES["/v1/messages"]}, path="/v1/messages").status == 200
            assert router.ask({"model": MODEL, "prompt": [1, 2, 3]}, path="/v1/completions").status == 200

        def condition() -> Any:
            return json.loads(router.get("/router")[1])["unread_prompts"]

        wait_until(lambda: condition() is not None and condition()["prompts"] == 8, "it is noticed")
        found = condition()
        assert (found["share"], found["endpoints"]) == (0.5, ["messages"])
        assert "/tokenize" in found["advice"]
        assert router.metric("kvatlas_router_prompts_unread_share") == 0.5
        assert router.metric("kvatlas_router_prompts_looked_at_total") == 8
        shown = ask_by_command(router, "top", "--once")
        assert "50.0 % of the last prompts (messages) cannot be read" in " ".join(shown.stdout.split())
        wait_until(lambda: router.log.count("prompts cannot be read") == 1, "it is said once")


def test_a_choice_to_read_nothing_is_no_condition(engine: Engine) -> None:
    flags = (*FLAGS, "--tokenizer", "none")
    with Router(engine, flags=flags) as router:
        for _ in range(5):
            assert router.ask().status == 200
        time.sleep(0.5)
        assert json.loads(router.get("/router")[1])["unread_prompts"] is None
