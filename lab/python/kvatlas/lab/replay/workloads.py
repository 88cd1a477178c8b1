"""Workloads by name: a trace, the speed of its clock, and a scenario.

The seed determines a generated workload. Their rates keep sixteen engines of the default hardware busy, but not
overloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvatlas.errors import ConfigError
from kvatlas.lab.replay.scenario import Scenario, Trouble
from kvatlas.sim.agents import AgentConfig, generate_agents
from kvatlas.sim.bursts import BurstConfig, generate_bursts
from kvatlas.sim.conversations import code_generation, document_questions, generate_conversations, reasoning
from kvatlas.sim.documents import DocumentConfig, generate_documents
from kvatlas.sim.rollouts import RolloutConfig, generate_rollouts
from kvatlas.sim.trace import Trace, read_trace
from kvatlas.sim.workload import WorkloadConfig, generate

TRACES = "KVATLAS_TRACES"
"""Environment variable with the path of the folder of recorded traces."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Workload that can be replayed.

    Attributes:
        name: Name of the workload.
        text: Description in one line.
        make: Function that makes the trace from a seed.
        speedup: Speed factor of the trace's clock.
        scenario: Changes and faults in the fleet during the replay.
    """

    name: str
    text: str
    make: Callable[[int], Trace]
    speedup: float = 1.0
    scenario: Scenario = field(default_factory=Scenario)


def _recorded(file: str) -> Callable[[int], Trace]:
    def make(_seed: int) -> Trace:
        folder = os.environ.get(TRACES)
        if not folder:
            raise ConfigError(f"{file} is a recorded trace: set {TRACES} to the folder that has it")
        return read_trace(Path(folder) / file)

    return make


def _chat(seed: int) -> Trace:
    return generate(WorkloadConfig(requests=3_000, seed=seed, request_rate=12.0, agents=0.0))


def _agents(seed: int) -> Trace:
    return generate_agents(AgentConfig(seed=seed))


def _documents(seed: int) -> Trace:
    return generate_documents(DocumentConfig(seed=seed))


def _code_generation(seed: int) -> Trace:
    return generate_conversations(code_generation(seed))


def _document_questions(seed: int) -> Trace:
    return generate_conversations(document_questions(seed))


def _reasoning(seed: int) -> Trace:
    return generate_conversations(reasoning(seed))


def _b2b_saas(seed: int) -> Trace:
    config = DocumentConfig(
        requests=3_000,
        seed=seed,
        request_rate=15.0,
        documents=150,
        document=6_000,
        question=1_200,
        output=1_000,
        spread=0.0,
        variants=5,
    )
    return generate_documents(config)


def _retrieval(seed: int) -> Trace:
    config = WorkloadConfig(
        requests=3_000,
        seed=seed,
        request_rate=14.0,
        agents=0.0,
        with_document=1.0,
        document=8_000,
        documents=60,
        message=300,
        chat_turns=1.0,
    )
    return generate(config)


def _mixed(seed: int) -> Trace:
    return generate(WorkloadConfig(requests=3_000, seed=seed, request_rate=12.0, agents=0.2))


def _bursts(seed: int) -> Trace:
    return generate_bursts(BurstConfig(requests=3_000, seed=seed, request_rate=20.0))


def _rollouts(seed: int) -> Trace:
    return generate_rollouts(RolloutConfig(seed=seed))


_CONVERSATION = _recorded("conversation_trace.jsonl")

_ALL = (
    Workload("conversation", "recorded conversations, as they came", _CONVERSATION),
    Workload("conversation-2x", "the same twice as fast", _CONVERSATION, 2.0),
    Workload("conversation-2.5x", "the same 2.5 times as fast", _CONVERSATION, 2.5),
    Workload("conversation-3x", "the same three times as fast: more than most policies hold", _CONVERSATION, 3.0),
    Workload(
        "conversation-2x-delay-2",
        "conversations twice as fast; events 2 s late",
        _CONVERSATION,
        2.0,
        Scenario(event_delay=2.0),
    ),
    Workload(
        "conversation-2x-no-events",
        "conversations twice as fast; no events at all",
        _CONVERSATION,
        2.0,
        Scenario(no_events=True),
    ),
    Workload("claude-code", "recorded Claude Code sessions, closed loop", _recorded("agents/claude-code-a.jsonl.gz")),
    Workload(
        "agentcgroup-local",
        "recorded agents of a local model on coding tasks, closed loop; their sessions begin eight times sooner",
        _recorded("agents/agentcgroup-local-1.jsonl.gz"),
        8.0,
    ),
    Workload(
        "agentcgroup-haiku",
        "the same of Claude Haiku; six times sooner",
        _recorded("agents/agentcgroup-haiku-1.jsonl.gz"),
        6.0,
    ),
    Workload("agents-delay-2", "agents; events 2 s late", _agents, scenario=Scenario(event_delay=2.0)),
    Workload("chat", "generated chats", _chat),
    Workload("agents", "generated coding agents with pauses and sub-agents, closed loop", _agents),
    Workload("documents", "questions on 192 documents of 48 K tokens", _documents),
    Workload(
        "document-questions",
        "llm-d's: 192 conversations on documents of 48 K tokens, 128 at once, six turns, closed loop",
        _document_questions,
    ),
    Workload(
        "code-generation", "llm-d's: 70 clients, contexts of 55 K tokens, a few turns, closed loop", _code_generation
    ),
    Workload("reasoning", "llm-d's: 450 clients, prompts of 1 K tokens and answers of 8 K, closed loop", _reasoning),
    Workload("b2b-saas", "llm-d's: 750 prompts again and again, five on each of 150 prefixes of 6 K tokens", _b2b_saas),
    Workload("retrieval", "questions on documents, some popular, single turns", _retrieval),
    Workload("mixed", "generated chats and agents", _mixed),
    Workload("bursts", "bursts of 8 to 64 siblings and single requests", _bursts),
    Workload("rollouts", "two steps of 24 prompts, 16 samples of each at once, a few turns, closed loop", _rollouts),
    Workload("slow", "mixed; one engine half as fast", _mixed, scenario=Scenario(slow={3: 2.0})),
    Workload("joining", "mixed; one engine joins after 100 s, empty", _mixed, scenario=Scenario(joins={3: 100.0})),
    Workload("dying", "mixed; one engine dies after 150 s", _mixed, scenario=Scenario(dies={3: 150.0})),
    Workload(
        "hanging",
        "mixed; one engine hangs from 100 to 130 s",
        _mixed,
        scenario=Scenario(troubles=(Trouble("stops", 3, 100.0, 130.0),)),
    ),
    Workload(
        "late",
        "mixed; every fiftieth prompt reaches its engine's queue 12 s late",
        _mixed,
        scenario=Scenario(late=0.02),
    ),
    Workload("delay-0.1", "mixed; events 0.1 s late", _mixed, scenario=Scenario(event_delay=0.1)),
    Workload("delay-0.5", "mixed; events 0.5 s late", _mixed, scenario=Scenario(event_delay=0.5)),
    Workload("delay-2", "mixed; events 2 s late", _mixed, scenario=Scenario(event_delay=2.0)),
    Workload("loss", "mixed; a tenth of the announcements lost", _mixed, scenario=Scenario(lose_events=0.1)),
    Workload("no-events", "mixed; no events at all", _mixed, scenario=Scenario(no_events=True)),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
"""All workloads by name."""


def find_workload(name: str) -> Workload:
    """Find a workload by name. Raises `ConfigError`, with the known names, if there is none."""
    try:
        return WORKLOADS[name]
    except KeyError:
        raise ConfigError(f"no workload {name!r}: it must be one of {', '.join(WORKLOADS)}") from None
