"""Other names of models, and unknown models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.engine import BLOCK_SIZE, Publisher, stored
from tests.support.waiting import until

from kvatlas import content_hashes
from kvatlas._native import Service
from kvatlas.client import AsyncClient, Client, Query

from .dialect.tools import MODEL, Answer, ask
from .http_tools import TOKENS, query, register, until_scores

NAMES: dict[str, Any] = {"aliases": ["alias", "other"], "adapters": ["sql"]}


def asked(service: Service, model: str, **more: Any) -> Answer:
    return ask(service.address, "POST", "/query", {"model_name": model, "token_ids": TOKENS} | more)


@pytest.fixture
def publisher(service: Service, engine: Callable[..., Publisher]) -> Publisher:
    """The publisher of an engine with names, which holds two blocks, and three with its adapter."""
    made = engine("w", **NAMES)
    made.publish(stored([1, 2], TOKENS[:8]), stored([11, 12, 13], TOKENS[:12], lora="sql"))
    until_scores(service, {"w": {"0": 8}})
    until_scores(service, {"w": {"0": 12}}, lora_name="sql")
    return made


@pytest.mark.usefixtures("publisher")
def test_an_alias_is_the_model(service: Service) -> None:
    for name in (MODEL, "alias", "other"):
        assert asked(service, name).json["scores"] == {"w": {"0": 8}}
        assert asked(service, name, lora_name="sql").json["scores"] == {"w": {"0": 12}}
    (worker,) = ask(service.address, "GET", "/workers?model_name=alias").json
    assert {name: worker[name] for name in ("model_name", *NAMES)} == {"model_name": MODEL} | NAMES


@pytest.mark.usefixtures("publisher")
def test_the_name_of_an_adapter_is_the_model_with_it(service: Service) -> None:
    assert asked(service, "sql").json["scores"] == {"w": {"0": 12}}
    assert asked(service, "sql", lora_name="sql").json["scores"] == {"w": {"0": 12}}
    refused = asked(service, "sql", lora_name="other")
    assert (refused.status, refused.code) == (400, "ambiguous_query")
    hashes = content_hashes(TOKENS, BLOCK_SIZE, lora="sql").tolist()
    answer = ask(service.address, "POST", "/query_by_hash", {"model_name": "sql", "content_hashes": hashes})
    assert answer.json["scores"] == {"w": {"0": 12}}
    queries: list[dict[str, Any]] = [{"token_ids": TOKENS}, {"content_hashes": hashes}, {"token_ids": TOKENS[:4]}]
    batch = ask(service.address, "POST", "/query_batch", {"model_name": "sql", "queries": queries}).json
    assert [each["tokens"] for each in batch["answers"]] == [[12], [12], [4]]
    queries.append({"token_ids": TOKENS, "lora_name": "x"})
    refused = ask(service.address, "POST", "/query_batch", {"model_name": "sql", "queries": queries})
    assert (refused.code, refused.json["error"].partition(":")[0]) == ("ambiguous_query", "queries[3]")


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, service: Service) -> Iterator[Callable[..., Any]]:
    """Calls a method of a client, by its name."""
    url = f"http://{service.address}"
    if request.param == "sync":
        with Client(url) as client:
            yield lambda method, *args, **given: getattr(client, method)(*args, **given)
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncClient(url)
        yield lambda method, *args, **given: runner.run(getattr(asynchronous, method)(*args, **given))
        runner.run(asynchronous.close())


@pytest.mark.usefixtures("publisher")
@pytest.mark.parametrize("learns", [False, True])
def test_clients_ask_by_any_name_again_and_again(call: Callable[..., Any], learns: bool) -> None:
    """Once they know the block size they hash tokens themselves: for an adapter, if its name is the model's, too."""
    if learns:
        call("workers")
        assert call("query", tokens=TOKENS, model=MODEL).token_scores() == {"w": 8}
    hashes = content_hashes(TOKENS, BLOCK_SIZE, lora="sql")
    for _ in range(3):
        for name, lora, adapter, tokens in (
            ("sql", None, "sql", 12),
            ("sql", "sql", "sql", 12),
            ("alias", None, None, 8),
            ("alias", "sql", None, 12),
            (MODEL, "sql", None, 12),
        ):
            answer = call("query", tokens=TOKENS, model=name, lora=lora)
            assert (answer.token_scores(), answer.lora) == ({"w": tokens}, adapter), (name, lora)
            prompts = [TOKENS, TOKENS[:4], Query(tokens=TOKENS, lora="sql"), Query(content_hashes=hashes)]
            batch = call("query_batch", prompts, model=name)
            found = [match.tokens for match in batch.answers]
            assert (found, batch.lora) == ([12 if adapter else 8, 4, 12, 12], adapter), (name, lora)
        # Hashes have the adapter in them already.
        assert call("query", content_hashes=hashes, model="sql").token_scores() == {"w": 12}


def test_clients_notice_that_a_name_has_become_an_adapters(
    service: Service, publisher: Publisher, call: Callable[..., Any]
) -> None:
    about: dict[str, Any] = {"endpoint": publisher.endpoint}
    for adapters, aliases, tokens in (([], ["name"], 8), (["name", "sql"], [], 4), ([], ["name"], 8)):
        assert register(service, "w", **about, aliases=aliases, adapters=adapters).status == 200
        if adapters:
            publisher.publish(stored([21], TOKENS[:4], lora="name"))
            until_scores(service, {"w": {"0": 4}}, lora_name="name")
        for _ in range(2):
            assert call("query", tokens=TOKENS, model="name").token_scores() == {"w": tokens}
            (match,) = call("query_batch", [TOKENS], model="name").answers
            assert match.tokens == tokens


def test_names_change_with_the_registration(service: Service, publisher: Publisher) -> None:
    about: dict[str, Any] = {"endpoint": publisher.endpoint}
    assert register(service, "w", **about).status == 200
    assert asked(service, "alias").status == 200, "nothing was said about names"
    assert register(service, "w", **about, aliases=["new"]).status == 200
    assert asked(service, "new").json["scores"] == {"w": {"0": 8}}
    assert asked(service, "alias").code == asked(service, "sql").code == "unknown_keyspace"
    assert ask(service.address, "POST", "/unregister", {"instance_id": "w"}).status == 200
    assert asked(service, "new").code == "unknown_keyspace"
    assert asked(service, MODEL).status == 200


@pytest.mark.usefixtures("publisher")
def test_the_own_name_of_a_model_comes_first(service: Service, engine: Callable[..., Publisher]) -> None:
    engine("v", model_name="alias").publish(stored([1], TOKENS[:4]))
    until(lambda: asked(service, "alias").json["scores"] == {"v": {"0": 4}})
    # As long as anybody serves it.
    assert ask(service.address, "POST", "/unregister", {"instance_id": "v"}).status == 200
    assert asked(service, "alias").json["scores"] == {"w": {"0": 8}}


@pytest.mark.usefixtures("publisher")
def test_a_name_of_several_models(service: Service) -> None:
    assert register(service, "v", model_name="second", aliases=["alias"], adapters=["sql"]).status == 201
    for name, words in (
        ("alias", f'model "alias" is another name of "{MODEL}", "second": give one of these names instead'),
        ("sql", f'"{MODEL}" with adapter "sql", "second" with adapter "sql"'),
    ):
        refused = asked(service, name)
        assert (refused.status, refused.code) == (409, "ambiguous_model")
        assert words in refused.json["error"]
    assert asked(service, "other").json["scores"] == {"w": {"0": 8}}
    # In another routing group it is the name of one only.
    assert register(service, "u", model_name="third", routing_group="g", aliases=["alias"]).status == 201
    assert asked(service, "alias", routing_group="g").status == 200


def test_an_unknown_model_is_answered_with_the_known_ones(service: Service) -> None:
    def error(model: str, **more: Any) -> str:
        refused = asked(service, model, **more)
        assert (refused.status, refused.code) == (404, "unknown_keyspace")
        return str(refused.json["error"])

    unknown = 'no worker has been registered for model "x" in routing group "default"; '
    assert error("x") == unknown + "no model is known there"
    assert register(service, "w", **NAMES).status == 201
    assert error("x") == unknown + f'known there: "alias", "{MODEL}", "other", "sql"'
    assert register(service, "v", model_name="x", routing_group="g").status == 201
    assert error("x") == unknown + 'it is known in routing group "g"'
    assert error("sql", routing_group="g").endswith('; known there: "x"')
    # Not too many, none too long, and nothing that could be taken for the end of a line.
    names = ["\n\x1b[31m", "z" * 1000, *(f"n{number}" for number in range(100))]
    assert register(service, "u", model_name="long", routing_group="h", aliases=names).status == 201
    told = error("y", routing_group="h")
    assert told.endswith(" and 95 more")
    assert len(told) < 400
    assert "\n" not in told
    assert "\x1b" not in told
    assert "zzz" not in told, "in order"
    assert register(service, "t", model_name="m", routing_group="i", aliases=["z" * 1000]).status == 201
    assert f'"{"z" * 64}…"' in error("y", routing_group="i")


@pytest.mark.parametrize("name", ["aliases", "adapters"])
def test_names_that_cannot_be_registered(service: Service, name: str) -> None:
    cases: tuple[tuple[Any, str], ...] = (
        ([""], "empty_name"),
        (["x"] * 1025, "too_many_names"),
        (["x" * 1025], "wrong_type"),
        ("x", "wrong_type"),
        ([7], "wrong_type"),
    )
    for names, code in cases:
        given: dict[str, Any] = {name: names}
        assert register(service, "w", **given).code == code
    assert ask(service.address, "GET", "/workers").json == []
    given = {name: ["x" * 1024] * 1024}
    assert register(service, "w", **given).status == 201
    assert query(service)["scores"] == {}


def test_another_block_size_needs_another_routing_group(service: Service) -> None:
    assert register(service, 1).status == 201
    refused = register(service, 2, block_size=2 * BLOCK_SIZE)
    assert (refused.status, refused.code) == (409, "block_size_mismatch")
    assert "in a routing group of their own (routing_group)" in refused.json["error"]
    assert register(service, 2, block_size=2 * BLOCK_SIZE, routing_group="large").status == 201
