"""The clients: what they send, what they make of answers, how they fail. Both kinds, by the same tests."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from socket import create_server
from threading import Thread, current_thread, main_thread
from typing import Any

import httpx
import numpy as np
import pytest

from kvatlas.client import Answer, AsyncClient, Client, EngineStatus, Query, RankDepth, UntrustedRank, WorkerDepth
from kvatlas.errors import ClientError, InvalidArgumentError, InvalidTypeError, UnreachableError

Handler = Callable[[httpx.Request], httpx.Response]
Ask = Callable[[Handler, str, tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def answered_by(handler: Handler) -> Iterator[None]:
    """Within, httpx sends nothing: `handler` answers."""

    def handle(_transport: object, request: httpx.Request) -> httpx.Response:
        request.read()
        return handler(request)

    async def handle_async(_transport: object, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return handler(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.HTTPTransport, "handle_request", handle)
        patch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle_async)
        yield


def ask_sync(handler: Handler, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with answered_by(handler), Client("http://kv:1/", key="k", tokenizer=Words()) as client:
        return getattr(client, method)(*args, **kwargs)


def ask_async(handler: Handler, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    async def run() -> Any:
        with answered_by(handler):
            async with AsyncClient("http://kv:1/", key="k", tokenizer=AsyncWords()) as client:
                return await getattr(client, method)(*args, **kwargs)

    return asyncio.run(run())


class Words:
    """A tokenizer: a token is the length of a word."""

    def encode(self, text: str, /) -> list[int]:
        return [len(word) for word in text.split()]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        return [len(messages), len(tools or ()), *self.encode(" ".join(message["content"] for message in messages))]


class AsyncWords:
    async def encode(self, text: str, /) -> list[int]:
        return Words().encode(text)

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        return Words().encode_chat(messages, tools=tools)


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


def answering(body: object, status: int = 200, seen: list[httpx.Request] | None = None) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if isinstance(body, str | bytes):
            return httpx.Response(status, content=body)
        return httpx.Response(status, json=body)

    return handler


ANSWER = {
    "scores": {"b": {"0": 48}, "a": {"0": 32, "1": 64}},
    "frequencies": [],
    "instances": {
        "b": {"longest_matched": 48, "gpu": 48, "dp": {"0": 48}, "cpu": 48, "disk": 48, "lag_ms": 1.5, "state": "live"},
        "c": {"longest_matched": 80, "gpu": 0, "dp": {}, "cpu": 16, "disk": 80, "lag_ms": None, "state": None},
        "a": {"longest_matched": 96, "gpu": 64, "dp": {"0": 32, "1": 64}, "cpu": 80, "disk": 96},
    },
    "tiers": "cumulative",
    "block_size": 16,
    "upper_bound": True,
    "untrusted": [{"instance_id": 7, "dp_rank": 1, "state": "gap"}],
}


def test_a_query(ask: Ask) -> None:
    seen: list[httpx.Request] = []
    about = {"model": "m", "lora": "l", "salt": "s", "routing_group": "g", "top_k": 3, "among": ["a", "7", "007"]}
    answer = ask(answering(ANSWER, seen=seen), "query", (), about | {"tokens": list(range(100)), "age": True})
    assert (seen[0].method, str(seen[0].url)) == ("POST", "http://kv:1/query")
    assert seen[0].headers["authorization"] == "Bearer k"
    assert seen[0].headers["content-type"] == "application/json"
    assert json.loads(seen[0].content) == {
        "token_ids": list(range(100)),
        "model_name": "m",
        "routing_group": "g",
        "lora_name": "l",
        "cache_salt": "s",
        "top_k": 3,
        "among": ["a", 7, "007"],
        "age": True,
    }
    assert answer.workers == (
        WorkerDepth("a", 64, 80, 96, {0: 32, 1: 64}, 16, usable=64),
        WorkerDepth("b", 48, 48, 48, {0: 48}, 16, 1.5, "live", 48),
        WorkerDepth("c", 0, 16, 80, {}, 16, usable=0),
    )
    assert answer.untrusted == (UntrustedRank("7", 1, "gap"),)
    assert answer.upper_bound
    assert [depth.blocks for depth in answer.workers] == [4, 3, 0]
    # In blocks, as every match of kvatlas.
    assert (answer.unit, answer.block_size, answer.depth, answer.length) == ("blocks", 16, 4, 6)
    assert answer.scores() == {"a": 4, "b": 3}
    assert answer.levels() == [(4, ["a"]), (3, ["b"])]
    assert answer.best() == [("a", 4)]
    assert answer.best(top_k=5) == [("a", 4), ("b", 3)]
    assert answer.best(2, among=["b", "c"]) == [("b", 3)]
    # In tokens, by name.
    assert (answer.tokens, answer.prompt_tokens) == (64, 100)
    assert answer.token_scores() == {"a": 64, "b": 48}


def test_the_least_of_a_query(ask: Ask) -> None:
    seen: list[httpx.Request] = []
    nothing: dict[str, Any] = {"scores": {}, "frequencies": [], "instances": {}, "block_size": 16}
    answer = ask(answering(nothing, seen=seen), "query", (), {"tokens": [], "model": "m"})
    assert (seen[0].url.raw_path, seen[0].content) == (b"/query?model_name=m&routing_group=default", b"")
    assert seen[0].headers["content-type"] == "application/octet-stream"
    assert (answer.workers, answer.best(), answer.scores(), answer.untrusted) == ((), [], {}, ())
    assert (answer.depth, answer.length, answer.levels()) == (0, 0, [])


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2, 4294967295],
        (1, 2, 4294967295),
        np.array([1, 2, 4294967295], "u4"),
        np.array([1, 2, 4294967295], ">u4"),
        np.array([1, 2, 4294967295], "i8"),
        [np.uint32(1), np.int8(2), 4294967295],
        np.array([1, 0, 2, 0, 4294967295], "u8")[::2],
    ],
)
def test_kinds_of_tokens(ask: Ask, tokens: Any) -> None:
    seen: list[httpx.Request] = []
    ask(answering(ANSWER, seen=seen), "query", (), {"tokens": tokens, "model": "m"})
    assert seen[0].content == bytes.fromhex("01000000 02000000 ffffffff"), "little-endian, whatever it was here"
    ask(answering(ANSWER, seen=seen), "query", (), {"tokens": tokens, "model": "m", "salt": "s"})
    assert json.loads(seen[1].content)["token_ids"] == [1, 2, 4294967295]


def test_a_query_by_hash(ask: Ask) -> None:
    seen: list[httpx.Request] = []
    hashes = np.array([1, (1 << 64) - 1], np.uint64)
    answer = ask(answering(ANSWER, seen=seen), "query", (), {"content_hashes": hashes, "model": "m"})
    assert seen[0].url.path == "/query_by_hash"
    assert seen[0].content == bytes.fromhex("0100000000000000 ffffffffffffffff")
    swapped = hashes.astype(">u8")
    signed = [1, -1]
    for same in (swapped, signed, np.array(signed)):
        ask(answering(ANSWER, seen=seen), "query", (), {"content_hashes": same, "model": "m"})
        assert seen[-1].content == seen[0].content
    mixed = [-(1 << 63), (1 << 64) - 1]
    ask(answering(ANSWER, seen=seen), "query", (), {"content_hashes": mixed, "model": "m"})
    assert seen[-1].content == bytes.fromhex("0000000000000080 ffffffffffffffff")
    assert (answer.length, answer.prompt_tokens) == (2, None)


def test_text_and_messages(ask: Ask) -> None:
    seen: list[httpx.Request] = []
    chat = [{"role": "user", "content": "abc"}]
    for given in ({"text": "a bc def"}, {"messages": chat}, {"messages": chat, "tools": [{}, {}]}):
        answer = ask(answering(ANSWER, seen=seen), "query", (), {"model": "m", "salt": "s"} | given)
        assert answer.prompt_tokens == 3
    assert [json.loads(request.content)["token_ids"] for request in seen] == [[1, 2, 3], [1, 0, 3], [1, 2, 3]]
    assert json.loads(seen[0].content)["cache_salt"] == "s"


def test_a_tokenizer_that_waits_does_not_hold_the_loop_up() -> None:
    threads: list[Thread] = []

    class Slow(Words):
        def encode(self, text: str, /) -> list[int]:
            threads.append(current_thread())
            return super().encode(text)

    async def run() -> Answer:
        async with AsyncClient("http://kv:1", tokenizer=Slow()) as client:
            return await client.query(text="a bc", model="m")

    with answered_by(answering(ANSWER)):
        assert asyncio.run(run()).prompt_tokens == 2
    assert threads[0] is not main_thread()


def test_a_client_that_waits_takes_no_asynchronous_tokenizer() -> None:
    client = Client(tokenizer=AsyncWords())  # type: ignore[arg-type]
    with client, pytest.raises(InvalidTypeError, match="needs a tokenizer that is not asynchronous"):
        client.query(text="a", model="m")


def test_without_a_tokenizer() -> None:
    with Client() as client, pytest.raises(InvalidArgumentError, match="text and messages need a tokenizer") as caught:
        client.query(text="a", model="m")
    assert caught.value.code == "missing_argument"


def test_a_batch(ask: Ask) -> None:
    seen: list[httpx.Request] = []
    body = {
        "block_size": 16,
        "workers": [{"instance_id": "a", "dp_rank": 0}, {"instance_id": 7, "dp_rank": 1}],
        "answers": [
            {"ranks": [1, 0], "tokens": [32, 16]},
            {"ranks": [], "tokens": []},
            {"ranks": [0], "tokens": [0], "any_tier": [48]},
            {"ranks": [1], "tokens": [0], "any_tier": [0]},
        ],
        "untrusted": [{"instance_id": "z", "dp_rank": 0, "state": "stale"}],
        "partial": [{"instance_id": 7, "dp_rank": 1}],
    }
    queries = [list(range(40)), np.arange(3), Query(content_hashes=[5]), Query(text="a", lora="l", salt="s")]
    answer = ask(answering(body, seen=seen), "query_batch", (queries,), {"model": "m", "top_k": 2})
    assert json.loads(seen[0].content) == {
        "queries": [
            {"token_ids": list(range(40))},
            {"token_ids": [0, 1, 2]},
            {"content_hashes": [5]},
            {"token_ids": [1], "lora_name": "l", "cache_salt": "s"},
        ],
        "model_name": "m",
        "routing_group": "default",
        "top_k": 2,
    }
    assert [match.ranks for match in answer.answers] == [
        (RankDepth("7", 1, 32, 32, 32), RankDepth("a", 0, 16, 16, 16)),
        (),
        (RankDepth("a", 0, 0, 48),),
        (RankDepth("7", 1, 0, 0, 0),),
    ]
    first = answer.answers[0]
    assert (first.unit, first.depth, first.length, first.tokens, first.prompt_tokens) == ("blocks", 2, 2, 32, 40)
    assert (first.scores(), first.levels(), first.best()) == ({"7": 2, "a": 1}, [(2, ["7"]), (1, ["a"])], [("7", 2)])
    assert [(match.length, match.prompt_tokens) for match in answer.answers[1:]] == [(0, 3), (1, None), (0, 1)]
    assert (answer.block_size, answer.upper_bound, answer.untrusted) == (16, False, (UntrustedRank("z", 0, "stale"),))
    assert answer.partial == (("7", 1),)


def test_registering(ask: Ask) -> None:
    seen: list[httpx.Request] = []
    least = {"model": "m", "block_size": 16}
    assert ask(answering({"status": "ok"}, 201, seen), "register", ("7", "tcp://h:1"), least) is True
    more = least | {"routing_group": "g", "rank": 2, "replay_endpoint": "tcp://h:2", "topic": "kv"}
    more |= {"count_copies": False, "host_chunk": 4}
    assert ask(answering({"status": "ok"}, 200, seen), "register", ("w", "tcp://h:1"), more) is False
    body = {"endpoint": "tcp://h:1", "model_name": "m", "block_size": 16}
    assert json.loads(seen[0].content) == body | {"instance_id": 7, "routing_group": "default", "dp_rank": 0}
    assert json.loads(seen[1].content) == body | {
        "instance_id": "w",
        "routing_group": "g",
        "dp_rank": 2,
        "replay_endpoint": "tcp://h:2",
        "topic": "kv",
        "count_copies": False,
        "host_chunk": 4,
    }
    ask(answering({"status": "ok"}, seen=seen), "unregister", ("w",), {})
    ask(answering({"status": "ok"}, seen=seen), "unregister", ("w",), {"model": "m", "routing_group": "g", "rank": 0})
    assert json.loads(seen[2].content) == {"instance_id": "w"}
    assert json.loads(seen[3].content) == {"instance_id": "w", "model_name": "m", "routing_group": "g", "dp_rank": 0}


def test_health_readiness_and_metrics(ask: Ask) -> None:
    assert ask(answering({"status": "alive"}), "health", (), {}) is True
    assert ask(answering({"status": "stuck"}, 503), "health", (), {}) is False
    assert ask(answering("kvatlas_x 1\n"), "metrics", (), {}) == "kvatlas_x 1\n"
    assert str(ask(answering({"ready": True}), "ready", (), {})) == "ready"
    seen: list[httpx.Request] = []
    later = {"holds": [], "streams": [{"instance_id": 7, "dp_rank": 0, "state": "connecting"}], "draining": False}
    ready = ask(answering({"ready": True, "waiting": later}, seen=seen), "ready", (), {"strict": True})
    assert ready
    assert ready.streams == (UntrustedRank("7", 0, "connecting"),)
    assert seen[0].url.raw_path == b"/ready?strict=1"
    waiting = {"holds": ["discovery"], "streams": [{"instance_id": 7, "dp_rank": 0, "state": "replaying"}]}
    ready = ask(answering({"ready": False, "waiting": waiting | {"draining": False}}, 503), "ready", (), {})
    assert not ready
    assert str(ready) == "not ready, waiting for discovery; 7, rank 0 (replaying)"
    ready = ask(answering({"ready": False, "waiting": waiting | {"draining": True}}, 503), "ready", (), {})
    assert str(ready) == "not ready: shutting down"
    engine = {"instance_id": 7, "dp_rank": None, "url": "http://e", "state": "no_events", "code": "no_events"}
    engines = [engine | {"instance_id": number, "reason": "none", "since_ms": 3} for number in range(10)]
    waiting = {"holds": [], "streams": [], "engines": engines, "draining": False}
    ready = ask(answering({"ready": True, "waiting": waiting}), "ready", (), {})
    assert ready
    assert ready.engines[7] == EngineStatus("7", "http://e", "no_events", None, "no_events", "none", 3)
    assert str(ready).startswith("ready; not registered: 0 (no_events), 1 (no_events), ")
    assert str(ready).endswith(", 7 (no_events) and 2 more")
    assert len(ask(answering(engines), "engines", (), {})) == 10


def test_waiting_for_readiness(ask: Ask) -> None:
    waiting = {"ready": False, "waiting": {"holds": [], "streams": [], "draining": False}}
    whole = httpx.Response(200, json={"ready": True})
    answers: list[httpx.Response | None] = [None, httpx.Response(503, json=waiting), whole]
    asked = 0

    def handler(_request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        answer = answers[asked - 1]
        if answer is None:
            raise httpx.ConnectError("refused")
        return answer

    ask(handler, "wait_ready", (20.0,), {})
    assert asked == 3
    with pytest.raises(ClientError, match="http://kv:1 is not ready after 0 s") as caught:
        ask(answering(waiting, 503), "wait_ready", (0.0,), {})
    assert caught.value.code == "not_ready"

    def nobody(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UnreachableError):
        ask(nobody, "wait_ready", (0.0,), {})


def test_refusals_keep_their_code_and_status(ask: Ask) -> None:
    body = {"error": 'nobody has registered model "m"', "code": "unknown_keyspace"}
    with pytest.raises(ClientError) as caught:
        ask(answering(body, 404), "query", (), {"tokens": [1], "model": "m"})
    assert (caught.value.code, caught.value.status) == ("unknown_keyspace", 404)
    assert str(caught.value) == ('http://kv:1/query: nobody has registered model "m" (status 404, unknown_keyspace)')
    for other in ("<html>no</html>", b"", b"\xff", [1], {"error": "x"}):
        with pytest.raises(ClientError) as caught:
            ask(answering(other, 502), "workers", (), {})
        assert (caught.value.code, caught.value.status) == ("http_502", 502)
        assert str(caught.value).startswith(
            "http://kv:1/workers returned status 502, but not in the format of kvatlas: "
        )
    with pytest.raises(ClientError) as caught:
        ask(answering(body, 401), "ready", (), {})
    assert caught.value.status == 401


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[]",
        "3",
        "null",
        '{"instances": 3}',
        '{"instances": {"a": 3}}',
        '{"instances": {"a": {"gpu": "x", "cpu": 1, "longest_matched": 1, "dp": {}}}}',
        "[" * 100_000,
    ],
)
def test_answers_that_cannot_be_understood(ask: Ask, body: str) -> None:
    with pytest.raises(ClientError, match="returned an unexpected answer") as caught:
        ask(answering(body), "query", (), {"tokens": [1], "model": "m"})
    assert caught.value.code == "bad_answer"
    for method in ("workers", "dump", "ready"):
        if (method, body) != ("workers", "[]"):
            with pytest.raises(ClientError):
                ask(answering(body), method, (), {})


NO_SALT = Query(tokens=[1], salt=b"s")  # type: ignore[arg-type]
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ("query", (), {"tokens": [1.0]}, InvalidTypeError, "tokens[0] must be an int, got float"),
    ("query", (), {"tokens": [True]}, InvalidTypeError, "tokens[0] must be an int, got bool"),
    ("query", (), {"tokens": "123"}, InvalidTypeError, "tokens must be a list or an array of ints, got str"),
    ("query", (), {"tokens": 3}, InvalidTypeError, "tokens must be a list or an array of ints, got int"),
    (
        "query",
        (),
        {"tokens": np.array([1.0])},
        InvalidTypeError,
        "array of integers, got float64, shape (1,)",
    ),
    (
        "query",
        (),
        {"tokens": np.array([[1]])},
        InvalidTypeError,
        "array of integers, got int64, shape (1, 1)",
    ),
    ("query", (), {"tokens": [0, -1]}, InvalidArgumentError, "tokens[1] must be from 0 to 4294967295, got -1"),
    (
        "query",
        (),
        {"tokens": [1 << 32]},
        InvalidArgumentError,
        "tokens[0] must be from 0 to 4294967295",
    ),
    ("query", (), {"tokens": [1], "among": "a"}, InvalidTypeError, "among must be a list of names, got str"),
    ("query", (), {"tokens": [1], "among": [3]}, InvalidTypeError, "worker must be a str, got int"),
    (
        "query",
        (),
        {"tokens": np.array([0, -1])},
        InvalidArgumentError,
        "tokens[1] must be from 0 to 4294967295, got -1",
    ),
    ("query", (), {"tokens": [1], "lora": 3}, InvalidTypeError, "lora must be a str, got int"),
    (
        "query_batch",
        ([NO_SALT],),
        {},
        InvalidTypeError,
        "queries[0].salt must be a str, got bytes",
    ),
    ("query", (), {"tokens": [1], "model": None}, InvalidTypeError, "model must be a str, got NoneType"),
    (
        "query",
        (),
        {"tokens": [1], "routing_group": None},
        InvalidTypeError,
        "routing_group must be a str, got",
    ),
    ("query", (), {"content_hashes": [1 << 64]}, InvalidArgumentError, "content_hashes[0] must be from"),
    ("query_batch", ([Query()],), {}, InvalidArgumentError, "queries[0] must have one of tokens="),
    (
        "query_batch",
        ([[1], Query(tokens=[1], content_hashes=[1])],),
        {},
        InvalidArgumentError,
        "queries[1] must have one of",
    ),
    (
        "query_batch",
        ([[1], [-1]],),
        {},
        InvalidArgumentError,
        "queries[1].tokens[0] must be from 0",
    ),
    (
        "query",
        (),
        {},
        InvalidArgumentError,
        "one of tokens=, content_hashes=, text= or messages=, got none",
    ),
    ("query", (), {"tokens": [1], "text": "a"}, InvalidArgumentError, "got tokens= and text="),
    ("query", (), {"content_hashes": [1], "salt": "s"}, InvalidArgumentError, "salt does not go with content hashes"),
    ("query", (), {"content_hashes": [1], "lora": "l"}, InvalidArgumentError, "lora does not go with content hashes"),
    ("query", (), {"text": "a", "tools": []}, InvalidArgumentError, "tools can only be used with messages"),
    ("query", ([1],), {}, TypeError, "positional"),
]


@pytest.mark.parametrize(("method", "args", "kwargs", "error", "message"), REFUSED)
def test_what_is_not_sent(
    ask: Ask, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    seen: list[httpx.Request] = []
    with pytest.raises(error, match=re.escape(message)):
        ask(answering(ANSWER, seen=seen), method, args, {"model": "m"} | kwargs)
    assert not seen


def test_codes_of_what_is_not_one_prompt(ask: Ask) -> None:
    both: dict[str, Any] = {"tokens": [], "messages": []}
    nothing: dict[str, Any] = {}
    for given, code in ((nothing, "missing_argument"), (both, "conflicting_arguments")):
        with pytest.raises(InvalidArgumentError) as caught:
            ask(answering(ANSWER), "query", (), {"model": "m"} | given)
        assert caught.value.code == code


def test_nobody_answers() -> None:
    with closing(create_server(("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with (
            Client(url, timeout=0.05) as client,
            pytest.raises(UnreachableError, match="did not answer in time") as late,
        ):
            client.workers()
        assert (late.value.code, late.value.status) == ("timeout", None)
    with Client(url) as client, pytest.raises(UnreachableError) as caught:
        client.workers()
    assert str(caught.value) == f"{url} cannot be reached: Connection refused"
    assert caught.value.code == "unreachable"
    assert isinstance(caught.value, ConnectionError)

    async def run() -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(UnreachableError, match="cannot be reached"):
                await client.workers()

    asyncio.run(run())


def test_what_answers_is_no_service() -> None:
    """Neither TLS nor HTTP."""
    with closing(create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            for _ in range(2):
                with server.accept()[0] as connection:
                    connection.recv(4096)
                    connection.sendall(b"\xff" * 10 + b"\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for scheme, words in (("http", "did not answer in HTTP"), ("https", "it does not speak TLS")):
            with Client(f"{scheme}://{address}", timeout=30) as client, pytest.raises(UnreachableError, match=words):
                client.workers()
        thread.join()


def test_after_its_end() -> None:
    client = Client()
    client.close()
    with pytest.raises(ClientError, match=r"the client of http://127\.0\.0\.1:8090 is closed") as caught:
        client.workers()
    assert caught.value.code == "closed"

    async def run() -> None:
        async with AsyncClient() as other:
            pass
        with pytest.raises(ClientError, match="is closed"):
            await other.workers()

    asyncio.run(run())


def test_what_a_client_cannot_be_made_of() -> None:
    for kind in (Client, AsyncClient):
        for key in ("a b", "a\nb", "ä"):
            with pytest.raises(InvalidArgumentError, match="key must be visible ASCII") as caught:
                kind(key=key)
            assert key not in str(caught.value)
        for timeout in (0, -1, float("nan")):
            with pytest.raises(InvalidArgumentError, match="timeout must be above 0"):
                kind(timeout=timeout)
        with pytest.raises(InvalidTypeError, match="url must be a str, got NoneType"):
            kind(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", "kv:8090", "ftp://kv", "http://", "http://[::1", "http://kv:x"])
def test_addresses_that_are_none(url: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidArgumentError, match="url must be http://HOST:PORT") as caught:
            kind(url)
        assert caught.value.code == "invalid_url"
