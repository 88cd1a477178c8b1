"""The sample of recorded Claude Code sessions, as a Mooncake trace with dependencies: `python -m tools.traces agents`.

Sessions are drawn at random, without replacement, of those whose longest prompt is at most `LONGEST` tokens. They begin
by a Poisson process, `PER_HOUR` an hour; the trace ends after `HOURS`. Pauses are cut to `LONGEST_PAUSE`. Each request
has Mooncake's four fields, and those that a closed loop needs:

    session_id  conversation; a sub-agent's is "<parent>.<number>"
    id          number of the request, in the order of the file
    turn        number of the request within its session
    after       ids of the requests that must have ended before this one starts
    delay       milliseconds from the last of these ends to the start
    kind        "start", "tool" (the new input is a tool's result), or "user"
    parent      session of the agent that started this one

`timestamp` is an open-loop schedule: each request takes as long as in the recording, or as on an idle engine, whichever
is longer.

A recording names blocks of 64 tokens. Eight in a row, with all before them, become one id of 512. Sessions of one model
whose tool definitions have equally many tokens share the blocks that these fill.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SESSIONS, WITH_SUBAGENTS, SEED = 100, 6, 1
PER_HOUR, HOURS = 48.0, 2.5
LONGEST, LONGEST_PAUSE = 262_144, 600.0  # tokens, seconds
SMALL, PER_BLOCK = 64, 8
BLOCK = SMALL * PER_BLOCK
PREFILL_RATE, TOKEN_TIME, OVERHEAD = 7_400.0, 0.036, 0.1  # of an idle engine

LARGE_FILE = 4 << 20
"""Size of a file, in bytes, from which it is left out, as in the copy behind the published figures."""

USABLE = 710
"""Recordings that are left of the 739 published."""

Recording = dict[str, Any]


def read(folder: Path) -> dict[str, Recording]:
    """The recordings in a folder by name.

    Raises:
        ValueError: There is none, or one is not a recording.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.stat().st_size >= LARGE_FILE:
            continue
        try:
            recording = json.loads(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if not isinstance(recording, dict) or not {"requests", "block_size", "models", "tool_tokens"} <= set(recording):
            raise ValueError(f"{path}: not a recorded session: it lacks requests, block_size, models or tool_tokens")
        found[path.stem] = recording
    if not found:
        raise ValueError(f"{folder} has no .json file")
    return found


def make(recordings: dict[str, Recording], sessions: int = SESSIONS, with_subagents: int = WITH_SUBAGENTS) -> str:
    """The trace, a request a line."""
    usable = {name: each for name, each in recordings.items() if _is_usable(each)}
    rng = random.Random(SEED)
    nested = sorted(name for name, each in usable.items() if any("requests" in it for it in each["requests"]))
    plain = sorted(set(usable) - set(nested))
    chosen = rng.sample(nested, min(with_subagents, len(nested)))
    chosen += rng.sample(plain, min(sessions - len(chosen), len(plain)))
    rng.shuffle(chosen)
    schedule, begin = _Schedule(), 0.0
    for name in chosen:
        begin += rng.expovariate(PER_HOUR / 3600)
        schedule.add(name, usable[name], begin)
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in _renumbered(schedule.rows))


def _is_usable(recording: Recording) -> bool:
    """True if the session has blocks of 64 tokens, and no prompt that is too long."""
    requests = [it for each in recording["requests"] for it in each.get("requests", [each])]
    return bool(recording["block_size"] == SMALL and max(it["in"] for it in requests) <= LONGEST)


def _renumbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows up to the end of the trace, numbered in their order."""
    rows = sorted(rows, key=lambda row: (row["timestamp"], row["id"]))
    rows = [row for row in rows if row["timestamp"] < HOURS * 3.6e6]
    order = {row["id"]: number for number, row in enumerate(rows)}
    blocks: dict[int, int] = {}
    for row in rows:
        row["id"] = order[row["id"]]
        row["after"] = sorted(order[other] for other in row["after"])
        row["hash_ids"] = [blocks.setdefault(block, len(blocks)) for block in row["hash_ids"]]
    return rows


@dataclass
class _Agent:
    """An agent whose requests are to be scheduled.

    Attributes:
        scope: The recorded session, within which names of blocks count.
        session: The name of its conversation.
        parent: The name of its parent's, if it has one.
        model: The model that it uses.
        tool_tokens: Tokens of its tools' definitions.
        requests: Its recorded requests.
        children: The sub-agents that it starts, by the position of the request before them.
    """

    scope: str
    session: str
    parent: str | None
    model: str
    tool_tokens: int
    requests: list[dict[str, Any]]
    children: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


class _Schedule:
    """The requests of all sessions, each with the time at which it would start."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._ids: dict[Any, int] = {}
        self._started: dict[str, int] = {}

    def add(self, name: str, recording: Recording, begin: float) -> None:
        """Add a session that begins at a time."""
        requests: list[dict[str, Any]] = []
        children: dict[int, list[dict[str, Any]]] = {}
        for each in recording["requests"]:
            if "requests" not in each:
                requests.append(each)
            elif requests:
                children.setdefault(len(requests) - 1, []).append(each)
        model = (recording["models"] or ["?"])[0]
        self._run(_Agent(name, name, None, model, recording["tool_tokens"], requests, children), begin, [], begin)

    def _blocks(self, agent: _Agent, request: dict[str, Any]) -> list[int]:
        """Ids of the 512-token blocks that the prompt fills."""
        shared = agent.tool_tokens // SMALL
        tools, small = (agent.model, agent.tool_tokens), request["hash_ids"]
        ids, before = [], -1
        for number in range(request["in"] // BLOCK):
            places = range(number * PER_BLOCK, (number + 1) * PER_BLOCK)
            key = tuple((tools, place) if place < shared else (agent.scope, small[place]) for place in places)
            before = self._ids.setdefault((before, key), len(self._ids))
            ids.append(before)
        return ids

    def _run(self, agent: _Agent, start: float, after: list[int], delay: float) -> tuple[float, int]:
        """Schedule an agent's requests. Returns when the last ends, and its id."""
        now, ended, waiting = start, start, list(after)
        seen: set[int] = set()
        previous: dict[str, Any] | None = None
        for turn, request in enumerate(agent.requests):
            if previous is not None:
                ended, waiting, delay = self._pause(agent, turn, request, ended, waiting)
                now = ended + delay
            ids = self._blocks(agent, request)
            fresh = request["in"] - BLOCK * sum(block in seen for block in ids)
            seen.update(ids)
            follows_tool = "tool_result" in (request.get("input_types") or [])
            row = {
                "timestamp": round(now * 1000),
                "input_length": request["in"],
                "output_length": request["out"],
                "hash_ids": ids,
                "session_id": agent.session,
                "id": len(self.rows),
                "turn": turn,
                "after": waiting,
                "delay": round(delay * 1000),
                "kind": "start" if previous is None else "tool" if follows_tool else "user",
            }
            if agent.parent is not None:
                row["parent"] = agent.parent
            self.rows.append(row)
            idle = OVERHEAD + fresh / PREFILL_RATE + request["out"] * TOKEN_TIME
            ended = now + max(request.get("api_time") or 0.0, idle)
            waiting, previous = [row["id"]], request
        return ended, waiting[-1]

    def _pause(
        self, agent: _Agent, turn: int, request: dict[str, Any], ended: float, waiting: list[int]
    ) -> tuple[float, list[int], float]:
        """The wait before a request: the end of the requests it waits for, their ids, and the pause after them."""
        previous = agent.requests[turn - 1]
        gap = request["t"] - previous["t"]
        spent = previous.get("api_time")
        if spent is None:
            spent = max(0.0, gap - (request.get("think_time") or 0.0))
        # When one started in the background ended is not recorded.
        children = [each for each in agent.children.get(turn - 1, []) if each.get("duration_ms") is not None]
        if not children:
            return ended, waiting, min(max(0.05, gap - spent), LONGEST_PAUSE)
        begun = ended
        for child in children:
            number = self._started[agent.session] = self._started.get(agent.session, 0) + 1
            # `t` of a sub-agent is its end.
            late = max(0.05, child["t"] - child["duration_ms"] / 1000 - previous["t"] - spent)
            model = (child["models"] or [agent.model])[0]
            name = f"{agent.session}.{number}"
            own = [each for each in child["requests"] if "requests" not in each]
            its = _Agent(agent.scope, name, agent.session, model, child["tool_tokens"], own)
            end, last = self._run(its, begun + late, [waiting[-1]], late)
            ended = max(ended, end)
            waiting = [*waiting, last]
        pause = max(0.2, request["t"] - max(child["t"] for child in children))
        return ended, waiting[1:], min(pause, LONGEST_PAUSE)
