"""Pairs of prefill and decode engines: what is shared, what goes to one engine, and what is refused with a word."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, reply
from tests.support.engine.pairs import sglang_pair, vllm_pair

from .running import Router, wait_until

CHAT = [{"role": "user", "content": "hello"}]
GENERATES: dict[str, tuple[str, dict[str, Any]]] = {
    "a short chat": ("/v1/chat/completions", {"messages": CHAT}),
    "a stream": ("/v1/chat/completions", {"messages": CHAT, "stream": True}),
    "a second turn": (
        "/v1/chat/completions",
        {"messages": [*CHAT, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "again"}]},
    ),
    "one answer": ("/v1/chat/completions", {"messages": CHAT, "n": 1}),
    "tools": ("/v1/chat/completions", {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    "a completion": ("/v1/completions", {"prompt": "hello"}),
    "tokens": ("/v1/completions", {"prompt": [1, 2, 3]}),
    "a list of one": ("/v1/completions", {"prompt": ["hello"]}),
    "a list": ("/v1/completions", {"prompt": ["hello", "you", "there"]}),
    "a list of tokens": ("/v1/completions", {"prompt": [[1, 2], [3]]}),
    "responses": ("/v1/responses", {"input": "hello"}),
    "responses in the background": ("/v1/responses", {"input": "hello", "background": True}),
    "messages": ("/v1/messages", {"max_tokens": 4, "messages": CHAT}),
    "generate": ("/generate", {"text": "hello"}),
    "generate from tokens": ("/generate", {"input_ids": [1, 2], "stream": False}),
    "generate a list": ("/generate", {"text": ["a", "b"]}),
    "generate lists of tokens": ("/generate", {"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": 1}]}),
}
COMPUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"input": "hello"}),
    "rerank": ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    "score": ("/v1/score", {"query": "a", "items": ["b"]}),
    "classify": ("/v1/classify", {"input": "hello"}),
    "encode": ("/encode", {"text": "hello"}),
    "audio": ("/v1/audio/transcriptions", {"file": "x"}),
    "several answers": ("/v1/chat/completions", {"messages": CHAT, "n": 3}),
    "a list and several answers": ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    "generate several": ("/generate", {"text": "a", "sampling_params": {"n": 2, "temperature": 1}}),
    "an answer that one engine keeps": ("/v1/responses", {"input": "more", "previous_response_id": "resp_1"}),
}
TELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens": ("/tokenize", {"prompt": "hello"}),
    "a count": ("/v1/messages/count_tokens", {"messages": CHAT}),
}
FLAGS = ("--no-events", "--tokenizer", "none", "--health-interval", "100ms", "--health-timeout", "30s")


@contextmanager
def paired(prefill: Engine, decode: Engine, *more: str, ready: bool = True) -> Iterator[Router]:
    flags = (*FLAGS, "--prefill", f"p={prefill.url}", "--decode", f"d={decode.url}", *more)
    with Router(flags=flags, ready=ready) as router:
        yield router


def posts(engine: Engine) -> list[str]:
    return [one.route for one in engine.received if one.method == "POST"]


@pytest.fixture(scope="module")
def sglang() -> Iterator[tuple[Router, Engine, Engine]]:
    with Engine() as prefill, Engine() as decode:
        sglang_pair(prefill, decode)
        with paired(prefill, decode) as router:
            yield router, prefill, decode


@pytest.mark.parametrize("name", GENERATES)
def test_sglang_pairs_share_all_that_generates(sglang: tuple[Router, Engine, Engine], name: str) -> None:
    """Short prompts and repeated ones too: a decode engine computes no prompt, whatever `--decode-alone` says."""
    router, prefill, decode = sglang
    path, body = GENERATES[name]
    for number in range(2):
        prefill.received.clear()
        decode.received.clear()
        answer = router.ask({"model": MODEL, **body}, path=path)
        assert answer.status == 200, f"{number}: {answer}"
        assert answer.headers["x-kvatlas-worker"] == "d"
        wait_until(lambda: len(posts(prefill)) == 1, "prefill has it too")
        assert prefill.last.json == decode.last.json
        asked = {key: value for key, value in decode.last.json.items() if not key.startswith("bootstrap_")}
        assert body.items() <= asked.items()


@pytest.mark.parametrize("name", COMPUTES)
def test_sglang_pairs_refuse_with_a_word_what_they_cannot_share(
    sglang: tuple[Router, Engine, Engine], name: str
) -> None:
    router, prefill, decode = sglang
    prefill.received.clear()
    decode.received.clear()
    path, body = COMPUTES[name]
    answer = router.ask({"model": MODEL, **body}, path=path)
    assert (answer.status, answer.error["code"]) == (501, "not_in_pairs")
    assert "--engine" in answer.error["message"]
    assert posts(prefill) == posts(decode) == []


def test_a_compressed_body_cannot_be_shared(sglang: tuple[Router, Engine, Engine]) -> None:
    router, _, _ = sglang
    body = gzip.compress(json.dumps({"model": MODEL, "messages": CHAT}).encode())
    answer = router.ask(body, headers={"content-encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (501, "not_in_pairs")
    assert router.ask(b"{", headers={}).error["code"] == "malformed_json"


@pytest.mark.parametrize("name", TELLS)
def test_what_computes_nothing_goes_to_decode_engines(sglang: tuple[Router, Engine, Engine], name: str) -> None:
    router, prefill, decode = sglang
    prefill.received.clear()
    path, body = TELLS[name]
    for _ in range(4):
        answer = router.ask({"model": MODEL, **body}, path=path)
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "d")
    assert posts(prefill) == []
    assert posts(decode)[-1] == path


def test_engines_that_do_both_take_what_pairs_cannot_share(engine: Engine, other: Engine) -> None:
    with Engine() as both:
        sglang_pair(engine, other)
        about = {"version": "0.5.23", "disaggregation_mode": "null"}
        both.answers |= {"/server_info": about}
        with paired(engine, other, "--engine", f"b={both.url}") as router:
            both.behaviour = reply("200 OK", {"data": []})
            for path, body in COMPUTES.values():
                answer = router.ask({"model": MODEL, **body}, path=path)
                assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "b")
            # What it generates itself has no room in which anybody would meet it.
            workers = set()
            for number in range(12):
                answer = router.ask({"model": MODEL, "prompt": f"hello {number}"}, path="/v1/completions")
                assert answer.status == 200
                workers.add(answer.headers["x-kvatlas-worker"])
            assert workers == {"b", "d"}
            assert all("bootstrap_room" not in one.json for one in both.received if one.method == "POST")
            assert set(posts(engine)) == {"/v1/completions"}
            # Without prefill engines, it has to take all.
            engine.stop()
            wait_until(lambda: router.call("DELETE", "/engines/p")[0] == 200, "it is taken out")
            for _ in range(4):
                answer = router.ask({"model": MODEL, "prompt": "hello"}, path="/v1/completions")
                assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "b")


def test_without_a_prefill_engine_sglang_says_what_is_missing(engine: Engine, other: Engine) -> None:
    sglang_pair(engine, other)
    with paired(engine, other) as router:
        assert router.call("DELETE", "/engines/p")[0] == 200
        answer = router.ask()
        assert (answer.status, answer.error["code"]) == (503, "no_pair")
        assert "prefill" in answer.error["message"]
        assert posts(other) == []


def test_a_prefill_engine_of_another_kind_is_no_half_of_a_pair(engine: Engine, other: Engine) -> None:
    with Engine() as stranger, Engine() as plain:
        sglang_pair(engine, other)
        vllm_pair(stranger, plain)
        more = ("--prefill", f"v={stranger.url}", "--decode", f"w={plain.url}", "--decode-alone", "0")
        with paired(engine, other, *more) as router:
            for number in range(12):
                assert router.ask({"model": MODEL, "prompt": f"hello {number}"}, path="/v1/completions").status == 200
        assert len(posts(engine)) == len(posts(other)) > 0
        assert len(posts(stranger)) == len(posts(plain)) > 0


@pytest.mark.parametrize("name", [*GENERATES, *COMPUTES, *TELLS])
def test_vllm_decode_engines_take_whole_requests(vllm: tuple[Router, Engine, Engine], name: str) -> None:
    router, prefill, decode = vllm
    prefill.received.clear()
    path, body = {**GENERATES, **COMPUTES, **TELLS}[name]
    for _ in range(3):
        answer = router.ask({"model": MODEL, **body}, path=path)
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "d"), answer
        assert "bootstrap_room" not in decode.last.json
    assert posts(prefill) == []


@pytest.fixture(scope="module")
def vllm() -> Iterator[tuple[Router, Engine, Engine]]:
    with Engine() as prefill, Engine() as decode:
        vllm_pair(prefill, decode)
        with paired(prefill, decode) as router:
            yield router, prefill, decode
