"""Tests of what engines answer over HTTP: OpenAI's requests, discovery, errors."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvatlas.sim.server import Fleet, ServerConfig, tokens

from .conftest import FAST

SLOW = replace(FAST, blocks=4_000, decode_rate=200.0)
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
Answer = tuple[int, Any]
Ask = Callable[..., Answer]


class Asker:
    """Asks one engine and gives (status, JSON or text)."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)

    def __call__(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        status, text = self.raw("GET" if body is None else "POST", path, body, headers)
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def raw(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, data, headers or {})
        with self.connection.getresponse() as response:
            return response.status, response.read().decode()


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def both(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    settings = ServerConfig(dialect=request.param, engine=SLOW, ranks=2, loras=("adapter-a",), topic="kv", model="m")
    with Fleet(1, settings) as fleet:
        yield fleet


@pytest.fixture
def ask(both: Fleet) -> Iterator[Asker]:
    asker = Asker(both[0].url)
    yield asker
    asker.connection.close()


def test_a_completion(ask: Asker) -> None:
    prompt = "once upon a time there was a cache"
    first = ask("/v1/completions", {"prompt": prompt, "max_tokens": 20}, {"X-data-parallel-rank": "1"})
    again = ask("/v1/completions", {"prompt": prompt, "max_tokens": 20}, {"X-data-parallel-rank": "1"})
    assert first[0] == again[0] == 200
    [choice] = first[1]["choices"]
    assert len(choice["text"]) == 20
    assert choice["finish_reason"] == "length"
    assert first[1]["object"] == "text_completion"
    assert first[1]["model"] == "m"
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 20, "total_tokens": len(prompt) + 20}
    assert first[1]["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 0}}
    assert again[1]["usage"]["prompt_tokens_details"] == {"cached_tokens": (len(prompt) - 1) // 4 * 4}
    assert again[1]["choices"] == first[1]["choices"]


def test_token_ids_and_text_are_the_same_prompt(ask: Asker) -> None:
    ids = ask("/tokenize", {"prompt": "häuser"})[1]["tokens"]
    assert ids == list("häuser".encode())
    answers = [ask("/v1/completions", {"prompt": prompt})[1] for prompt in ("häuser", ids, [ids], ["häuser"])]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert ask("/detokenize", {"tokens": ids})[1] == {"prompt": "häuser"}


def events(text: str) -> list[Any]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_streamed_completion_is_the_whole_one_in_pieces(ask: Asker) -> None:
    body = {"prompt": "tell me", "max_tokens": 40, "seed": 3}
    whole = ask("/v1/completions", body)[1]
    status, text = ask.raw("POST", "/v1/completions", {**body, "stream": True})
    chunks = events(text)
    assert status == 200
    assert len(chunks) > 5
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "usage" not in chunks[0]


def test_streamed_usage(ask: Asker) -> None:
    body = {"prompt": [9] * 21, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(ask.raw("POST", "/v1/completions", body)[1])
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 24


def test_a_stream_comes_as_it_is_generated(both: Fleet) -> None:
    connection = http.client.HTTPConnection(both[0].url.removeprefix("http://"), timeout=60)
    body = {"prompt": "slowly", "max_tokens": 10_000, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    first = response.readline()
    assert b'"finish_reason":null' in first
    assert sum(state.running for state in both[0].state()) == 1  # far from done
    response.close()
    connection.close()
    both[0].wait_quiet()


def test_a_conversation_finds_its_last_turn_in_the_cache(ask: Asker) -> None:
    messages = [
        {"role": "system", "content": "be brief " * 5},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    pinned = {"X-data-parallel-rank": "0"}
    status, first = ask("/v1/chat/completions", {"messages": messages, "max_tokens": 30}, pinned)
    assert status == 200
    assert first["object"] == "chat.completion"
    message = first["choices"][0]["message"]
    assert message["role"] == "assistant"
    more = [*messages, message, {"role": "user", "content": "and?"}]
    second = ask("/v1/chat/completions", {"messages": more, "max_tokens": 1}, pinned)[1]["usage"]
    known = first["usage"]["total_tokens"] - 1
    assert second["prompt_tokens_details"]["cached_tokens"] == known // 4 * 4
    assert ask("/tokenize", {"messages": more})[1]["count"] == second["prompt_tokens"]


def test_a_streamed_chat(ask: Asker) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    chunks = events(ask.raw("POST", "/v1/chat/completions", body)[1])
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert sum(len(chunk["choices"][0]["delta"].get("content", "")) for chunk in chunks) == 128
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_adapter_and_salt_are_other_blocks(both: Fleet) -> None:
    engine = both[0]
    prompt = list(range(300, 340))
    cached = [
        engine.complete(prompt, 1, lora=lora, salt=salt, rank=0).cached_tokens
        for lora, salt in ((None, None), ("adapter-a", None), (None, "s"), ("adapter-a", "s"), (None, None))
    ]
    assert cached == [0, 0, 0, 0, 36]
    assert engine.match(prompt, lora="adapter-a", salt="s").held == 10
    assert engine.match(prompt, lora="adapter-b").held == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", {}, 400, "prompt"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [[1], [2]]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1.5]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [True]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1 << 32]}, 400, "prompt"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 16_000}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "5"}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a" * 16_000}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n"),
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/v1/completions", {"prompt": "a", "model": 7}, 400, "model"),
        ("/v1/completions", {"prompt": "a", "cache_salt": ""}, 400, "cache_salt"),
        ("/v1/completions", {"prompt": "a", "cache_salt": "\ud800"}, 400, "cache_salt"),
        ("/v1/completions", {"prompt": "a", "stream": "yes"}, 400, "stream"),
        ("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ("/v1/completions", [1], 400, None),
        ("/v1/completions", b"{", 400, None),
        ("/v1/completions", b"[" * 100_000, 400, None),
        ("/v1/completions", b"\xff", 400, None),
        ("/v1/chat/completions", {}, 400, "messages"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": ["hi"]}, 400, "messages[0]"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": ["a"], "content": "x"}]}, 400, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [IMAGE]}, 400, "messages[0].content"),
        ("/tokenize", {}, 400, "prompt"),
        ("/sim/match", {}, 400, "token_ids"),
        ("/sim/match", {"token_ids": "abc"}, 400, "token_ids"),
        ("/sim/match", {"token_ids": [], "rank": 2}, 400, "rank"),
        ("/sim/match", {"token_ids": [], "salt": "x"}, 400, "salt"),
        ("/sim/match", {"queries": [1]}, 400, "queries"),
        ("/sim/faults", {"drop": "often"}, 400, None),
        ("/sim/pause", {"seconds": -1}, 400, "seconds"),
        ("/sim/restart", {"dwn": 1}, 400, "dwn"),
        ("/v1/embeddings", {}, 404, None),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(ask: Asker, path: str, body: object, status: int, param: str | None) -> None:
    got, answer = ask(path, body)
    assert got == status, answer
    assert set(answer) == {"error"}
    assert answer["error"]["message"]
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, status)


def test_ranks_by_header(ask: Asker, both: Fleet) -> None:
    body = {"prompt": "a"}
    assert ask("/v1/completions", body, {"X-data-parallel-rank": "2"})[0] == 400
    vllm = both[0].config.dialect == "vllm"
    assert ask("/v1/completions", body, {"X-data-parallel-rank": "first"})[0] == (200 if vllm else 400)


def test_models(ask: Asker, both: Fleet) -> None:
    models = ask("/v1/models")[1]["data"]
    assert [(model["id"], model["parent"]) for model in models] == [("m", None), ("adapter-a", "m")]
    assert models[0]["max_model_len"] == 16_000
    assert ask("/health") == (200, "")
    assert ask("/version")[0] == (200 if both[0].config.dialect == "vllm" else 404)  # SGLang has no such route


def test_vllm_discovery(ask: Asker, both: Fleet) -> None:
    engine = both[0]
    status, sources = ask("/kv_event_sources")
    if engine.config.dialect != "vllm":
        assert status == 404
        return
    assert set(sources) == {"0", "1"}
    for rank in (0, 1):
        source = sources[str(rank)]
        assert source["endpoint"].replace("*", "127.0.0.1") == engine.endpoint(rank)
        assert source["replay_endpoint"].replace("*", "127.0.0.1") == engine.replay_endpoint(rank)
        assert (source["publisher"], source["enable_kv_cache_events"]) == ("zmq", True)
        assert (source["topic"], source["buffer_steps"]) == ("kv", 10_000)


def test_sglang_discovery(ask: Asker, both: Fleet) -> None:
    engine = both[0]
    status, info = ask("/server_info")
    if engine.config.dialect != "sglang":
        assert status == 404
        return
    base, replays = engine.config.events_port, engine.config.replay_port
    assert info["kv_events"] == {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": base,
        "topic": "kv",
        "block_size": 4,
        "dp_size": 2,
        "replay_endpoint_port_base": replays,
    }
    assert (info["page_size"], info["dp_size"], info["model_path"]) == (4, 2, "m")
    assert info["served_model_name"] == "m"
    assert ask("/get_server_info") == (status, info)
    assert ask("/model_info")[1]["model_path"] == ask("/get_model_info")[1]["model_path"] == "m"


def test_metrics(ask: Asker, both: Fleet) -> None:
    ask("/v1/completions", {"prompt": "b" * 41, "max_tokens": 1}, {"X-data-parallel-rank": "0"})
    ask("/v1/completions", {"prompt": "b" * 41, "max_tokens": 1}, {"X-data-parallel-rank": "0"})
    both[0].wait_quiet()
    _, text = ask("/metrics")
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    def value(name: str, **labels: str) -> float:
        found = [
            v
            for k, v in values.items()
            if k.startswith(name + "{") and all(f'{a}="{b}"' in k for a, b in labels.items())
        ]
        assert len(found) == 1, (name, labels, text)
        return found[0]

    if both[0].config.dialect == "vllm":
        assert value("vllm:num_requests_running", engine="0", model_name="m") == 0
        assert value("vllm:num_requests_waiting", engine="1") == 0
        assert value("vllm:kv_cache_usage_perc", engine="0") == 0
        assert value("vllm:prefix_cache_hits_total", engine="0") >= 40
        assert value("vllm:prefix_cache_queries_total", engine="0") >= 82
        assert value("vllm:cache_config_info", engine="0", block_size="4", num_gpu_blocks="4000") == 1
    else:
        assert value("sglang:num_running_reqs", dp_rank="0") == 0
        assert value("sglang:page_size", dp_rank="1") == 4
        assert value("sglang:cached_tokens_total", dp_rank="0", cache_source="device") >= 40


def test_reset_as_the_engines_have_it(ask: Asker, both: Fleet) -> None:
    engine = both[0]
    prompt = list(range(700, 740))
    engine.complete(prompt, 1, rank=0)
    engine.wait_quiet()
    path = "/reset_prefix_cache" if engine.config.dialect == "vllm" else "/flush_cache"
    assert ask(path, {})[0] == 200
    assert engine.match(prompt).held == 0


def test_a_client_that_goes_away_ends_its_request(both: Fleet) -> None:
    engine = both[0]
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=60)
    for stream in (True, False):
        connection.request(
            "POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 15_000, "stream": stream})
        )
        deadline = time.monotonic() + 60
        while not sum(state.running for state in engine.state()):
            assert time.monotonic() < deadline
        if stream:
            connection.getresponse().close()
        connection.close()
        engine.wait_quiet(timeout=60)  # the whole answer would take longer


def test_the_tokenizer_is_reversible() -> None:
    for text in ("", "abc", "äöü €", "\0\n", "\U0001f600"):
        assert tokens.decode(tokens.encode(text)) == text
    assert tokens.decode([257, 97, 260, 70_000]) == "a\ufffd"
