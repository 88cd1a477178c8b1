"""Figures put into documents."""

import json
from pathlib import Path

import pytest

from kvatlas.errors import PageError
from kvatlas.lab.bench.fill import fill, grow_table, main, sweep_table
from kvatlas.lab.bench.sweep import SweepConfig, Sweeper

from .fake import MACHINE, PLAN, Designs

ROOT = Path(__file__).resolve().parents[3]


def test_only_what_is_between_the_marks_changes() -> None:
    text = "a\n<!-- x -->\nold\n<!-- end x -->\nb <!-- y --><!-- end y -->"
    done = fill(text, "x", "new \\1")
    assert done == "a\n<!-- x -->\nnew \\1\n<!-- end x -->\nb <!-- y --><!-- end y -->"
    assert fill(done, "x", "new \\1") == done
    for wrong in ("", text + text):
        with pytest.raises(PageError, match="<!-- x --> and <!-- end x --> once"):
            fill(wrong, "x", "new")


def test_a_sweep_gets_into_a_document(tmp_path: Path) -> None:
    capacities = {"low": 1e5, "high": 3e6, "none": 1.0}
    sweep = Sweeper(list(capacities), SweepConfig(repeats=2), PLAN, Designs(capacities), MACHINE).run()
    (tmp_path / "sweep.json").write_text(json.dumps(sweep.as_json()))
    (tmp_path / "page.md").write_text("<!-- W1 -->\n<!-- end W1 -->\n")
    assert main([str(tmp_path / "page.md"), f"W1={tmp_path / 'sweep.json'}"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert text.index("`high`") < text.index("`low`") < text.index("`none`")
    assert "2.9" in text.split("`high`")[1].split("|")[1]
    assert "no rate passes" in text.split("`none`")[1]
    assert "medians of 2" in text
    assert "of the repeats" in text
    once = sweep.as_json() | {"config": sweep.as_json()["config"] | {"repeats": 1}}
    assert "of the repeats" not in sweep_table(once)


def test_growth_is_shown_from_the_smallest_to_the_largest_size() -> None:
    points = [
        {"series": series, "index": index, "size": size, "p50": 10.0 * size, "skipped": ""}
        for series, index in (("depth", "dict"), ("depth", "radix"), ("workers", "dict"))
        for size in (8, 32, 128)
    ]
    series = [{"name": "depth", "label": "blocks of a query"}, {"name": "workers", "label": "that hold each prompt"}]
    text = grow_table({"series": series, "points": points, "complete": True, "machine": MACHINE})
    assert "| index | depth 8; 128 | workers 8; 128 |" in text
    assert "| `dict` | 80 ns; 1.3 µs | 80 ns; 1.3 µs |" in text
    assert "| `radix` | 80 ns; 1.3 µs | -; - |" in text
    assert "Depth: blocks of a query; workers: that hold each prompt." in text


def test_answers_are_counted_once_where_none_is_wrong() -> None:
    sweep = Sweeper(["a", "b"], SweepConfig(), PLAN, Designs({"a": 1e5, "b": 3e6}), MACHINE).run().as_json()
    assert "| wrong |" not in sweep_table(sweep)
    assert "none was wrong" in sweep_table(sweep)
    sweep["indexes"][0]["wrong"] = 1
    assert "| wrong |" in sweep_table(sweep)


def test_what_cannot_be_filled_in_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.md").write_text("nothing here")
    (tmp_path / "x.json").write_text("{}")
    for args in ([], ["page.md"], [str(tmp_path / "page.md"), f"W1={tmp_path / 'x.json'}"], ["no.md", "W1=no.json"]):
        assert main(args) == 2
        assert capsys.readouterr().err.startswith("Error: ")
    assert (tmp_path / "page.md").read_text() == "nothing here"


def test_the_page_has_a_place_for_every_figure() -> None:
    text = (ROOT / "docs" / "lab" / "designs.md").read_text(encoding="utf-8")
    for name in ("W1", "W2", "W4", "order", "grow"):
        fill(text, name, "figures")
