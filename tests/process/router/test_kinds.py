"""Engines are asked whether they are vLLM's or SGLang's, however they were made known: what they get depends on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine

from kvatlas.sim.server import Publisher

from .deciding import exact, stored
from .running import Router, wait_until

TEXT = "abcdefgh" * 40
COMPLETION = {"model": MODEL, "prompt": TEXT, "max_tokens": 1}
FLAGS = ("--no-events", "--tokenizer", "none", "--policy", "round-robin", "--decode-alone", "0")


def sglang(port: int = 8998) -> Any:
    return {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": port}


def add(router: Router, engine: Engine, **more: Any) -> None:
    status, answer = router.call("POST", "/engines", {"url": engine.url, **more})
    assert status == 201, answer


def test_engines_that_are_added_are_asked_before_they_are_split(engine: Engine, other: Engine) -> None:
    engine.answers["/server_info"] = other.answers["/server_info"] = 503
    with Router(flags=(*FLAGS, "--wait-for-engine", "0"), ready=False) as router:
        add(router, engine, name="p", role="prefill")
        add(router, other, name="d", role="decode")
        wait_until(lambda: all(row["models"] for row in router.workers()), "both have been asked for their models")
        assert router.get("/ready")[0] == 503
        assert router.ask(COMPLETION, path="/v1/completions").status == 503
        assert (engine.asked(), other.asked()) == (0, 0)
        engine.answers["/server_info"] = other.answers["/server_info"] = sglang()
        router.wait_ready()
        assert router.ask(COMPLETION, path="/v1/completions").status == 200
        wait_until(lambda: engine.asked() == other.asked() == 1, "both have their leg, of which one gives the answer")
        for leg in (engine.last.json, other.last.json):
            assert (leg["bootstrap_port"], leg["bootstrap_host"]) == (8998, "127.0.0.1")
        assert engine.last.json["bootstrap_room"] == other.last.json["bootstrap_room"]


def test_vllm_engines_that_are_added(engine: Engine, other: Engine) -> None:
    with Router(flags=FLAGS, ready=False) as router:
        add(router, engine, name="p", role="prefill")
        add(router, other, name="d", role="decode")
        router.wait_ready()
        assert router.ask(COMPLETION, path="/v1/completions").status == 200
        assert engine.last.json["kv_transfer_params"]["do_remote_decode"] is True
        assert "bootstrap_room" not in other.last.json


def test_vllm_in_development_mode_is_not_asked_for_what_only_sglang_says(engine: Engine, other: Engine) -> None:
    """To answer at SGLang's path, vLLM starts dozens of processes, for every question."""
    for one in (engine, other):
        one.answers |= {"/version": {"version": "0.33.0"}, "/server_info": {"vllm_config": {}}}
    with Router(flags=FLAGS, ready=False) as router:
        add(router, engine, name="p", role="prefill")
        add(router, other, name="d", role="decode")
        router.wait_ready()
        assert router.ask(COMPLETION, path="/v1/completions").status == 200
        assert engine.last.json["kv_transfer_params"]["do_remote_decode"] is True
        assert (engine.times("/server_info"), other.times("/server_info")) == (0, 0)


def test_an_engine_whose_handover_is_given_need_not_say_it(engine: Engine, other: Engine) -> None:
    engine.answers["/server_info"] = other.answers["/server_info"] = 503
    with Router(flags=FLAGS, ready=False) as router:
        add(router, engine, name="p", role="prefill", handover="sglang", bootstrap_port=9001)
        add(router, other, name="d", role="decode", handover="sglang")
        router.wait_ready()
        assert router.ask(COMPLETION, path="/v1/completions").status == 200
        assert other.last.json["bootstrap_port"] == 9001


def test_an_engine_that_comes_back_as_another_kind(engine: Engine, other: Engine) -> None:
    with Router(flags=(*FLAGS, "--health-interval", "100ms"), ready=False) as router:
        add(router, engine, name="p", role="prefill")
        add(router, other, name="d", role="decode")
        router.wait_ready()
        for one in (engine, other):
            one.healthy = False
        wait_until(lambda: {row["standing"] for row in router.workers()} == {"down"}, "both are down")
        for one in (engine, other):
            one.answers["/server_info"], one.healthy = sglang(), True

        def is_split() -> bool:
            answer = router.ask(COMPLETION, path="/v1/completions")
            return answer.status == 200 and "bootstrap_room" in other.last.json

        wait_until(is_split, "it is asked again")


CHAT = {"messages": [{"role": "user", "content": TEXT}]}
LOGPROBS: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat's prompt_logprobs": ("/v1/chat/completions", {**CHAT, "prompt_logprobs": 0}),
    "prompt_logprobs": ("/v1/completions", {"prompt": TEXT, "prompt_logprobs": 3}),
    "a chat's echo": ("/v1/chat/completions", {**CHAT, "echo": True}),
    "echo, none": ("/v1/completions", {"prompt": TEXT, "echo": True, "logprobs": 0}),
    "echo": ("/v1/completions", {"prompt": TEXT, "echo": True, "logprobs": 2}),
    "echo alone": ("/v1/completions", {"prompt": TEXT, "echo": True}),
    "logprobs alone": ("/v1/completions", {"prompt": TEXT, "logprobs": 5}),
    "a start, for /generate": ("/v1/completions", {"prompt": TEXT, "return_logprob": True, "logprob_start_len": 0}),
    "of responses": ("/v1/responses", {"input": TEXT, "prompt_logprobs": 1}),
    "of messages": ("/v1/messages", {**CHAT, "max_tokens": 1, "prompt_logprobs": 1}),
}
SKIPPED = {
    "vllm": {"a chat's prompt_logprobs", "prompt_logprobs", "a chat's echo", "echo, none", "echo"},
    "sglang": {"echo"},
}


@pytest.mark.parametrize("kind", SKIPPED)
def test_requests_for_which_an_engine_of_that_kind_skips_its_cache(engine: Engine, tokenizer: Path, kind: str) -> None:
    if kind == "sglang":
        engine.answers["/server_info"] = sglang()
    with Publisher() as one, Router(engine, flags=exact(tokenizer, (engine, one))) as router:
        router.wait_followed()
        one.publish(stored(TEXT))

        def cached(path: str, body: dict[str, Any]) -> int:
            answer = router.ask({"model": MODEL, **body}, path=path)
            assert answer.status == 200, answer
            return int(answer.headers["x-kvatlas-cached-tokens"])

        wait_until(lambda: cached("/v1/completions", {"prompt": TEXT}) > 0, "it is known")
        # From here on the engine's kind is known, too: it is asked for that as soon as it is well.
        wait_until(lambda: any("server_info" in each.path for each in engine.received), "it was asked for its kind")
        deadline = time.monotonic() + 60
        found: set[str] = set()
        while time.monotonic() < deadline and found != SKIPPED[kind]:
            found = {name for name, (path, body) in LOGPROBS.items() if cached(path, body) == 0}
        assert found == SKIPPED[kind]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_prompts_that_an_engine_of_that_kind_keeps_under_a_key(engine: Engine, tokenizer: Path, kind: str) -> None:
    """SGLang keeps blocks apart by `extra_key` but does not announce it, so its depths do not help."""
    if kind == "sglang":
        engine.answers["/server_info"] = sglang()
    with Publisher() as one, Router(engine, flags=exact(tokenizer, (engine, one))) as router:
        router.wait_followed()
        one.publish(stored(TEXT))

        def cached(**more: Any) -> int:
            answer = router.ask({"model": MODEL, "prompt": TEXT, **more}, path="/v1/completions")
            assert answer.status == 200, answer
            return int(answer.headers["x-kvatlas-cached-tokens"])

        wait_until(lambda: cached() > 0, "it is known")
        wait_until(lambda: (cached(extra_key="k") == 0) == (kind == "sglang"), "the engine's kind is known")
        assert cached(extra_key=None) == cached() > 0
