"""Tests of sessions: what names them, what is remembered of them, and what records, pages and policies see of that."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, delta, event, head, reply

from kvatlas.cli.top_view import Look, View
from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.lab.replay.decisions import RecordedChoices, read_decisions
from kvatlas.sim import EngineConfig, FleetConfig

from .deciding import BLOCK
from .running import MESSAGES, PLAIN, Router, wait_until

KEYED = ("--no-events", "--policy", "kvatlas", "--block-size", str(BLOCK), "--model", MODEL)
CLAUDE = "x-claude-code-"


@pytest.fixture
def exact(engine: Engine, tokenizer: Path, tmp_path: Path) -> Iterator[Router]:
    """A router with tokens and a record."""
    record = ("--record", str(tmp_path / "record.jsonl"))
    with Router(engine, flags=(*KEYED, *record, "--tokenizer", str(tokenizer))) as made:
        yield made


def session(router: Router, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any] | None:
    """Ask the router what it says of a request's session; the request is not sent."""
    answer = router.ask({"model": MODEL, "messages": MESSAGES, **fields}, headers=headers, path="/explain")
    assert answer.status == 200, answer
    found: dict[str, Any] | None = answer.json["session"]
    return found


def last(router: Router) -> dict[str, Any]:
    """The session of the last decision."""
    found: dict[str, Any] = json.loads(router.get("/decisions?limit=1")[1])[0]
    return found


# What clients send, each by the place where its session is to be found.
CLIENTS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("dynamo", {"X-Dynamo-Session-ID": "s"}, {}),
    ("claude-code", {"X-Claude-Code-Session-Id": "s"}, {"metadata": {"user_id": '{"session_id": "other"}'}}),
    ("codex", {"session-id": "s", "thread-id": "s"}, {"prompt_cache_key": "s"}),
    ("codex", {"session_id": "s", "x-client-request-id": "r"}, {}),
    ("common-headers", {"x-session-affinity": "s"}, {}),
    ("common-headers", {"X-Session-ID": "s"}, {"session_id": "other"}),
    ("common-headers", {"x-opencode-session": "s"}, {"user": "other"}),
    ("body", {}, {"session_id": "s", "prompt_cache_key": "other"}),
    ("body", {}, {"vllm_xargs": {"agentic_context": {"program_id": "s", "session_id": "run"}}}),
    ("body", {}, {"nvext": {"agent_context": {"session_type_id": "t", "session_id": "run", "trajectory_id": "s"}}}),
    ("metadata", {}, {"metadata": {"user_id": "user_0a_account_1b_session_s"}, "prompt_cache_key": "other"}),
    ("metadata", {}, {"metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})}}),
    ("cache-key", {}, {"prompt_cache_key": "s", "user": "u", "safety_identifier": "u"}),
]


def test_every_client_names_its_session_in_its_own_way(plain: tuple[Router, Engine]) -> None:
    router, _ = plain
    found = [session(router, headers, **fields) for _, headers, fields in CLIENTS]
    assert [each and each["source"] for each in found] == [source for source, _, _ in CLIENTS]
    # All of them call it the same: so it is the same session.
    assert len({each["key"] for each in found if each}) == 1
    for nobody in ({"user": "u"}, {"safety_identifier": "u"}, {"metadata": {"user_id": "somebody"}}):
        assert session(router, **nobody) is None


def test_an_agent_has_a_parent(plain: tuple[Router, Engine]) -> None:
    router, _ = plain
    main = session(router, {f"{CLAUDE}session-id": "s"})
    agent = session(router, {f"{CLAUDE}session-id": "s", f"{CLAUDE}agent-id": "a"})
    nested = {f"{CLAUDE}session-id": "s", f"{CLAUDE}agent-id": "b", f"{CLAUDE}parent-agent-id": "a"}
    child = session(router, nested)
    opencode = session(router, {"x-session-id": "c", "x-parent-session-id": "s"})
    assert main
    assert agent
    assert child
    assert opencode
    assert (main["parent"], main["kind"]) == (None, "start")
    assert (agent["parent"], agent["kind"]) == (main["key"], "subagent")
    assert (child["parent"], opencode["parent"]) == (agent["key"], main["key"])


def test_the_order_is_the_operator_s(engine: Engine) -> None:
    headers = {"x-mine": "a", "x-session-id": "b", "thread-id": "c"}
    own = ("--session-header", "X-Mine", "--session-sources", "cache-key,own-header,common-headers")
    with Router(engine, flags=(*PLAIN, *own)) as router:
        found = [session(router, headers, prompt_cache_key=key) for key in ("k", None)]
        assert [each and each["source"] for each in found] == ["cache-key", "own-header"]
        assert session(router, {"thread-id": "c"}) is None
    with Router(engine, flags=(*PLAIN, "--session-sources", "off")) as router:
        assert session(router, headers) is None
        assert router.ask(headers=headers).status == 200
        assert last(router)["session"] is None


def stream(*events: Any) -> Behaviour:
    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        for one in events:
            await talk.send(chunk(event(one)))
        await talk.send(b"0\r\n\r\n")

    return act


def chat(finish: str, **message: Any) -> Behaviour:
    return reply("200 OK", {"choices": [{"message": {"content": "a", **message}, "finish_reason": finish}]})


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
# The path, an answer, and the kind of the request that comes next.
ENDS: list[tuple[str, Behaviour, str, str]] = [
    ("chat/completions", chat("stop"), "end", "user"),
    ("chat/completions", chat("length"), "length", "user"),
    ("chat/completions", chat("tool_calls", tool_calls=[CALL]), "tool", "tool"),
    ("chat/completions", chat("stop", tool_calls=[CALL]), "tool", "tool"),  # the client forced that tool
    ("chat/completions", stream(delta("a"), delta("", "stop"), b"[DONE]"), "end", "user"),
    ("chat/completions", stream(delta("a"), delta("", "tool_calls"), b"[DONE]"), "tool", "tool"),
    ("completions", reply("200 OK", {"choices": [{"text": "a", "finish_reason": "length"}]}), "length", "user"),
    ("messages", reply("200 OK", {"type": "message", "content": [], "stop_reason": "tool_use"}), "tool", "tool"),
    ("messages", reply("200 OK", {"type": "message", "content": [], "stop_reason": "end_turn"}), "end", "user"),
    (
        "messages",
        stream(
            {"type": "message_start", "message": {"content": [], "stop_reason": None}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ),
        "tool",
        "tool",
    ),
    (
        "responses",
        reply("200 OK", {"status": "completed", "output": [{"type": "function_call", "name": "f"}]}),
        "tool",
        "tool",
    ),
    ("responses", reply("200 OK", {"status": "completed", "output": [{"type": "message"}]}), "end", "user"),
    (
        "responses",
        stream(
            {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
            {"type": "response.completed", "response": {"status": "completed"}},
        ),
        "tool",
        "tool",
    ),
]


@pytest.mark.parametrize(("path", "behaviour", "stop", "kind"), ENDS, ids=range(len(ENDS)))
def test_the_end_of_an_answer_tells_what_comes_next(
    plain: tuple[Router, Engine], path: str, behaviour: Behaviour, stop: str, kind: str
) -> None:
    router, engine = plain
    headers = {"x-session-id": f"{path} {ENDS.index((path, behaviour, stop, kind))}"}
    body = {"model": MODEL, "messages": MESSAGES, "prompt": "a", "input": "a", "max_tokens": 9}
    engine.behaviour = behaviour
    for _ in range(2):
        assert router.ask(body, path=f"/v1/{path}", headers=headers).status == 200
    wait_until(lambda: last(router)["ended"] is not None, "the answer has ended")
    decision = last(router)
    told = decision["session"]
    assert (decision["ended"]["stop"], told["previous_stop"], told["kind"], told["turn"]) == (stop, stop, kind, 1)
    assert told["pause"] >= 0


def test_what_was_refused_or_broke_off_is_no_answer(plain: tuple[Router, Engine]) -> None:
    router, engine = plain
    headers = {"x-session-id": "refused"}
    engine.behaviour = chat("tool_calls")
    router.ask(headers=headers)
    for behaviour in (reply("400 Bad Request", {"error": {"message": "no", "finish_reason": "stop"}}), chat("stop")):
        engine.behaviour = behaviour
        router.ask(headers=headers)
        assert last(router)["session"]["previous_stop"] == "tool"
    assert session(router, headers)["kind"] == "user"  # type: ignore[index]
    # Where the client says so, it is a compaction, and after it the old context is gone.
    compaction = session(router, {**headers, f"{CLAUDE}request-class": "compaction"})
    assert compaction
    assert (compaction["kind"], compaction["class"]) == ("compaction", "compaction")
    hints = {f"{CLAUDE}context-compacted": "1", f"{CLAUDE}prev-tool-durations": "Bash=1500;Read=9"}
    after = session(router, {**headers, **hints})
    assert after
    assert (after["compacted"], after["tools"]) == (True, 1.509)


def test_a_chat_that_nobody_names_is_known_by_its_beginning(exact: Router, engine: Engine) -> None:
    system, keys = "You are a helpful assistant, and say so. " * 3, []
    for first in ("What is the capital of France, and why?", "How many legs does a spider have, and why?"):
        text = system + first
        for turn in range(3):
            assert exact.ask({"model": MODEL, "messages": [{"role": "user", "content": text}]}).status == 200
            told = last(exact)["session"]
            assert (told["source"], told["turn"], told["kind"]) == ("prefix", turn, "user" if turn else "start")
            keys.append(told["key"])
            text += " Here is an answer. And now another question, please."
    assert [keys.count(key) for key in keys] == [3] * 6
    # The same prompt again is not its own next turn.
    same = {"model": MODEL, "messages": [{"role": "user", "content": system + "And once more, the same as before?"}]}
    exact.ask(same)
    exact.ask(same)
    assert last(exact)["session"]["kind"] == "start"
    assert exact.metric("kvatlas_router_session_prompts_total", source="prefix") == 8
    assert exact.metric("kvatlas_router_turns_total", kind="user") == 4


def test_a_record_is_replayed_as_it_was(exact: Router, engine: Engine, tmp_path: Path) -> None:
    def ask(text: str, headers: dict[str, str]) -> None:
        assert (
            exact.ask({"model": MODEL, "messages": [{"role": "user", "content": text}]}, headers=headers).status == 200
        )

    main, agent = {f"{CLAUDE}session-id": "secret-name"}, {f"{CLAUDE}agent-id": "secret-agent"}
    text = "A system prompt of the main agent. " * 9
    engine.behaviour = chat("tool_calls")
    ask(text, main)
    ask("Another prompt, for an agent of it." * 9, main | agent)
    engine.behaviour = chat("stop")
    ask("Another prompt, for an agent of it." * 12, main | agent)
    ask(text + "What the agent has found. " * 9, main)
    ask("Nobody knows whose prompt this is. " * 9, {})
    wait_until(lambda: len((tmp_path / "record.jsonl").read_text().splitlines()) == 5, "all is written")
    written = (tmp_path / "record.jsonl").read_text()
    assert "secret" not in written
    rows = [json.loads(line) for line in written.splitlines()]
    assert [row["kind"] for row in rows] == ["start", "subagent", "tool", "tool", "start"]
    assert [row["stop"] for row in rows] == ["tool", "tool", "end", "end", "end"]
    first, spawned, goes_on, joins, _ = rows
    assert [row["session_id"] == first["session_id"] for row in rows] == [True, False, False, True, False]
    assert (spawned["parent"], first["parent"]) == (first["session_id"], None)
    waits = [row["after"] for row in rows]
    assert waits == [[], [first["id"]], [spawned["id"]], [first["id"], goes_on["id"]], []]
    assert joins["pause"] * 1000 >= joins["delay"] >= 0
    assert first["pause"] is first["delay"] is None

    record = read_decisions(tmp_path / "record.jsonl")
    requests = record.trace.requests
    assert [request.session_id for request in requests] == [row["session_id"] for row in rows]
    assert [[each.id for each in request.after] for request in requests] == [[], [0], [1], [0, 2], []]
    fleet = FleetConfig(1, EngineConfig(block_size=BLOCK, blocks=1_000, chunk=512))
    config = replace(ReplayConfig(), fleet=fleet, policies=("kvatlas",), check=0.0, loop="closed")
    result = replay(record.trace, config, first=RecordedChoices(record.chosen))
    assert result.loop == "closed"
    did, would = result.policies
    assert did.requests == would.requests == 5
    assert did.hit_rate == would.hit_rate > 0.3
    assert did.slowdown is not None
    assert did.slowdown.sessions == 3


def test_prompts_that_begin_differently_each_time_are_told(exact: Router) -> None:
    def ask(text: str, name: str) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        assert exact.ask(body, headers={"x-session-id": name}).status == 200

    text = "Line by line, the same as ever. " * 20
    for turn in range(5):
        text += f"Turn {turn} brings something new. "
        ask(f"{BLOCK * 2 * '.'}It is {turn} o'clock now. {text}", "clock")
        ask(text, "still")
        ask(f"A title for chat {turn}, please: " * 3, "still")
    state = json.loads(exact.get("/router")[1])
    changing = state["changing_prompts"]
    assert (changing["sessions"], changing["differs_at_token"]) == (1, BLOCK * 2)
    assert exact.metric("kvatlas_router_changing_prompts_total") == 2
    assert exact.metric("kvatlas_router_changing_prompt_sessions") == 1
    wait_until(lambda: "begin differently turn after turn" in exact.log, "the log says so")
    assert "clock" not in exact.log
    look = Look("http://r", 0.0, state, [], [])
    console = pytest.importorskip("rich.console").Console(width=200, record=True, file=io.StringIO())
    console.print(View(0).show(look, console))
    assert (
        "The prompts of 1 session begin differently turn after turn, the last one from token 32"
        in console.export_text()
    )
