"""Tests of what an engine can reuse of what it holds, and of what is unknown of engines that report no salts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.engine import BLOCK_SIZE, Publisher, stored
from tests.support.waiting import until

from kvatlas import content_hashes
from kvatlas._native import Service
from kvatlas.client import Client, Query

from .dialect.tools import MODEL, ask
from .http_tools import TOKENS, query, until_scores

# The last token of a prompt is always computed


def test_the_last_token_is_never_reused(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1, 2, 3], TOKENS[:12]))
    engine(2).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 12}, "2": {"0": 4}})
    with Client(f"http://{service.address}") as client:
        for length, held, usable in ((0, 0, 0), (1, 0, 0), (4, 4, 0), (5, 4, 4), (8, 8, 4), (12, 12, 8), (13, 12, 12)):
            prompt = TOKENS[:length]
            hashes = content_hashes(prompt, BLOCK_SIZE).tolist()
            first = query(service, token_ids=prompt)["instances"].get("1", {"gpu": 0, "usable": 0})
            assert (first["gpu"], first["usable"]) == (held, usable), length
            by_hash = query(service, "/query_by_hash", content_hashes=hashes, prompt_tokens=length)["instances"]
            assert by_hash.get("1", first) == first
            answer = client.query(tokens=prompt, model=MODEL)
            assert [depth.usable for depth in answer.workers] == [usable, min(usable, 4)][: len(answer.workers)]
            (batched,) = client.query_batch([prompt], model=MODEL).answers
            assert [rank.usable for rank in batched.ranks] == [usable, min(usable, 4)][: len(batched.ranks)]
        # The prompt's length is unknown.
        hashes = content_hashes(TOKENS[:12], BLOCK_SIZE).tolist()
        assert "usable" not in query(service, "/query_by_hash", content_hashes=hashes)["instances"]["1"]
        assert client.query(content_hashes=hashes, model=MODEL).workers[0].usable is None
        (batched,) = client.query_batch([Query(content_hashes=hashes)], model=MODEL).answers
        assert batched.ranks[0].usable is None


def test_usable_in_a_batch(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1, 2, 3], TOKENS[:12]))
    engine(2).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 12}, "2": {"0": 4}})
    hashes = content_hashes(TOKENS[:12], BLOCK_SIZE).tolist()
    queries: list[dict[str, Any]] = [
        {"token_ids": TOKENS[:12]},
        {"token_ids": TOKENS},
        {"content_hashes": hashes, "prompt_tokens": 12},
        {"content_hashes": hashes, "prompt_tokens": None},
    ]
    answers = ask(service.address, "POST", "/query_batch", {"model_name": MODEL, "queries": queries}).json["answers"]
    assert [each["tokens"] for each in answers] == [[12, 4]] * 4
    assert [each.get("usable") for each in answers] == [[8, 4], None, [8, 4], None]


def test_lengths_that_are_none(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1)
    for wrong in (-1, 1.5, "12", True):
        body = {"model_name": MODEL, "content_hashes": [1], "prompt_tokens": wrong}
        assert ask(service.address, "POST", "/query_by_hash", body).code == "wrong_type", wrong
    twice = b'{"model_name":"m","content_hashes":[1],"prompt_tokens":1,"prompt_tokens":1}'
    assert ask(service.address, "POST", "/query_by_hash", twice).code == "wrong_type"
    # Tokens are counted, whatever is said of them.
    assert query(service, prompt_tokens="x")["instances"] == {}


# Engines that tell no salts


def bare(names: list[int], tokens: list[int], *more: object) -> list[Any]:
    """A store as vLLM 0.11 sends it, and what later ones append."""
    return ["BlockStored", names, None, tokens, BLOCK_SIZE, None, "GPU", None, *more]


def test_an_engine_that_tells_no_salts_is_marked(service: Service, engine: Callable[..., Publisher]) -> None:
    old = engine("old")
    engine("new").publish(bare([1, 2], TOKENS[:8], [["secret"], None], 0, "full_attention", None))
    until_scores(service, {"new": {"0": 8}}, cache_salt="secret")
    assert not {"no_salts", "upper_bound"} & query(service).keys()
    # The engine has this under a salt, which is not visible here.
    old.publish(bare([1, 2], TOKENS[:8]))
    until_scores(service, {"old": {"0": 8}})
    marked = [{"instance_id": "old", "dp_rank": 0}]
    without = query(service)
    assert (without["no_salts"], without["upper_bound"]) == (marked, True)
    salted = query(service, cache_salt="secret")
    assert (salted["scores"], salted["no_salts"]) == ({"new": {"0": 8}}, marked)
    assert "upper_bound" not in salted, "the one that matches tells salts"
    others = query(service, among=["new"])
    assert "no_salts" not in others
    with Client(f"http://{service.address}") as client:
        answer = client.query(tokens=TOKENS, model=MODEL)
        assert (answer.no_salts, answer.upper_bound) == ((("old", 0),), True)
        batch = client.query_batch([TOKENS], model=MODEL)
        assert (batch.no_salts, batch.upper_bound) == ((("old", 0),), True)
        streams = {worker.worker: worker.streams[0].no_salts for worker in client.workers()}
        assert streams == {"old": True, "new": False}
        assert "kvatlas_streams_no_salts 1\n" in client.metrics()
    # Maps have the field only if there is something to be put there.
    engine("map").publish(stored([1], TOKENS[:4]))
    until_scores(service, {"old": {"0": 8}, "map": {"0": 4}})
    assert query(service)["no_salts"] == marked


def test_an_engine_that_shows_salts_later(service: Service, engine: Callable[..., Publisher]) -> None:
    """SGLang's arrays have a place for a salt only in events that have one."""
    sglang = engine("s")
    short: list[Any] = bare([1], TOKENS[:4])[:7]
    sglang.publish(short)
    until_scores(service, {"s": {"0": 4}})
    assert query(service)["no_salts"] == [{"instance_id": "s", "dp_rank": 0}]
    sglang.publish([*bare([5], TOKENS[:4])[:7], {"cache_salt": "a"}])
    until_scores(service, {"s": {"0": 4}}, cache_salt="a")
    until(lambda: "no_salts" not in query(service))
    sglang.publish(bare([2], TOKENS[4:8])[:7])
    until(lambda: ask(service.address, "GET", "/workers").json[0]["streams"]["0"]["counters"]["batches"] == 3)
    assert not {"no_salts", "upper_bound"} & query(service).keys()
