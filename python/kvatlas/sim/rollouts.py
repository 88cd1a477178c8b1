"""Generated workload of rollouts for reinforcement learning: many samples of each prompt at once, in steps.

A training step begins with several groups. A group is one prompt that is sampled several times at the same moment. Each
sample continues for a few turns; between turns, a tool or an environment adds an observation to what was generated. The
next step begins when the last sample of the current step is done, so the slowest sample decides its length.

A trace has blocks of 64 tokens and names, for each request, the requests that must end before it starts; start times
are those on idle engines. The seed determines the whole trace.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields

import numpy as np

from kvatlas.errors import ConfigError
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.hardware import idle_seconds
from kvatlas.sim.trace import Trace, TraceRequest

BLOCK = 64  # tokens that an id stands for


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Settings of a workload of rollouts. Lengths are medians in tokens (log-normal).

    Attributes:
        steps: Number of training steps; each begins when the previous one is done.
        groups: Number of prompts in a step.
        samples: Number of samples of each prompt, which begin at the same moment.
        seed: Seed of all random choices.
        fewest: Minimum number of turns of a sample.
        most: Maximum number of turns of a sample; the number is uniformly distributed.
        prompt: Length of a group's prompt.
        answer: Number of tokens that each turn generates.
        observation: Number of tokens that a tool or an environment adds before the next turn.
        pause: Mean seconds that a tool or an environment needs for an observation (exponential).
    """

    steps: int = 2
    groups: int = 24
    samples: int = 16
    seed: int = 0
    fewest: int = 3
    most: int = 5
    prompt: int = 2_600
    answer: int = 900
    observation: int = 300
    pause: float = 2.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value, least = getattr(self, f.name), 0 if f.name in ("seed", "pause") else 1
            if not math.isfinite(value) or value < least:
                raise ConfigError(f"{f.name} must be at least {least}, got {value}")
        if self.most < self.fewest:
            raise ConfigError(f"most must be at least fewest ({self.fewest}), got {self.most}")


def generate_rollouts(config: RolloutConfig | None = None) -> Trace:
    """Generate a trace of all training steps, with requests in the order in which idle engines would receive them."""
    config = config or RolloutConfig()
    random = np.random.default_rng(config.seed)
    names, numbers = itertools.count(), itertools.count()

    def length(median: int) -> int:
        return min(max(round(float(random.lognormal(math.log(median), 0.6))), 16), 8 * median)

    def ids(tokens: int) -> tuple[int, ...]:
        return tuple(next(names) for _ in range(tokens // BLOCK))

    rows: list[tuple[float, TraceRequest]] = []
    begin = 0.0
    last: tuple[Dependency, ...] = ()
    for step in range(config.steps):
        ends: list[tuple[float, Dependency]] = []
        for group in range(config.groups):
            prompt = length(config.prompt)
            first = ids(prompt)
            for sample in range(config.samples):
                tokens, blocks, at = prompt, first, begin
                after = last
                session = f"{step}.{group}.{sample}"
                for _ in range(int(random.integers(config.fewest, config.most + 1))):
                    output, name = length(config.answer), next(numbers)
                    rows.append((at, TraceRequest(round(at * 1000), tokens, output, blocks, session, name, after)))
                    pause = float(random.exponential(config.pause))
                    at += idle_seconds(tokens - len(blocks) * BLOCK, output) + pause
                    after = (Dependency(name, round(pause * 1000)),)
                    tokens += output + length(config.observation)
                    blocks += ids(tokens - len(blocks) * BLOCK)
                ends.append((at, after[0]))
        begin, last = max(at for at, _ in ends), tuple(Dependency(end.id) for _, end in ends)
    rows.sort(key=lambda row: row[0])
    return Trace([row for _, row in rows], name=f"rollouts (seed {config.seed})", block=BLOCK)
