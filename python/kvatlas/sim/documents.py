"""Generated workload of questions about long documents, each question in a prompt of its own.

The seed determines the whole trace.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields

import numpy as np

from kvatlas.errors import ConfigError
from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class DocumentConfig:
    """Settings of a workload of questions on documents.

    Attributes:
        requests: Number of requests.
        seed: Seed of all random choices.
        request_rate: Questions per second, by a Poisson process.
        documents: Number of documents, all equally popular.
        document: Length of each document, in tokens.
        question: Median length of a question, in tokens (log-normal).
        output: Median length of an answer, in tokens (log-normal).
        spread: Standard deviation of the logarithm of the lengths of questions and answers; 0 if all are equal.
        variants: Number of different questions on each document, asked again and again; 0 if each question is new.
    """

    requests: int = 1_500
    seed: int = 0
    request_rate: float = 3.0
    documents: int = 192
    document: int = 48 * 1_024
    question: int = 100
    output: int = 150
    spread: float = 0.6
    variants: int = 0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{f.name} must not be negative, got {value}")
        if not self.request_rate > 0:
            raise ConfigError(f"request_rate must be above 0, got {self.request_rate}")
        for name in ("requests", "documents", "document", "question", "output"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


def generate_documents(config: DocumentConfig | None = None) -> Trace:
    """Generate a trace of exactly `config.requests` questions on documents."""
    config = config or DocumentConfig()
    random = np.random.default_rng(config.seed)
    times = np.cumsum(random.exponential(1_000 / config.request_rate, config.requests))
    chosen = random.integers(config.documents, size=config.requests)
    asked = random.integers(config.variants, size=config.requests) if config.variants else np.arange(config.requests)
    different = config.documents * config.variants or config.requests
    questions = _lengths(random, config.question, different, config.spread)
    outputs = _lengths(random, config.output, config.requests, config.spread)
    blocks = config.document // TRACE_BLOCK
    free = itertools.count(config.documents * blocks)
    known: dict[tuple[int, int], tuple[int, ...]] = {}  # ids of the blocks of a document with a question behind it
    requests = []
    for at, document, question, output in zip(times, chosen, asked, outputs, strict=True):
        key = int(document), int(question)
        tokens = config.document + int(questions[key[0] * config.variants + key[1] if config.variants else key[1]])
        if key not in known:
            shared = range(key[0] * blocks, (key[0] + 1) * blocks)
            known[key] = (*shared, *itertools.islice(free, tokens // TRACE_BLOCK - blocks))
        requests.append(TraceRequest(round(float(at - times[0])), tokens, int(output), known[key]))
    return Trace(requests, name=f"documents (seed {config.seed})", facts={"documents": float(config.documents)})


def _lengths(random: np.random.Generator, median: int, count: int, spread: float) -> np.ndarray:
    """Draw `count` log-normal lengths, in tokens, with the median `median`."""
    return np.maximum(random.lognormal(math.log(median), spread, count).round(), 1)
