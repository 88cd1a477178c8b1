"""The bars: limits on ratios between our policy and others, each on one workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.tiers.cells import Cell

Result = dict[str, Any]

OURS = "kvatlas"
FIXED = "llm-d-token-load+pull"
AFFINITY = "llm-d-scorers precise=true no_hit_lru_weight=2"
"""llm-d's precise prefix routing: what it publishes its questions on documents against, without pulls."""
DYNAMO = "dynamo-kv router_disk_cache_hit_weight=0.5"
VLLM_ROUTER = "vllm-router-kv-aware kv_penalty_disk=0.6"


@dataclass(frozen=True, slots=True)
class Bar:
    """Limit on the ratio of a figure between two cells.

    Attributes:
        what: The scenario.
        than: What it is compared with.
        ours: The cell of our policy.
        other: The cell that it is compared with.
        figure: The figure: of "ttft", or "throughput".
        limit: The largest ratio that is wanted; for the throughput, the smallest.
    """

    what: str
    than: str
    ours: Cell
    other: Cell
    figure: str
    limit: float

    @property
    def is_floor(self) -> bool:
        """True if the ratio is to be at least the limit."""
        return self.figure == "throughput"


def value(result: Result, figure: str) -> float:
    """Returns a figure of a result."""
    return float(result["throughput"] if figure == "throughput" else result["ttft"][figure])


def _beside(what: str, pulls: Cell) -> list[Bar]:
    """Returns the bars of a workload on which pulls should be worth their cost."""
    return [
        Bar(what, than, pulls, other, figure, limit)
        for than, other, limit in (
            ("device memory alone", replace(pulls, pulls=False, host=0), 0.6),
            ("without pulls", replace(pulls, pulls=False), 0.6),
            ("llm-d's fixed rule", replace(pulls, policy=FIXED), 0.75),
            ("one cache for all, transfers paid", replace(pulls, policy="all-memory-paid"), 1.25),
            ("one pool of all host memory, transfers paid", replace(pulls, policy="host-memory-paid"), 1.25),
            ("one cache for all, transfers free", replace(pulls, policy="all-memory-free"), 0.0),
        )
        for figure in ("mean", "p99")
    ]


def _pays_nothing(what: str, pulls: Cell) -> list[Bar]:
    """The bars of a workload where pulls do not pay."""
    without = replace(pulls, pulls=False)
    return [Bar(what, "without pulls", pulls, without, figure, 1.03) for figure in ("mean", "p99")]


AGENTS = Cell("claude-code", OURS, hardware="h100x4", pulls=True)
GPT_OSS = replace(AGENTS, hardware="gpt-oss-h200", speedup=6.0)
GLM = replace(AGENTS, hardware="glm-5.2-h200", transfer="glm-rdma", delta=12_288)
DOCUMENTS = Cell("documents 60", OURS, pulls=True, host=1_400_000, requests=4_000)
QUESTIONS = Cell("document-questions", OURS, pulls=True, cache=1_220_000 // 512 * 512, host=2_196_000, engines=16)
JOINING = Cell("b2b-saas", OURS, pulls=True, requests=1_800, joins=60.0, warm_up=300_000)
POOL = replace(AGENTS, pulls=False, host=0, pool=8 * 786_432)

BARS: dict[str, Callable[[], list[Bar]]] = {
    "agents": lambda: _beside("Claude Code at the knee of a 70B model", AGENTS),
    "agents-gpt-oss": lambda: _beside("Claude Code, gpt-oss", GPT_OSS),
    "agents-glm": lambda: _beside("Claude Code, GLM", GLM),
    "documents": lambda: [
        Bar("documents", than, DOCUMENTS, other, figure, limit)
        for than, other, limits in (
            ("without pulls", replace(DOCUMENTS, pulls=False), (1.35, 0.66)),
            ("llm-d's fixed rule", replace(DOCUMENTS, policy=FIXED), (1.0, 1.0)),
        )
        for figure, limit in zip(("throughput", "p99"), limits, strict=True)
    ],
    "document-questions": lambda: [
        Bar("llm-d's questions on documents", than, QUESTIONS, other, figure, limit)
        for than, other, limits in (
            (
                "llm-d's precise prefix routing, as published",
                replace(QUESTIONS, policy=AFFINITY, pulls=False),
                (1.35, 0.66),
            ),
            ("llm-d's fixed rule", replace(QUESTIONS, policy=FIXED), (1.0, 1.0)),
            ("without pulls", replace(QUESTIONS, pulls=False), (1.0, 1.03)),
        )
        for figure, limit in zip(("throughput", "p99"), limits, strict=True)
    ],
    "warm-up": lambda: [
        Bar(
            "prefixes of 6 K tokens, an engine joins",
            "without a warm-up",
            JOINING,
            replace(JOINING, warm_up=0),
            figure,
            1.0,
        )
        for figure in ("mean", "p99")
    ],
    "pool": lambda: [
        Bar("Claude Code, a pool of all host memory", name, POOL, replace(POOL, policy=policy), "mean", 0.8)
        for name, policy in (("Dynamo's rule, x 0.5", DYNAMO), ("vllm-router's rule, 0.6", VLLM_ROUTER))
    ],
    "short": lambda: _pays_nothing("conversations, gpt-oss", Cell("conversation-3x", OURS, pulls=True, requests=4_000)),
    "slow-link": lambda: _pays_nothing("Claude Code, a slow link", replace(GPT_OSS, transfer="ethernet-10g")),
    "high-floor": lambda: _pays_nothing("Claude Code, a floor of 1.66 s", replace(GPT_OSS, transfer="glm-rdma")),
    "mute": lambda: [
        Bar(f"Claude Code, {what}", "without pulls", pulls, replace(pulls, pulls=False), "p99", 2.0)
        for what, trouble in (("sources do not answer", "mute=0.05"), ("engines freeze", "stops=0.02"))
        for pulls in (replace(AGENTS, troubles=(trouble,)),)
    ],
}
"""The bars by the name of their scenario."""
