"""Racy tests: those that are run again are named with a reason, and `make flaky` finds others."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.racy import RACY
from tools.flaky import failures, main

ROOT = Path(__file__).parents[2]


def test_each_racy_test_exists_and_has_a_reason() -> None:
    for test, reason in RACY.items():
        path, _, name = test.partition("::")
        assert len(reason.split()) > 3, test
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8"), test


def test_tests_that_fail_now_and_then_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_some.py").write_text(f"""
import pathlib
def test_good(): pass
def test_racy():
    mark = pathlib.Path({str(tmp_path / "mark")!r})
    mark.touch(exist_ok=False)
""")
    where = f"-p no:cacheprovider -c {tmp_path}/pytest.ini {tmp_path}"
    assert main(["--times", "3", "--load", "1", "--pytest", where]) == 1
    said = capsys.readouterr().out
    assert "round 1 of 3: 0 failed" in said
    assert "1 tests failed in 3 rounds" in said
    assert "   2 " in said.splitlines()[-1]
    assert "test_some.py::test_racy" in said.splitlines()[-1]
    (tmp_path / "mark").unlink()
    assert main(["--times", "1", "--load", "0", "--pytest", where]) == 0


def test_a_run_that_names_no_test_is_a_failure_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('test a::b ... FAILED'); sys.exit(3)"]
    assert failures(command, re.compile(r"^test (\S+) \.\.\. FAILED$", re.MULTILINE), tmp_path / "log") == ["a::b"]
    assert "exit status 3" in failures(command, re.compile("never"), tmp_path / "log")[0]
    assert (tmp_path / "log").exists()
