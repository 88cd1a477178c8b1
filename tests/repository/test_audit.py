"""Tests of what `make audit` says: findings are an error, and what could not be checked is never "nothing found"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools.audit import main

FAULT = {"name": "a", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
SOUND = {"name": "b", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "c", "skip_reason": "not found on PyPI"}


class Programs:
    """Stands in for cargo-deny and pip-audit: each command of theirs answers as it is told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.deny = self.write("deny", "exit 0")
        self.packages([SOUND])

    def write(self, name: str, script: str) -> str:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        return str(path)

    def packages(self, packages: list[dict[str, Any]]) -> None:
        found = any(package.get("vulns") for package in packages)
        answer = json.dumps({"dependencies": packages})
        self.pip_audit = self.write("pip-audit", f"echo '{answer}'\nexit {int(found)}")

    def run(self, *flags: str) -> int:
        return main(["--deny", self.deny, "--pip-audit", self.pip_audit, *flags, "image.txt"])


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_nothing_is_found(programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    assert programs.run("--complete") == 0
    assert capfd.readouterr().out == "nothing found\n"


@pytest.mark.parametrize("part", ["licenses", "advisories"])
def test_a_finding_of_cargo_deny_is_an_error(programs: Programs, part: str, capfd: pytest.CaptureFixture[str]) -> None:
    programs.deny = programs.write("deny", f'case "$*" in *{part}*) exit 1;; esac')
    assert programs.run() == 1
    assert "FOUND: crates" in capfd.readouterr().out


def test_a_finding_of_pip_audit_is_an_error(programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    programs.packages([FAULT, SOUND])
    assert programs.run() == 1
    assert capfd.readouterr().out == "FOUND: image.txt: a 1.0: PYSEC-1, fixed in 1.1\n"


def test_a_database_out_of_reach_is_said(programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    programs.deny = programs.write("deny", 'case "$*" in *fetch\\ db*) exit 1;; esac')
    programs.packages([SOUND, UNKNOWN])
    assert programs.run() == 0
    out = capfd.readouterr().out
    assert "NOT CHECKED: advisories of crates" in out
    assert "NOT CHECKED: image.txt: 1 of 2 packages: c" in out
    assert out.endswith("nothing found in what could be checked\n")
    programs.packages([UNKNOWN])
    assert programs.run() == 0
    assert "NOT CHECKED: image.txt: all 1 packages: PyPI's" in capfd.readouterr().out
    assert programs.run("--complete") == 1


def test_a_program_that_fails_is_said(programs: Programs, capfd: pytest.CaptureFixture[str]) -> None:
    programs.pip_audit = programs.write("pip-audit", "echo no connection >&2; exit 1")
    assert programs.run() == 0
    assert "NOT CHECKED: image.txt: pip-audit failed: no connection" in capfd.readouterr().out
    assert programs.run("--complete") == 1
