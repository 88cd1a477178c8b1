"""Reader of recorded Claude Code sessions as published by github.com/callanjfox/kv-cache-tester: a JSON object each.

An object has the session's requests with the lengths of prompts and answers, ids of the prompt's full blocks (with
`prefix_len`, only the blocks after those of the previous request), and times from the session's start; requests of
sub-agents are nested in an entry of their own. Four properties are not recorded, and are assumed:

- The starts of sessions follow a Poisson process.
- What sessions have in common: ids are private to a session, unless `hash_id_scope` is `global`. Sessions of one model
  whose tool definitions have equally many tokens are taken to share the blocks that these fill.
- Answers without a recorded duration take as long as on an idle engine.
- A sub-agent's entry has its end as `t`: it began `duration_ms` before. Those without a duration are left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvatlas._text import count, counted
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Ids, Traffic, make_trace
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.hardware import idle_seconds
from kvatlas.sim.increments import FIELD as PREFIX
from kvatlas.sim.increments import prefix_blocks
from kvatlas.sim.trace import TraceRequest

_LEAST_PAUSE = 0.05  # seconds


def read_sessions(
    sessions: Iterable[tuple[str, Mapping[str, Any]]], how: Conversion, *, name: str, where: str
) -> Traffic:
    """Combine named sessions into a trace. Raises `TraceError`."""
    chance = random.Random(how.seed)
    bad = BadRows(where, how.skip_bad)
    made = _Sessions(how)
    begin = 0.0
    read = 0
    for number, (session, data) in enumerate(sessions, 1):
        begin += chance.expovariate(how.session_rate / 3600)
        try:
            made.add(session, data, begin)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            bad.add(number, TraceError(f"session {session}: {what}"))
            continue
        read += 1
    trace = make_trace(made.rows, name, made.block or 64, where, bad)
    assumptions = [
        (
            f"{counted(read, 'session')} begin by a Poisson process, {how.session_rate:g} an hour (--session-rate); "
            f"pauses are cut to {how.longest_pause:g} s (--longest-pause)."
        ),
        "Sessions with equally many tokens of tools and the same model share the blocks that these fill.",
    ]
    if made.left_out:
        assumptions.append(f"{count(made.left_out)} sub-agents without a duration were left out.")
    return Traffic(trace, "claude-code", assumptions)


@dataclass(slots=True)
class _Sessions:
    """Scheduler of the requests of recorded sessions."""

    how: Conversion
    rows: list[tuple[float, TraceRequest]] = field(default_factory=list)
    block: int = 0
    left_out: int = 0
    _ids: Ids = field(default_factory=Ids)
    _agents: int = 0

    def add(self, name: str, data: Mapping[str, Any], begin: float) -> None:
        """Add a session that begins at `begin` seconds. A malformed session is left out as a whole."""
        size = int(data["block_size"])
        if not isinstance(data["requests"], list) or size < 1:
            raise ValueError("requests must be a list, and block_size a number from 1")
        if self.block and size != self.block:
            raise ValueError(f"its blocks have {size} tokens, those before {self.block}")
        kept = len(self.rows)
        self._agents = 0
        model = str((data.get("models") or ["?"])[0])
        if self.how.model is not None and model != self.how.model:
            return
        self.block = size
        try:
            self._run(name, name, data, model, data["requests"], begin, ())
        except Exception:
            del self.rows[kept:]
            raise

    def _run(
        self,
        scope: str,
        session: str,
        data: Mapping[str, Any],
        model: str,
        requests: Sequence[Mapping[str, Any]],
        begin: float,
        after: tuple[Dependency, ...],
    ) -> tuple[float, int]:
        """Schedule the requests of one agent. Returns the end of the last request, in seconds, and its id."""
        own = [request for request in requests if "requests" not in request]
        children: dict[int, list[Mapping[str, Any]]] = {}
        place = -1
        for request in requests:
            if "requests" in request:
                children.setdefault(place, []).append(request)
            else:
                place += 1
        now, ended, seen = begin, begin, set[int]()
        whole: Sequence[int] = ()  # the previous prompt's ids, in the session's numbering
        name = -1
        for turn, request in enumerate(own):
            if turn:
                before = own[turn - 1]
                gap = float(request["t"]) - float(before["t"])
                spent = before.get("api_time")
                if spent is None:
                    spent = max(gap - float(before.get("think_time") or 0.0), 0.0)
                pause, waits = max(gap - spent, _LEAST_PAUSE), [name]
                agents = [child for child in children.get(turn - 1, ()) if child.get("duration_ms") is not None]
                self.left_out += len(children.get(turn - 1, ())) - len(agents)
                if agents:
                    waits = []
                    pause = max(float(request["t"]) - max(float(child["t"]) for child in agents), _LEAST_PAUSE)
                    start = ended
                    for child in agents:
                        late = float(child["t"]) - float(child["duration_ms"]) / 1000 - float(before["t"]) - spent
                        late = min(max(late, _LEAST_PAUSE), self.how.longest_pause)
                        self._agents += 1
                        its = str((child.get("models") or [model])[0])
                        waited = (Dependency(name, round(1000 * late)),)
                        end, last = self._run(
                            scope, f"{scope}.{self._agents}", data, its, child["requests"], start + late, waited
                        )
                        ended = max(ended, end)
                        waits.append(last)
                pause = min(pause, self.how.longest_pause)
                now = ended + pause
                after = tuple(Dependency(each, round(1000 * pause)) for each in waits)
            prompt, output = int(request["in"]), int(request["out"])
            given = list(map(int, request["hash_ids"]))
            if request.get(PREFIX) is not None:
                given = [*whole[: prefix_blocks(request[PREFIX], whole, given, prompt, self.block)], *given]
            whole = given
            space = "" if data.get("hash_id_scope") == "global" else scope
            ids = self._names(space, model, int(data.get("tool_tokens") or 0), given, prompt)
            fresh = prompt - self.block * sum(each in seen for each in ids)
            seen.update(ids)
            name = len(self.rows)
            self.rows.append((now, TraceRequest(0, max(prompt, 1), output, ids, session, name, after)))
            ended = now + max(float(request.get("api_time") or 0.0), idle_seconds(fresh, output))
        return ended, name

    def _names(self, scope: str, model: str, tools: int, ids: Sequence[int], prompt: int) -> tuple[int, ...]:
        shared, full = tools // self.block, prompt // self.block
        if len(ids) < full:
            raise ValueError(f"{len(ids)} hash_ids for a prompt of {prompt} tokens")
        return tuple(
            self._ids.of((model, tools, place) if scope and place < shared else (scope, value))
            for place, value in enumerate(ids[:full])
        )
