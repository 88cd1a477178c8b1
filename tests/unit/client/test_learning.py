"""Tests of what clients learn of a service: block sizes, to hash tokens themselves, and whether it takes bytes."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from kvatlas import content_hashes
from kvatlas.client import AsyncClient, Client, Query
from kvatlas.errors import ClientError

from .test_client import answered_by

TOKENS = list(range(1000, 1050))
Call = Callable[..., Any]  # of a method of the client, by its name
Connect = Callable[..., AbstractContextManager[Call]]


class Service:
    """A service without sockets: it knows keyspaces by their block sizes, and remembers what it was asked."""

    def __init__(self, sizes: dict[tuple[str, str], int], *, takes_bytes: bool = True) -> None:
        self.sizes = sizes
        self.takes_bytes = takes_bytes
        self.wants_tokens = False
        self.asked: list[tuple[str, str, list[int]]] = []  # path, "bytes" or "json", numbers

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/workers":
            return httpx.Response(200, json=[self._worker(*keyspace) for keyspace in self.sizes])
        if request.headers["content-type"] == "application/octet-stream":
            kind: Any = "<u8" if path == "/query_by_hash" else "<u4"
            self.asked.append((path, "bytes", np.frombuffer(request.content, kind).tolist()))
            if not self.takes_bytes:
                return httpx.Response(415, json={"error": "send JSON", "code": "wrong_content_type"})
            keyspace = request.url.params["model_name"], request.url.params["routing_group"]
        else:
            body = json.loads(request.content)
            for query in body.get("queries", [body]):
                numbers = query.get("token_ids", query.get("content_hashes"))
                self.asked.append((path, "hashes" if "content_hashes" in query else "tokens", numbers))
            keyspace = body["model_name"], body["routing_group"]
        size = self.sizes.get(keyspace)
        if size is None:
            return httpx.Response(404, json={"error": "nobody", "code": "unknown_keyspace"})
        if path == "/query_batch":
            answers: list[object] = [{"ranks": [], "tokens": []} for _ in body["queries"]]
            wants = any("content_hashes" in query for query in body["queries"])
            return httpx.Response(
                200, json={"block_size": size, "workers": [], "answers": answers, **self._wants(wants)}
            )
        return httpx.Response(200, json={"instances": {}, "block_size": size, **self._wants(path != "/query")})

    def _wants(self, by_hashes: bool) -> dict[str, bool]:
        """The sign that a service wants tokens: who sends tokens is not told."""
        return {"wants_tokens": True} if by_hashes and self.wants_tokens else {}

    def _worker(self, model: str, group: str) -> dict[str, Any]:
        size = self.sizes[model, group]
        about = {"instance_id": "w", "source": "zmq", "status": "live", "streams": {}}
        return about | {"model_name": model, "routing_group": group, "block_size": size}

    def taken(self) -> list[tuple[str, str, list[int]]]:
        asked, self.asked = self.asked, []
        return asked


@contextmanager
def sync(service: Service, **options: Any) -> Iterator[Call]:
    with answered_by(service), Client("http://kv:1", **options) as client:
        yield lambda method, *args, **given: getattr(client, method)(*args, **given)


@contextmanager
def asynchronous(service: Service, **options: Any) -> Iterator[Call]:
    with answered_by(service), asyncio.Runner() as runner:
        client = AsyncClient("http://kv:1", **options)

        def call(method: str, *args: Any, **given: Any) -> Any:
            return runner.run(getattr(client, method)(*args, **given))

        yield call
        runner.run(client.close())


@pytest.fixture(params=[sync, asynchronous], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    chosen: Connect = request.param
    return chosen


def hashes(block_size: int, lora: str | None = None, salt: str | None = None) -> list[int]:
    made: list[int] = content_hashes(TOKENS, block_size, lora, salt).tolist()
    return made


def test_the_first_query_sends_tokens_the_next_ones_hashes(connect: Connect) -> None:
    service = Service({("m", "default"): 16, ("m", "g"): 4})
    with connect(service) as call:
        for _ in range(2):
            answer = call("query", tokens=TOKENS, model="m")
            assert (answer.block_size, answer.length, answer.prompt_tokens) == (16, 3, 50)
        call("query", tokens=TOKENS[:15], model="m")
        answer = call("query", tokens=TOKENS, model="m", lora="l", salt="s")
        assert (answer.length, answer.prompt_tokens) == (3, 50)
        assert service.taken() == [
            ("/query", "bytes", TOKENS),
            ("/query_by_hash", "bytes", hashes(16)),
            ("/query_by_hash", "bytes", []),
            ("/query_by_hash", "bytes", hashes(16, "l", "s")),
        ]
        # Each model in each routing group has a block size of its own.
        answers = [call("query", tokens=TOKENS, model="m", routing_group="g") for _ in range(2)]
        assert [answer.length for answer in answers] == [12, 12]
        assert service.taken() == [("/query", "bytes", TOKENS), ("/query_by_hash", "bytes", hashes(4))]


def test_block_sizes_from_the_list_of_workers(connect: Connect) -> None:
    service = Service({("m", "default"): 16, ("m", "g"): 4})
    with connect(service) as call:
        call("workers")
        call("query", tokens=TOKENS, model="m", routing_group="g")
        call("query", tokens=TOKENS, model="m")
        assert service.taken() == [("/query_by_hash", "bytes", hashes(4)), ("/query_by_hash", "bytes", hashes(16))]


def test_block_sizes_from_a_query_by_hash(connect: Connect) -> None:
    service = Service({("m", "default"): 16})
    with connect(service) as call:
        call("query", content_hashes=[7], model="m")
        call("query", tokens=TOKENS, model="m")
        assert service.taken() == [("/query_by_hash", "bytes", [7]), ("/query_by_hash", "bytes", hashes(16))]


def test_a_block_size_that_changes(connect: Connect) -> None:
    service = Service({("m", "default"): 16})
    with connect(service) as call:
        call("query", tokens=TOKENS, model="m")
        service.sizes["m", "default"] = 8
        service.taken()
        answer = call("query", tokens=TOKENS, model="m")
        assert (answer.block_size, answer.length) == (8, 6)
        assert service.taken() == [("/query_by_hash", "bytes", hashes(16)), ("/query", "bytes", TOKENS)]
        assert call("query", tokens=TOKENS, model="m").length == 6
        assert service.taken() == [("/query_by_hash", "bytes", hashes(8))]
        service.sizes["m", "default"] = 4
        batch = call("query_batch", [TOKENS, Query(content_hashes=[5])], model="m")
        assert [match.length for match in batch.answers] == [12, 1]
        assert service.taken() == [
            ("/query_batch", "hashes", hashes(8)),
            ("/query_batch", "hashes", [5]),
            ("/query_batch", "tokens", TOKENS),
            ("/query_batch", "hashes", [5]),
        ]


def test_hashes_of_the_caller_are_sent_once(connect: Connect) -> None:
    """The hashes are for the block size that the caller believes in: the answer says which one there is."""
    service = Service({("m", "default"): 16})
    with connect(service) as call:
        call("query", tokens=TOKENS, model="m")
        service.sizes["m", "default"] = 8
        service.taken()
        assert call("query", content_hashes=[7], model="m").block_size == 8
        assert service.taken() == [("/query_by_hash", "bytes", [7])]


def test_a_keyspace_that_goes_and_comes_back(connect: Connect) -> None:
    service = Service({})
    with connect(service) as call:
        for sizes in ({}, {("m", "default"): 16}, {}, {("m", "default"): 8}):
            service.sizes = dict(sizes)
            if sizes:
                assert call("query", tokens=TOKENS, model="m").block_size in sizes.values()
                continue
            with pytest.raises(ClientError) as caught:
                call("query", tokens=TOKENS, model="m")
            assert (caught.value.code, caught.value.status) == ("unknown_keyspace", 404)
            assert str(caught.value).startswith("http://kv:1/query: nobody ")
        assert [path for path, _, _ in service.taken()] == ["/query", "/query", "/query_by_hash", "/query", "/query"]


def test_batches(connect: Connect) -> None:
    service = Service({("m", "default"): 16})
    queries = [TOKENS, Query(tokens=TOKENS, lora="l", salt="s"), Query(content_hashes=[5])]
    with connect(service) as call:
        for _ in range(2):
            batch = call("query_batch", queries, model="m")
            assert [(match.length, match.prompt_tokens) for match in batch.answers] == [(3, 50), (3, 50), (1, None)]
        assert service.taken() == [
            ("/query_batch", "tokens", TOKENS),
            ("/query_batch", "tokens", TOKENS),
            ("/query_batch", "hashes", [5]),
            ("/query_batch", "hashes", hashes(16)),
            ("/query_batch", "hashes", hashes(16, "l", "s")),
            ("/query_batch", "hashes", [5]),
        ]


def test_tokens_only(connect: Connect) -> None:
    service = Service({("m", "default"): 16})
    with connect(service, local_hashing=False) as call:
        for _ in range(2):
            call("query", tokens=TOKENS, model="m")
        call("workers")
        call("query_batch", [TOKENS], model="m")
        assert service.taken() == [("/query", "bytes", TOKENS)] * 2 + [("/query_batch", "tokens", TOKENS)]


def test_a_service_that_takes_only_json(connect: Connect) -> None:
    service = Service({("m", "default"): 16}, takes_bytes=False)
    with connect(service) as call:
        for _ in range(2):
            assert call("query", tokens=TOKENS, model="m").length == 3
        assert service.taken() == [
            ("/query", "bytes", TOKENS),
            ("/query", "tokens", TOKENS),
            ("/query_by_hash", "hashes", hashes(16)),
        ]


@pytest.mark.parametrize(
    "given",
    [
        {"salt": "secret"},
        {"among": ["w" * 100 + str(number) for number in range(30)]},
        {"among": [""]},
    ],
)
def test_what_does_not_belong_in_a_url(connect: Connect, given: dict[str, Any]) -> None:
    service = Service({("m", "default"): 16})
    with connect(service) as call:
        call("query", tokens=TOKENS, model="m", **given)
        assert service.taken() == [("/query", "tokens", TOKENS)]


def test_urls_have_all_that_json_has(connect: Connect) -> None:
    model, lora = "a/b c&d=é+%", "l+ &"
    seen: list[httpx.URL] = []

    class NotingService(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.url)
            return super().__call__(request)

    given: dict[str, Any] = {"lora": lora, "top_k": 3, "age": True, "among": ["7", "007", "a&b"], "salt": ""}
    with connect(NotingService({(model, "default"): 16})) as call:
        call("query", tokens=TOKENS, model=model, **given)
        call("query", content_hashes=[1], model=model, among=[])
        call("query", tokens=TOKENS, model=model)
    assert seen[0].params.multi_items() == [
        ("model_name", model),
        ("routing_group", "default"),
        ("top_k", "3"),
        ("age", "true"),
        ("among", "7"),
        ("among", "007"),
        ("among", "a&b"),
        ("lora_name", lora),
    ]
    assert seen[1].params.multi_items() == [("model_name", model), ("routing_group", "default"), ("among", "")]
    assert seen[2].params.multi_items() == [
        ("model_name", model),
        ("routing_group", "default"),
        ("prompt_tokens", "50"),
    ]


def test_usable_is_what_the_service_says(connect: Connect) -> None:
    """Hashes do not tell how long a prompt is, so that goes with them. An older service does not say what is usable."""
    bodies: list[dict[str, Any]] = []

    class Hybrid(Service):
        says = True

        def __call__(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == "/query_batch":
                bodies.extend(json.loads(request.content)["queries"])
                told = {"usable": [16, 16]} if self.says else {}
                answers = [{"ranks": [0, 1], "tokens": [48, 16]} | told] * 2
                workers = [{"instance_id": name, "dp_rank": 0} for name in "ab"]
                return httpx.Response(200, json={"block_size": 16, "workers": workers, "answers": answers})
            if request.headers["content-type"] == "application/json":
                bodies.append(json.loads(request.content))
            depth = {"longest_matched": 48, "gpu": 48, "dp": {"0": 48}, "cpu": 48, "disk": 48}
            instance = depth | ({"usable": 16} if self.says else {})
            return httpx.Response(200, json={"instances": {"a": instance}, "block_size": 16})

    service = Hybrid({})
    with connect(service) as call:
        for says, usable in ((True, 16), (False, 32)):
            service.says = says
            for _ in range(2):
                bodies.clear()
                assert call("query", tokens=TOKENS[:48], model="m").workers[0].usable == usable
                given = {"salt": "s", "among": [""]}
                assert call("query", tokens=TOKENS[:48], model="m", **given).workers[0].usable == usable
                batch = call("query_batch", [TOKENS[:48], Query(tokens=TOKENS[:48], salt="s")], model="m")
                assert [[rank.usable for rank in match.ranks] for match in batch.answers] == [[usable, 16]] * 2
            assert [body["prompt_tokens"] for body in bodies] == [48] * 3
            assert all("content_hashes" in body for body in bodies)


def test_a_service_that_wants_tokens_gets_each_prompt_once(connect: Connect) -> None:
    service = Service({("m", "default"): 16})
    other = [token + 1 for token in TOKENS]
    with connect(service) as call:
        call("workers")
        service.wants_tokens = True
        assert call("query", tokens=TOKENS, model="m").wants_tokens
        assert [call("query", tokens=TOKENS, model="m").wants_tokens for _ in range(2)] == [False, True]
        call("query", tokens=other, model="m")
        call("query_batch", [Query(tokens=TOKENS), Query(tokens=other, salt="s")], model="m")
        call("query_batch", [Query(tokens=TOKENS), Query(tokens=other, salt="s")], model="m")
        call("query", tokens=TOKENS, model="m", lora="l")
        assert [path if kind == "bytes" else kind for path, kind, _ in service.taken()] == [
            "/query_by_hash",  # the answer to this one says that it wants tokens
            "/query",
            "/query_by_hash",
            "/query",
            "tokens",
            "tokens",
            "hashes",
            "hashes",
            "/query_by_hash",  # of an adapter's it learns nothing
        ]
        # It knows all, and later it does not: a service that was restarted has forgotten what it was told.
        service.wants_tokens = False
        call("query", tokens=TOKENS, model="m")
        service.wants_tokens = True
        for _ in range(3):
            call("query", tokens=TOKENS, model="m")
        assert [path for path, _, _ in service.taken()] == [
            "/query_by_hash",
            "/query_by_hash",
            "/query",
            "/query_by_hash",
        ]


def test_who_sends_hashes_only_is_told(connect: Connect) -> None:
    service = Service({("m", "default"): 16})
    service.wants_tokens = True
    with connect(service) as call:
        for _ in range(2):
            assert call("query", content_hashes=hashes(16), model="m").wants_tokens
        batch = call("query_batch", [Query(content_hashes=hashes(16))], model="m")
        assert batch.wants_tokens
        assert {path for path, _, _ in service.taken()} == {"/query_by_hash", "/query_batch"}
