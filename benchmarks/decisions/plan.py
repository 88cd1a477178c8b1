"""The cells to run: workloads, policies, ablations, and the bars that they are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas.routing import policy_names

OURS = "kvatlas"
BASE = "least-loaded"
"""The policy that a gain is a gain over. It is among the others too."""

OTHERS = tuple(name for name in policy_names() if name not in {OURS, BASE})
"""The other policies, those of other projects first: "the best of the others" is the best of these on a workload."""

BY_TTL = "kvatlas, ttl"
"""Ours without events, what was sent counting as held for a while."""

BOUNDS = ("greedy", "shared-cache", "infinite-cache")

WORKLOADS = (
    "conversation",
    "conversation-2x",
    "conversation-2.5x",
    "conversation-3x",
    "chat",
    "agents",
    "claude-code",
    "agentcgroup-local, 4 engines",
    "agentcgroup-haiku, 4 engines",
    "agentcgroup-local, 2 engines",
    "agentcgroup-haiku, 2 engines",
    "rollouts, 2 engines",
    "rollouts, 4 engines",
    "rollouts, 8 engines",
    "documents",
    "code-generation",
    "code-generation-100",
    "reasoning",
    "b2b-saas",
    "retrieval",
    "mixed",
    "bursts",
    "slow",
    "joining",
    "dying",
    "hanging",
    "late",
    "delay-0.1",
    "delay-0.5",
    "delay-2",
    "loss",
    "no-events",
    "agents-delay-2",
    "conversation-2x-delay-2",
    "conversation-2x-no-events",
)

CLIENTS = {"code-generation-100": ("code-generation", 100)}
"""Workloads with more clients than the caches of sixteen engines hold, by the workload they are made from."""

FLEETS = {
    f"{workload}, {engines} engines": (workload, engines, 64)
    for workload, counts in (
        ("agentcgroup-local", (4, 2)),
        ("agentcgroup-haiku", (4, 2)),
        ("rollouts", (2, 4, 8)),
    )
    for engines in counts
}
"""Workloads on another number of engines, and the tokens of their blocks.

Agents keep four engines below their knee, and push two beyond what their caches hold; two are too few for the rollouts
as well."""

AGENT_ENGINES = 8
"""Engines under `claude-code`: on sixteen, 48 sessions an hour leave every policy idle."""

LISTENERS = (
    "dynamo-kv",
    "vllm-router-kv-aware",
    "llm-d-scorers",
    "dynamo-agentic",
    "dynamo-two-tier",
    "lmetric",
    "dualmap",
)
"""The policies to run where events are late, lost or missing: the best of those that listen to events."""

EVENTS = {
    "delay-0.1": "mixed",
    "delay-0.5": "mixed",
    "delay-2": "mixed",
    "loss": "mixed",
    "no-events": "mixed",
    "agents-delay-2": "agents",
    "conversation-2x-delay-2": "conversation-2x",
    "conversation-2x-no-events": "conversation-2x",
}
"""Workloads that are another one but for their events: who does not listen to events has the figures of that one."""

TROUBLED = ("mixed", "agents", "conversation-2x", "claude-code")
"""Workloads that are also run with engines that misbehave in every way of `kvatlas replay --trouble all`."""

CHOSEN_ON = (
    "The weights of kvatlas were chosen on generated bursts, agents, chats, retrieval and mixed of seed 0, at other "
    "rates than here, and on the first 3,000 requests of the conversation trace at 2 to 2.9 times its speed: the "
    "figures of that trace are not independent of it. Generated workloads are shown with another seed; on those with "
    "an engine that is slow, joins, dies or hangs, with late prompts, late, lost and no events, and on documents, "
    "nothing was chosen. What room costs was chosen on other samples of recorded Claude Code sessions than the one "
    "shown; waiting for one engine and what load does to speed on the one shown, with 12 and 16 engines instead of 8, "
    "on the conversations at 2.5 and 3 times their speed, and on bursts, agents, retrieval and mixed of seeds 1 to 3."
)


@dataclass(frozen=True, slots=True)
class Ablation:
    """Our policy with something taken out."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


ABLATIONS = (
    Ablation("without blocks pushed out", {"evict": 0.0}),
    Ablation("without the price of room", {"price": 0.0}),
    Ablation("without what a session will bring", {"settle": 0.0}),
    Ablation("without waiting for one engine", {"patience": 0.0}),
    Ablation("without waiting in the router", {"hold": 0.0}),
    Ablation("without prompts just sent", {}, {"announced_within": 0.0, "predicted_limit": 0}),
)

ABLATED_ON = ("conversation-2.5x", "conversation-3x", "claude-code", "mixed", "bursts")
