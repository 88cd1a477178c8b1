"""Generated workload of coding agents, with the lengths, pauses and sub-agents of recorded sessions.

A session begins with a prompt of tool definitions and instructions, which all sessions of the same kind share. Each
further request repeats the whole context and adds a tool's result or a person's text. Sometimes the context is
rewritten or compacted: then only the shared part remains. Sometimes a request starts sub-agents; they have tool
definitions of their own and run side by side, and the session continues when all sub-agents have ended.

The constants are taken from 710 recorded Claude Code sessions (github.com/callanjfox/kv-cache-tester, commit 94f6046),
except for sub-agents, which are rare in the recordings: a third of the sessions start some here. A trace has blocks of
512 tokens and names, for each request, the requests that must end before it starts; start times are those on idle
engines. The seed determines the whole trace.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from kvatlas.errors import ConfigError
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.hardware import idle_seconds
from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest

# Seconds from an answer to the next request, at quantiles.
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_TOOL = (2.0, 4.0, 5.4, 8.7, 19.3, 73.0, 168.0, 909.0, 3_600.0)
_PERSON = (5.0, 22.0, 58.0, 178.0, 635.0, 2_272.0, 3_600.0, 7_200.0, 14_400.0)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of a workload of agents. Lengths are medians in tokens (log-normal).

    Attributes:
        requests: Number of requests in the trace; later ones are left out.
        seed: Seed of all random choices.
        session_rate: Number of sessions that begin in an hour.
        kinds: Number of kinds of sessions; each has its own tools and instructions. The k-th is 1 / k as frequent as
            the first.
        tools: Tokens of the tools and instructions of a kind.
        first: Tokens of a session's first prompt after the tools and instructions.
        grown: New tokens of each further prompt, in addition to the previous answer.
        output: Tokens that each request generates.
        turns: Number of requests of a session.
        person: Share of the requests that wait for a person's text rather than for a tool's result.
        rewritten: Share of the requests after which the context behind the shared part is replaced by another one of
            equal length.
        compacted: Share of the requests after which the context is compacted.
        longest: Length of the context, in tokens, beyond which it is always compacted.
        longest_pause: Maximum pause, in seconds; longer ones are cut.
        with_agents: Share of the sessions that start sub-agents.
        agents: Mean number of sub-agents that start at the same time (geometric distribution).
        agent_turns: Number of requests of a sub-agent.
    """

    requests: int = 3_000
    seed: int = 0
    session_rate: float = 90.0
    kinds: int = 24
    tools: int = 15_100
    first: int = 9_400
    grown: int = 720
    output: int = 216
    turns: int = 45
    person: float = 0.055
    rewritten: float = 0.014
    compacted: float = 0.004
    longest: int = 200_000
    longest_pause: float = 600.0
    with_agents: float = 0.33
    agents: float = 3.0
    agent_turns: int = 11

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{f.name} must not be negative, got {value}")
        for name in ("requests", "kinds", "tools", "first", "grown", "output", "turns", "agents", "agent_turns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("person", "rewritten", "compacted", "with_agents"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if not self.session_rate > 0:
            raise ConfigError(f"session_rate must be above 0, got {self.session_rate}")
        if self.longest < 2 * (self.tools + self.first):
            raise ConfigError(f"longest must be at least {2 * (self.tools + self.first)} tokens, got {self.longest}")


@dataclass(slots=True)
class _Context:
    """Growing prompt of a session or a sub-agent."""

    shared: list[int]  # of tools and instructions
    ids: list[int] = field(default_factory=list)
    tokens: int = 0


def generate_agents(config: AgentConfig | None = None) -> Trace:
    """Generate a trace of exactly `config.requests` requests of coding agents."""
    config = config or AgentConfig()
    made = _Generator(config)
    begin = 0.0
    # Whole sessions are made, in the order of their beginnings, until no earlier request can follow.
    times: list[float] = []
    while len(times) < config.requests or begin < times[config.requests - 1]:
        begin += float(made.random.exponential(3_600 / config.session_rate))
        made.session(begin)
        times = sorted(at for at, _ in made.rows)
    rows = heapq.nsmallest(config.requests, made.rows, key=lambda row: (row[0], row[1].id))
    first = rows[0][0]
    requests = [
        TraceRequest(
            round(1_000 * (at - first)),
            line.input_length,
            line.output_length,
            line.hash_ids,
            line.session_id,
            line.id,
            line.after,
        )
        for at, line in rows
    ]
    sessions = {line.session_id for line in requests}
    parents = sum("." not in str(name) for name in sessions)
    facts = {
        "sessions": float(parents),
        "turns_per_session": len(requests) / parents,
        "sub_agents": float(len(sessions) - parents),
    }
    return Trace(requests, name=f"agents (seed {config.seed})", facts=facts)


class _Generator:
    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.random = np.random.default_rng(config.seed)
        self.rows: list[tuple[float, TraceRequest]] = []
        self._ids = itertools.count()
        self._names = itertools.count()
        weights = 1.0 / np.arange(1, config.kinds + 1)
        self._popularity = weights / weights.sum()
        self._tools = [self._new(self._length(config.tools, 0.4)) for _ in range(config.kinds)]
        # Sub-agents have fewer tools.
        self._agent_tools = [self._new(self._length(9_600, 0.2)) for _ in range(config.kinds)]

    def session(self, begin: float) -> None:
        """Generate a session that begins at `begin` seconds, with all of its requests and sub-agents."""
        config, random = self.config, self.random
        kind = int(random.choice(config.kinds, p=self._popularity))
        name = f"s{next(self._names)}"
        spawns = bool(random.random() < config.with_agents)
        context = _Context(self._tools[kind])
        self._reset(context, self._length(config.first, 1.0))
        now, children = begin, itertools.count(1)
        after: tuple[Dependency, ...] = ()
        for turn in range(self._length(config.turns, 0.96)):
            if turn:
                context.tokens += self._length(config.grown, 1.6)
                if context.tokens > config.longest or random.random() < config.compacted:
                    self._reset(context, self._length(config.first, 1.0))
                elif random.random() < config.rewritten:
                    context.ids = list(context.shared)
            ended, last = self._ask(name, context, now, after)
            waits = [last]
            if spawns and random.random() < 0.04:
                waits = []
                start = ended
                for _ in range(int(random.geometric(1 / config.agents))):
                    end, answer = self._agent(f"{name}.{next(children)}", kind, start, last)
                    ended = max(ended, end)
                    waits.append(answer)
            pause = self._pause(_PERSON if random.random() < config.person else _TOOL)
            now = ended + pause
            after = tuple(Dependency(each, round(1_000 * pause)) for each in waits)

    def _agent(self, name: str, kind: int, start: float, parent: int) -> tuple[float, int]:
        """Generate the requests of a sub-agent.

        Returns the end of the last answer, in seconds, and the id of the last request.
        """
        late = 0.2
        context = _Context(self._agent_tools[kind])
        self._reset(context, self._length(700, 0.5))
        now, after = start + late, (Dependency(parent, round(1_000 * late)),)
        ended, last = now, parent
        for turn in range(self._length(self.config.agent_turns, 0.45)):
            if turn:
                context.tokens += self._length(3_000, 1.2)
            ended, last = self._ask(name, context, now, after)
            pause = self._pause(_TOOL)
            now, after = ended + pause, (Dependency(last, round(1_000 * pause)),)
        return ended, last

    def _ask(self, session: str, context: _Context, now: float, after: Sequence[Dependency]) -> tuple[float, int]:
        """Add a request whose prompt is the context.

        Returns the end of the answer on an idle engine, in seconds, and the request's id.
        """
        full = context.tokens // TRACE_BLOCK
        fresh = full - len(context.ids)
        context.ids += self._new(fresh * TRACE_BLOCK)
        output = self._length(self.config.output, 1.11)
        name = len(self.rows)
        line = TraceRequest(0, context.tokens, output, tuple(context.ids), session, name, tuple(after))
        self.rows.append((now, line))
        context.tokens += output
        return now + 0.1 + idle_seconds(fresh * TRACE_BLOCK, output), name

    def _reset(self, context: _Context, more: int) -> None:
        """Reset a context to its shared part, followed by `more` tokens."""
        context.ids = list(context.shared)
        context.tokens = len(context.shared) * TRACE_BLOCK + min(more, self.config.longest // 2)

    def _new(self, tokens: int) -> list[int]:
        return [next(self._ids) for _ in range(tokens // TRACE_BLOCK)]

    def _length(self, median: int, sigma: float) -> int:
        return max(1, round(float(self.random.lognormal(math.log(median), sigma))))

    def _pause(self, quantiles: tuple[float, ...]) -> float:
        seconds = math.exp(np.interp(self.random.random(), _SHARES, np.log(quantiles)))
        return min(seconds, self.config.longest_pause)
