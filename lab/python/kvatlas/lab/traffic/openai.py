"""Reader of logs of OpenAI's API: JSON lines, each with a request and, if it was logged, its answer.

The request is the whole line, or below `request`, `body` or `input`; the answer below `response` or `output`. Requests
are chats (`messages`), completions (`prompt`, as text or token ids) and responses (`input`, `instructions`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Traffic, make_trace
from kvatlas.lab.traffic.text import Prompt, cut_prompts, text_of
from kvatlas.sim.forms import request_of
from kvatlas.sim.times import is_number, parse_time

_BLOCK = 64  # tokens
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
_SESSIONS = ("session_id", "sessionId", "conversation_id", "thread_id", "prompt_cache_key")


def read_log(lines: Iterable[str], how: Conversion, *, name: str, where: str) -> Traffic:
    """Read a log. Raises `TraceError`."""
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
    cut = cut_prompts(prompts, how.block or _BLOCK)
    guessed = "s" if numbers and how.unit is None else None
    trace = make_trace(cut.rows, name, how.block or _BLOCK, where, bad, guessed)
    return Traffic(trace, "openai", cut.assumptions)


def _answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("response", "output"):
        place = row.get(name)
        if isinstance(place, dict):
            return place["body"] if isinstance(place.get("body"), dict) else place
    return row


def _prompt(
    row: Mapping[str, Any], request: Mapping[str, Any], answer: Mapping[str, Any], at: float, how: Conversion
) -> Prompt:
    made = Prompt(at)
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
        if how.encode_chat is not None:
            made.tokens = how.encode_chat(messages, tools)
        else:
            made.text = _text_of_chat(messages, tools)
    elif isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        made.tokens = prompt
    elif isinstance(prompt, list):
        made.text = _text_of_chat([request.get("instructions") or "", *prompt], tools)
    else:
        made.text = f"{request.get('instructions') or ''}{prompt}"
        if how.encode is not None:
            made.text, made.tokens = "", how.encode(made.text)
    if made.tokens is None and not made.text:
        raise TraceError("an empty prompt")
    return made


def _text_of_chat(messages: Iterable[object], tools: object) -> str:
    parts = [text_of(tools)] if tools else []
    for each in messages:
        if isinstance(each, dict):
            rest = {key: value for key, value in each.items() if key not in ("role", "content")}
            parts.append(f"{each.get('role', '')}\n{text_of(each.get('content') or '')}{text_of(rest) if rest else ''}")
        elif each:
            parts.append(text_of(each))
    return "\n".join(parts)


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


def _session(row: Mapping[str, Any], request: Mapping[str, Any]) -> str | None:
    metadata = request.get("metadata")
    for place in (row, request, metadata if isinstance(metadata, dict) else {}):
        for name in _SESSIONS:
            if isinstance(place.get(name), (str, int)):
                return str(place[name])
    return None


def _whole(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((usage[name] for name in names if type(usage.get(name)) is int), None)
