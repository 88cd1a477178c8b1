"""Reader of Claude Code's own session logs: `.jsonl` files below `~/.claude/projects`.

An entry is a message with the API's token counts; an answer has several entries. The system prompt and the tools are
not logged, but the number of tokens read from the provider's cache is. So the following rules apply:

- The length of a prompt is the sum of `input_tokens`, `cache_read_input_tokens` and `cache_creation_input_tokens`.
- A prompt begins with the prompt of the previous answer in the chain of `parentUuid`: with all of it, or with as many
  tokens as were read from the cache, if the cache cannot have evicted the rest yet. A prompt that is shorter than the
  previous one has lost some part, and begins with the tokens that were read from the cache.
- The first prompts of sessions and agents begin with the same tokens, as far as they were read from the cache.
- A request begins when the message that it answers was written, and ends when the last part of its answer was.
- Files of resumed sessions repeat entries of earlier ones: an answer counts once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas._text import count, counted
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Ids, Traffic, go_on, make_trace
from kvatlas.lab.traffic.turns import Turn, link_turns
from kvatlas.sim.times import parse_date
from kvatlas.sim.trace import TraceRequest

_BLOCK = 64  # tokens
_REMEMBERED = 300.0  # seconds that the provider's cache keeps a prompt at least
_PARTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


@dataclass(slots=True)
class _Answer:
    """Answer of the API, with one entry for each content block. Times are in seconds."""

    at: float
    end: float
    session: str
    agent: bool
    model: str
    before: _Answer | None  # the answer before it in its conversation
    parts: dict[str, int] = field(default_factory=dict)
    output: int = 0

    @property
    def prompt(self) -> int:
        return sum(self.parts.values())

    @property
    def read(self) -> int:
        """Number of prompt tokens that were read from the provider's cache."""
        return self.parts.get("cache_read_input_tokens", 0)

    @property
    def shared(self) -> int:
        """Number of tokens that the prompt shares with the prompt of the previous answer."""
        if self.before is None:
            return 0
        fresh = 0 < self.read < self.before.prompt and self.at - self.before.end <= _REMEMBERED
        return self.read if fresh or self.prompt < self.before.prompt else self.before.prompt


def read_logs(files: Iterable[tuple[str, Iterable[str]]], how: Conversion, *, name: str, where: str) -> Traffic:
    """Read Claude Code's logs from the lines of named files. Raises `TraceError`."""
    logs = _Logs(BadRows(where, how.skip_bad))
    for file, lines in files:
        logs.bad.where = file
        for number, line in enumerate(lines, 1):
            if line.strip():
                logs.take(number, line)
    answers = [each for each in logs.answers.values() if how.model in (None, each.model)]
    told = [each for each in answers if each.prompt]
    block = how.block or _BLOCK
    rows = link_turns(_turns(told, block), how.longest_pause)
    trace = make_trace(rows, name, block, where, logs.bad)
    sessions = len({each.session for each in told})
    assumptions = [
        (
            f"{counted(sessions, 'session')}, agents among them: a prompt begins with the one before it, and first "
            "prompts begin alike, as far as the provider's cache knew them. Pauses are cut to "
            f"{how.longest_pause:g} s (--longest-pause)."
        ),
    ]
    if len(told) < len(answers):
        assumptions.append(f"{count(len(answers) - len(told))} answers without tokens, such as errors, were left out.")
    return Traffic(trace, "claude-logs", assumptions)


class _Logs:
    """Answers in logs, by their ids."""

    def __init__(self, bad: BadRows) -> None:
        self.bad = bad
        self.answers: dict[str, _Answer] = {}
        # By entry: when it was written, the last answer up to it, and the first entry of its conversation.
        self._entries: dict[str, tuple[float, _Answer | None, str]] = {}

    def take(self, number: int, line: str) -> None:
        """Add a line of a log to the answers."""
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise TraceError(f"an object was expected, not {line.strip()[:20]!r}")
            if isinstance(entry.get("uuid"), str):
                self._take_entry(entry)
        except TraceError as error:
            self.bad.add(number, error)
        except (ValueError, RecursionError):
            self.bad.add(number, TraceError("not JSON"))

    def _take_entry(self, entry: Mapping[str, Any]) -> None:
        own = entry["uuid"]
        text = entry.get("timestamp")
        at = parse_date(text) if isinstance(text, str) else None
        if at is None:
            raise TraceError(f"timestamp must be an ISO date, not {text!r:.40}")
        parent = self._entries.get(entry.get("parentUuid") or "")
        root = parent[2] if parent is not None else own
        answer = parent[1] if parent is not None else None
        message = entry.get("message")
        if entry.get("type") == "assistant" and isinstance(message, dict) and message.get("usage") is not None:
            answer = self._take_answer(entry, message, at, parent, root)
        if own not in self._entries:
            self._entries[own] = at, answer, root

    def _take_answer(
        self,
        entry: Mapping[str, Any],
        message: Mapping[str, Any],
        at: float,
        parent: tuple[float, _Answer | None, str] | None,
        root: str,
    ) -> _Answer:
        usage = message["usage"]
        if not isinstance(usage, dict):
            raise TraceError(f"message.usage must be an object, not {usage!r:.40}")
        parts = {name: _tokens(usage, name) for name in _PARTS}
        output = _tokens(usage, "output_tokens")
        key = str(message.get("id") or entry.get("requestId") or entry["uuid"])
        answer = self.answers.get(key)
        if answer is None:
            agent = bool(entry.get("isSidechain"))
            before = parent[1] if parent is not None else None
            if before is not None:
                session = before.session
            else:
                session = str(entry.get("sessionId") or "")
                if agent:
                    session += f"/{entry.get('agentId') or root}"
            begin = min(parent[0], at) if parent is not None else at
            answer = self.answers[key] = _Answer(begin, at, session, agent, str(message.get("model")), before)
        answer.end = max(answer.end, at)
        # The last of the entries has the final count.
        answer.output = max(answer.output, output)
        answer.parts = {name: max(parts[name], answer.parts.get(name, 0)) for name in _PARTS}
        return answer


def _tokens(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise TraceError(f"message.usage.{name} must be a whole number from 0, not {value!r:.40}")
    return value


def _turns(answers: list[_Answer], block: int) -> list[Turn]:
    """Convert answers to requests in order of time, with ids for their blocks of `block` tokens."""
    answers.sort(key=lambda each: each.at)
    # What first prompts of a kind have in common: as much as the cache had of one of them, at least.
    known: dict[tuple[str, bool], int] = {}
    for each in answers:
        if each.before is None:
            kind = each.model, each.agent
            known[kind] = max(known.get(kind, 0), each.read)
    ids, prompts = Ids(), dict[int, tuple[int, ...]]()
    made = []
    for each in answers:
        full = each.prompt // block
        if each.before is not None and id(each.before) in prompts:
            names = go_on(prompts[id(each.before)][: each.shared // block], full, ids)
        else:
            kind = each.model, each.agent
            alike = min((each.read or known.get(kind, 0)) // block, full)
            names = go_on([ids.of((kind, place)) for place in range(alike)], full, ids)
        prompts[id(each)] = names
        parent = each.session.partition("/")[0] if each.agent else None
        request = TraceRequest(0, each.prompt, each.output, names, each.session)
        made.append(Turn(each.at, max(each.end, each.at), request, parent))
    return made
