"""The HTTP side: registering workers, asking who holds a prompt, and what is said of the workers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import stable
from tests.support.engine import BLOCK_SIZE, Publisher, removed, stored
from tests.support.waiting import until

from kvatlas import BlockIndex, content_hashes
from kvatlas._native import Service
from kvatlas.errors import ServiceError
from kvatlas.types import Tier

from .dialect.tools import DEADLINE, MODEL, ask
from .http_tools import TOKENS, query, register, until_scores

# Registration


def test_registering_the_same_twice_is_fine(service: Service) -> None:
    assert register(service, 1).status == 201
    again = register(service, 1)
    assert (again.status, again.json) == (200, {"status": "ok"})
    assert register(service, "1").status == 200, "7 and '7' are the same worker"


def test_instances_may_have_names(service: Service) -> None:
    for name in ["pod-a/0", 'a"b', "é", "007", 0, (1 << 64) - 1, str(1 << 64)]:
        assert register(service, name).status == 201
    listed = [worker["instance_id"] for worker in ask(service.address, "GET", "/workers").json]
    assert sorted(map(str, listed)) == sorted(["pod-a/0", 'a"b', "é", "007", "0", str((1 << 64) - 1), str(1 << 64)])
    assert {0, (1 << 64) - 1, "007", str(1 << 64)} <= set(listed)
    for name in ["pod-a/0", "é", "0"]:
        assert ask(service.address, "POST", "/unregister", {"instance_id": name}).status == 200


def test_of_many_that_register_at_once_one_is_first(service: Service) -> None:
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(register(service, 5).status)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 15 + [201]


def test_a_rank_can_be_unregistered_alone(service: Service, engine: Callable[..., Publisher]) -> None:
    for rank in (0, 1):
        engine(1, dp_rank=rank).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 4, "1": 4}})
    assert ask(service.address, "POST", "/unregister", {"instance_id": 1, "dp_rank": 0}).status == 200
    until_scores(service, {"1": {"1": 4}})
    assert ask(service.address, "POST", "/unregister", {"instance_id": 1, "dp_rank": 0}).code == "unknown_rank"


def test_the_last_worker_leaving_is_no_error(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 4}})
    assert ask(service.address, "POST", "/unregister", {"instance_id": 1}).status == 200
    assert query(service)["scores"] == {}
    assert query(service, "/query_by_hash", content_hashes=[1])["instances"] == {}


def test_from_python(service: Service) -> None:
    body = {"instance_id": "w", "endpoint": "tcp://127.0.0.1:9", "model_name": MODEL, "block_size": 4, "source": "here"}
    assert service.register(json.dumps(body))
    assert not service.register(json.dumps(body))
    (worker,) = json.loads(service.workers())
    assert (worker["instance_id"], worker["source"]) == ("w", "here")
    with pytest.raises(ServiceError) as refused:
        service.register(json.dumps(body | {"block_size": 8}))
    assert refused.value.code == "block_size_mismatch"
    with pytest.raises(ServiceError) as refused:
        service.register("{")
    assert refused.value.code == "malformed_json"
    assert service.unregister("w") == 1
    with pytest.raises(ServiceError) as refused:
        service.unregister("w")
    assert refused.value.code == "unknown_worker"
    assert service.drain(DEADLINE)
    assert service.drain(0), "the second time there is nothing to do"
    with pytest.raises(ServiceError) as refused:
        service.register(json.dumps(body))
    assert refused.value.code == "closed"


def test_what_cannot_be_started(service: Service, tmp_path: Path) -> None:
    for http, words in [
        ({"bind": service.address}, "cannot listen"),
        ({"bind": "127.0.0.1:0", "tls": {"cert": str(tmp_path / "no"), "key": str(tmp_path / "no")}}, "certificate"),
        ({"bind": "nowhere"}, "configuration"),
        ({"max_body": 0}, "max_body"),
    ]:
        with pytest.raises(ServiceError, match=words):
            Service(json.dumps({"http": http}))


# Queries


def test_answers_are_those_of_the_index(service: Service, engine: Callable[..., Publisher]) -> None:
    """Random content, told over ZMQ to the service and directly to an index: every answer the same."""
    random_ = random.Random(7)
    index = BlockIndex(BLOCK_SIZE)
    prompts = [[random_.randrange(5) for _ in range(40)] for _ in range(6)]
    prompts += [prompt[:20] + [random_.randrange(5) for _ in range(20)] for prompt in prompts]
    last: dict[str, tuple[list[int], int]] = {}
    for number, worker in enumerate(["1", "2", "pod", "3"]):
        publisher = engine(worker)
        for prompt in random_.sample(prompts, 6):
            length = random_.randrange(1, 11)
            names = [stable.number(worker, prompt[: BLOCK_SIZE * (i + 1)]) for i in range(length)]
            split = random_.randrange(length + 1)
            parts: list[tuple[slice, str, Tier]] = [
                (slice(split), "GPU", "gpu"),
                (slice(split, length), "CPU", "cpu"),
            ]
            for part, medium, tier in parts:
                if not names[part]:
                    continue
                parent = names[part.start - 1] if part.start else None
                tokens = prompt[BLOCK_SIZE * (part.start or 0) : BLOCK_SIZE * (part.stop or 0)]
                publisher.publish(stored(names[part], tokens, parent=parent, medium=medium))
                index.store(worker, block_hashes=names[part], tokens=tokens, parent=parent, tier=tier)
        end = [1000 + number] * BLOCK_SIZE
        publisher.publish(stored([number + 1], end))
        last[worker] = (end, number)
        until_scores(service, {worker: {"0": BLOCK_SIZE}}, token_ids=end)

    def expected(found: Any) -> dict[str, int]:
        return {worker: depth * BLOCK_SIZE for worker, depth in found.scores().items()}

    matched = 0
    for prompt in prompts:
        found = index.find(tokens=prompt)
        hashes = [int(hash_) for hash_ in content_hashes(prompt, BLOCK_SIZE)]
        for answer in (
            query(service, token_ids=prompt),
            query(service, "/query_by_hash", content_hashes=hashes),
            query(service, "/query_by_hash", content_hashes=[h - 2**64 if h >= 2**63 else h for h in hashes]),
            query(service, "/query_by_hash", block_hashes=hashes),
        ):
            assert {worker: ranks["0"] for worker, ranks in answer["scores"].items()} == expected(found)
            longest = {worker: instance["longest_matched"] for worker, instance in answer["instances"].items()}
            assert longest == expected(found.any_tier)
            assert all(i["gpu"] <= i["cpu"] == i["disk"] == i["longest_matched"] for i in answer["instances"].values())
            assert answer["tiers"] == "cumulative"
            assert list(answer["scores"].values()) == sorted(answer["scores"].values(), key=lambda r: -r["0"])
        matched += len(expected(found))
    assert matched > 10

    queries = [{"token_ids": prompt} for prompt in prompts]
    queries += [{"content_hashes": [int(h) for h in content_hashes(prompt, BLOCK_SIZE)]} for prompt in prompts]
    batch = query(service, "/query_batch", queries=queries)
    assert batch["block_size"] == BLOCK_SIZE
    names_ = [str(rank["instance_id"]) for rank in batch["workers"]]
    assert all(rank["dp_rank"] == 0 for rank in batch["workers"])
    for prompt, answer in zip(prompts * 2, batch["answers"], strict=True):
        found = index.find(tokens=prompt)
        told = dict(zip((names_[rank] for rank in answer["ranks"]), answer["tokens"], strict=True))
        assert {worker: tokens for worker, tokens in told.items() if tokens} == expected(found)
        anywhere = dict(zip(told, answer.get("any_tier", answer["tokens"]), strict=True))
        assert anywhere == expected(found.any_tier)
        assert ("any_tier" in answer) == (list(told.values()) != list(anywhere.values()))


def test_best_allowed_and_levels(service: Service, engine: Callable[..., Publisher]) -> None:
    for instance, blocks in [(1, 2), (2, 5), ("pod", 5), (4, 1)]:
        engine(instance).publish(stored(list(range(1, blocks + 1)), TOKENS[: 4 * blocks]))
        until(lambda instance=instance: str(instance) in query(service)["scores"])
    assert set(query(service, top_k=2)["instances"]) == {"2", "pod"}
    assert set(query(service, top_k=3)["scores"]) == {"2", "pod", "1"}
    assert set(query(service, top_k=99)["scores"]) == {"1", "2", "pod", "4"}
    assert set(query(service, among=[1, "4", "nobody"])["scores"]) == {"1", "4"}
    assert set(query(service, among=[1, "4"], top_k=1)["scores"]) == {"1"}
    assert query(service, among=[])["instances"] == {}
    levels = query(service, levels=True)["levels"]
    assert [(level["tokens"], set(level["workers"])) for level in levels] == [(20, {2, "pod"}), (8, {1}), (4, {4})]
    assert query(service, levels=True, top_k=2)["levels"] == levels[:1]
    assert "levels" not in query(service)
    for instance in query(service, age=True)["instances"].values():
        assert instance["state"] == "live"
        assert instance["lag_ms"] is None or instance["lag_ms"] >= 0
    batch = query(service, "/query_batch", queries=[{"token_ids": TOKENS}], top_k=2, among=[1, 2, 4])
    assert [batch["workers"][rank]["instance_id"] for rank in batch["answers"][0]["ranks"]] == [2, 1]


def test_block_hashes_are_an_alias_of_content_hashes(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1, 2], TOKENS[:8]))
    until_scores(service, {"1": {"0": 8}})
    hashes = [int(hash_) for hash_ in content_hashes(TOKENS[:8], BLOCK_SIZE)]
    for name in ("content_hashes", "block_hashes"):
        assert query(service, "/query_by_hash", **{name: hashes})["scores"] == {"1": {"0": 8}}
        assert query(service, "/query_batch", queries=[{name: hashes}])["answers"] == [{"ranks": [0], "tokens": [8]}]
    both = {"content_hashes": hashes, "block_hashes": hashes}
    refused: list[tuple[str, dict[str, Any]]] = [("/query_by_hash", both), ("/query_batch", {"queries": [both]})]
    for path, body in refused:
        answer = ask(service.address, "POST", path, {"model_name": MODEL} | body)
        assert (answer.status, answer.code) == (400, "ambiguous_query"), path
    missing: list[tuple[str, dict[str, Any]]] = [("/query_by_hash", {}), ("/query_batch", {"queries": [{}]})]
    for path, body in missing:
        answer = ask(service.address, "POST", path, {"model_name": MODEL} | body)
        assert (answer.status, answer.code) == (422, "wrong_type"), path
        assert "content_hashes is missing" in answer.json["error"]


def test_who_is_not_trusted_is_named(service: Service, engine: Callable[..., Publisher]) -> None:
    engine(1).publish(stored([1], TOKENS[:4]))
    until_scores(service, {"1": {"0": 4}})
    assert register(service, "silent", dp_rank=3).status == 201
    answer = query(service)
    assert answer["scores"] == {"1": {"0": 4}}
    assert answer["untrusted"] == [{"instance_id": "silent", "dp_rank": 3, "state": "connecting"}]
    assert "untrusted" not in query(service, among=[1])
    assert query(service, "/query_batch", queries=[])["untrusted"] == answer["untrusted"]


def test_workers_tell_all_about_their_streams(service: Service, engine: Callable[..., Publisher]) -> None:
    publisher = engine(1, topic="")
    publisher.publish(stored([1, 2], TOKENS[:8]))
    publisher.publish(removed([2]))
    publisher.publish(stored([9], TOKENS[:4], parent=77))
    until(lambda: ask(service.address, "GET", "/workers").json[0]["streams"]["0"]["seq"] == 2)
    stream = ask(service.address, "GET", "/workers").json[0]["streams"]["0"]
    assert stream["endpoint"] == publisher.endpoint
    assert (stream["state"], stream["trusted"], stream["ranks"]) == ("live", True, [0])
    assert (stream["blocks"], stream["unlinked"]) == (2, 1)
    assert (stream["counters"]["batches"], stream["counters"]["stored_blocks"]) == (3, 3)
    assert stream["counters"]["removed_blocks"] == 1
