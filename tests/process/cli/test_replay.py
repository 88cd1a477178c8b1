"""`kvatlas replay`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.command import Run

FAST = ("--requests", 200, "--engines", 4, "--block-size", 128, "--request-rate", 1)
TWO = ("--policy", "kvatlas", "--policy", "random")
LINE = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'


def test_a_generated_trace(run: Run) -> None:
    done = run("replay", *FAST)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for word in (
        "200 requests",
        "round-robin",
        "dynamo-kv",
        "kvatlas",
        "one infinite cache",
        "bytes",
        "all agree",
    ):
        assert word in done.stdout


def test_help_names_the_policies_and_the_model(run: Run) -> None:
    text = " ".join(run("replay", "--help").stdout.split())
    assert "module:Class" in text
    assert "time of a step = base + prefill * prompt tokens" in text


def test_json_to_stdout_is_nothing_but_json(run: Run) -> None:
    done = run("replay", *FAST, "--json", "-", *TWO)
    data = json.loads(done.stdout)
    assert [p["policy"] for p in data["policies"]] == ["kvatlas", "random"]
    assert data["partial"] is False
    assert "Routing" in done.stderr


def test_results_follow_the_seed(run: Run) -> None:
    def hits(*args: object) -> list[int]:
        data = json.loads(run("replay", *FAST, *TWO, "--json", "-", "--check", 0, *args).stdout)
        return [p["hit_tokens"] for p in data["policies"]]

    assert hits() == hits()
    assert hits("--seed", 1) != hits()


def test_files_are_written(run: Run, tmp_path: Path) -> None:
    done = run("replay", *FAST, *TWO, "--json", "r.json", "--save-trace", "t.jsonl")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["statistics"]["requests"] == 200
    again = run("replay", "t.jsonl", "--engines", 4, "--block-size", 128, *TWO, "--json", "-")
    first, second = json.loads((tmp_path / "r.json").read_text()), json.loads(again.stdout)
    assert [p["hit_tokens"] for p in first["policies"]] == [p["hit_tokens"] for p in second["policies"]]


def test_plots_are_written(run: Run, tmp_path: Path) -> None:
    done = run("replay", *FAST, "--policy", "kvatlas", "--plot", "a.png", "--plot", "b.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert "<svg" in (tmp_path / "b.html").read_text()


def test_a_malformed_line_is_named_or_skipped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(LINE + '{"timestamp": 1}\n' + LINE * 3 + "nonsense\n")
    done = run("replay", "t.jsonl")
    assert done.returncode == 2
    assert done.stderr == "Error: t.jsonl, line 2: no 'input_length'\n"
    done = run("replay", "t.jsonl", "--skip-bad", "--engines", 2)
    assert done.returncode == 0
    assert "2 malformed lines were left out" in done.stdout
    assert "line 2: no 'input_length'" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read t.jsonl: No such file"),
        (b"", "t.jsonl is empty"),
        (os.urandom(5000), "line 1: not"),
        (b"timestamp,input_length,output_length\n0,1,2\n", "line 1: not JSON: the file looks like CSV"),
    ],
)
def test_what_is_no_trace_is_one_line(run: Run, tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "t.jsonl").write_bytes(content)
    done = run("replay", "t.jsonl")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        args = [sys.executable, "-m", "kvatlas.cli", "replay", *map(str, (*FAST, *TWO)), "--json", "r.json"]
        done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "Error: cannot write: No space left on device\n"
    assert (tmp_path / "r.json").stat().st_size > 0


def test_a_directory_is_no_trace(run: Run) -> None:
    done = run("replay", ".")
    assert (done.returncode, done.stderr) == (2, "Error: . is a directory, not a trace file\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--engine", "3"], "--engines"),
        (["--polcy", "kvatlas"], "--policy"),
        (["--engines", "0"], "0 is not in the range"),
        (["--engines", "many"], "'many' is not a valid integer"),
        (["--block-size", "100"], "100 does not divide 512"),
        (["--speedup", "0"], "--speedup"),
        (["--speedup", "nan"], "speedup must be above 0, got nan"),
        (["--request-rate", "nan"], "rate must not be negative, got nan"),
        (["--check", "2"], "2.0 is not in the range"),
        (["--policy", "kvatls"], "kvatlas"),
        (["--hardware", "abacus"], "no hardware 'abacus': there is h100x4"),
        (["--workload", "nothing"], "no workload 'nothing'"),
        (["--workload", "chat", "--zipf", "1"], "--zipf does not apply to --workload"),
        (["--decisions", "none.jsonl"], "cannot read none.jsonl"),
        (["--model", "m"], "--model needs --decisions"),
        (["--lose-events", "1"], "--lose-events"),
        (["--policy", "nowhere:Nothing"], "No module named 'nowhere'"),
        (["--cache-tokens", "5"], "cache_tokens must be at least one block of 16"),
        (["--engines", "90000"], "more than the 50000000 blocks"),
        (["--json", "no/such/r.json"], "there is no directory"),
        (["--json", "."], "is a directory"),
        (["--plot", "a.gif"], "must end in .png, .svg or .html"),
        (["--skip-bad"], "--skip-bad requires a TRACE file"),
        (["t.jsonl", "--request-rate", "3"], "--request-rate only applies to generated traces"),
        (["t.jsonl", "--save-trace", "u"], "--save-trace only applies to generated traces"),
        (["t.jsonl", "--json", "./t.jsonl"], "is the trace: it would be overwritten"),
        (["t.jsonl", "extra"], "unexpected extra argument"),
    ],
)
def test_wrong_input_is_named(run: Run, tmp_path: Path, args: list[str], message: str) -> None:
    (tmp_path / "t.jsonl").write_text(LINE)
    done = run("replay", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert (tmp_path / "t.jsonl").read_text() == LINE


def test_a_policy_of_ones_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class First:\n"
        "    uses_index = False\n"
        "    def __init__(self, seed): pass\n"
        "    def choose(self, request, candidates): return 0\n"
        "class Bad(First):\n"
        "    def choose(self, request, candidates): return 1 / 0\n"
        "class Unmade(First):\n"
        "    def __init__(self, seed, *, needed): pass\n"
        "class Seedless:\n"
        "    def choose(self, request, candidates): return 0\n"
        "class Broken(First):\n"
        "    def __init__(self, seed): {}['key']\n"
    )
    done = run("replay", *FAST, "--policy", "mine:First")
    assert done.returncode == 0, done.stderr
    assert "mine:First" in done.stdout
    assert run("replay", *FAST, "--policy", "mine:Seedless").returncode == 0
    done = run("replay", *FAST, "--policy", "mine:Unmade")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "it is made as Unmade(seed, **options)" in done.stderr
    for name, line, error in (("Bad", 6, "ZeroDivisionError: division by zero"), ("Broken", 12, "KeyError: 'key'")):
        done = run("replay", *FAST, "--policy", f"mine:{name}")
        assert done.returncode == 2
        first, place, *_rest, last = done.stderr.splitlines()
        assert first == "Traceback (most recent call last):"
        assert f'mine.py", line {line}, in ' in place, "it begins in the code of the policy"
        assert last.startswith("Error: policy ")
        assert error in last


def test_a_policy_s_module_that_cannot_be_loaded_shows_where(run: Run, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("x = 1\nraise OSError('no GPU')\n")
    (tmp_path / "misspelt.py").write_text("class Mine\n    pass\n")
    for name, line in (("failing", 2), ("misspelt", 1)):
        done = run("replay", *FAST, "--policy", f"{name}:Mine")
        assert done.returncode == 2
        assert f'{name}.py", line {line}' in done.stderr
        assert done.stderr.splitlines()[-1].startswith("Error: cannot load policy ")


def test_a_workload_and_late_events(run: Run) -> None:
    done = run("replay", "--workload", "bursts", "--requests", 60, "--block-size", 512, "--policy", "kvatlas",
               "--event-delay", 0.5, "--lose-events", 0.1, "--hardware", "a100x8", "--json", "-")  # fmt: skip
    data = json.loads(done.stdout)
    assert data["trace"] == "bursts (seed 0)"
    assert data["config"]["scenario"]["event_delay"] == 0.5
    assert data["config"]["steps"]["base"] == pytest.approx(0.044)
    assert data["policies"][0]["lost_events"] > 0
    done = run("replay", *FAST, "--no-events", "--policy", "kvatlas", "--step-base", "0.01", "--json", "-")
    data = json.loads(done.stdout)
    assert (data["config"]["guess"], data["config"]["steps"]["base"]) == ("mock", 0.01)
    assert data["policies"][0]["hit_rate"] > 0.1


def test_a_router_s_record(run: Run, tmp_path: Path) -> None:
    rows = [
        {"t": 0.5 * n, "id": n, "model": "m", "tokens": 70, "block_size": 32,
         "hashes": [f"{n % 3:x}", f"{n % 3 + 10:x}"], "worker": f"http://e{n % 2}",
         "cached": 32, "output": 5, "first_token": 0.2}
        for n in range(30)
    ]  # fmt: skip
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for args, message in (
        (("--engines", 8), "--engines 8 does not apply to --decisions: the record has 2 engines"),
        (("--block-size", 16), "--block-size 16 does not apply to --decisions: the record has 32 tokens per block"),
        (("--zipf", 1), "--zipf does not apply to --decisions"),
        (("--save-trace", "t.jsonl"), "--save-trace does not apply to --decisions"),
        (("--skip-bad",), "--skip-bad does not apply to --decisions"),
    ):
        refused = run("replay", "--decisions", "r.jsonl", "--policy", "kvatlas", *args)
        assert refused.returncode == 2
        assert message in " ".join(refused.stderr.split())
    mistaken = run("replay", "r.jsonl").stderr
    assert "line 1: a decision of a router's record, not a request of a trace: use --decisions" in mistaken
    done = run("replay", "--decisions", "r.jsonl", "--policy", "kvatlas", "--engines", 2)
    assert done.returncode == 0, done.stderr
    assert "as recorded" in done.stdout
    assert "kvatlas" in done.stdout
    assert "distinct blocks of 32." in " ".join(done.stdout.split())
    assert "Measured, says the record: first tokens after 0.20 s on average" in done.stdout


def test_a_disagreement_exits_with_1(tmp_path: Path) -> None:
    code = (
        "import kvatlas.lab.replay.runner as runner\n"
        "class Wrong(runner.ReferenceIndex):\n"
        "    def store(self, worker, **how): super().store(worker + '!', **how)\n"
        "runner.ReferenceIndex = Wrong\n"
        "from kvatlas.cli import main\n"
        "main()\n"
    )
    args = [sys.executable, "-c", code, "replay", *map(str, FAST), "--check", "0.5", "--policy", "kvatlas"]
    done = subprocess.run(args, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "DISAGREE" in done.stdout
    assert "the reference says 0, the index says" in " ".join(done.stdout.split())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_reports_what_was_done(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n"
        "class Slow:\n"
        "    uses_index = False\n"
        "    done = 0\n"
        "    def __init__(self, seed): pass\n"
        "    def choose(self, request, candidates):\n"
        "        self.done += 1\n"
        "        if self.done == 100: pathlib.Path('ready').touch()\n"
        "        if self.done > 100: time.sleep(0.1)\n"
        "        return 0\n"
    )
    args = ["replay", "--requests", "600", "--block-size", "512", "--policy", "random", "--policy", "slow:Slow"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvatlas.cli", *args, "--json", "r.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and not (tmp_path / "ready").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted: this is what was done so far." in out
    assert "slow:Slow" in out
    assert "(partial)" in out
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["partial"] is True
    assert [p["partial"] for p in data["policies"]] == [False, True]
    assert 100 <= data["policies"][1]["requests"] < 600
