"""Tests that generated files are up to date: clients that wait, defaults of programs in Rust, reference pages."""

import importlib
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


def test_the_reference_pages_are_up_to_date() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tools.generate_reference", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_text_between_the_markers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    places = importlib.import_module("tools.docs.places")
    monkeypatch.setitem(places.GENERATORS, "cli", lambda: "new")
    empty = "a\n<!-- generated: cli -->\nb\n"
    filled = places.fill(empty, markers=True)
    assert filled == "a\n<!-- generated: cli -->\n\nnew\n\n<!-- end of generated: cli -->\nb\n"
    assert places.fill(filled.replace("new", "old"), markers=True) == filled
    assert places.fill(filled) == places.fill(empty) == "a\nnew\nb\n"
