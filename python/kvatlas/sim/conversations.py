"""Generated workload of clients that each hold one conversation after another, as load generators do.

Each client sends a request, waits for the whole answer and sends the next request at once; when a conversation is over,
the client begins another. So the number of requests in progress is constant, and a slow fleet receives fewer requests.
A prompt consists of a part shared by all conversations, a part of its own conversation, and all messages and answers so
far.

The form is taken from the conversation replays of `inference-perf` (github.com/kubernetes-sigs/inference-perf, its
workload catalog), with which llm-d publishes its routing results. A trace has blocks of 512 tokens and names, for each
request, the requests that must end before it starts; start times are those on idle engines. The seed determines the
whole trace.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np

from kvatlas.errors import ConfigError
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.hardware import idle_seconds
from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Length:
    """Distribution of a length in tokens: log-normal or exponential, cut to a minimum and a maximum.

    Attributes:
        mean: Mean before lengths are cut.
        deviation: Standard deviation before lengths are cut; 0 if all are equal, None for an exponential distribution.
        least: Minimum length.
        most: Maximum length.
    """

    mean: float
    deviation: float | None
    least: int
    most: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean > 0):
            raise ConfigError(f"the mean of a length must be above 0, got {self.mean}")
        if self.deviation is not None and not (math.isfinite(self.deviation) and self.deviation >= 0):
            raise ConfigError(f"the deviation of a length must not be negative, got {self.deviation}")
        if not 0 <= self.least <= self.most:
            raise ConfigError(f"a length must have 0 <= least <= most, got {self.least} and {self.most}")

    def draw(self, random: np.random.Generator) -> int:
        """Draw a length, in tokens, from the distribution."""
        if self.deviation is None:
            value = float(random.exponential(self.mean))
        else:
            variance = math.log1p((self.deviation / self.mean) ** 2)
            value = float(random.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance)))
        return min(max(round(value), self.least), self.most)


@dataclass(frozen=True, slots=True)
class ConversationConfig:
    """Settings of a workload of conversations. Lengths are in tokens.

    Attributes:
        requests: Number of requests in the trace.
        seed: Seed of all random choices.
        clients: Number of clients, each with one request in progress.
        conversations: Number of different conversations, which clients hold in turn again and again; 0 if each is new.
        once: True if each of the `conversations` is held only once; clients then stop when all have begun.
        shared: Leading tokens that all prompts have in common.
        own: Tokens after the shared ones that all prompts of one conversation have in common.
        turns: Number of requests of a conversation.
        message: New tokens of each prompt, in addition to the previous answer.
        output: Tokens of an answer.
        pause: Milliseconds between an answer and the next turn of its conversation; None: there is no pause.
    """

    requests: int = 2_000
    seed: int = 0
    clients: int = 100
    conversations: int = 0
    once: bool = False
    shared: int = 0
    own: Length = Length(55_000, 30_000, 3_000, 100_000)
    turns: Length = Length(6, 4, 2, 20)
    message: Length = Length(1_500, 1_200, 100, 10_000)
    output: Length = Length(800, 800, 50, 4_000)
    pause: Length | None = None

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("seed", 0), ("clients", 1), ("conversations", 0), ("shared", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("turns", "message", "output"):
            if getattr(self, name).least < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name).least}")
        if self.once and not self.conversations:
            raise ConfigError("once needs conversations: without a number of them, each is new and held once already")


def code_generation(seed: int = 0) -> ConversationConfig:
    """Settings of llm-d's workload `code-generation` (its blog of 17 August 2026): long contexts, a few requests each.

    The blog gives means and limits, and 10 to 100 clients. The standard deviations of messages come from the catalog of
    `inference-perf`; the others are kvatlas' own choice. Sixteen engines of the default hardware are busy with 70
    clients; the contexts of 100 clients do not fit in their caches.
    """
    return ConversationConfig(seed=seed, clients=70)


def reasoning(seed: int = 0) -> ConversationConfig:
    """Settings of llm-d's workload `reasoning`: short prompts, very long answers.

    The sources are llm-d's blog of 17 August 2026 and the catalog of `inference-perf`. There are as many conversations
    as clients; each has one request and is held three times.
    """
    return ConversationConfig(
        requests=1_350,
        seed=seed,
        clients=450,
        conversations=450,
        shared=250,
        own=Length(1, 0, 0, 0),
        turns=Length(1, 0, 1, 1),
        message=Length(1_000, 800, 100, 5_000),
        output=Length(8_000, None, 500, 32_000),
    )


def document_questions(seed: int = 0) -> ConversationConfig:
    """The settings of llm-d's questions on documents, with which it publishes pulls (its blog of 15 August 2026).

    192 conversations of six short turns, each on a document of 48 K tokens of its own, 128 of them at once, with a
    pause of one to two seconds between turns, as in the profile `guide_p2p-kv-cache-sharing_1` of its benchmarks. The
    published runs have 14 or 16 engines, each with room for 1.22 M tokens on the device and 88 GiB of host memory.
    """
    return ConversationConfig(
        requests=1_152,
        seed=seed,
        clients=128,
        conversations=192,
        once=True,
        shared=256,
        own=Length(48 * 1_024, 0, 0, 48 * 1_024),
        turns=Length(6, 0, 6, 6),
        message=Length(256, 0, 256, 256),
        output=Length(256, 0, 256, 256),
        pause=Length(1_000, 1_000, 1_000, 2_000),
    )


def generate_conversations(config: ConversationConfig | None = None) -> Trace:
    """Generate a trace of exactly `config.requests` requests, or fewer if all conversations are over before."""
    made = _Generator(config or ConversationConfig())
    return made.trace()


@dataclass(slots=True)
class _Conversation:
    """Conversation that clients may hold repeatedly: prompt tokens, block ids and output tokens of each turn."""

    name: str
    turns: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)  # tokens, ids, output


class _Generator:
    def __init__(self, config: ConversationConfig) -> None:
        self.config = config
        self.random = np.random.default_rng(config.seed)
        self._ids = itertools.count()
        self._names = itertools.count()
        self._shared = tuple(next(self._ids) for _ in range(config.shared // TRACE_BLOCK))
        self._again = [self._conversation() for _ in range(config.conversations)]

    def trace(self) -> Trace:
        config, random = self.config, self.random
        rows: list[TraceRequest] = []
        # For each client: time of the next turn, remaining turns and name of the conversation, last request, pause.
        free = [(1_000 * float(random.random()), client) for client in range(config.clients)]
        left: list[list[tuple[int, tuple[int, ...], int]]] = [[] for _ in free]
        names = [""] * len(free)
        last: list[int | None] = [None] * len(free)
        pauses = [0] * len(free)  # milliseconds from the last request's end to the next turn
        held = itertools.count()
        while free and len(rows) < config.requests:
            free.sort(reverse=True)
            now, client = free.pop()
            if not left[client]:
                number = next(held)
                if config.once and number >= config.conversations:
                    continue
                one = self._again[number % config.conversations] if self._again else self._conversation()
                left[client] = list(one.turns)
                names[client] = f"{one.name}.{number}"
            tokens, ids, output = left[client].pop(0)
            before = last[client]
            after = () if before is None else (Dependency(before, pauses[client]),)
            last[client] = len(rows)
            rows.append(TraceRequest(round(now), tokens, output, ids, names[client], len(rows), after))
            pauses[client] = config.pause.draw(random) if config.pause is not None and left[client] else 0
            free.append((now + 1_000 * idle_seconds(tokens, output) + pauses[client], client))
        first = min(line.timestamp for line in rows)
        rows = [replace(line, timestamp=line.timestamp - first) for line in rows]
        facts = {"conversations": float(len({line.session_id for line in rows}))}
        return Trace(rows, name=f"conversations (seed {config.seed})", facts=facts)

    def _conversation(self) -> _Conversation:
        config, random = self.config, self.random
        made = _Conversation(f"c{next(self._names)}")
        tokens, ids = config.shared + config.own.draw(random), list(self._shared)
        for _ in range(config.turns.draw(random)):
            tokens += config.message.draw(random)
            ids += (next(self._ids) for _ in range(tokens // TRACE_BLOCK - len(ids)))
            output = config.output.draw(random)
            made.turns.append((tokens, tuple(ids), output))
            tokens += output
        return made
