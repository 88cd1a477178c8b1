"""Generated workload of rollouts for reinforcement learning: many samples of each prompt at once, in steps.

A step begins with some groups. A group is one prompt that is sampled several times at the same moment; each sample goes
on for a few turns, in which a tool or an environment answers what was generated, on its own. The next step begins when
the last sample of this one is done, so the slowest decides.

A trace is in blocks of 64 tokens and says which requests wait for which; its times are those of idle engines.
Everything follows from the seed.
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
        steps: Number of steps; each begins when the one before it is done.
        groups: Prompts of a step.
        samples: Samples of each prompt, which begin at the same moment.
        seed: Seed of all random choices.
        fewest: Turns of a sample, at least.
        most: Turns of a sample, at most; all numbers between them are as frequent.
        prompt: Tokens of a group's prompt.
        answer: Tokens that each turn generates.
        observation: Tokens that a tool or an environment adds before the next turn.
        pause: Seconds that a tool or an environment takes (exponential).
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
    """Make a trace of all training steps, with the requests in the order in which idle engines would receive them."""
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
