"""Prompts of agents are counted as the router's engines would make them."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim.server import Fleet, ServerConfig, write_tokenizer

# As Claude Code sends it: a line of billing that differs from session to session, and the system prompt in two blocks.
MESSAGES: dict[str, Any] = {
    "model": "sim-model",
    "max_tokens": 1,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
        {"type": "text", "text": "You help."},
        {"type": "text", "text": "Be brief."},
    ],
    "messages": [{"role": "user", "content": "Hi"}],
}


def explained(router: Router, body: dict[str, Any]) -> int:
    tokens: int = asked(f"{router.url}/explain", body)["tokens"]
    return tokens


@pytest.mark.parametrize(
    ("dialect", "system"),
    [
        ("vllm", "You help.Be brief."),
        ("sglang", "x-anthropic-billing-header: cc_version=1;\nYou help.\nBe brief."),
    ],
)
def test_system_blocks_are_joined_as_the_engine_joins_them(tmp_path: Path, dialect: Any, system: str) -> None:
    config = RouterConfig(
        http=RouterHttpConfig(bind="127.0.0.1:0"),
        router=RouterSection(tokenizer=str(write_tokenizer(tmp_path / "toy"))),
    )
    # A token is a byte; each message has a mark before it and one behind it, and then the answer begins.
    wanted = len(system) + len("Hi") + 2 * 2 + 1
    with Fleet(1, ServerConfig(dialect=dialect)) as fleet, Router(engines=fleet.urls, config=config) as router:
        router.wait_ready()
        # An engine's kind is known a moment after its existence.
        deadline = time.monotonic() + 30
        while (counted := explained(router, MESSAGES)) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
    assert counted == wanted


def test_each_engine_of_a_model_is_looked_up_for_the_prompt_that_it_makes(tmp_path: Path) -> None:
    """vLLM leaves out an agent's line of billing, SGLang does not: their blocks have nothing in common."""
    config = RouterConfig(
        http=RouterHttpConfig(bind="127.0.0.1:0"),
        router=RouterSection(tokenizer=str(write_tokenizer(tmp_path / "toy"))),
    )
    system = "x-anthropic-billing-header: a\n" + "some words that take a few blocks " * 4
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
    body = {"model": "sim-model", "max_tokens": 1, "messages": messages}
    with (
        Fleet(2, ServerConfig()) as vllm,
        Fleet(1, ServerConfig(dialect="sglang")) as sglang,
        Router(engines=[*vllm.urls, *sglang.urls], config=config) as router,
    ):
        router.wait_ready()
        for url in (*vllm.urls, *sglang.urls):
            asked(f"{url}/v1/chat/completions", body)
        deadline = time.monotonic() + 30
        while len(held := cached(router, body)) < 3 or min(held) < 128:
            assert time.monotonic() < deadline, held
            time.sleep(0.05)


def asked(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def cached(router: Router, body: dict[str, Any]) -> list[int]:
    return [candidate["cached_tokens"] for candidate in asked(f"{router.url}/explain", body)["candidates"]]
