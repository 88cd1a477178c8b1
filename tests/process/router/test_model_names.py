"""The names of models: with slashes in paths, and names that the configuration adds to those of an engine."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.support.engine import MODEL, Engine, usual, whole

from .conftest import QUICK
from .running import MESSAGES, Router, wait_until

NAME = "org/Name-7B"


@pytest.mark.parametrize("begins", ["/v1/models/", "/models/"])
@pytest.mark.parametrize("written", [NAME, quote(NAME, safe=""), quote(NAME, safe="").lower(), f"{NAME}/"])
def test_a_model_is_found_by_its_name_however_it_is_written(begins: str, written: str) -> None:
    with Engine(model=NAME) as engine, Router(engine) as router:
        written = written.replace("org%2fname-7b", "org%2fName-7B")
        status, card = router.call("GET", begins + written)
        assert (status, card["id"]) == (200, NAME)
        for other in ("org%252FName-7B", "org", "org/Name-7B/x", "%2e%2e/health", "..%2fhealth", "org%2FName-7B%00"):
            status, refused = router.call("GET", begins + other)
            assert (status, refused["error"]["code"]) == (404, "model_not_found"), other
        assert not [one.path for one in engine.received if "org" in one.path or ".." in one.path]


def with_aliases(folder: Path, engine: Engine, more: str = "") -> tuple[str, ...]:
    file = folder / "router.toml"
    file.write_text(f'[[engine]]\nurl = "{engine.url}"\nname = "e"\n{more}\n')
    return (*QUICK, "--config", str(file))


BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "a"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/responses": {"input": "a"},
    "/v1/embeddings": {"input": "a"},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
}


@pytest.mark.parametrize("more", ['aliases = ["gpt-4", "fast"]', f'model = "{MODEL}"\naliases = ["gpt-4", "fast"]'])
def test_aliases_are_listed_and_reach_the_engine_under_its_own_name(engine: Engine, tmp_path: Path, more: str) -> None:
    engine.behaviour = whole()
    with Router(flags=with_aliases(tmp_path, engine, more)) as router:
        names = [card["id"] for card in json.loads(router.get("/v1/models")[1])["data"]]
        assert sorted(names) == sorted([MODEL, "gpt-4", "fast"])
        assert router.call("GET", "/v1/models/gpt-4")[1]["id"] == "gpt-4"
        for path, body in BODIES.items():
            for name, wanted in (("gpt-4", MODEL), ("fast", MODEL), (MODEL, MODEL)):
                assert router.ask({**body, "model": name, "seed": 7}, path=path).status == 200, (path, name)
                assert engine.last.json["model"] == wanted
                assert engine.last.json["seed"] == 7
        assert router.ask({"model": "gpt-5", "messages": MESSAGES}).error["code"] == "model_not_found"
        form = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n%s\r\n--x--\r\n'
        kind = {"content-type": "multipart/form-data; boundary=x"}
        assert router.ask(form % b"gpt-4", path="/v1/audio/transcriptions", headers=kind).status == 200
        assert engine.last.body == form % MODEL.encode()


def test_a_name_that_the_engine_lists_itself_stays(engine: Engine, tmp_path: Path) -> None:
    engine.behaviour = whole()
    engine.answers["/v1/models"] = {"data": [{"id": MODEL}, {"id": "gpt-4"}, {"id": "lora", "parent": MODEL}]}
    more = 'aliases = ["gpt-4", "lora", "fast"]\nadapters = ["on-demand"]'
    with Router(flags=with_aliases(tmp_path, engine, more)) as router:
        wait_until(lambda: b'"on-demand"' in router.get("/v1/models")[1], "they are listed")
        for name, wanted in (("gpt-4", "gpt-4"), ("lora", "lora"), ("fast", MODEL), ("on-demand", "on-demand")):
            assert router.ask({"model": name, "messages": MESSAGES}).status == 200
            assert engine.last.json["model"] == wanted


def test_an_alias_goes_to_the_engines_that_have_it(engine: Engine, other: Engine, tmp_path: Path) -> None:
    engine.behaviour = other.behaviour = usual  # which refuses other names than its own
    engine.model, other.model = "big", "small"
    file = tmp_path / "router.toml"
    tables = [f'[[engine]]\nurl = "{one.url}"\naliases = ["{one.model}-latest", "any"]\n' for one in (engine, other)]
    file.write_text("\n".join(tables))
    with Router(flags=(*QUICK, "--config", str(file))) as router:
        wait_until(lambda: len(json.loads(router.get("/v1/models")[1])["data"]) == 5, "all are known")
        for _ in range(4):
            assert router.ask({"model": "small-latest", "messages": MESSAGES, "stream": True}).status == 200
        assert (engine.asked(), other.asked()) == (0, 4)
        for _ in range(4):
            assert router.ask({"model": "any", "messages": MESSAGES}).status == 200
        assert (engine.asked(), other.asked()) == (2, 6)


def test_aliases_by_http(engine: Engine) -> None:
    with Router(flags=QUICK, ready=False) as router:
        about = {"url": engine.url, "name": "e", "aliases": ["gpt-4"], "adapters": ["lora"]}
        assert router.call("POST", "/engines", about)[0] == 201
        wait_until(lambda: len(json.loads(router.get("/v1/models")[1])["data"]) == 3, "all are known")
        assert router.ask({"model": "gpt-4", "messages": MESSAGES}).status == 200
        assert engine.last.json["model"] == MODEL
