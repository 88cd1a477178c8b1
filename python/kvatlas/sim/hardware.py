"""Duration of an engine's step, with constants measured on some machines.

One step computes one token for every decoding request and some tokens of prompts:

    time = base + prefill · prompt tokens + running · requests in the step + context · tokens of KV read
           + attention · pairs of a prompt token and a token before it

The constants are a least-squares fit (of relative errors, over all points together) to published measurements: the
profiling data of Splitwise (Patel et al., ISCA 2024; github.com/Mutinifni/splitwise-sim, data/perf_model.csv, commit
3780880): Llama-2-70B in FP16 under vLLM, means of five runs with prompts of 128 to 2,048 tokens and with decoding
batches of 1 to 64 requests at about 576 tokens of context. The fit is within 20 % of each point (31 % for prompts of
128 tokens on eight accelerators), and mostly within 7 %.

These measurements hardly vary the context (8,192 tokens add at most a millisecond), so `context` is not fitted but
computed: the time to read the KV, 327,680 bytes per token, at 60 % of the accelerators' memory bandwidth.

The constants of `gpt-oss-h200` (gpt-oss-120b on one H200) and `glm-5.2-h200` (GLM-5.2 in FP8 on eight H200, wide expert
parallel) are fitted to the times in which engines recomputed prompts in llm-d's comparisons with pulls (2 to 48 K and 8
to 98 K tokens; within 1.4 %): `prefill`, and `attention`, which is twice the fit's square term. The speed of decoding
was not published for these: `base` and `running` are assumed, and `context` is computed as above from 36,864 and 93,000
bytes per token. Use steps of 8,192 tokens with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kvatlas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepTime:
    """Constants of a step's duration, in seconds.

    Attributes:
        base: Constant part of every step.
        prefill: Additional time for each computed prompt token.
        running: Additional time for each request in the step.
        context: Additional time for each token of KV that the step reads.
        attention: Additional time for each pair of a prompt token in the step and an earlier token of the same prompt.
    """

    base: float = 0.0294
    prefill: float = 77.2e-6
    running: float = 281e-6
    context: float = 41e-9
    attention: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{f.name} must be a number of seconds, not below 0, got {value}")
        if self.base + self.running <= 0:
            raise ConfigError("a step must take time: base or running must be above 0")

    def of(self, prompt_tokens: int, requests: int, context_tokens: float, pairs: float = 0.0) -> float:
        """Duration of one step, in seconds.

        `requests`: number of requests in the step. `pairs`: number of pairs of a prompt token in the step and an
        earlier token of the same prompt.
        """
        linear = self.base + self.prefill * prompt_tokens + self.running * requests + self.context * context_tokens
        return linear + self.attention * pairs

    def slower(self, factor: float) -> StepTime:
        """Constants of a slower machine: each constant is `factor` times as large."""
        return StepTime(*(getattr(self, f.name) * factor for f in fields(self)))


HARDWARE: dict[str, StepTime] = {
    "h100x4": StepTime(),
    "h100x8": StepTime(0.0314, 51.8e-6, 251e-6, 20e-9),
    "a100x4": StepTime(0.0428, 170.0e-6, 373e-6, 67e-9),
    "a100x8": StepTime(0.0440, 107.5e-6, 366e-6, 33e-9),
    "gpt-oss-h200": StepTime(0.008, 24.6e-6, 100e-6, 13e-9, 0.624e-9),
    "glm-5.2-h200": StepTime(0.030, 124e-6, 200e-6, 4e-9, 0.330e-9),
}
"""Constants of machines, by name: Llama-2-70B in FP16 on four or eight 80 GB accelerators, and two other models."""


def idle_seconds(uncached: int, output: int) -> float:
    """Approximate seconds that an idle engine of the default hardware needs for a request, in steps of 512 tokens."""
    return uncached / 7_400 + output * 0.036


def find_hardware(name: str) -> StepTime:
    """Find the constants of a machine by name. Raises `ConfigError`, with the known names, for an unknown name."""
    try:
        return HARDWARE[name]
    except KeyError:
        raise ConfigError(f"no hardware {name!r}: there is {', '.join(HARDWARE)}") from None
