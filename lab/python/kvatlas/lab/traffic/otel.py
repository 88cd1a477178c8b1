"""Reader of OpenTelemetry's spans of calls to models, by the conventions for generative AI (`gen_ai.*`).

The reader accepts OTLP in JSON (whole documents, or one per line, as the collector's file exporter writes them) and
single spans, as console exporters print them. A span is a request if it has a number of input tokens. Not requests are
spans of agents, tools and embeddings, and spans inside another request, for example the engine's span inside the
client's.

The prompt is in the span if its content was recorded. Otherwise only its length is known: the prompt is assumed to
begin with the previous prompt of its conversation, or of its trace if no conversation is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas._text import count
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import UNKNOWN_OUTPUT, BadRows, Conversion, Ids, Traffic, go_on, make_trace
from kvatlas.lab.traffic.text import Prompt, cut_prompts, text_of
from kvatlas.lab.traffic.turns import Turn, link_turns
from kvatlas.sim.times import parse_date
from kvatlas.sim.trace import TraceRequest

_BLOCK = 64  # tokens
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
_MODEL = ("gen_ai.request.model", "gen_ai.response.model")
_SESSION = ("gen_ai.conversation.id", "session.id")
# The whole prompt, by older and newer conventions; as attributes of the span or of one of its events.
_CONTENT = ("gen_ai.tool.definitions", "gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.prompt")
_OTHERS = ("invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "embeddings", "retrieval")
_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
_ENDS = ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")


@dataclass(slots=True)
class _Call:
    """Span that is a request. Times are in seconds."""

    at: float
    end: float | None
    tokens: int
    output: int | None
    session: str | None
    text: str
    span: str | None


@dataclass(slots=True)
class _Spans:
    """Requests among the spans, with the nesting of the spans."""

    how: Conversion
    calls: list[_Call] = field(default_factory=list)
    inside: dict[str, str] = field(default_factory=dict)
    others: int = 0

    def add(self, span: Mapping[str, Any]) -> None:
        """Add a span. Raises `TraceError` for a request that cannot be read."""
        context = span.get("context")
        ids = {**span, **context} if isinstance(context, dict) else span
        own, above = _text(ids, "spanId", "span_id"), _text(span, "parentSpanId", "parent_span_id", "parent_id")
        if own and above:
            self.inside[own] = above
        attributes = _attributes(span.get("attributes"))
        tokens = _first(attributes, _INPUT)
        if tokens is None or attributes.get("gen_ai.operation.name") in _OTHERS:
            self.others += 1
            return
        if self.how.model is not None and self.how.model not in (attributes.get(name) for name in _MODEL):
            return
        at = _time(span, _STARTS)
        if at is None:
            raise TraceError(f"no time: one of {', '.join(_STARTS)}")
        output = _first(attributes, _OUTPUT)
        session = _first(attributes, _SESSION) or _text(ids, "traceId", "trace_id")
        self.calls.append(
            _Call(
                at,
                _time(span, _ENDS),
                _whole(tokens, _INPUT[0], 1),
                None if output is None else _whole(output, _OUTPUT[0], 0),
                None if session is None else str(session),
                _content(attributes, span),
                own,
            )
        )

    def outermost(self) -> list[_Call]:
        """Requests that are not inside another request, in order of time."""
        known = {call.span for call in self.calls if call.span is not None}
        return sorted((call for call in self.calls if not self._is_inside(call, known)), key=lambda call: call.at)

    def _is_inside(self, call: _Call, known: set[str]) -> bool:
        seen: set[str] = set()
        above = self.inside.get(call.span or "")
        while above is not None and above not in seen:
            if above in known:
                return True
            seen.add(above)
            above = self.inside.get(above)
        return False


def read_spans(
    files: Iterable[tuple[str, Iterable[tuple[int, str]]]], how: Conversion, *, name: str, where: str
) -> Traffic:
    """Read the JSON documents of named files, each document with its line number. Raises `TraceError`."""
    bad = BadRows(where, how.skip_bad)
    spans = _Spans(how)
    for file, documents in files:
        bad.where = file
        for number, text in documents:
            try:
                document = json.loads(text)
                for span in _spans(document):
                    spans.add(span)
            except TraceError as error:
                bad.add(number, error)
            except (ValueError, RecursionError):
                bad.add(number, TraceError("not JSON"))
    calls = spans.outermost()
    block = how.block or _BLOCK
    turns, assumptions, warnings = _turns(calls, block, how)
    trace = make_trace(link_turns(turns), name, block, where, bad)
    if spans.others:
        assumptions.append(f"{count(spans.others)} spans that are no requests were left out.")
    if len(calls) < len(spans.calls):
        assumptions.append(f"{count(len(spans.calls) - len(calls))} spans inside other requests were left out.")
    return Traffic(trace, "otel", assumptions, warnings)


def _spans(document: object) -> Iterator[Mapping[str, Any]]:
    """Iterate over the spans of a document: in OTLP, or a single span."""
    if not isinstance(document, dict):
        raise TraceError("no span: an object was expected")
    resources = document.get("resourceSpans", document.get("resource_spans"))
    if resources is None:
        if "attributes" not in document:
            raise TraceError("no span: neither 'resourceSpans' nor 'attributes'")
        yield document
        return
    for resource in _objects(resources, "resourceSpans"):
        for name in ("scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for scope in _objects(resource.get(name, []), name):
                yield from _objects(scope.get("spans", []), "spans")


def _objects(value: object, name: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise TraceError(f"{name} must be a list of objects")
    yield from value


def _attributes(value: object) -> dict[str, Any]:
    """Attributes by name, from an object or from OTLP's list of keys and typed values."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return {}
    return {str(each.get("key")): _value(each.get("value")) for each in value if isinstance(each, dict)}


def _value(value: object) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, its)] = value.items()
    if kind in ("arrayValue", "array_value"):
        return [_value(each) for each in its.get("values", [])]
    if kind in ("kvlistValue", "kvlist_value"):
        return _attributes(its.get("values", []))
    return its


def _content(attributes: Mapping[str, Any], span: Mapping[str, Any]) -> str:
    """Recorded text of a span's prompt; "" if none was recorded."""
    places = [attributes]
    events = span.get("events")
    places += [_attributes(each.get("attributes")) for each in events or [] if isinstance(each, dict)]
    for place in places:
        if any(place.get(name) for name in _CONTENT[2:]):
            return "\n".join(text_of(place[name]) for name in _CONTENT if place.get(name))
        if "gen_ai.prompt.0.content" in place:
            return "\n".join(_numbered(place))
    return ""


def _numbered(attributes: Mapping[str, Any]) -> Iterator[str]:
    at = 0
    while (content := attributes.get(f"gen_ai.prompt.{at}.content")) is not None:
        yield f"{attributes.get(f'gen_ai.prompt.{at}.role', '')}\n{text_of(content)}"
        at += 1


def _turns(calls: list[_Call], block: int, how: Conversion) -> tuple[list[Turn], list[str], list[str]]:
    """Convert calls to requests with the times of their answers. Also returns the assumptions made, and warnings."""
    if calls and all(call.text for call in calls):
        prompts = []
        for call in calls:
            tokens = how.encode(call.text) if how.encode is not None else None
            text = call.text if tokens is None else ""
            prompts.append(Prompt(call.at, text, tokens, call.tokens, call.output, session=call.session))
        cut = cut_prompts(prompts, block)
        turns = [Turn(call.at, call.end, request) for call, (_, request) in zip(calls, cut.rows, strict=True)]
        return turns, cut.assumptions, cut.warnings
    ids, before = Ids(), dict[str, tuple[int, ...]]()
    turns = []
    for call in calls:
        names = go_on(before.get(call.session or "", ()), call.tokens // block, ids)
        if call.session is not None:
            before[call.session] = names
        output = UNKNOWN_OUTPUT if call.output is None else call.output
        turns.append(Turn(call.at, call.end, TraceRequest(0, call.tokens, output, names, call.session)))
    lines = [
        (
            "The spans have no prompts. Each is taken to begin with the one before it in its conversation (or its "
            "trace), and to share nothing else."
        )
    ]
    if guessed := sum(call.output is None for call in calls):
        lines.append(f"{count(guessed)} answers of unknown length were taken to have {UNKNOWN_OUTPUT} tokens.")
    return turns, lines, []


def _time(span: Mapping[str, Any], names: Iterable[str]) -> float | None:
    for name in names:
        value = span.get(name)
        if value is None:
            continue
        if isinstance(value, str) and not value.strip().isdigit():
            if (date := parse_date(value.strip())) is None:
                raise TraceError(f"{name} must be nanoseconds since 1970 or an ISO date, not {value[:40]!r}")
            return date
        try:
            return int(value) / 1e9
        except (TypeError, ValueError):
            raise TraceError(f"{name} must be nanoseconds since 1970 or an ISO date, not {value!r:.40}") from None
    return None


def _first(attributes: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _text(row: Mapping[str, Any], *names: str) -> str | None:
    return next((str(row[name]) for name in names if row.get(name)), None)


def _whole(value: object, name: str, least: int) -> int:
    # 64-bit numbers are strings in OTLP's JSON.
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if not least <= number < 1 << 31:
        raise TraceError(f"{name} must be a whole number from {least}, not {value!r:.40}")
    return number
