"""Tests that generated files are up to date: clients, defaults in Rust, dashboards, reference pages."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from tools.dashboards import __main__ as dashboards
from tools.dashboards.panels import BOARDS, Panel

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


def test_the_dashboards_are_up_to_date() -> None:
    assert dashboards.main(["--check"]) == 0


def test_a_stale_dashboard_and_an_unknown_metric_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, folder in (("ROOT", ""), ("GRAFANA", "grafana"), ("CHART", "chart")):
        monkeypatch.setattr(dashboards, name, tmp_path / folder)
    assert dashboards.main([]) == 0
    (tmp_path / "grafana/fleet.json").write_text("{}")
    (tmp_path / "chart/of-old.json").write_text("{}")
    assert dashboards.main(["--check"]) == 1
    told = capsys.readouterr().err.splitlines()
    stale = ("chart/of-old.json", "grafana/fleet.json")
    assert sorted(told) == [f"{name} is not up to date: python -m tools.dashboards" for name in stale]
    assert dashboards.main([]) == 0
    assert dashboards.main(["--check"]) == 0
    monkeypatch.setitem(BOARDS, "fleet", (Panel("Nothing", "short", (("kvatlas_nothing_total{$of}", ""),)),))
    assert dashboards.main(["--check"]) == 1
    assert capsys.readouterr().err == "kvatlas_nothing_total: no reference page has this metric\n"


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
