"""`kvatlas trace`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.command import Run

from kvatlas.cli import main

LINE = '{"timestamp": %d, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2, %d], "session_id": "s"}\n'
TABLE = "when,in,out\n1,600,5\n2,700,6\n"
COLUMNS = "timestamp=when,input_length=in,output_length=out"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "t.jsonl").write_text(LINE % (0, 3) + LINE % (30_000, 4))
    return tmp_path / "t.jsonl"


def test_the_figures_of_a_trace(run: Run, trace: Path) -> None:
    done = run("trace", trace)
    assert done.returncode == 0, done.stderr
    for word in ("2 requests in 30 seconds", "46.5 %", "1 session;", "Hit rate of one cache", "request to request"):
        assert word in done.stdout
    assert done.stderr == ""


def test_figures_as_json(run: Run, trace: Path) -> None:
    data = json.loads(run("trace", trace, "--json", "-").stdout)
    assert data["format"] == "trace"
    assert data["hit_rate_without_limit"] == pytest.approx(1_024 / 2_200)
    assert data["sessions"]["sessions"] == 1
    assert list(data["hit_rates"].values())[-1] == data["hit_rate_without_limit"]


def test_a_table_becomes_a_trace_that_is_replayed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    refused = run("replay", "t.csv")
    assert refused.returncode == 2
    assert "`kvatlas trace FILE --save trace.jsonl`" in refused.stderr
    refused = run("trace", "t.csv")
    assert refused.returncode == 2
    assert "columns when, in, out: say which are which with --columns" in refused.stderr
    made = run("trace", "t.csv", "--columns", COLUMNS, "--save", "t.jsonl.gz", "--json", "t.json")
    assert made.returncode == 0, made.stderr
    assert "they share nothing" in " ".join(made.stdout.split())
    assert made.stderr == "Wrote t.jsonl.gz.\nWrote t.json.\n"
    replayed = run("replay", "t.jsonl.gz", "--policy", "round-robin", "--engines", 1, "--block-size", 64)
    assert replayed.returncode == 0, replayed.stderr
    assert "2 requests" in replayed.stdout


def test_a_trace_with_small_blocks_is_replayed(run: Run, tmp_path: Path) -> None:
    row = {"time": 0, "prompt": list(range(200)), "usage": {"completion_tokens": 2}}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "time": 9}) + "\n")
    assert run("trace", "log.jsonl", "--block-size", 32, "--save", "t.jsonl").returncode == 0
    done = run("replay", "t.jsonl", "--policy", "kvatlas", "--engines", 1, "--block-size", 32, "--json", "-")
    assert json.loads(done.stdout)["policies"][0]["hit_tokens"] == 192
    done = run("replay", "t.jsonl", "--block-size", 128)
    assert done.returncode == 2
    assert "does not divide 32" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--from", "azure2"), "'azure2' is not one of"),
        (("--columns", "when=x"), "no field 'when'; it must be one of timestamp,"),
        (("--columns", "input_length"), "input_length needs a column: input_length=COLUMN"),
        (("--block-size", 64), "for input_length 1100, which has 18 blocks of 64: if an id stands for 512 tokens"),
        (
            ("--longest-pause", 4),
            "--longest-pause does not apply to the format trace, but to claude-code, claude-logs.",
        ),
        (("--session-rate", 4), "--session-rate does not apply to the format trace"),
        (("--save", "."), "it is a directory"),
        (("--save", "no/t.jsonl"), "there is no directory"),
        (("--save", "t.jsonl"), "t.jsonl is the trace: it would be overwritten."),
        (("--json", "no/t.json"), "there is no directory"),
        (("--from", "vllm"), "t.jsonl holds no requests"),
        (("t.jsonl",), "2 files of the format trace: only claude-logs, claude-code, dynamo, otel come in several"),
        (("--tokenizer", "nowhere/at all"), "neither a path nor the name of a model"),
    ],
)
def test_wrong_flags_are_refused(run: Run, trace: Path, flags: tuple[object, ...], message: str) -> None:
    done = run("trace", "t.jsonl", *flags)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


LOG = {
    "type": "assistant",
    "uuid": "u",
    "sessionId": "s",
    "timestamp": "2026-11-28T10:00:00Z",
    "message": {"id": "m", "model": "x", "usage": {"input_tokens": 600, "output_tokens": 5}},
}
CHAT = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 2}
OTHERS = {
    "claude-logs": LOG,
    "bailian": {**CHAT, "hash_ids": [1, 2, 3]},
    "dynamo": {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": 5,
        "request": {"replay": {"trace_block_size": 16, "input_length": 40, "input_sequence_hashes": [1, 2, 3]}},
    },
    "otel": {"start_time": "2026-11-28T10:00:00Z", "attributes": {"gen_ai.usage.input_tokens": 600}},
    "openai": {"time": 1, "messages": [{"role": "user", "content": "hello " * 100}]},
    "claude-code": {"block_size": 64, "requests": [{"t": 0, "in": 64, "out": 2, "hash_ids": [1]}]},
}


@pytest.mark.parametrize("command", ["replay", "plan"])
@pytest.mark.parametrize("form", OTHERS)
def test_what_others_record_is_named_and_can_be_converted(run: Run, tmp_path: Path, form: str, command: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(OTHERS[form]) + "\n")
    refused = run(command, "x.jsonl")
    assert refused.returncode == 2
    words = " ".join(refused.stderr.split())
    assert f"of the form {form}: `kvatlas trace FILE --save trace.jsonl` makes a trace of it" in words
    made = run("trace", "x.jsonl", "--save", "t.jsonl", "--json", "-")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["format"] == form
    done = run(command, "t.jsonl", "--policy", "round-robin", "--block-size", 8, "--engines", 1)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["trace", "replay", "plan"])
@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("us", 1_000_000), ("ns", 1_000_000_000)])
def test_a_wrong_unit_is_noticed_by_every_command(
    run: Run, tmp_path: Path, command: str, unit: str, factor: int
) -> None:
    (tmp_path / "t.jsonl").write_text("".join(LINE % (2 * n * factor, n) for n in range(30)))
    more = () if command == "trace" else ("--policy", "round-robin", "--engines", 1, "--block-size", 512)
    refused = run(command, "t.jsonl", *more)
    assert refused.returncode == 2
    assert f"--time-unit {unit} reads them so" in " ".join(refused.stderr.split())
    done = run(command, "t.jsonl", "--time-unit", unit, *more)
    assert done.returncode == 0, done.stderr
    assert "30 requests in 58 seconds" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", ["replay", "plan"])
@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (LINE % (9, 3) + LINE % (5, 4), (), "`kvatlas trace FILE --save trace.jsonl` puts requests in order"),
        (LINE.replace("1100", "80") % (0, 3), (), "if an id stands for 32 tokens, `kvatlas trace FILE --block-size 32"),
        (
            LINE.replace("input_length", "tokens") % (0, 3),
            (),
            "no 'input_length': if it is called otherwise, `kvatlas trace FILE --columns`",
        ),
        (LINE % (0, 3), ("--loop", "closed"), "only the open loop can replay it (--loop open)"),
        (
            '{"block_size": 24}\n' + LINE.replace("1100", "70") % (0, 3),
            (),
            "--block-size may be 1, 2, 3, 4, 6, 8, 12, 24",
        ),
    ],
)
def test_each_refusal_names_what_would_help(
    run: Run, tmp_path: Path, command: str, text: str, flags: tuple[str, ...], message: str
) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    refused = run(command, "t.jsonl", *flags)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("head", "flags", "message"),
    [
        ({"block_size": 512}, ("--block-size", 64), "its ids stand for 512 tokens: leave out --block-size"),
        (
            {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 512},
            ("--time-unit", "s"),
            "its times are in milliseconds: leave out --time-unit",
        ),
    ],
)
@pytest.mark.parametrize("more", [(), ("--skip-bad",)])
def test_options_that_contradict_the_file_are_refused(
    run: Run, tmp_path: Path, head: dict[str, object], flags: tuple[object, ...], message: str, more: tuple[str, ...]
) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(head) + "\n" + LINE % (0, 3))
    refused = run("trace", "t.jsonl", *flags, *more)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.split())


def test_a_folder_is_no_trace_but_may_be_made_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text(json.dumps(LOG) + "\n")
    refused = run("replay", "logs")
    assert "is a directory, not a trace file: `kvatlas trace FILE --save" in " ".join(refused.stderr.split())
    assert run("trace", "logs", "--save", "t.jsonl").returncode == 0
    refused = run("trace", "logs", "--from", "vllm")
    assert "is a directory: only claude-logs, claude-code, dynamo, otel come in one" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("command", ["replay", "plan"])
def test_a_unit_without_a_trace_is_refused(run: Run, command: str) -> None:
    refused = run(command, "--workload", "chat", "--time-unit", "s")
    assert refused.returncode == 2
    assert "--time-unit does not apply to --workload" in refused.stderr


def test_no_such_file(run: Run) -> None:
    done = run("trace", "none.jsonl")
    assert done.returncode == 2
    assert "'none.jsonl' does not exist" in done.stderr


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = run("trace", trace)
    assert max(map(len, done.stdout.splitlines())) <= width
    assert "prompt tokens" in done.stdout


def test_standard_input_is_a_file_too(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.parent)

    def piped(text: str, *args: str) -> Result:
        return CliRunner().invoke(main, args, prog_name="kvatlas", input=text)

    done = piped(trace.read_text(), "trace", "-", "--save", "s.jsonl")
    assert done.exit_code == 0, done.stderr
    assert "standard input: 2 requests in 30 seconds" in done.stdout
    assert Path("s.jsonl").read_text() == trace.read_text()
    for command in ("replay", "plan"):
        done = piped(trace.read_text(), command, "-", "--policy", "round-robin", "--engines", "1")
        assert done.exit_code == 0, done.stderr
        assert "2 requests" in done.stdout
        done = piped("{}\n", command, "-")
        assert done.exit_code == 2
        assert done.stderr.startswith("Error: standard input, line 1: no 'timestamp'")


def test_a_warning_goes_to_stderr_and_json(run: Run, tmp_path: Path) -> None:
    row = {"time": 0, "prompt": "a" * 1_730, "usage": {"prompt_tokens": 10}}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    done = run("trace", "log.jsonl", "--json", "-")
    assert "Warning: In 1 of 1 request with usage" in done.stderr
    assert len(json.loads(done.stdout)["warnings"]) == 1


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "lab" / "traffic.md"
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    script = f'kvatlas() {{ {sys.executable} -W ignore -m kvatlas.cli "$@"; }}\n' + "\n".join(blocks)
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "42.9 % of the prompt tokens repeat" in done.stdout  # of the two prompts of the log
    assert "limits this fleet" in " ".join(done.stdout.split())
    assert {path.name for path in tmp_path.iterdir()} == {
        "requests.csv",
        "trace.jsonl",
        "log.jsonl",
        "log-trace.jsonl.gz",
    }
