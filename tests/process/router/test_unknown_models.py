"""Engines that do not say which models they serve, and engines that deny to have a request's model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, hang, reply, usual, whole

from .conftest import QUICK
from .running import MESSAGES, Answer, Router, wait_until

HTML = reply("200 OK", b"<html>sign in</html>", kind="text/html")
LISTS: dict[str, Any] = {
    "401": 401,
    "403": 403,
    "404": 404,
    "500": 500,
    "HTML": HTML,
    "an empty list": {"object": "list", "data": []},
    "no list": {"object": "list"},
    "names without a name": {"data": [{"id": ""}, {"object": "model"}]},
    "half of JSON": reply("200 OK", b'{"data": [{"id": "m'),
    "nothing": reply("200 OK", b""),
    "silence": hang,
}
DENIALS: dict[str, Behaviour] = {
    "vLLM": reply(
        "404 Not Found",
        {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}},
    ),
    "old vLLM": reply(
        "404 Not Found", {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError"}
    ),
    "OpenAI": reply("404 Not Found", {"error": {"message": "gone", "code": "model_not_found"}}),
    "SGLang": reply("404 Not Found", {"error": {"message": "The model 'x' does not exist", "code": "model_not_found"}}),
    "SGLang, an adapter": reply(
        "400 Bad Request",
        {"object": "error", "message": "The following requested LoRA adapters are not loaded: x", "code": 400},
    ),
    "a text": reply("404 Not Found", {"error": "model 'x' not found, try pulling it first"}),
}


@contextmanager
def fleet(said: Any, *, known: int = 1) -> Iterator[tuple[Router, Engine, list[Engine]]]:
    """An engine of another model that says `said` of its models, and engines that list `MODEL`."""
    with ExitStack() as stack:
        unknown = stack.enter_context(Engine(model="other"))
        unknown.answers["/v1/models"] = said
        others = [stack.enter_context(Engine()) for _ in range(known)]
        flags = (*QUICK, "--health-timeout", "1s")
        router = stack.enter_context(Router(unknown, *others, flags=flags))
        if known:
            wait_until(lambda: MODEL in router.get("/v1/models")[1].decode(), "what is known is known")
        yield router, unknown, others


def chat(router: Router, model: str = MODEL, **more: Any) -> Answer:
    return router.ask({"model": model, "messages": MESSAGES, **more})


@pytest.mark.parametrize("said", LISTS)
def test_engines_that_list_a_model_get_its_requests_before_those_that_list_none(said: str) -> None:
    with fleet(LISTS[said]) as (router, unknown, (engine,)):
        for number in range(8):
            assert chat(router, stream=number % 2 == 0).status == 200
        assert (unknown.asked(), engine.asked()) == (0, 8)
        assert chat(router, "other").status == 200, "nobody lists it: the one that says nothing may have it"
        assert (unknown.asked(), engine.asked()) == (1, 8)
        if said != "silence":
            wait_until(lambda: "does not say which models it serves" in router.log, "it is said")


def test_one_that_says_nothing_is_used_where_those_that_list_the_model_are_down() -> None:
    with fleet(401) as (router, unknown, (engine,)):
        unknown.model = MODEL
        engine.stop()
        wait_until(lambda: [one["standing"] for one in router.workers()] == ["up", "down"], "it is seen")
        assert chat(router).status == 200


@pytest.mark.parametrize("words", DENIALS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"])
def test_a_model_that_an_engine_does_not_have_is_tried_at_others_and_remembered(words: str, path: str) -> None:
    with fleet(404, known=0) as (router, first, _), Engine(model="x") as second:
        router.call("POST", "/engines", {"url": second.url, "name": "second"})
        second.answers["/v1/models"] = 404
        first.behaviour, second.behaviour = DENIALS[words], whole()
        body = {"model": "x", "messages": MESSAGES, "prompt": "a", "input": "a", "query": "q", "documents": ["a"]}
        for _ in range(12):
            assert router.ask(body, path=path).status == 200
        assert first.asked() <= 1, "it has said so once"
        assert second.asked() == 12
        one, _ = router.workers()
        assert (one["standing"], one["condition"], one["faults"]) == ("up", None, 0)
        if first.asked():
            assert router.metric("kvatlas_router_retries_total", reason="no_model") == 1


def test_what_is_denied_by_all_is_answered_in_the_words_of_an_engine() -> None:
    with fleet(404, known=0) as (router, first, _), Engine(model="x") as second:
        router.call("POST", "/engines", {"url": second.url, "name": "second"})
        second.answers["/v1/models"] = 404
        for number in range(6):
            refused = chat(router, f"nobody's {number % 2}")
            assert refused.status == 404
            assert refused.error["message"] == f"The model `nobody's {number % 2}` does not exist."
        assert first.asked() + second.asked() <= 8, "each was asked for each of them, and then one of them"


def test_an_engine_that_lists_what_it_denies_is_passed_over() -> None:
    with fleet(404, known=2) as (router, unknown, (engine, other)):
        engine.behaviour = DENIALS["vLLM"]
        for _ in range(9):
            assert chat(router).status == 200
        assert unknown.asked() == 0
        assert (engine.asked(), other.asked()) == (1, 9)


@pytest.mark.parametrize(
    "answer",
    [
        reply("404 Not Found", {"detail": "Not Found"}),
        reply("404 Not Found", b"<html>no</html>", kind="text/html"),
        reply("400 Bad Request", {"error": {"message": "max_tokens must be positive", "code": 400}}),
        reply("404 Not Found", b""),
    ],
)
def test_other_refusals_are_passed_on_as_they_come(answer: Behaviour) -> None:
    with fleet(404, known=2) as (router, _, (engine, other)):
        engine.behaviour = other.behaviour = answer
        got = chat(router)
        assert (got.status, engine.asked() + other.asked()) in ((404, 1), (400, 1))
        assert router.metric("kvatlas_router_retries_total") == 0
        engine.behaviour = other.behaviour = usual
        assert chat(router).status == 200


def test_a_stored_answer_is_asked_for_where_it_is() -> None:
    said = reply("404 Not Found", {"error": {"message": "The model `x` does not exist.", "code": 404}})
    with fleet(404, known=2) as (router, _, engines):
        for engine in engines:
            engine.behaviour = reply("200 OK", {"id": f"resp_{engine.port}", "object": "response"})
        kept = json.loads(router.ask({"model": MODEL, "input": "a"}, path="/v1/responses").body)["id"]
        for engine in engines:
            engine.behaviour = said
        before = sum(engine.asked() for engine in engines)
        body = {"model": MODEL, "input": "b", "previous_response_id": kept}
        assert router.ask(body, path="/v1/responses").status == 404
        assert sum(engine.asked() for engine in engines) == before + 1
