"""Tests that generated files are up to date: the clients that wait, and the defaults of programs in Rust."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_generated_clients_are_up_to_date() -> None:
    pytest.importorskip("unasync")
    command = [sys.executable, str(ROOT / "tools" / "generate_sync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_defaults_of_rust_are_those_of_python() -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "tools" / "generate_defaults.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
