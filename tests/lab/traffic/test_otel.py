"""OpenTelemetry's spans of calls to models, made into traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.traffic import Conversion, read_traffic
from kvatlas.sim.dependencies import Dependency

T0 = 1_764_000_000 * 10**9


def otlp(value: object) -> dict[str, object]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value} if isinstance(value, str) else {"arrayValue": {"values": [otlp(v) for v in value]}}  # type: ignore[attr-defined]


def span(at: float, took: float, tokens: int, session: str = "c", **more: Any) -> dict[str, Any]:
    """A span in OTLP of a request, with its seconds after the first."""
    attributes: dict[str, object] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    attributes |= {"gen_ai.conversation.id": session}
    attributes |= {"gen_ai.usage.input_tokens": tokens, "gen_ai.usage.output_tokens": 7}
    attributes |= {key.replace("__", "."): value for key, value in more.items()}
    return {
        "traceId": "t",
        "spanId": f"{at}",
        "name": "chat m",
        "startTimeUnixNano": str(T0 + round(at * 1e9)),
        "endTimeUnixNano": str(T0 + round((at + took) * 1e9)),
        "attributes": [{"key": key, "value": otlp(value)} for key, value in attributes.items()],
    }


def document(*spans: dict[str, Any], scope: str = "scopeSpans") -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, scope: [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


SPANS = [span(0, 2, 640), span(5, 1, 900), span(1, 1, 128, "other")]


@pytest.mark.parametrize(
    "form", ["a document", "indented", "a line each", "an array", "older", "spans alone", "printed"]
)
def test_every_writing_is_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "spans.json"
    dates = {"start_time": "2025-11-24T16:00:00.000000Z", "end_time": "2025-11-24T16:00:02.000000Z"}
    printed = [
        {
            "name": "chat m",
            "context": {"trace_id": "0xt", "span_id": f"0x{n}", "trace_state": "[]"},
            "parent_id": None,
            **dates,
            "attributes": {"gen_ai.usage.input_tokens": 640 + 260 * n, "gen_ai.usage.output_tokens": 7},
        }
        for n in range(3)
    ]
    text = {
        "a document": json.dumps(document(*SPANS)),
        "indented": json.dumps(document(*SPANS), indent=2),
        "a line each": "\n".join(json.dumps(document(each)) for each in SPANS),
        "an array": json.dumps(SPANS),
        "older": json.dumps(document(*SPANS, scope="instrumentationLibrarySpans")),
        "spans alone": "\n".join(map(json.dumps, SPANS)),
        "printed": "\n".join(json.dumps(each, indent=4) for each in printed),
    }[form]
    path.write_text(text + "\n")
    traffic = read_traffic([path])
    assert traffic.format == "otel"
    assert len(traffic.trace.requests) == 3
    assert traffic.trace.block == 64
    assert traffic.trace.requests[0].output_length == 7


def test_spans_without_prompts_go_on_with_those_of_their_conversation(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(document(*SPANS)))
    traffic = read_traffic([tmp_path / "s.json"])
    first, other, second = traffic.trace.requests
    assert [each.timestamp for each in traffic.trace.requests] == [0, 1_000, 5_000]
    assert second.hash_ids[:10] == first.hash_ids
    assert not set(other.hash_ids) & set(second.hash_ids)
    assert second.after == (Dependency(first.id or 0, 3_000),)
    assert "in its conversation" in traffic.assumptions[0]


@pytest.mark.parametrize("how", ["attribute", "event", "numbered"])
def test_spans_with_prompts_are_cut_by_their_text(tmp_path: Path, how: str) -> None:
    made = []
    for n in range(2):
        messages = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "a" * 2_000 + str(n) * 600}]}])
        if how == "attribute":
            made.append(span(n, 0.5, 650, str(n), gen_ai__input__messages=messages))
        elif how == "numbered":
            text = "a" * 2_000 + str(n) * 600
            made.append(span(n, 0.5, 650, str(n)) | {})
            made[-1]["attributes"].append({"key": "gen_ai.prompt.0.content", "value": otlp(text)})
        else:
            event = {"name": "gen_ai.content.prompt", "attributes": [{"key": "gen_ai.prompt", "value": otlp(messages)}]}
            made.append(span(n, 0.5, 650, str(n)) | {"events": [event]})
    (tmp_path / "s.json").write_text(json.dumps(document(*made)))
    traffic = read_traffic([tmp_path / "s.json"])
    first, second = traffic.trace.requests
    shared = [a == b for a, b in zip(first.hash_ids, second.hash_ids, strict=True)]
    assert shared == sorted(shared, reverse=True)
    assert 6 <= sum(shared) < len(shared)
    assert first.input_length == pytest.approx(650, abs=5)


def test_what_is_no_request_or_inside_one_is_left_out(tmp_path: Path) -> None:
    client, agent, tool = span(1, 5, 640), span(0, 60, 5_000, gen_ai__operation__name="invoke_agent"), span(2, 1, 5)
    tool["attributes"] = [{"key": "gen_ai.operation.name", "value": otlp("execute_tool")}]
    inner, proxy = span(1.1, 4, 640), {"spanId": "p", "parentSpanId": client["spanId"], "attributes": []}
    inner["parentSpanId"] = "p"
    inner["attributes"] = [{"key": "gen_ai.usage.prompt_tokens", "value": otlp(640)}]
    proxy["startTimeUnixNano"] = str(T0)
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, [inner, proxy, client, agent, tool])))
    traffic = read_traffic([tmp_path / "s.jsonl"])
    assert len(traffic.trace.requests) == 1
    assert "3 spans that are no requests were left out." in traffic.assumptions
    assert "1 spans inside other requests were left out." in traffic.assumptions


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (span(3, 1, 0), r"s\.jsonl, line 2: gen_ai.usage.input_tokens must be a whole number from 1, not '0'"),
        (span(3, 1, 640, gen_ai__usage__output_tokens="few"), "gen_ai.usage.output_tokens must be a whole number"),
        (span(3, 1, 640) | {"startTimeUnixNano": None}, "no time: one of startTimeUnixNano, "),
        (span(3, 1, 640) | {"startTimeUnixNano": "soon"}, "startTimeUnixNano must be nanoseconds since 1970 or an ISO"),
        ({"resourceSpans": 3}, "resourceSpans must be a list of objects"),
        ({"name": "x"}, "no span: neither 'resourceSpans' nor 'attributes'"),
        (7, "no span: an object was expected"),
    ],
)
def test_a_malformed_span_is_named_or_left_out(tmp_path: Path, bad: Any, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(map(json.dumps, [span(0, 1, 640), bad, span(9, 1, 640)])))
    with pytest.raises(TraceError, match=message):
        read_traffic([path])
    trace = read_traffic([path], Conversion(skip_bad=True)).trace
    assert (len(trace.requests), trace.skipped) == (2, 1)


def test_lines_that_are_cut_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    whole = json.dumps(span(0, 1, 640))
    path.write_text(f"{whole}\n{whole[:50]}\n{json.dumps(span(5, 1, 700))}\nnonsense\n")
    with pytest.raises(TraceError, match="line 2: not JSON"):
        read_traffic([path])
    trace = read_traffic([path], Conversion(skip_bad=True)).trace
    assert (len(trace.requests), trace.skipped) == (2, 2)
