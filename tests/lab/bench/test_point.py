"""Single measurements in processes of their own, honest and not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvatlas.errors import DesignError, MeasurementError
from kvatlas.lab.bench.config import PlanConfig
from kvatlas.lab.bench.designs import choose_designs, known_designs, make_design
from kvatlas.lab.bench.plan import make_plan, save_plan
from kvatlas.lab.bench.programs import Program, Result, run_child, run_point
from kvatlas.lab.bench.verdict import judge
from kvatlas.sim import EngineConfig, FleetConfig, WorkloadConfig, generate

HERE = Path(__file__).parent
MINE = "designs_of_mine"
# Machines that run tests do other things besides: how late the generator is is not what is tested.
PATIENT = {"window_ns": 300_000_000, "lag_limit_ns": 10_000_000_000, "check_seconds": 0.3, "samples": 20}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = generate(WorkloadConfig(requests=40, request_rate=2.0, seed=1))
    path = tmp_path_factory.mktemp("plans") / "small.kvplan"
    save_plan(
        make_plan(trace, PlanConfig(fleet=FleetConfig(engines=4, engine=EngineConfig(block_size=512, blocks=16_384)))),
        path,
    )
    return path


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *([before] if before else [])]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::RuntimeWarning")
    monkeypatch.syspath_prepend(str(HERE))


def measured(plan: Path, index: str) -> Result:
    return run_point(Program(), plan, index, PATIENT, seconds=0.3)


def test_a_right_design_agrees_and_what_it_prints_is_not_in_the_way(plan: Path) -> None:
    result = measured(plan, f"{MINE}:Loud")
    assert result["drained"]
    assert result["agrees"] is True
    assert result["comparison"]["wrong"] == 0
    assert result["comparison"]["depths"]["nonzero"] > 20


def test_a_rung_and_the_python_one(plan: Path) -> None:
    for name in ("block-index", "dict-python"):
        result = measured(plan, name)
        assert result["agrees"] is True
        assert result["measured"]["lookups"] == 40
        assert result["service"]["count"] == 40


def test_a_slow_design_does_not_keep_up(plan: Path) -> None:
    result = measured(plan, f"{MINE}:Slow")
    assert not result["kept_up"]
    assert not result["ok"]
    assert not judge(result, deviates=True).passed


def test_a_wrong_design_is_found_out(plan: Path) -> None:
    result = measured(plan, f"{MINE}:WrongDesign")
    assert result["agrees"] is False
    assert result["comparison"]["wrong"] > 10
    assert result["comparison"]["examples"]
    assert not result["ok"]
    assert not judge(result).passed


def test_a_design_that_raises_is_quoted(plan: Path) -> None:
    verdict = judge(measured(plan, f"{MINE}:FailingIndex"))
    assert not verdict.passed
    assert "out of paper" in verdict.reason


@pytest.mark.parametrize(
    ("index", "options", "message"),
    [
        ("designs_of_mine:unmade", {}, "cannot load the index 'designs_of_mine:unmade': RuntimeError: not today"),
        ("nowhere:Nothing", {}, "No module named 'nowhere'"),
        ("designs_of_mine:Absent", {}, "has no attribute 'Absent'"),
        ("blok-index", {}, "blok-index"),
        ("block-index", {"rate": 5.0}, "not both"),
        ("block-index", {"until": 0.0}, "until must be a share"),
        ("block-index", {"nonsense": 1}, "nonsense"),
        ("positional", {"jump_size": 0}, "jump_size must be at least 1"),
    ],
)
def test_what_fails_is_told_in_a_line(plan: Path, index: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(MeasurementError) as caught:
        run_point(Program(), plan, index, {**PATIENT, **options})
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_plan_is_told(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("no plan")
    for name in ("plan", "absent"):
        with pytest.raises(MeasurementError, match=name):
            run_point(Program(), tmp_path / name, "block-index", PATIENT)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "without a word (killed by signal 9)"),
        ("raise SystemExit(7)", "without a word (exit status 7)"),
        ("1 / 0", "ZeroDivisionError: division by zero (exit status 1)"),
        (
            "import sys; sys.stderr.write('thread main panicked at x.rs:1:\\nboom\\nnote: run\\n'); sys.exit(101)",
            "boom",
        ),
        ("print('nothing of the kind')", "expected a result, got: nothing of the kind"),
        ("print('[]')", "expected a JSON object as result"),
        ("pass", "expected a result"),
    ],
)
def test_programs_that_fail(code: str, message: str) -> None:
    with pytest.raises(MeasurementError, match="it: ") as caught:
        run_child([sys.executable, "-c", code], "it", 30)
    assert message in str(caught.value)


def test_a_program_that_never_ends_is_ended(tmp_path: Path) -> None:
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(MeasurementError, match="did not finish within 1 s") as caught:
        run_child([sys.executable, "-c", code, str(tmp_path / "pid")], "it", 1.0)
    assert caught.value.code == "measurement_timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(MeasurementError, match="cannot run no/such/program: No such file") as caught:
        run_child(["no/such/program"], "it", 1.0)
    assert caught.value.code == "no_program"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_takes_the_process_along(tmp_path: Path) -> None:
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    parent = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvatlas.lab.bench.programs import run_child\n"
        f"run_child([sys.executable, '-c', {child!r}, {str(tmp_path / 'pid')!r}], 'it', 600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def peers(folder: Path, listed: str) -> Path:
    path = folder / "peers"
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"if sys.argv[1:] == ['--list']: print({listed!r}); sys.exit(0)\n"
        "print(json.dumps({'asked': sys.argv[1:]}))\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="scripts")
def test_peers_are_listed_and_asked_in_the_same_way(tmp_path: Path) -> None:
    path = peers(tmp_path, "some-peer  a tree\nblock-index  the same")
    names = [design.name for design in known_designs(path)]
    assert names[0] == "dict-python"
    assert names[-2:] == ["some-peer", "peers/block-index"]
    assert "peers/block-index" not in [design.name for design in choose_designs(["all"], path)]
    chosen = choose_designs(["peers/block-index"], path)[0]
    result = run_point(chosen.program, Path("p"), chosen.index, {"rate": 1.0})
    assert result == {"asked": ["--plan", "p", "--index", "block-index", "--options", json.dumps({"rate": 1.0})]}
    with pytest.raises(DesignError, match="printed no names"):
        known_designs(peers(tmp_path, ""))


def test_designs_by_name(tmp_path: Path) -> None:
    every = choose_designs(["all"])
    names = [design.name for design in every]
    assert names[0] == "dict-python"
    assert {"dict", "inverted", "radix", "positional", "block-index"} <= set(names)
    flags = {design.name: design.deviates for design in every}
    assert flags["dict"]
    assert not flags["block-index"]
    assert not flags["radix"]
    assert not choose_designs(["dict-strict"])[0].deviates
    assert [d.name for d in choose_designs(["radix", "all", "radix"])][:2] == ["radix", "dict-python"]
    assert make_design("radix") == "radix"
    for name, message in (
        ("blok-index", r"did you mean 'block-index'\?.*one of dict-python, dict, .*peers need --peers"),
        ("radix-strict", "cannot be strict"),
        ("nowhere:Nothing", "No module named 'nowhere'"),
    ):
        with pytest.raises(DesignError, match=message):
            choose_designs([name])
    with pytest.raises(DesignError, match="build the peers with cargo build"):
        choose_designs(["all"], tmp_path / "no")
