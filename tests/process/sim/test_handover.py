"""Prompts computed by one engine and answered by another, as vLLM's and SGLang's routers ask for them."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvatlas.sim.server import EngineHandle, Fleet, ServerConfig

from .conftest import FAST

PROMPT = [7, *range(200, 222)]  # 5 full blocks of 4, and 3 tokens
ENGINE = replace(FAST, blocks=400)
GIVE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


@contextmanager
def pools(dialect: Any) -> Iterator[tuple[EngineHandle, EngineHandle]]:
    """A prefill and a decode engine."""
    config = ServerConfig(dialect=dialect, engine=ENGINE)
    with Fleet(1, replace(config, role="prefill")) as first, Fleet(1, replace(config, role="decode")) as second:
        yield first[0], second[0]


def ask(engine: EngineHandle, body: dict[str, Any], path: str = "/v1/completions") -> tuple[int, Any]:
    request = urllib.request.Request(engine.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_vllm() -> None:
    with pools("vllm") as (prefill, decode):
        status, first = ask(prefill, {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": GIVE})
        assert status == 200
        params = first["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
        assert len(params["remote_block_ids"]) == 6
        body = {"prompt": PROMPT, "max_tokens": 9, "kv_transfer_params": params}
        status, second = ask(decode, body)
        assert status == 200
        assert cached(second) == 20  # what was handed over, in full blocks
        assert second["usage"]["completion_tokens"] == 9
        assert prefill.match(PROMPT).held == 5
        assert decode.match(PROMPT).held == 5  # announced as its own from now on
        whole = ask(decode, {"prompt": PROMPT, "max_tokens": 9})[1]
        assert whole["choices"] == second["choices"]

        again = ask(decode, body)  # a prompt is handed over once
        assert again[0] == 500
        assert "it is not there" in again[1]["error"]["message"]


def test_vllm_when_the_prefill_engine_is_gone() -> None:
    with pools("vllm") as (prefill, decode):
        params = ask(prefill, {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": GIVE})[1]["kv_transfer_params"]
        prefill.kill()
        status, answer = ask(decode, {"prompt": PROMPT, "kv_transfer_params": params})
        assert status == 500
        assert "cannot be fetched" in answer["error"]["message"]
        assert ask(decode, {"prompt": PROMPT})[0] == 200


def test_sglang() -> None:
    with pools("sglang") as (prefill, decode):
        info = json.load(urllib.request.urlopen(prefill.url + "/server_info", timeout=60))
        assert info["disaggregation_mode"] == "prefill"
        room = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": info["disaggregation_bootstrap_port"],
            "bootstrap_room": (1 << 63) - 5,
        }
        body = {"prompt": PROMPT, "max_tokens": 9, **room}
        answers: dict[str, tuple[int, Any]] = {}
        # The decode engine first: it waits.
        asking = threading.Thread(target=lambda: answers.update(decode=ask(decode, body)))
        asking.start()
        answers["prefill"] = ask(prefill, body)
        asking.join()
        assert [answers[name][0] for name in ("prefill", "decode")] == [200, 200]
        assert answers["prefill"][1]["usage"]["completion_tokens"] == 1
        assert answers["decode"][1]["usage"]["completion_tokens"] == 9
        assert cached(answers["decode"][1]) == 20
        assert decode.match(PROMPT).held == 5

        status, answer = ask(decode, {"prompt": PROMPT})
        assert status == 400
        assert "bootstrap_room is missing" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"do_remote_prefill": True}, "kv_transfer_params.remote_engine_id is missing"),
        ([], "kv_transfer_params must be an object"),
        (GIVE, "this engine only does decode"),
    ],
)
def test_what_makes_no_sense(params: object, words: str) -> None:
    with Fleet(1, ServerConfig(engine=ENGINE, role="decode")) as fleet:
        status, answer = ask(fleet[0], {"prompt": PROMPT, "kv_transfer_params": params})
        assert status == 400
        assert words in answer["error"]["message"]


def test_one_engine_for_both() -> None:
    with Fleet(1, ServerConfig(engine=ENGINE)) as fleet:
        status, first = ask(fleet[0], {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": GIVE})
        assert status == 200
        status, second = ask(fleet[0], {"prompt": PROMPT, "kv_transfer_params": first["kv_transfer_params"]})
        assert (status, cached(second)) == (200, 20)
