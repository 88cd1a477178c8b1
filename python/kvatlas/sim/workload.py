"""Generated workload that resembles a day of an LLM service: chats, shared system prompts, agents.

Sessions begin by a Poisson process. Each session belongs to an application, picked by Zipf's law, whose system prompt
opens every prompt. Many sessions also use one of the application's documents (a repository, a manual, a case), again
picked by Zipf's law.

- A **chat** goes on for a few turns, with time to think between them; every turn sends the whole conversation again.
- An **agent** works in a loop: it sends its growing context again with every tool result, a second or two apart.

The result is a trace in blocks of 512 tokens, in the format that `kvatlas.sim.trace` reads. The seed determines the
whole trace.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, fields

import numpy as np

from kvatlas.errors import ConfigError
from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """Settings of a workload of chats and agents.

    Lengths are medians in tokens (log-normal); times are means in seconds (exponential).
    """

    requests: int = 4_000
    seed: int = 0
    request_rate: float = 6.0  # requests a second
    agents: float = 0.1  # share of the sessions that are agents

    apps: int = 24
    documents: int = 40  # of each application
    zipf: float = 1.1  # popularity of the k-th: 1 / k**zipf
    with_document: float = 0.3  # share of the sessions that open one

    system_prompt: int = 1_500
    document: int = 4_000
    message: int = 800  # what a chat's user adds in a turn
    tool_result: int = 700  # what an agent's tool adds in a step
    chat_output: int = 300
    agent_output: int = 120
    chat_turns: float = 4.0  # mean, geometric
    agent_steps: float = 12.0
    think: float = 120.0  # between an answer and the next question
    tool: float = 2.0  # how long a tool takes
    longest: int = 100_000  # tokens; a session that would pass this ends
    decode_rate: float = 30.0  # tokens a second, to know when an answer is complete
    warm_up: float = 900.0  # seconds that pass before the trace begins, so that sessions are under way

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{f.name} must not be negative, got {value}")
        for name in (
            "requests",
            "apps",
            "documents",
            "system_prompt",
            "document",
            "message",
            "tool_result",
            "chat_output",
            "agent_output",
            "chat_turns",
            "agent_steps",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("request_rate", "decode_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("agents", "with_document"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} must be from 0 to 1, got {getattr(self, name)}")


# One part of a prompt that others may share: who wrote it, and where it ends in the prompt.
_Segment = tuple[tuple[int, ...], int]


@dataclass(slots=True)
class _Session:
    number: int
    agent: bool
    shared: list[_Segment]  # the system prompt, the document
    tokens: int  # context so far
    turns: int  # still to come


class _Generator:
    def __init__(self, config: WorkloadConfig) -> None:
        self.config = config
        self.random = np.random.default_rng(config.seed)
        self._ids: dict[tuple[tuple[int, ...], int], int] = {}
        self._next_id = 0
        self._app_popularity = _zipf(config.apps, config.zipf)
        self._document_popularity = _zipf(config.documents, config.zipf)
        self._system_prompts = [self.length(config.system_prompt, 0.7) for _ in range(config.apps)]
        self._documents: dict[tuple[int, int], int] = {}

    def length(self, median: float, sigma: float) -> int:
        """Draw a log-normal number of tokens, at least 1. `sigma`: standard deviation of the logarithm."""
        return max(1, round(float(self.random.lognormal(math.log(median), sigma))))

    def session(self, number: int) -> _Session:
        """Draw the kind, shared parts and number of requests of a new session, which has no requests yet."""
        config, random = self.config, self.random
        agent = bool(random.random() < config.agents)
        app = int(random.choice(config.apps, p=self._app_popularity))
        tokens = self._system_prompts[app]
        shared: list[_Segment] = [((app,), tokens)]
        if random.random() < config.with_document:
            document = int(random.choice(config.documents, p=self._document_popularity))
            if (app, document) not in self._documents:
                self._documents[app, document] = self.length(config.document, 0.8)
            tokens += self._documents[app, document]
            shared.append(((app, document), tokens))
        turns = int(random.geometric(1 / (config.agent_steps if agent else config.chat_turns)))
        return _Session(number, agent, shared, tokens, turns)

    def turn(self, session: _Session) -> tuple[int, int, tuple[int, ...]] | None:
        """Next request of a session: prompt tokens, output tokens and block ids; None if the prompt is too long."""
        config = self.config
        session.tokens += self.length(config.tool_result if session.agent else config.message, 1.2)
        output = self.length(config.agent_output if session.agent else config.chat_output, 0.8)
        if session.tokens + output > config.longest:
            return None
        prompt = session.tokens
        ids = [self._id(session, block) for block in range(prompt // TRACE_BLOCK)]
        if prompt % TRACE_BLOCK:
            ids.append(self._new_id())  # a partial block is like no other
        session.tokens += output
        session.turns -= 1
        return prompt, output, tuple(ids)

    def pause(self, session: _Session, output: int) -> float:
        """Draw the seconds from a session's request with `output` tokens to the next request."""
        wait = self.config.tool if session.agent else self.config.think
        return output / self.config.decode_rate + float(self.random.exponential(wait))

    def _id(self, session: _Session, block: int) -> int:
        """Id of a full block: shared with other sessions if the block lies in a shared part of the prompt."""
        end = (block + 1) * TRACE_BLOCK
        owner = next((key for key, stop in session.shared if end <= stop), (-1, session.number))
        key = (owner, block)
        if key not in self._ids:
            self._ids[key] = self._new_id()
        return self._ids[key]

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def generate(config: WorkloadConfig | None = None) -> Trace:
    """Generate a trace of exactly `config.requests` requests of chats and agents."""
    config = config or WorkloadConfig()
    made = _Generator(config)
    per_session = config.agents * config.agent_steps + (1 - config.agents) * config.chat_turns
    between = per_session / config.request_rate
    requests: list[TraceRequest] = []
    # Everything that will happen: (time, order, session), None where a new session begins.
    agenda: list[tuple[float, int, _Session | None]] = [(float(made.random.exponential(between)), 0, None)]
    order = sessions = turns_of_agents = too_long = 0
    started: set[int] = set()
    while len(requests) < config.requests:
        now, _, session = heapq.heappop(agenda)
        if session is None:
            order += 1
            heapq.heappush(agenda, (now + float(made.random.exponential(between)), order, None))
            session = made.session(sessions)
            sessions += 1
        turn = made.turn(session)
        if turn is None:
            too_long += 1
            if too_long > 10_000 and too_long > 10 * len(requests):
                raise ConfigError(f"longest is too small: hardly any session fits in {config.longest} tokens")
            continue
        prompt, output, ids = turn
        if now >= config.warm_up:
            when = round((now - config.warm_up) * 1000)
            requests.append(TraceRequest(when, prompt, output, ids, session.number))
            started.add(session.number)
            turns_of_agents += session.agent
        if session.turns:
            order += 1
            heapq.heappush(agenda, (now + made.pause(session, output), order, session))
    facts = {
        "sessions": float(len(started)),
        "turns_per_session": len(requests) / len(started),
        "agent_requests": turns_of_agents / len(requests),
    }
    return Trace(requests, name=f"generated (seed {config.seed})", facts=facts)


def _zipf(count: int, exponent: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent
    weights /= weights.sum()
    return weights
