"""Reader of logs of OpenAI's API: JSON lines, each with a request and, if it was logged, its answer.

The request is the whole object, or its field `request`, `body` or `input`; the answer is in `response` or `output`.
Requests are chats (`messages`), completions (`prompt`, as text or token ids) and responses (`input`, `instructions`).
Without named sessions, chats that continue an earlier one are detected by their messages. If the ends of answers were
logged, each request depends on the previous one of its session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kvatlas.errors import TraceError
from kvatlas.lab.traffic.chats import TEXT_BLOCK, add_messages, add_text, prompt_traffic
from kvatlas.lab.traffic.source import BadRows, Conversion, Traffic
from kvatlas.lab.traffic.text import Prompt, text_of
from kvatlas.sim.forms import request_of
from kvatlas.sim.times import is_number, parse_time

_TIMES = (
    "timestamp",
    "time",
    "ts",
    "start_time",
    "startTime",
    "created_at",
    "created",
    "request_time",
    "request_created_at",
)
_ENDS = ("end_time", "endTime", "completed_at", "finished_at")
_SESSIONS = ("session_id", "sessionId", "conversation_id", "thread_id", "prompt_cache_key")


def read_log(lines: Iterable[str], how: Conversion, *, name: str, where: str) -> Traffic:
    """Read a log of OpenAI's API from lines. Raises `TraceError`."""
    bad = BadRows(where, how.skip_bad)
    prompts: list[Prompt] = []
    numbers = False  # some times are numbers, of a unit that nothing tells
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise TraceError("not JSON") from None
            if not isinstance(row, dict) or (request := request_of(row)) is None:
                raise TraceError("no request with 'messages', 'prompt' or 'input'")
            if how.model is None or request.get("model", row.get("model")) == how.model:
                answer = _answer(row)
                time = _time(row, request, answer)
                numbers = numbers or is_number(time)
                prompts.append(_prompt(row, request, answer, parse_time(time, how.unit), how))
        except TraceError as error:
            bad.add(number, error)
    guessed = "s" if numbers and how.unit is None else None
    return prompt_traffic(prompts, "openai", how.block or TEXT_BLOCK, name=name, where=where, bad=bad, guessed=guessed)


def _answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("response", "output"):
        place = row.get(name)
        if isinstance(place, dict):
            return place["body"] if isinstance(place.get("body"), dict) else place
    return row


def _prompt(
    row: Mapping[str, Any], request: Mapping[str, Any], answer: Mapping[str, Any], at: float, how: Conversion
) -> Prompt:
    made = Prompt(at, end=_end(row, answer, how.unit))
    usage = answer.get("usage") or row.get("usage") or {}
    if isinstance(usage, dict):
        usage = {**row, **usage}
        made.reported = _whole(usage, "prompt_tokens", "input_tokens")
        made.output = _whole(usage, "completion_tokens", "output_tokens")
    made.answer = _text_of_answer(answer) if made.output is None and answer is not row else ""
    made.session = _session(row, request)
    messages, tools = request.get("messages"), request.get("tools")
    prompt = request.get("prompt", request.get("input"))
    if isinstance(messages, list):
        add_messages(made, messages, tools, how)
    elif isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        made.tokens = prompt
    elif isinstance(prompt, list):
        # The chat templates of tokenizers are not for parts of this API.
        add_messages(made, [request.get("instructions") or "", *prompt], tools, replace(how, encode_chat=None))
    else:
        add_text(made, f"{request.get('instructions') or ''}{prompt}", how)
    return made


def _text_of_answer(answer: Mapping[str, Any]) -> str:
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        first = choices[0]
        message = first.get("message")
        return (
            text_of(message.get("content") or message)
            if isinstance(message, dict)
            else text_of(first.get("text") or "")
        )
    return text_of(answer.get("output") or "")


def _time(row: Mapping[str, Any], request: Mapping[str, Any], answer: Mapping[str, Any]) -> object:
    for place in (row, request, answer):
        for name in _TIMES:
            if place.get(name) is not None:
                value: object = place[name]
                return value
    raise TraceError(f"no time: one of {', '.join(_TIMES)}")


def _end(row: Mapping[str, Any], answer: Mapping[str, Any], unit: str | None) -> float | None:
    """Time at which an answer ended, in seconds; None if unknown."""
    known = (place[name] for place in (row, answer) for name in _ENDS if place.get(name) is not None)
    return None if (value := next(known, None)) is None else parse_time(value, unit)


def _session(row: Mapping[str, Any], request: Mapping[str, Any]) -> str | None:
    metadata = request.get("metadata")
    for place in (row, request, metadata if isinstance(metadata, dict) else {}):
        for name in _SESSIONS:
            if isinstance(place.get(name), (str, int)):
                return str(place[name])
    return None


def _whole(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((usage[name] for name in names if type(usage.get(name)) is int), None)
