"""Claude Code's own logs, made into traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.lab.traffic import Conversion, Traffic, read_traffic
from kvatlas.sim.dependencies import Dependency


class Log:
    """A log as it is written: entries that go on with each other, some seconds after the first one."""

    def __init__(self, session: str = "s", agent: str | None = None) -> None:
        self.session, self.agent = session, agent
        self.rows: list[dict[str, Any]] = []
        self.last: str | None = None

    def entry(self, kind: str, at: float, **more: Any) -> str:
        own = f"{self.session}-{self.agent or 'main'}-{len(self.rows)}"
        stamp = f"2026-11-28T{int(at) // 3600:02}:{int(at) // 60 % 60:02}:{at % 60:06.3f}Z"
        row = {"parentUuid": self.last, "isSidechain": self.agent is not None, "type": kind, "uuid": own}
        row |= {"sessionId": self.session, "timestamp": stamp}
        row |= {"agentId": self.agent} if self.agent is not None else {}
        self.rows.append({**row, **more})
        self.last = own
        return own

    def person(self, at: float) -> str:
        return self.entry("user", at, message={"role": "user", "content": "go on"})

    def answer(self, at: float, read: int, new: int, output: int, *, name: str | None = None, parts: int = 1) -> str:
        """An answer that is written in parts, a second apart; the last one at `at`."""
        name = name or f"msg_{self.session}_{self.agent}_{len(self.rows)}"
        for part in range(parts):
            done = output if part == parts - 1 else 1
            usage = {"input_tokens": 2, "cache_read_input_tokens": read, "cache_creation_input_tokens": new - 2}
            message = {"id": name, "model": "m", "role": "assistant", "usage": {**usage, "output_tokens": done}}
            self.entry("assistant", at - (parts - 1 - part), requestId=f"req_{name}", message=message)
        return name

    def text(self) -> str:
        return "".join(json.dumps(row) + "\n" for row in self.rows)


def read(folder: Path, how: Conversion | None = None, **more: Any) -> Traffic:
    return read_traffic([folder], how, **more)


def test_prompts_go_on_with_each_other(tmp_path: Path) -> None:
    log = Log()
    log.rows.append({"type": "summary", "summary": "x", "leafUuid": "y"})
    log.person(10)
    log.answer(14, 0, 640, 50, parts=3)
    log.person(20)
    log.answer(21, 640, 130, 7)
    (tmp_path / "s.jsonl").write_text(log.text())
    traffic = read(tmp_path)
    assert traffic.format == "claude-logs"
    first, second = traffic.trace.requests
    assert (first.input_length, first.output_length, second.input_length, second.output_length) == (640, 50, 770, 7)
    # It began when the person had written, and waited from the last part of the answer on.
    assert (first.timestamp, second.timestamp) == (0, 10_000)
    assert second.after == (Dependency(first.id or 0, 6_000),)
    assert traffic.trace.block == 64
    assert second.hash_ids[:10] == first.hash_ids
    assert len(second.hash_ids) == 12
    assert first.session_id == second.session_id == "s"


@pytest.mark.parametrize("name", ["s.jsonl", "project/s.jsonl", "s.jsonl.gz"])
def test_a_folder_is_read_with_all_below_it(tmp_path: Path, name: str) -> None:
    import gzip  # noqa: PLC0415

    log = Log()
    log.person(0)
    log.answer(1, 0, 640, 5)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(log.text().encode()) if name.endswith("gz") else log.text().encode())
    (tmp_path / "sessions-index.json").write_text('{"version": 1, "entries": []}')
    (tmp_path / "history.jsonl").write_text('{"display": "hi", "timestamp": 1764000000000, "sessionId": "s"}\n')
    assert read(tmp_path).trace.requests[0].input_length == 640
    assert read_traffic([path]).format == "claude-logs"
    assert read_traffic([tmp_path], kind="claude-code").format == "claude-logs"


def test_several_sessions_in_one_file_share_what_the_cache_knew(tmp_path: Path) -> None:
    one, other, third = Log("a"), Log("b"), Log("c")
    for log, at, cached in ((one, 0, 0), (other, 100, 512), (third, 200, 256)):
        log.person(at)
        log.answer(at + 1, cached, 700 - cached, 5)
    (tmp_path / "all.jsonl").write_text(one.text() + other.text() + third.text())
    first, second, last = read(tmp_path / "all.jsonl").trace.requests
    assert [each.session_id for each in (first, second, last)] == ["a", "b", "c"]
    assert first.hash_ids[:8] == second.hash_ids[:8]
    assert first.hash_ids[8] != second.hash_ids[8]
    assert last.hash_ids[:4] == first.hash_ids[:4]
    assert last.hash_ids[4] not in first.hash_ids


def test_what_a_fresh_cache_did_not_know_is_another_beginning(tmp_path: Path) -> None:
    log = Log()
    log.person(0)
    log.answer(1, 0, 640, 5)
    log.person(10)
    log.answer(11, 128, 640, 5)  # a tool was added: the cache knew two blocks, ten seconds later
    log.person(2_000)
    log.answer(2_001, 0, 900, 5)  # half an hour later it knew nothing, which says nothing
    log.person(2_010)
    log.answer(2_011, 320, 80, 5)  # cut, up to what the cache knew
    (tmp_path / "s.jsonl").write_text(log.text())
    a, b, c, d = read(tmp_path, Conversion(longest_pause=1e9)).trace.requests
    assert (b.hash_ids[:2], b.hash_ids[2] in a.hash_ids) == (a.hash_ids[:2], False)
    assert c.hash_ids[:12] == b.hash_ids
    assert (d.hash_ids[:5], d.hash_ids[5] in c.hash_ids) == (c.hash_ids[:5], False)


def test_agents_wait_for_who_started_them_and_are_waited_for(tmp_path: Path) -> None:
    log, agent, later = Log(), Log(agent="x1"), Log(agent="x2")
    log.person(0)
    log.answer(5, 0, 640, 5)
    agent.person(8)
    agent.answer(9, 0, 256, 5)
    agent.person(10)
    agent.answer(12, 256, 64, 5)
    log.person(20)
    log.answer(25, 640, 64, 5)
    later.person(30)
    later.answer(90, 0, 256, 5)  # in the background
    log.person(40)
    log.answer(41, 704, 64, 5)
    (tmp_path / "s.jsonl").write_text(log.text())
    folder = tmp_path / "s" / "subagents"
    folder.mkdir(parents=True)
    (folder / "agent-x1.jsonl").write_text(agent.text())
    (folder / "agent-x2.jsonl").write_text(later.text())
    trace = read(tmp_path).trace
    by_start = {each.timestamp // 1000: each for each in trace.requests}
    main, first, joined, background, last = (by_start[at] for at in (0, 8, 20, 30, 40))
    assert {each.session_id for each in trace.requests} == {"s", "s/x1", "s/x2"}
    assert first.after == (Dependency(main.id or 0, 3_000),)
    assert set(joined.after) == {Dependency(main.id or 0, 15_000), Dependency(by_start[10].id or 0, 8_000)}
    assert background.after == (Dependency(joined.id or 0, 5_000),)
    assert last.after == (Dependency(joined.id or 0, 15_000),)


def test_long_pauses_are_cut_and_the_rest_of_the_session_comes_sooner(tmp_path: Path) -> None:
    log = Log()
    for at in (0, 3_000, 6_100):
        log.person(at)
        log.answer(at + 10, 0, 640, 5)
    (tmp_path / "s.jsonl").write_text(log.text())
    times = [each.timestamp for each in read(tmp_path, Conversion(longest_pause=60)).trace.requests]
    assert times == [0, 70_000, 140_000]


def test_answers_count_once_and_errors_do_not(tmp_path: Path) -> None:
    log = Log()
    log.person(0)
    log.answer(1, 0, 640, 5, name="same")
    log.person(2)
    log.answer(3, 0, 2, 0, name="empty")
    log.rows[-1]["message"]["usage"] = {"input_tokens": 0, "output_tokens": 0}
    log.person(4)
    log.answer(5, 640, 64, 5)
    (tmp_path / "a.jsonl").write_text(log.text())
    (tmp_path / "b.jsonl").write_text(log.text().replace('"sessionId": "s"', '"sessionId": "resumed"'))
    traffic = read(tmp_path)
    assert len(traffic.trace.requests) == 2
    assert "1 answers without tokens, such as errors, were left out." in traffic.assumptions
    with pytest.raises(TraceError, match="holds no requests"):
        read(tmp_path, Conversion(model="other"))


def test_prompts_that_were_taken_back_part_where_they_did(tmp_path: Path) -> None:
    log = Log()
    log.person(0)
    log.answer(1, 0, 640, 5)
    fork = log.last
    log.person(2)
    log.answer(3, 640, 320, 5)
    log.last = fork
    log.person(20)
    log.answer(21, 640, 320, 5)
    (tmp_path / "s.jsonl").write_text(log.text())
    first, second, other = read(tmp_path).trace.requests
    assert second.hash_ids[:10] == other.hash_ids[:10] == first.hash_ids
    assert second.hash_ids[10] != other.hash_ids[10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": "yesterday"}, r"s\.jsonl, line 2: timestamp must be an ISO date, not 'yesterday'"),
        ({"timestamp": None}, "line 2: timestamp must be an ISO date, not None"),
        ({"message": {"usage": 3}}, "line 2: message.usage must be an object, not 3"),
        ({"message": {"usage": {"input_tokens": "many"}}}, "message.usage.input_tokens must be a whole number from 0"),
        ({"message": {"usage": {"output_tokens": -1}}}, "message.usage.output_tokens must be a whole number"),
    ],
)
def test_a_malformed_entry_is_named_or_left_out(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    log = Log()
    log.person(0)
    log.answer(1, 0, 640, 5)
    bad = {**log.rows[1], **change, "uuid": "bad"}
    (tmp_path / "s.jsonl").write_text(
        "\n".join([json.dumps(log.rows[0]), json.dumps(bad), json.dumps(log.rows[1]), "{cut"])
    )
    with pytest.raises(TraceError, match=message):
        read(tmp_path)
    traffic = read(tmp_path, Conversion(skip_bad=True))
    assert (len(traffic.trace.requests), traffic.trace.skipped) == (1, 2)
