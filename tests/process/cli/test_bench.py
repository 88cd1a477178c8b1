"""`kvatlas bench`."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.command import Run

from kvatlas.cli.bench import bench

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
SMALL = ("--requests", 60, "--engines", 4, "--check-seconds", 0.2)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::RuntimeWarning")


def test_a_run_says_what_came_of_it(run: Run) -> None:
    done = run("bench", "run", *SMALL, "--window", "300ms", "--json", "-")
    result = json.loads(done.stdout)
    # Whether this machine had the time is its affair; that it is said is ours.
    assert done.returncode == (0 if result["ok"] else 1), done.stderr
    assert result["index"] == "block-index"
    assert result["plan"]["facts"]["lookups"] == 60
    assert "4 workers" in done.stderr
    assert ("agrees with the reference" in done.stderr) == result["ok"]
    assert ("INVALID" in done.stderr) == (not result["valid"])


def test_a_run_that_cannot_be_valid_has_no_figures(run: Run) -> None:
    done = run("bench", "run", *SMALL, "--rate", 1e13)
    assert done.returncode == 1
    assert "INVALID" in done.stdout
    for word in ("achieved", "from deadline", "in service", "ops/s"):
        assert word not in done.stdout


def test_a_plan_is_kept_and_run(run: Run) -> None:
    done = run("bench", "plan", "--requests", 60, "--engines", 4, "--save-plan", "p.kvplan")
    assert done.returncode == 0, done.stderr
    digest = done.stdout.split("Digest")[1].split(".")[0].strip()
    result = json.loads(
        run("bench", "run", "--plan", "p.kvplan", "--window", "200ms", "--check-seconds", 0.2, "--json", "-").stdout
    )
    assert result["plan"]["digest"] == digest
    done = run("bench", "run", "--plan", "p.kvplan", "--rate", 1e4, "--engines", 5)
    assert (done.returncode, "--plan and --engines are mutually exclusive" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_sweep_writes_everything_and_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    where = ("bench", "sweep", *SMALL, "--index", "block-index", "--out", "s")
    how = ("--no-curves", "--short", "--seconds", 0.05, "--width", 1, "--p99-limit", "10s", "--start", 2000)
    args: tuple[object, ...] = (*where, *how)
    done = run(*args)
    assert done.returncode in (0, 1), done.stderr
    assert {p.name for p in (tmp_path / "s").iterdir() if p.suffix != ".kvplan"} == {
        "points.jsonl",
        "sweep.json",
        "sweep.html",
        "sweep.png",
    }
    data = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert data["complete"]
    assert [one["index"] for one in data["indexes"]] == ["block-index"]
    assert data["command"].startswith("kvatlas bench sweep --requests 60")
    before = (tmp_path / "s" / "points.jsonl").read_bytes()
    again = run(*args)
    assert "are not measured again" in again.stdout
    assert (tmp_path / "s" / "points.jsonl").read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    args = [*map(str, SMALL), "--index", "block-index", "--out", "s", "--seconds", "0.2", "--repeats", "500"]
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom kvatlas.cli import main\nmain()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bench", "sweep", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
    )
    points = tmp_path / "s" / "points.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and not (points.exists() and points.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted" in out
    assert "To continue: kvatlas bench sweep --requests 60" in err
    assert points.read_text().count("\n") >= 1
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["complete"] is False


@pytest.mark.slow
def test_growth(run: Run, tmp_path: Path) -> None:
    done = run("bench", "grow", "--short", "--index", "block-index", "--lookup-seconds", 0.01, "--build-seconds", 60)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "grow" / "grow.json").read_text())
    assert {p["series"] for p in data["points"] if p["p50"]} == {"depth", "workers", "holders", "blocks"}
    assert "depth: blocks of a query" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "One of --rate and --window is required"),
        (["run", "--rate", "1e5", "--window", "1s"], "--rate or --window, not both"),
        (["run", "--rate", "0"], "--rate must be above 0 block operations per second"),
        (["run", "--rate", "nan"], "--rate must be above 0"),
        (["run", "--window", "5"], "'5' is not a time: write a number and ns, us, ms or s"),
        (["run", "--rate", "1e5", "--engines", "0"], "0 is not in the range"),
        (["run", "--rate", "1e5", "--engines", "many"], "Invalid value for '--engines': 'many' is not a valid integer"),
        (["run", "--rate", "1e5", "--engines", "100001"], "engines must be from 1 to 100000, got 100001"),
        (["run", "--rate", "1e5", "--copies", "40"], "40 copies of a request need as many engines, got 32"),
        (["run", "--rate", "1e5", "--block-size", "100"], "does not divide 512"),
        (["run", "--rate", "1e5", "--jump-size", "0"], "0 is not in the range"),
        (["run", "--rate", "1e5", "--pin", "a"], "--pin must be CPU numbers"),
        (["run", "--rate", "1e5", "--index", "blok-index"], "did you mean 'block-index'"),
        (["run", "--rate", "1e5", "--index", "all"], "takes one index"),
        (["run", "--rate", "1e5", "--index", "nowhere:No"], "No module named 'nowhere'"),
        (["run", "--rate", "1e5", "--index", "radix", "--strict", "--requests", "20"], "cannot be strict"),
        (["run", "--rate", "1e5", "--peers", "no/such"], "there is no program no/such: build the peers with cargo"),
        (["run", "--rate", "1e5", "--skip-bad"], "--skip-bad requires a TRACE file"),
        (["run", "--rate", "1e5", "--plan", "none.kvplan"], "none.kvplan"),
        (["run", "--rate", "1e5", "--plan", "bad.jsonl"], "bad.jsonl"),
        (["run", "--rate", "1e5", "absent.jsonl"], "cannot read absent.jsonl: No such file"),
        (["run", "--rate", "1e5", "bad.jsonl"], "bad.jsonl, line 2: no 'input_length'"),
        (["run", "--rate", "1e5", "--json", "no/such/r.json"], "there is no directory"),
        (["sweep", "--index", ","], "--index is empty"),
        (
            ["sweep", "--index", "dict,nonsense"],
            "there is no index 'nonsense': it must be all, one of dict-python, dict",
        ),
        (["sweep", "--p99-limit", "fast"], "'fast' is not a time"),
        (["sweep", "--start", "0"], "start must be from 1"),
        (["sweep", "--out", "bad.jsonl"], "bad.jsonl is not a directory"),
        (["plan"], "Missing option '--save-plan'"),
        (["plan", "--save-plan", "no/such/p"], "there is no directory"),
        (["swep"], "No such command 'swep'"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text(LINE + '{"timestamp": 1}\n')
    done = CliRunner().invoke(bench, args)
    assert done.exit_code == 2, done.output
    assert message in done.output.replace("\n", " ")
    assert "block ops" not in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]
