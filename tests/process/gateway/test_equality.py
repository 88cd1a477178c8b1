"""The same requests at both doors of a picker, the gateway's and the router's own: each is decided by the same.

Two pickers beside each other would not do: costs depend on the time, and what is nearly equal goes one way or another.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.process.router.deciding import write_tokenizer
from tests.support.engine import MODEL, Engine

from kvatlas.sim.agents import AgentConfig, generate_agents
from kvatlas.sim.conversations import ConversationConfig, generate_conversations
from kvatlas.sim.trace import TraceRequest, read_trace

from .envoy import Envoy, Gateway, Picker, envoy

REQUESTS, ENGINES = 500, 4
JSON = {"Content-Type": "application/json"}
Form = Callable[[TraceRequest], tuple[str, dict[str, Any]]]
TOKENS = 16
"""Tokens that stand for a block of a trace, which has 512: what is decided by is how blocks are shared."""


def completion(request: TraceRequest) -> tuple[str, dict[str, Any]]:
    """A completion of token ids, `TOKENS` for each block of the trace."""
    tokens = [1 + (block * TOKENS + at) % 30_000 for block in request.hash_ids for at in range(TOKENS)]
    return "/v1/completions", {"model": MODEL, "prompt": tokens, "max_tokens": request.output_length}


def chat(request: TraceRequest) -> tuple[str, dict[str, Any]]:
    """A chat of the same shape: a text of its own for each block."""
    text = "".join("".join(random.Random(block).choices("abcdefgh", k=TOKENS)) for block in request.hash_ids)
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": request.output_length}


@dataclass
class Doors:
    """The two doors of one picker, in front of engines.

    Attributes:
        own: The door of the router in it, which says what it would decide.
        gateway: The door of an Envoy that asks it.
        engines: The engines by their names.
    """

    own: httpx.Client
    gateway: httpx.Client
    engines: dict[str, Engine]

    def explained(self, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        return dict(self.own.post("/explain", content=body, headers=headers).json())

    def reached(self, path: str, body: bytes, headers: dict[str, str]) -> str:
        """The name of the engine that a request through the gateway reaches, with its body as it was."""
        before = {name: engine.times(path) for name, engine in self.engines.items()}
        answer = self.gateway.post(path, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        (name,) = (name for name, engine in self.engines.items() if engine.times(path) > before[name])
        assert self.engines[name].last.body == body
        return name

    def decisions(self) -> list[dict[str, Any]]:
        """The last decision, with what was weighed for it; none at first."""
        return list(self.own.get("/decisions", params={"limit": 1}).json())


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    envoy()
    tokenizer = write_tokenizer(tmp_path)
    with ExitStack() as stack:
        engines = {f"e{at}": stack.enter_context(Engine()) for at in range(ENGINES)}
        named = [text for name, engine in engines.items() for text in ("--engine", f"{name}={engine.url}")]
        # A session that begins without a name is not seen to by a question.
        flags = ("--tokenizer", tokenizer, "--load-interval", "0s", "--session-sources", "common-headers")
        picker = stack.enter_context(Picker([], *named, *flags))
        at = stack.enter_context(Envoy(Gateway(), [picker.port], [engine.port for engine in engines.values()]))
        own = stack.enter_context(httpx.Client(base_url=picker.router_url, timeout=60))
        gateway = stack.enter_context(httpx.Client(base_url=at.url, timeout=60))
        yield Doors(own, gateway, engines)


def compare(doors: Doors, requests: Sequence[TraceRequest], form: Form) -> None:
    """Let each request be explained at the router's door, and go through the gateway's."""
    doors.decisions()  # from now on for a while, decisions keep what was weighed
    reached, cached = Counter[str](), 0
    for request in requests:
        path, about = form(request)
        body = json.dumps(about).encode()
        session = {} if request.session_id is None else {"x-session-id": str(request.session_id)}
        explained = doors.explained(body, JSON | session)
        name = doors.reached(path, body, JSON | session)
        (decided,) = doors.decisions()
        assert decided["worker"] == name
        assert decided["tokens"] == explained["tokens"] > 0
        assert known(decided) == known(explained), "both doors know the same of each engine"
        assert session_of(decided) == session_of(explained)
        if decided["why"] != "session":
            costs = {it["worker"]: it["terms"]["cost (s)"] for it in explained["candidates"]}
            # Costs are in seconds, and change with the time between the two.
            assert costs[name] <= min(costs.values()) + 0.001 + 0.02 * costs[name], (name, costs)
        reached[name] += 1
        cached += decided["cached_tokens"]
    assert sum(reached.values()) == REQUESTS
    assert cached > 0, "prompts go on from each other"


def session_of(about: dict[str, Any]) -> tuple[Any, ...] | None:
    turn = about["session"]
    return None if turn is None else tuple(turn[name] for name in ("key", "kind", "turn", "parent", "source"))


def known(about: dict[str, Any]) -> dict[str, int]:
    """Tokens of the prompt that are expected in each engine's cache."""
    return {it["worker"]: it["cached_tokens"] for it in about["candidates"]}


@pytest.mark.parametrize("form", [chat, completion])
def test_generated_agents(doors: Doors, form: Form) -> None:
    compare(doors, generate_agents(AgentConfig(requests=REQUESTS, seed=7)).requests, form)


@pytest.mark.parametrize("form", [chat, completion])
def test_generated_conversations(doors: Doors, form: Form) -> None:
    compare(doors, generate_conversations(ConversationConfig(requests=REQUESTS, seed=7, clients=30)).requests, form)


def test_recorded_conversations(doors: Doors, conversation_trace: Path) -> None:
    compare(doors, read_trace(conversation_trace).requests[:REQUESTS], chat)


def test_recorded_agents(doors: Doors, conversation_trace: Path) -> None:
    recorded = conversation_trace.parent / "agents" / "claude-code-a.jsonl.gz"
    if not recorded.exists():
        pytest.skip("no conversation_trace.jsonl: set KVATLAS_TRACES to the folder that has it")
    compare(doors, read_trace(recorded).requests[:REQUESTS], chat)
