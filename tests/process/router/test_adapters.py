"""LoRA adapters are loaded and unloaded through the router at all engines concerned."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.engine import Behaviour, Engine, Talk, closed_port, reply, whole

from .conftest import QUICK
from .running import MESSAGES, Router, wait_until

PATHS = [("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), ("/load_lora_adapter", "/unload_lora_adapter")]
FORWARD = ("--forward", ",".join(path for pair in PATHS for path in pair))


def serves(engine: Engine, *adapters: str) -> Engine:
    """An engine with these adapters, which loads and unloads more in the words of vLLM."""
    has = list(adapters)

    async def models(talk: Talk) -> None:
        cards: list[Any] = [{"id": engine.model, "max_model_len": 4096}]
        await reply("200 OK", {"data": [*cards, *({"id": name, "parent": engine.model} for name in has)]})(talk)

    def refuse(status: str, words: str) -> Behaviour:
        return reply(status, {"error": {"message": words, "type": "NotFoundError", "code": int(status[:3])}})

    async def behave(talk: Talk) -> None:
        name = talk.request.json.get("lora_name", "")
        if talk.request.route.endswith("/load_lora_adapter") and name not in has:
            has.append(name)
            await reply("200 OK", f"Success: LoRA adapter '{name}' added successfully.".encode(), kind="text/plain")(
                talk
            )
        elif talk.request.route.endswith("/load_lora_adapter"):
            await refuse("400 Bad Request", f"The lora adapter '{name}' has already been loaded.")(talk)
        elif talk.request.route.endswith("/unload_lora_adapter") and name in has:
            has.remove(name)
            await reply("200 OK", b"Success: removed", kind="text/plain")(talk)
        elif talk.request.route.endswith("/unload_lora_adapter"):
            await refuse("404 Not Found", f"The lora adapter '{name}' cannot be found.")(talk)
        elif talk.request.json.get("model") in (engine.model, *has):
            await whole()(talk)
        else:
            await refuse("404 Not Found", f"The model `{talk.request.json.get('model')}` does not exist.")(talk)

    engine.answers["/v1/models"] = models
    engine.behaviour = behave
    return engine


@contextlib.contextmanager
def three(*more: str) -> Iterator[tuple[Router, list[Engine]]]:
    with ExitStack() as stack:
        engines = [serves(stack.enter_context(Engine())) for _ in range(3)]
        # What engines list is asked for once, and not again during the test.
        flags = (*QUICK, *FORWARD, "--health-interval", "600s", *more)
        yield stack.enter_context(Router(*engines, flags=flags)), engines


def chat(router: Router, model: str) -> int:
    return router.ask({"model": model, "messages": MESSAGES}).status


@pytest.mark.parametrize(("load", "unload"), PATHS)
def test_an_adapter_is_at_all_engines_or_at_none(load: str, unload: str) -> None:
    with three() as (router, engines):
        assert chat(router, "sql") == 404
        loaded = router.ask({"lora_name": "sql", "lora_path": "/sql"}, path=load)
        assert (loaded.status, loaded.body) == (200, b"Success: LoRA adapter 'sql' added successfully.")
        assert [engine.times(load) for engine in engines] == [1, 1, 1]
        for _ in range(6):
            assert chat(router, "sql") == 200, "at once, before it is listed"
        assert all(engine.times("/v1/chat/completions") for engine in engines)
        again = router.ask({"lora_name": "sql", "lora_path": "/sql"}, path=load)
        assert (again.status, again.error["message"]) == (400, "The lora adapter 'sql' has already been loaded.")
        assert router.ask({"lora_name": "sql"}, path=unload).status == 200
        assert [engine.times(unload) for engine in engines] == [1, 1, 1]
        assert chat(router, "sql") == 404
        gone = router.ask({"lora_name": "sql"}, path=unload)
        assert (gone.status, gone.error["message"]) == (404, "The lora adapter 'sql' cannot be found.")


def test_an_adapter_is_unloaded_where_it_is(engine: Engine, other: Engine) -> None:
    serves(engine)
    serves(other, "sql")
    with Router(engine, other, flags=(*QUICK, *FORWARD)) as router:
        wait_until(lambda: b'"sql"' in router.get("/v1/models")[1], "it is listed")
        assert router.ask({"lora_name": "sql"}, path="/v1/unload_lora_adapter").status == 200
        assert (engine.asked(), other.asked()) == (0, 1)
        wait_until(lambda: b'"sql"' not in router.get("/v1/models")[1], "it is not listed any more")


def test_an_adapter_is_loaded_where_its_model_is(engine: Engine, other: Engine) -> None:
    engine.model, other.model = "big", "small"
    with Router(serves(engine), serves(other), flags=(*QUICK, *FORWARD)) as router:
        wait_until(lambda: len(json.loads(router.get("/v1/models")[1])["data"]) == 2, "both are listed")
        body = {"lora_name": "sql", "lora_path": "/sql"}
        assert router.ask({**body, "model": "small"}, path="/v1/load_lora_adapter").status == 200
        assert (engine.asked(), other.asked()) == (0, 1)
        assert router.ask(body, path="/v1/unload_lora_adapter").status == 200
        assert router.ask(body, path="/v1/load_lora_adapter?model=big").status == 200
        assert (engine.asked(), other.asked()) == (1, 2)
        assert router.ask({**body, "model": "x"}, path="/v1/load_lora_adapter").error["code"] == "model_not_found"


def test_the_answer_says_what_each_engine_said_if_they_differ() -> None:
    with three() as (router, engines), closed_port() as port:
        serves(engines[1], "sql")
        engines[2].behaviour = reply("400 Bad Request", {"error": {"message": "No adapter found for /sql"}})
        body = {"lora_name": "sql", "lora_path": "/sql"}
        failed = router.ask(body, path="/v1/load_lora_adapter")
        assert failed.status == 400
        assert {name: said["status"] for name, said in failed.json["engines"].items()} == {
            "e0": 200,
            "e1": 400,
            "e2": 400,
        }
        assert failed.json["engines"]["e2"]["answer"]["error"]["message"] == "No adapter found for /sql"
        assert "1 of 3 engines did not load the adapter: e2 (400" in failed.error["message"]
        serves(engines[2])
        done = router.ask(body, path="/v1/load_lora_adapter")
        assert done.status == 200, "where it was before it need not be loaded again"
        assert done.json["engines"]["e0"]["status"] == 400
        router.call("POST", "/engines", {"url": f"http://127.0.0.1:{port}", "name": "gone"})
        away = router.ask({"lora_name": "new", "lora_path": "/n"}, path="/v1/load_lora_adapter")
        assert (away.status, away.json["engines"]["gone"]["status"]) == (502, 502)
        assert [engine.times("/v1/load_lora_adapter") for engine in engines] == [3, 3, 3]


def test_a_change_of_adapters_needs_what_it_needed(engine: Engine) -> None:
    with Router(serves(engine), flags=QUICK) as router:
        for pair in PATHS:
            for path in pair:
                assert router.ask({"lora_name": "sql"}, path=path).status in (403, 404)
        assert engine.asked() == 0
