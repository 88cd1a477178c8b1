"""Other records of traffic, made into traces."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.traffic import FORMATS, Conversion, Traffic, read_traffic
from kvatlas.lab.traffic.reading import detect_format
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.trace import read_trace, write_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def read(path: Path, text: str, how: Conversion | None = None, **more: Any) -> Traffic:
    path.write_text(text)
    return read_traffic([path], how, **more)


def test_azures_table_has_times_and_lengths_only(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:48.9805900,1100,44\n2023-11-16 18:15:46.6805900,600,7\n"
    traffic = read(tmp_path / "a.csv", AZURE + rows)
    assert traffic.format == "azure"
    first, second = traffic.trace.requests
    assert (first.timestamp, first.input_length, first.output_length) == (0, 600, 7)
    assert (second.timestamp, second.input_length) == (2_300, 1100)
    assert not set(first.hash_ids) & set(second.hash_ids)
    assert "share nothing" in traffic.assumptions[0]


def test_azures_later_table_has_zones_and_images(tmp_path: Path) -> None:
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,2,600,3\n"
    assert read(tmp_path / "a.csv", text).trace.requests[0].input_length == 600


def test_burstgpts_sessions_continue_prompts_and_wait_for_answers(tmp_path: Path) -> None:
    rows = (
        "5,x,2.5,ChatGPT,1024,18,1042,Conversation log\n"
        "6,y,1,ChatGPT,512,1,513,API log\n"
        "7,z,1,ChatGPT,300,0,300,API log\n"
        "10,x,1,GPT-4,2048,9,2057,Conversation log\n"
    )
    traffic = read(tmp_path / "b.csv", BURST + rows)
    assert traffic.format == "burstgpt"
    first, other, second = traffic.trace.requests
    assert (first.timestamp, other.timestamp, second.timestamp) == (0, 1_000, 5_000)
    assert second.hash_ids[:2] == first.hash_ids
    assert other.hash_ids[0] not in second.hash_ids
    assert second.after == (Dependency(first.id or 0, 2_500),)
    assert "1 requests without an answer" in traffic.assumptions[1]
    only = read(tmp_path / "b.csv", BURST + rows, Conversion(model="GPT-4"))
    assert [each.input_length for each in only.trace.requests] == [2048]


def test_burstgpt_without_sessions(tmp_path: Path) -> None:
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
    traffic = read(tmp_path / "b.csv", text)
    assert (traffic.format, traffic.trace.closed) == ("burstgpt", False)


def test_any_table_with_a_mapping(tmp_path: Path) -> None:
    text = "arrived;,in,out,blocks\n1000,130,5,[7 8]\n1500,64,5,7\n"
    columns = {"timestamp_ms": "arrived;", "input_length": "in", "output_length": "out", "hash_ids": "blocks"}
    traffic = read(tmp_path / "c.csv", text, Conversion(block=64, columns=columns))
    assert traffic.trace.block == 64
    assert [each.hash_ids for each in traffic.trace.requests] == [(7, 8), (7,)]
    assert traffic.trace.requests[1].timestamp == 500


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_tables_with_other_separators(tmp_path: Path, separator: str) -> None:
    text = separator.join(("\ufeffat", "in", "out")) + "\n" + separator.join(("1700000000000", "64", "5")) + "\n"
    (tmp_path / "c.csv").write_text(text)
    assert detect_format(tmp_path / "c.csv") == "csv"
    columns = {"timestamp": "at", "input_length": "in", "output_length": "out"}
    assert read_traffic([tmp_path / "c.csv"], Conversion(columns=columns)).trace.requests[0].input_length == 64


def test_json_lines_are_a_table_too(tmp_path: Path) -> None:
    rows = [
        {"ts": "2026-11-25T10:00:01Z", "usage_in": 130, "usage_out": 5, "ids": [7, 8], "user": "x"},
        {"ts": "2026-11-25T10:00:00Z", "usage_in": 64.0, "usage_out": 5, "ids": [7], "user": None},
    ]
    columns = {"timestamp": "ts", "input_length": "usage_in", "output_length": "usage_out", "hash_ids": "ids"}
    text = "\n".join(map(json.dumps, rows)) + "\n"
    traffic = read(tmp_path / "c.jsonl", text, Conversion(block=64, columns=columns | {"session_id": "user"}))
    assert [each.hash_ids for each in traffic.trace.requests] == [(7,), (7, 8)]
    assert [each.session_id for each in traffic.trace.requests] == [None, "x"]
    with pytest.raises(TraceError, match="line 3: no 'ts'"):
        read(tmp_path / "c.jsonl", text + "nonsense\n", Conversion(block=64, columns=columns))


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a,b\n1,2\n", None, "columns a, b: say which are which with --columns"),
        ("a,b\n1,2\n", {"timestamp": "a", "input_length": "b"}, "which column is output_length"),
        ("a,b\n1,2\n", {"input_length": "a", "output_length": "b"}, "which column is timestamp"),
        ("when,b\n1,2\n", {"timestamp": "wen", "input_length": "b", "output_length": "b"}, "did you mean 'when'"),
        ("a,b\n1,x\n", {"timestamp": "a", "input_length": "b", "output_length": "b"}, "line 2: b must be a whole"),
        ("a,b\nsoon,2\n", {"timestamp": "a", "input_length": "b", "output_length": "b"}, "line 2: 'soon' is no time"),
        ("a,b\n1\n", {"timestamp": "a", "input_length": "b", "output_length": "b"}, "line 2: no 'b'"),
        ("a,b\n", {"timestamp": "a", "input_length": "b", "output_length": "b"}, "holds no requests"),
        (
            "a,b\n1," + "2" * 140_000,
            {"timestamp": "a", "input_length": "b", "output_length": "b"},
            "as CSV: field larger",
        ),
    ],
)
def test_a_table_that_cannot_be_read_says_why(
    tmp_path: Path, text: str, columns: dict[str, str] | None, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path / "c.csv", text, Conversion(columns=columns))


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    traffic = read(tmp_path / "a.csv", AZURE + "1,600,7\n2,many,7\n", Conversion(skip_bad=True))
    assert (len(traffic.trace.requests), traffic.trace.skipped) == (1, 1)
    assert "line 3" in (traffic.trace.first_skipped or "")


def session(requests: list[dict[str, Any]], tools: int = 128) -> str:
    return json.dumps(
        {"id": "s", "models": ["m"], "block_size": 64, "tool_tokens": tools, "system_tokens": 0, "requests": requests}
    )


def turn(t: float, tokens: int, first: int = 0, api: float | None = 2.0) -> dict[str, Any]:
    ids = list(range(first, first + tokens // 64))
    return {"t": t, "type": "s", "in": tokens, "out": 10, "hash_ids": ids, "api_time": api, "think_time": 0}


def test_claude_code_sessions_wait_for_answers_and_sub_agents(tmp_path: Path) -> None:
    # The agent ends at 40 s after 30 s: it began 8 s after the answer at 2 s, and the parent goes on 5 s after its end.
    agent = {"t": 40.0, "type": "subagent", "duration_ms": 30_000, "models": ["small"]}
    agent["requests"] = [turn(0, 128, 100), turn(12, 192, 100)]
    lost = {"t": 41.0, "type": "subagent", "duration_ms": None, "requests": [turn(0, 64, 200)]}
    (tmp_path / "a.json").write_text(session([turn(0, 640), agent, lost, turn(45, 704), turn(10_000, 704, api=None)]))
    (tmp_path / "b.json").write_text(session([turn(0, 256)]))
    traffic = read_traffic([tmp_path], Conversion(longest_pause=100))
    assert traffic.format == "claude-code"
    by_id = {each.id: each for each in traffic.trace.requests if str(each.session_id).startswith("a")}
    parent, first, second, joined, late = (by_id[n] for n in sorted(by_id, key=str))
    assert (first.session_id, first.after) == ("a.1", (Dependency(parent.id or 0, 8_000),))
    assert second.after == (Dependency(first.id or 0, 10_000),)
    assert joined.after == (Dependency(second.id or 0, 5_000),)
    assert joined.timestamp - parent.timestamp == (2 + 8 + 2 + 10 + 2 + 5) * 1000
    assert late.after == (Dependency(joined.id or 0, 100_000),)
    # The blocks of the tools, and no others, are shared between sessions; the agent has another model.
    other = next(each for each in traffic.trace.requests if each.session_id == "b")
    assert other.hash_ids[:2] == parent.hash_ids[:2]
    assert other.hash_ids[2] not in parent.hash_ids
    assert joined.hash_ids[:10] == parent.hash_ids
    assert not set(first.hash_ids) & set(parent.hash_ids)
    assert "1 sub-agents without a duration" in traffic.assumptions[-1]
    assert traffic.trace.block == 64
    assert traffic.trace.closed


def test_a_directory_without_sessions(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no \.json files"):
        read_traffic([tmp_path])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(TraceError, match="no Claude Code session"):
        read_traffic([tmp_path])
    (tmp_path / "x.json").write_text(json.dumps({"requests": 3, "block_size": 64, "tool_tokens": 1}))
    with pytest.raises(TraceError, match="session x: requests must be a list"):
        read_traffic([tmp_path])
    (tmp_path / "x.json").write_text(session([{"t": 0, "in": 640, "out": 1}]))
    with pytest.raises(TraceError, match="session x: no 'hash_ids'"):
        read_traffic([tmp_path])


def test_logs_of_chats_are_cut_where_they_agree(tmp_path: Path) -> None:
    system = {"role": "system", "content": "a" * 400}
    rows = [
        {
            "timestamp": "2026-11-25T10:00:00Z",
            "request": {"model": "m", "messages": [system, {"role": "user", "content": "hello"}]},
            "response": {"usage": {"prompt_tokens": 105, "completion_tokens": 7}},
        },
        {
            "timestamp": "2026-11-25T10:00:02.500Z",
            "request": {"model": "m", "messages": [system, {"role": "user", "content": "other"}], "session_id": "x"},
            "response": {"usage": {"prompt_tokens": 105}, "choices": [{"message": {"content": "b" * 40}}]},
        },
    ]
    traffic = read(tmp_path / "l.jsonl", "\n".join(map(json.dumps, rows)), Conversion(block=16))
    assert traffic.format == "openai"
    first, second = traffic.trace.requests
    assert second.timestamp == 2_500
    assert (first.input_length, second.input_length, first.output_length) == (105, 105, 7)
    assert second.output_length == pytest.approx(10, abs=1)
    assert first.hash_ids[:6] == second.hash_ids[:6]
    assert (first.session_id, second.session_id) == (None, "x")


@pytest.mark.parametrize(
    "row",
    [
        {"created": 1_764_064_800, "prompt": "hello " * 100, "usage": {"completion_tokens": 3}},
        {"ts": 1_764_064_800_000, "body": {"input": "hello " * 100, "instructions": "be brief"}},
        {"time": 1.5, "request": {"body": {"messages": [{"role": "user", "content": [{"type": "text"}]}]}}},
    ],
)
def test_requests_of_every_api_are_found(tmp_path: Path, row: dict[str, Any]) -> None:
    traffic = read(tmp_path / "l.jsonl", json.dumps(row) + "\n")
    assert traffic.format == "openai"
    assert traffic.trace.requests[0].input_length > 5


@pytest.mark.parametrize("indent", [None, 2])
def test_a_log_may_be_one_array(tmp_path: Path, indent: int | None) -> None:
    rows = [{"time": n, "messages": [{"role": "user", "content": "hello " * 100}]} for n in (2, 1)]
    traffic = read(tmp_path / "l.json", json.dumps(rows, indent=indent))
    assert (traffic.format, len(traffic.trace.requests)) == ("openai", 2)
    with pytest.raises(TraceError, match="begins like a JSON array, and is none"):
        read(tmp_path / "l.json", "[1,\n2")


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    rows = [{"time": n, "prompt": [1, 2, 3, 4, 5 + n]} for n in range(2)]
    traffic = read(tmp_path / "l.jsonl", "\n".join(map(json.dumps, rows)), Conversion(block=2))
    first, second = traffic.trace.requests
    assert first.input_length == 5
    assert first.hash_ids == second.hash_ids


def test_a_tokenizer_cuts_text(tmp_path: Path) -> None:
    row = {"time": 0, "messages": [{"role": "user", "content": "abcdef"}]}
    how = Conversion(block=2, encode_chat=lambda messages, tools: [ord(c) for c in str(messages[0]["content"])])
    traffic = read(tmp_path / "l.jsonl", json.dumps(row), how)
    assert (traffic.trace.requests[0].input_length, len(traffic.trace.requests[0].hash_ids)) == (6, 3)
    assert traffic.assumptions == ["1 answers of unknown length were taken to have 256 tokens."]


def test_a_log_without_times_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 1: no time: one of timestamp"):
        read(tmp_path / "l.jsonl", json.dumps({"messages": [{"role": "user", "content": "x"}]}))


A, B = "(APIServer pid=7) ", "prompt_embeds shape: None"
VLLM = "\n".join(
    (
        "INFO 12-31 23:59:59 [api_server.py:1] Starting",
        A + "INFO 12-31 23:59:59 [logger.py:42] Received request cmpl-1: params: SamplingParams(n=1).",
        A + "DEBUG 12-31 23:59:59 [logger.py:30] Request cmpl-1 details: prompt: 'a\\n, params: b', "
        f"prompt_token_ids: [1, 2, 3, 4, 5], {B}.",
        (
            "INFO 01-01 00:00:02 [logger.py:42] Received request chatcmpl-2: prompt: 'say \\'hi\\'', "
            f"params: SamplingParams(n=1, max_tokens=9), prompt_token_ids: [1, 2, 3, 9], {B}, lora_request: None."
        ),
        (
            "INFO 01-01 00:00:03 [logger.py:67] Generated response cmpl-1 (streaming delta): output: 'x', "
            "output_token_ids: [7], finish_reason: None"
        ),
        (
            "INFO 01-01 00:00:03 [logger.py:67] Generated response cmpl-1 (streaming complete): output: 'xyz', "
            "output_token_ids: [7, 8, 9], finish_reason: stop"
        ),
        (
            "INFO 01-01 00:00:04 [logger.py:42] Received request chatcmpl-3: prompt: 'hello there, all of you', "
            "params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None."
        ),
    )
)


def test_the_log_of_a_vllm_server(tmp_path: Path) -> None:
    traffic = read(tmp_path / "vllm.log", VLLM, Conversion(block=2))
    assert traffic.format == "vllm"
    first, second, third = traffic.trace.requests
    assert [each.timestamp for each in traffic.trace.requests] == [0, 3_000, 5_000]  # over the end of a year
    assert (first.input_length, first.output_length) == (5, 3)
    assert first.hash_ids[0] == second.hash_ids[0]
    assert first.hash_ids[1] != second.hash_ids[1]
    assert third.input_length == pytest.approx(6, abs=1)


def test_a_vllm_log_without_prompts_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="VLLM_LOGGING_LEVEL=DEBUG"):
        read(tmp_path / "vllm.log", VLLM.splitlines()[1] + "\n")


def test_a_routers_record(tmp_path: Path) -> None:
    row = {"t": 1.5, "id": 1, "model": "m", "tokens": 40, "block_size": 16, "hashes": ["a", "b"], "worker": "w"}
    row |= {"cached": None, "output": 4, "first_token": None}
    traffic = read(tmp_path / "r.jsonl", json.dumps(row) + "\n")
    assert (traffic.format, traffic.trace.block) == ("record", 16)
    assert traffic.trace.requests[0].hash_ids == (10, 11)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_is_made_is_read_again_with_its_block_size(tmp_path: Path, name: str) -> None:
    trace = read(tmp_path / "l.jsonl", json.dumps({"time": 0, "prompt": list(range(70))})).trace
    write_trace(tmp_path / name, trace.requests, trace.block)
    again = read_trace(tmp_path / name)
    assert (again.block, again.requests) == (64, trace.requests)


def test_requests_without_times_get_those_of_idle_engines(tmp_path: Path) -> None:
    head = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "global"}

    def row(name: str, ids: list[int], at: int, *waits: dict[str, Any]) -> dict[str, Any]:
        length = 64 * len(ids)
        made = {"request_id": name, "session_id": "s", "input_length": length, "output_length": 100, "hash_ids": ids}
        return made | {"not_before_ms": at, "dependencies": list(waits)}

    first, other = {"request_id": "a", "delay_ms": 1_000}, {"request_id": "b", "delay_ms": 500}
    rows = [
        row("c", [1, 3], 0, first, other),
        row("a", [1, 2], 2_000),
        row("b", [9], 0, {"request_id": "a", "delay_ms": 100, "trigger": "dispatch"}),
    ]
    traffic = read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, [head, *rows])))
    assert [each.id for each in traffic.trace.requests] == ["a", "b", "c"]
    # `a` takes 3.6 s for its answer and hardly more for its prompt; `b` begins 0.1 s after it, and ends last.
    times = [each.timestamp for each in traffic.trace.requests]
    assert times[:2] == [0, 100]
    assert times[2] == pytest.approx(3_600 + 1_000, abs=20)
    assert "those of idle engines are taken" in traffic.assumptions[0]
    write_trace(tmp_path / "b.jsonl", traffic.trace.requests, traffic.trace.block)
    again = read_trace(tmp_path / "b.jsonl")
    assert (again.timed, again.requests) == (True, traffic.trace.requests)


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((AZURE + "1,600,7\n").encode()))
    assert read_traffic([tmp_path / "a.csv.gz"]).format == "azure"


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "PAR1 and so on\n"])
def test_what_is_no_traffic_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(TraceError):
        detect_format(tmp_path / "x")


def test_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x28\xb5\x2f\xfd\x00\xff\xfe")
    with pytest.raises(TraceError, match="compressed with zstd"):
        detect_format(tmp_path / "x")


def test_every_format_has_a_reader(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing\n")
    for kind in FORMATS:
        with pytest.raises(TraceError):
            read_traffic([tmp_path / "x"], kind=kind)
