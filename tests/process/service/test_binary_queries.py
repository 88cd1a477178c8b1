"""Queries as bytes, in JSON, and by the clients that hash tokens themselves: all have the same answer."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from tests.support import stable
from tests.support.engine import BLOCK_SIZE, Publisher
from tests.support.waiting import until

from kvatlas import content_hashes
from kvatlas._native import Service
from kvatlas.client import Answer as ClientAnswer
from kvatlas.client import AsyncClient, Client, Query
from kvatlas.errors import ClientError
from kvatlas.wire import Stored, encode_batch

from .dialect.tools import MODEL, Answer, ask, running
from .http_tools import BYTES, TOKENS, query, register

GROUPS = ("default", "other group")
LORAS = (None, "adapter", "é&=+ /")
OPTIONS: list[dict[str, Any]] = [{}, {"top_k": 1}, {"among": ["7", "pod1"]}, {"among": []}]
SALTS = (None, "", "salt", "50%&a=b c+ü")


def post(service: Service, path: str, parameters: dict[str, Any], body: bytes, **headers: str) -> Answer:
    return ask(service.address, "POST", f"{path}?{urlencode(parameters, doseq=True)}", body, headers=BYTES | headers)


def tokens_of(prompt: list[int]) -> bytes:
    return struct.pack(f"<{len(prompt)}I", *prompt)


def hashes_of(hashes: list[int]) -> bytes:
    return struct.pack(f"<{len(hashes)}Q", *hashes)


class World:
    """Prompts, and what engines hold of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        starts = [[self.random.randrange(1 << 32) for _ in range(12)] for _ in range(3)]
        self.prompts = [
            self.random.choice(starts) + [self.random.randrange(1 << 32) for _ in range(self.random.randrange(30))]
            for _ in range(12)
        ]

    def stored(self, worker: str) -> Iterator[Stored]:
        for prompt in self.random.sample(self.prompts, 8):
            lora, salt = self.random.choice(LORAS), self.random.choice(SALTS)
            blocks = self.random.randrange(1, len(prompt) // BLOCK_SIZE + 1)
            parts = [prompt[: BLOCK_SIZE * (at + 1)] for at in range(blocks)]
            names = [stable.number(worker, lora, salt, part) for part in parts]
            yield Stored(names, None, prompt[: BLOCK_SIZE * blocks], BLOCK_SIZE, lora=lora, salt=salt or None)

    def query(self) -> dict[str, Any]:
        choose = self.random.choice
        return {"tokens": choose(self.prompts), "lora": choose(LORAS), "salt": choose(SALTS)}


@pytest.fixture
def worlds(service: Service, publishers: Callable[[], Publisher]) -> dict[str, World]:
    """A world for each routing group, as the service knows it."""
    made = {}
    for number, group in enumerate(GROUPS):
        made[group] = world = World(number)
        for worker in ("7", "pod", "007"):
            publisher = publishers()
            name = f"{worker}{'' if number == 0 else number}"
            assert register(service, name, publisher.endpoint, routing_group=group).status == 201
            publisher.wait_for_reader()
            end = [1000 + number] * BLOCK_SIZE
            events = [*world.stored(name), Stored([number + 1], None, end, BLOCK_SIZE)]
            payload = encode_batch(events, timestamp=time.time())
            publisher.publish(payload)
            until(
                lambda end=end, group=group, name=name: (
                    name in query(service, token_ids=end, routing_group=group)["scores"]
                )
            )
    return made


def plain(answer: ClientAnswer) -> object:
    return answer.workers, answer.block_size, answer.length, answer.untrusted, answer.upper_bound, answer.partial


def test_every_way_has_the_same_answer(service: Service, worlds: dict[str, World]) -> None:
    url = f"http://{service.address}"
    matched = 0
    with Client(url) as hashing, Client(url, local_hashing=False) as sending, asyncio.Runner() as runner:
        waiting = AsyncClient(url)
        for _ in range(60):
            for group, world in worlds.items():
                given = world.query()
                options = world.random.choice(OPTIONS)
                scope: dict[str, Any] = {"model_name": MODEL, "routing_group": group} | options
                about = {name: given[key] for name, key in (("lora_name", "lora"), ("cache_salt", "salt"))}
                body = {"token_ids": given["tokens"]} | scope | about
                expected = ask(service.address, "POST", "/query", body).json
                search = scope | {name: value for name, value in about.items() if value is not None}
                search |= {"among": options["among"] or [""]} if "among" in options else {}
                in_bytes = post(service, "/query", search, tokens_of(given["tokens"]))
                assert (in_bytes.status, in_bytes.json) == (200, expected)
                hashes = content_hashes(given["tokens"], BLOCK_SIZE, given["lora"], given["salt"]).tolist()
                by_hash = {key: value for key, value in search.items() if key not in about}
                by_hash["prompt_tokens"] = len(given["tokens"])
                in_bytes = post(service, "/query_by_hash", by_hash, hashes_of(hashes))
                assert (in_bytes.status, in_bytes.json) == (200, expected)

                asked: dict[str, Any] = {"model": MODEL, "routing_group": group} | options
                answers = [client.query(**given, **asked) for client in (hashing, hashing, sending)]
                answers.append(runner.run(waiting.query(**given, **asked)))
                assert len({repr(plain(answer)) for answer in answers}) == 1
                assert {answer.prompt_tokens for answer in answers} == {len(given["tokens"])}
                told = {worker: max(ranks.values()) for worker, ranks in expected["scores"].items()}
                assert all(answer.token_scores() == told for answer in answers)
                queries = [Query(**given), Query(content_hashes=hashes), given["tokens"]]
                batches = [client.query_batch(queries, **asked) for client in (hashing, sending)]
                assert repr(batches[0]) == repr(batches[1])
                assert batches[0].answers[0].token_scores() == batches[0].answers[1].token_scores() == told
                matched += bool(told)
        runner.run(waiting.close())
    assert matched > 20, "most of it was compared with nothing"


def test_options_and_doubts(service: Service, engine: Callable[..., Publisher]) -> None:
    publisher = engine(1)
    events = [Stored([1, 2], None, TOKENS[: 2 * BLOCK_SIZE], BLOCK_SIZE)]
    publisher.publish(encode_batch(events, timestamp=time.time()))
    until(lambda: query(service)["scores"])
    register(service, "silent")
    answer = post(service, "/query", {"model_name": MODEL, "levels": "true", "age": "true"}, tokens_of(TOKENS)).json
    expected = query(service, levels=True, age=True)
    assert answer["levels"] == expected["levels"] == [{"tokens": 2 * BLOCK_SIZE, "workers": [1]}]
    assert answer["instances"]["1"]["state"] == expected["instances"]["1"]["state"] == "live"
    assert (
        answer["untrusted"] == expected["untrusted"] == [{"instance_id": "silent", "dp_rank": 0, "state": "connecting"}]
    )
    plain = post(service, "/query", {"model_name": MODEL, "age": "false"}, tokens_of(TOKENS)).json
    assert "levels" not in plain
    assert "state" not in plain["instances"]["1"]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 12, 4_000, 300_000])
def test_lengths(service: Service, length: int) -> None:
    """Only whole numbers, however many pieces they come in."""
    register(service, 1)
    for path, size in (("/query", 4), ("/query_by_hash", 8)):
        answer = post(service, path, {"model_name": MODEL}, b"\xff" * length)
        assert answer.status == (400 if length % size else 200), answer
        if length % size:
            assert answer.code == "wrong_length"
            assert f"a multiple of {size} bytes, got {length} bytes" in answer.json["error"]


def test_limits_are_those_of_json(service: Service) -> None:
    with running(max_body=1_000) as small:
        register(small, 1)
        assert post(small, "/query", {"model_name": MODEL}, bytes(1_000)).status == 200
        answer = post(small, "/query", {"model_name": MODEL}, bytes(1_004))
        assert (answer.status, answer.code) == (413, "body_too_large")
    with running(key="k") as closed:
        answer = post(closed, "/query", {"model_name": MODEL}, b"")
        assert (answer.status, answer.code) == (401, "unauthorized")
        answer = post(closed, "/query", {"model_name": MODEL}, b"", Authorization="Bearer k")
        assert (answer.status, answer.code) == (404, "unknown_keyspace")


def test_types_of_content(service: Service) -> None:
    register(service, 1)
    for kind in ("application/octet-stream; charset=binary", "Application/Octet-Stream"):
        assert post(service, "/query", {"model_name": MODEL}, tokens_of(TOKENS), **{"Content-Type": kind}).status == 200
    for path in ("/query_batch", "/register", "/unregister"):
        answer = post(service, path, {"model_name": MODEL}, b"")
        assert (answer.status, answer.code) == (415, "wrong_content_type"), "only numbers can be bytes"
    body = {"model_name": MODEL, "token_ids": TOKENS}
    answer = ask(service.address, "POST", "/query?model_name=other&x=%ff", body)
    assert answer.status == 200, "JSON has everything in its body, as ever"


def test_parameters_that_are_refused(service: Service) -> None:
    register(service, 1)
    for search, status, code in [
        ("", 422, "wrong_type"),
        ("routing_group=default", 422, "wrong_type"),
        (f"model_name={MODEL}&model_name={MODEL}", 422, "wrong_type"),
        (f"model_name={MODEL}&top_k=x", 422, "wrong_type"),
        (f"model_name={MODEL}&top_k=0", 400, "invalid_top_k"),
        (f"model_name={MODEL}&cache_sat=s", 400, "unknown_parameter"),
        (f"model_name={MODEL}&cache_salt=%FF", 400, "malformed_parameters"),
        (f"model_name={MODEL}&cache_salt=%", 400, "malformed_parameters"),
        ("model_name=nobody", 404, "unknown_keyspace"),
        (f"model_name={MODEL}&routing_group=nobody", 404, "unknown_keyspace"),
    ]:
        answer = ask(service.address, "POST", f"/query?{search}", b"", headers=BYTES)
        assert (answer.status, answer.code) == (status, code), search
    for name in ("lora_name", "cache_salt"):
        answer = post(service, "/query_by_hash", {"model_name": MODEL, name: "s"}, b"")
        assert (answer.status, answer.code) == (400, "salted_hashes")


def test_clients_of_a_block_size_that_changes(service: Service) -> None:
    with Client(f"http://{service.address}") as client:
        with pytest.raises(ClientError) as caught:
            client.query(tokens=TOKENS, model=MODEL)
        assert (caught.value.code, caught.value.status) == ("unknown_keyspace", 404)
        assert "?" not in str(caught.value).split(": ")[0]
        for size in (4, 8, 5):
            assert register(service, 1, block_size=size).status == 201
            for _ in range(2):
                answer = client.query(tokens=TOKENS, model=MODEL)
                assert (answer.block_size, answer.length) == (size, len(TOKENS) // size)
                batch = client.query_batch([TOKENS], model=MODEL)
                assert (batch.block_size, batch.answers[0].length) == (size, len(TOKENS) // size)
            assert ask(service.address, "POST", "/unregister", {"instance_id": 1}).status == 200


def test_arrays_of_another_byte_order(service: Service, engine: Callable[..., Publisher]) -> None:
    publisher = engine(1)
    events = [Stored([1, 2], None, TOKENS[: 2 * BLOCK_SIZE], BLOCK_SIZE)]
    publisher.publish(encode_batch(events, timestamp=time.time()))
    until(lambda: query(service)["scores"])
    hashes = content_hashes(TOKENS, BLOCK_SIZE)
    with Client(f"http://{service.address}") as client:
        for _ in range(2):
            for kind in (">u4", "<u4", ">i8", "<u8"):
                assert client.query(tokens=np.array(TOKENS, kind), model=MODEL).depth == 2
        for order in (">u8", "<u8", ">i8"):
            assert client.query(content_hashes=hashes.astype(order), model=MODEL).depth == 2


def test_pages_of_browsers_cannot_ask_so(service: Service) -> None:
    """A page may send bodies of these types, and of none, anywhere without asking first."""
    register(service, 1)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = post(service, "/query", {"model_name": MODEL}, tokens_of(TOKENS), **{"Content-Type": kind})
        assert (answer.status, answer.code) == (415, "wrong_content_type")
    assert json.loads(answer.body)["error"].count("application/octet-stream") == 1
