"""Logs and tables with text: columns, sessions recognised by messages, and usage that does not fit."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.traffic import Conversion, Traffic, read_traffic

Message = dict[str, str]
TEXT = {"timestamp": "at", "text": "prompt"}
CHAT = {"timestamp": "at", "messages": "chat"}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def read(path: Path, rows: list[dict[str, Any]], columns: dict[str, str] | None = None, **more: Any) -> Traffic:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return read_traffic([path], Conversion(block=4, columns=columns, **more))


def sessions(traffic: Traffic) -> list[Any]:
    return [request.session_id for request in traffic.trace.requests]


def chat(at: float, *messages: Message, **more: Any) -> dict[str, Any]:
    return {"time": at, "messages": list(messages), **more}


def test_a_column_of_texts_says_what_prompts_share(tmp_path: Path) -> None:
    long = "x" * 200_000  # more than the csv module takes by default
    out = io.StringIO()
    csv.writer(out).writerows([("at", "prompt"), (0, long + "a,\n"), (1, long + "b")])
    (tmp_path / "t.csv").write_text(out.getvalue(), encoding="utf-8")
    traffic = read_traffic([tmp_path / "t.csv"], Conversion(columns=TEXT))
    first, second = traffic.trace.requests
    assert traffic.trace.block == 64
    assert first.input_length == pytest.approx(50_000, abs=1)
    assert first.hash_ids[:780] == second.hash_ids[:780]
    assert not any("share nothing" in line for line in traffic.assumptions)
    assert csv.field_size_limit() == 131_072


def test_a_row_of_text_may_have_lengths_a_session_and_a_duration(tmp_path: Path) -> None:
    columns = TEXT | {"input_length": "in", "output_length": "out", "session_id": "who", "duration": "took"}
    rows = [
        {"at": 5, "prompt": "a" * 40, "in": 20, "out": 7, "who": "x", "took": 2},
        {"at": 0, "prompt": "a" * 40, "in": 20, "out": 6, "who": "x", "took": 3},
    ]
    first, second = read(tmp_path / "t.jsonl", rows, columns).trace.requests
    assert (first.input_length, first.output_length, second.output_length) == (20, 6, 7)
    assert [(each.id, each.delay) for each in second.after] == [(0, 2_000)]


@pytest.mark.parametrize("as_request", [False, True])
def test_a_column_of_chats(tmp_path: Path, as_request: bool) -> None:
    chats = [[user("hello")], [user("hello"), answer("yes?"), user("more")]]
    cells = [json.dumps({"messages": each, "tools": []} if as_request else each) for each in chats]
    rows = [{"at": at, "chat": cell} for at, cell in enumerate(cells)]
    traffic = read(tmp_path / "t.jsonl", rows, CHAT)
    assert sessions(traffic) == ["chat-1", "chat-1"]
    # JSON lines may have the list itself.
    assert read(tmp_path / "t.jsonl", [{"at": 0, "chat": chats[1]}], CHAT).trace.requests[0].input_length > 5


def test_a_tokenizer_cuts_columns_of_text(tmp_path: Path) -> None:
    def encode(text: str) -> list[int]:
        return [ord(each) for each in text]

    traffic = read(tmp_path / "t.jsonl", [{"at": 0, "prompt": "abcdefgh"}], TEXT, encode=encode)
    assert traffic.trace.requests[0].input_length == 8
    lengths = {"timestamp": "at", "input_length": "n", "output_length": "n"}
    with pytest.raises(TraceError, match="a tokenizer is for a column of text"):
        read(tmp_path / "t.jsonl", [{"at": 0, "n": 8}], lengths, encode=encode)


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"at": 0, "prompt": " "}, TEXT, "line 1: no 'prompt'"),
        ({"at": 0, "chat": "hello"}, CHAT, "line 1: chat must be a list of chat messages in JSON, not 'hello'"),
        ({"at": 0, "chat": []}, CHAT, "line 1: chat must be a list of chat messages"),
        ({"at": 0, "chat": "x", "prompt": "x"}, TEXT | CHAT, "only one of text, messages"),
        ({"at": 0, "prompt": "x", "ids": [1]}, TEXT | {"hash_ids": "ids"}, "only one of text, hash_ids"),
    ],
)
def test_columns_of_text_that_cannot_be_read_say_why(
    tmp_path: Path, row: dict[str, Any], columns: dict[str, str], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path / "t.jsonl", [row], columns)


def test_chats_that_extend_one_another_are_a_session(tmp_path: Path) -> None:
    start, other = [user("hello")], [user("what?")]
    longer = [*start, answer("yes?"), user("more")]
    rows = [
        chat(9, *longer, answer("here"), user("thanks")),
        chat(0, *start),
        chat(1, *other),
        chat(5, *longer),
        chat(6, *start, answer("no"), user("more")),  # another answer: what it continues has been continued already
    ]
    traffic = read(tmp_path / "l.jsonl", rows)
    assert sessions(traffic) == ["chat-1", "chat-2", "chat-1", "chat-3", "chat-1"]
    assert "By their messages, 2 chats without a session continued an earlier chat." in traffic.assumptions


def test_equal_beginnings_alone_are_no_session(tmp_path: Path) -> None:
    system = {"role": "system", "content": "be brief"}
    rows = [chat(0, system, user("a")), chat(1, system, user("b")), chat(2, system, user("a"), user("b"))]
    assert sessions(read(tmp_path / "l.jsonl", rows)) == [None, None, None]


def test_a_session_that_the_log_names_is_kept(tmp_path: Path) -> None:
    longer = [user("a"), answer("b"), user("c")]
    rows = [chat(0, user("a"), session_id="mine"), chat(1, *longer), chat(2, *longer, answer("d"), user("e"))]
    assert sessions(read(tmp_path / "l.jsonl", rows)) == ["mine"] * 3


def test_calls_of_the_responses_api_are_answers(tmp_path: Path) -> None:
    call, result = {"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "1"}
    rows = [{"time": 0, "input": [user("a")]}, {"time": 1, "input": [user("a"), call, result]}]
    assert sessions(read(tmp_path / "l.jsonl", rows)) == ["chat-1", "chat-1"]


def test_recognised_sessions_wait_for_answers_whose_end_is_logged(tmp_path: Path) -> None:
    rows = [chat(0, user("a"), end_time=3), chat(5, user("a"), answer("b"), user("c"), end_time=6)]
    first, second = read(tmp_path / "l.jsonl", rows).trace.requests
    assert [(each.id, each.delay) for each in second.after] == [(first.id, 2_000)]
    rows[0]["end_time"] = None
    assert not read(tmp_path / "l.jsonl", rows).trace.closed


@pytest.mark.parametrize(
    ("characters", "reported", "fits"),
    [(400, 100, True), (30, 150, True), (1_730, 10, False), (100, 5_000, False), (400, 600, True)],
)
def test_usage_that_does_not_fit_the_text_is_warned_of(
    tmp_path: Path, characters: int, reported: int, fits: bool
) -> None:
    rows = [
        chat(0, user("a" * characters), usage={"prompt_tokens": reported}),
        chat(1, user("b" * 396), usage={"prompt_tokens": 100}),
    ]
    traffic = read(tmp_path / "l.jsonl", rows)
    assert (traffic.warnings == []) is fits
    if not fits:
        assert traffic.warnings[0].startswith("In 1 of 2 requests with usage, the prompt's reported tokens do not fit")
        assert f"(the first: {reported:,} for" in traffic.warnings[0]
        assert traffic.trace.requests[1].input_length == 100  # by the reports that fit


def test_a_tokenizer_of_another_model_is_warned_of(tmp_path: Path) -> None:
    def encode_chat(messages: Any, _tools: Any) -> list[int]:
        return list(range(10 * len(messages[0]["content"])))

    rows = [chat(0, user("a" * 100), usage={"prompt_tokens": 100})]
    traffic = read(tmp_path / "l.jsonl", rows, encode_chat=encode_chat)
    assert "its 1,000 tokens (the first: 100 reported): is the tokenizer the model's own" in traffic.warnings[0]
    rows[0]["usage"]["prompt_tokens"] = 1_010
    assert read(tmp_path / "l.jsonl", rows, encode_chat=encode_chat).warnings == []
