"""Tests of what a client of the dialect relies on, of our service and of the released one alike.

Where the two differ on purpose, nothing is asked here; `docs/guides/service.md` lists it.
"""

import json
from typing import Any

import pytest
from tests.support.engine import BLOCK_SIZE, removed, stored
from tests.support.waiting import until

from kvatlas import content_hashes

from .conftest import Subject
from .tools import MODEL

TOKENS = list(range(100, 124))
PREFIX: dict[str, Any] = {"token_ids": TOKENS}


def signed(tokens: list[int]) -> list[int]:
    return [int(hash_) - (1 << 64) if hash_ >= 1 << 63 else int(hash_) for hash_ in content_hashes(tokens, BLOCK_SIZE)]


def test_register_says_ok(subject: Subject) -> None:
    publisher = subject.publisher()
    answer = subject.post("/register", instance_id=1, endpoint=publisher.endpoint, block_size=BLOCK_SIZE)
    assert (answer.status, answer.json) == (201, {"status": "ok"})
    assert answer.headers["content-type"].startswith("application/json")


def test_query_counts_leading_tokens_by_instance_and_rank(subject: Subject) -> None:
    one, two = subject.engine(1), subject.engine(2)
    one.publish(stored([1, 2, 3, 4], TOKENS[:16]))
    two.publish(stored([1, 2], TOKENS[:8]))
    subject.until_scores({"1": {"0": 16}, "2": {"0": 8}}, **PREFIX)
    answer = subject.post("/query", **PREFIX).json
    assert answer["frequencies"] == []
    instance = {"longest_matched": 16, "gpu": 16, "dp": {"0": 16}, "cpu": 16, "disk": 16}
    assert instance.items() <= answer["instances"]["1"].items()
    assert set(answer["instances"]) == {"1", "2"}


def test_query_by_hash_takes_signed_hashes_and_agrees_with_query(subject: Subject) -> None:
    subject.engine(1).publish(stored([1, 2, 3, 4, 5, 6], TOKENS))
    subject.until_scores({"1": {"0": 24}}, **PREFIX)
    hashes = signed(TOKENS)
    assert min(hashes) < 0 < max(hashes)
    by_hash = subject.post("/query_by_hash", block_hashes=hashes)
    assert by_hash.json["scores"] == {"1": {"0": 24}}
    assert by_hash.json["instances"].keys() == {"1"}
    assert subject.scores("/query_by_hash", block_hashes=hashes[:2]) == {"1": {"0": 8}}
    assert subject.scores("/query_by_hash", block_hashes=hashes[1:]) == {}


def test_a_partial_block_counts_for_nothing(subject: Subject) -> None:
    subject.engine(1).publish(stored([1, 2], TOKENS[:8]))
    subject.until_scores({"1": {"0": 8}}, token_ids=TOKENS[:11])
    assert subject.scores(token_ids=TOKENS[:7]) == {"1": {"0": 4}}
    assert subject.scores(token_ids=TOKENS[:3]) == {}


def test_removed_blocks_are_gone(subject: Subject) -> None:
    engine = subject.engine(1)
    engine.publish(stored([1, 2, 3], TOKENS[:12]))
    subject.until_scores({"1": {"0": 12}}, **PREFIX)
    engine.publish(removed([3]))
    subject.until_scores({"1": {"0": 8}}, **PREFIX)
    engine.publish({"type": "AllBlocksCleared"})
    subject.until_scores({}, **PREFIX)


def test_host_memory_counts_beyond_the_device(subject: Subject) -> None:
    engine = subject.engine(1)
    engine.publish(stored([1, 2], TOKENS[:8]))
    engine.publish(stored([3], TOKENS[8:12], parent=2, medium="CPU"))
    expected = {"longest_matched": 12, "gpu": 8, "dp": {"0": 8}, "cpu": 12, "disk": 12}

    def seen() -> bool:
        instances = subject.post("/query", **PREFIX).json["instances"]
        return "1" in instances and expected.items() <= instances["1"].items()

    until(seen)
    assert subject.scores(**PREFIX) == {"1": {"0": 8}}


def test_ranks_are_told_apart(subject: Subject) -> None:
    zero, one = subject.engine(1), subject.engine(1, dp_rank=1)
    zero.publish(stored([1], TOKENS[:4]))
    one.publish(stored([1, 2], TOKENS[:8]))
    subject.until_scores({"1": {"0": 4, "1": 8}}, **PREFIX)
    instance = subject.post("/query", **PREFIX).json["instances"]["1"]
    assert (instance["gpu"], instance["dp"]) == (8, {"0": 4, "1": 8})


def test_salt_and_adapter_are_other_content(subject: Subject) -> None:
    engine = subject.engine(1)
    engine.publish(stored([1], TOKENS[:4], lora="adapter"))
    subject.until_scores({"1": {"0": 4}}, lora_name="adapter", **PREFIX)
    assert subject.scores(**PREFIX) == {}
    assert subject.scores(lora_name="other", **PREFIX) == {}
    assert subject.scores(lora_name="adapter", cache_salt="s", **PREFIX) == {}
    assert subject.scores(lora_name="adapter", cache_salt=None, **PREFIX) == {"1": {"0": 4}}


def test_routing_groups_are_apart(subject: Subject) -> None:
    a, b = subject.engine(1, routing_group="a"), subject.engine(2, routing_group="b")
    for engine in (a, b):
        engine.publish(stored([1], TOKENS[:4]))
    subject.until_scores({"1": {"0": 4}}, routing_group="a", **PREFIX)
    subject.until_scores({"2": {"0": 4}}, routing_group="b", **PREFIX)
    assert subject.post("/query", **PREFIX).status == 404


def test_workers_have_the_dialect_s_fields(subject: Subject) -> None:
    publisher = subject.engine(7, dp_rank=2)
    publisher.publish(stored([1], TOKENS[:4]))
    subject.until_scores({"7": {"2": 4}}, **PREFIX)
    (worker,) = subject.ask("GET", "/workers").json
    expected = {
        "instance_id": 7,
        "source": "zmq",
        "status": "active",
        "model_name": MODEL,
        "routing_group": "default",
        "block_size": BLOCK_SIZE,
        "endpoints": {"2": publisher.endpoint},
        "listeners": {"2": {"endpoint": publisher.endpoint, "status": "active"}},
    }
    assert expected.items() <= worker.items()


def test_workers_can_be_filtered(subject: Subject) -> None:
    subject.engine(1)
    subject.engine(2, model_name="a b&c", routing_group="g")

    def instances(query: str) -> list[int]:
        return [worker["instance_id"] for worker in subject.ask("GET", f"/workers{query}").json]

    assert sorted(instances("")) == [1, 2]
    assert instances("?model_name=m") == [1]
    assert instances("?model_name=a%20b%26c") == instances("?model_name=a+b%26c&routing_group=g") == [2]
    assert instances("?model_name=m&routing_group=g") == []


def test_unregistering_takes_the_blocks_along(subject: Subject) -> None:
    one, two = subject.engine(1), subject.engine(2)
    for engine in (one, two):
        engine.publish(stored([1], TOKENS[:4]))
    subject.until_scores({"1": {"0": 4}, "2": {"0": 4}}, **PREFIX)
    answer = subject.post("/unregister", instance_id=1)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    subject.until_scores({"2": {"0": 4}}, **PREFIX)
    assert [worker["instance_id"] for worker in subject.ask("GET", "/workers").json] == [2]
    assert subject.post("/unregister", instance_id=1).status == 404


def test_conflicts(subject: Subject) -> None:
    subject.engine(1)
    other = subject.publisher().endpoint
    for change in (
        {"endpoint": other},
        {"endpoint": other, "dp_rank": 1, "model_name": "other"},
        {"endpoint": other, "dp_rank": 1, "routing_group": "other"},
        {"endpoint": other, "instance_id": 2, "block_size": BLOCK_SIZE * 2},
    ):
        answer = subject.post("/register", **{"instance_id": 1, "block_size": BLOCK_SIZE} | change)
        assert (answer.status, type(answer.json["error"])) == (409, str), change


def test_unknown(subject: Subject) -> None:
    for path, query in [("/query", PREFIX), ("/query_by_hash", {"block_hashes": [1]})]:
        answer = subject.post(path, **{"model_name": "nobody"} | query)
        assert (answer.status, type(answer.json["error"])) == (404, str)
    assert subject.post("/unregister", instance_id=99).status == 404
    assert subject.ask("GET", "/nowhere").status == 404


def test_bad_values(subject: Subject) -> None:
    subject.engine(1)
    bad_endpoint = subject.post("/register", instance_id=2, endpoint="nonsense", block_size=BLOCK_SIZE)
    assert (bad_endpoint.status, type(bad_endpoint.json["error"])) == (400, str)
    salted = subject.post("/query_by_hash", block_hashes=[1], cache_salt="")
    assert (salted.status, type(salted.json["error"])) == (400, str)
    assert subject.post("/query_by_hash", block_hashes=[1], cache_salt=None).status == 200


@pytest.mark.parametrize("body", [b"", b"{", b'{"model_name":', b"nonsense", b'{"model_name":"m","token_ids":[1,]}'])
def test_what_is_no_json(subject: Subject, body: bytes) -> None:
    for path in ("/query", "/query_by_hash", "/register", "/unregister"):
        assert subject.ask("POST", path, body).status == 400, path


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/query", {"model_name": MODEL}),
        ("/query", {"token_ids": [1]}),
        ("/query", {"model_name": MODEL, "token_ids": [-1]}),
        ("/query", {"model_name": MODEL, "token_ids": [1.5]}),
        ("/query", {"model_name": MODEL, "token_ids": ["1"]}),
        ("/query", {"model_name": MODEL, "token_ids": [1 << 32]}),
        ("/query", {"model_name": MODEL, "token_ids": 1}),
        ("/query", {"model_name": 1, "token_ids": []}),
        ("/query", {"model_name": MODEL, "token_ids": [], "cache_salt": 1}),
        ("/query", []),
        ("/query_by_hash", {"model_name": MODEL, "block_hashes": ["1"]}),
        ("/query_by_hash", {"model_name": MODEL, "block_hashes": [0.5]}),
        ("/query_by_hash", {"model_name": MODEL, "block_hashes": [1 << 64]}),
        ("/register", {"instance_id": -1, "model_name": MODEL, "endpoint": "tcp://h:1", "block_size": 4}),
        ("/register", {"instance_id": 1, "model_name": MODEL, "endpoint": "tcp://h:1", "block_size": "4"}),
        ("/register", {"instance_id": 1, "model_name": MODEL, "block_size": 4}),
        ("/unregister", {"model_name": MODEL}),
    ],
    ids=lambda value: json.dumps(value) if not isinstance(value, str) else value,
)
def test_what_is_of_another_type(subject: Subject, path: str, body: object) -> None:
    assert subject.ask("POST", path, body).status == 422


def test_other_content_types_are_refused(subject: Subject) -> None:
    answer = subject.ask(
        "POST", "/query", {"model_name": MODEL, "token_ids": []}, headers={"Content-Type": "text/plain"}
    )
    assert answer.status == 415


def test_what_nobody_knows_is_ignored(subject: Subject) -> None:
    publisher = subject.publisher()
    more = {"tenant_id": "t", "additional_salt": "s", "surprise": {"deep": [1, {"er": None}]}}
    body = {"instance_id": 1, "endpoint": publisher.endpoint, "block_size": BLOCK_SIZE}
    assert subject.post("/register", **body, **more).status == 201
    assert subject.post("/query", token_ids=[], **more).status == 200


def test_an_empty_query_has_an_empty_answer(subject: Subject) -> None:
    subject.engine(1)
    for path, key in [("/query", "token_ids"), ("/query_by_hash", "block_hashes")]:
        answer = subject.post(path, **{key: []})
        assert answer.status == 200
        assert {"scores": {}, "frequencies": [], "instances": {}}.items() <= answer.json.items()


def test_too_large_a_body(subject: Subject) -> None:
    body = b'{"model_name":"m","token_ids":[' + b"1," * (9 << 19) + b"1]}"
    assert subject.ask("POST", "/query", body).status == 413


def test_wrong_methods(subject: Subject) -> None:
    for method, path in [("GET", "/query"), ("GET", "/register"), ("POST", "/workers"), ("PUT", "/health")]:
        assert subject.ask(method, path).status == 405, path


def test_there_is_a_dump(subject: Subject) -> None:
    subject.engine(1).publish(stored([11, 12], TOKENS[:8]))
    subject.until_scores({"1": {"0": 8}}, **PREFIX)
    answer = subject.ask("GET", "/dump")
    assert answer.status == 200
    (keyspace,) = answer.json["keyspaces"] if subject.name == "kvatlas" else answer.json.values()
    assert keyspace["block_size"] == BLOCK_SIZE
    (event,) = keyspace["events"]
    assert (event["worker_id"], event["storage_tier"], event["event"]["dp_rank"]) == (1, "device", 0)
    store = event["event"]["data"]["stored"]
    assert store["parent_hash"] is None
    hashes = [int(hash_) for hash_ in content_hashes(TOKENS[:8], BLOCK_SIZE)]
    assert [(block["block_hash"], block["tokens_hash"]) for block in store["blocks"]] == list(
        zip([11, 12], hashes, strict=True)
    )


def test_health(subject: Subject) -> None:
    assert subject.ask("GET", "/health").status == 200


def test_metrics_are_prometheus_text(subject: Subject) -> None:
    subject.post("/query", **PREFIX)
    answer = subject.ask("GET", "/metrics")
    assert answer.status == 200
    assert b"# TYPE " in answer.body
