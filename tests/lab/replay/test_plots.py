"""Pictures."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvatlas.errors import PlotError
from kvatlas.lab.figures import check_plot
from kvatlas.lab.replay import ReplayResult
from kvatlas.lab.replay.plots import write_plot


def test_pictures_are_written(result: ReplayResult, tmp_path: Path) -> None:
    write_plot(result, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    write_plot(result, tmp_path / "a.SVG")
    assert "<svg" in (tmp_path / "a.SVG").read_text()


def test_a_page_needs_nothing_else(result: ReplayResult, tmp_path: Path) -> None:
    write_plot(replace(result, trace="<b>&"), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text
    assert "kvatlas" in text
    # Nothing is fetched: no sources, and links only within the page.
    assert not re.search(r"<(script|img|link|iframe)\b", text)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))


@pytest.mark.parametrize("keep", [0, 1])
def test_partial_results_can_be_drawn(result: ReplayResult, tmp_path: Path, keep: int) -> None:
    write_plot(replace(result, partial=True, policies=result.policies[:keep]), tmp_path / "a.html")
    assert "Interrupted" in (tmp_path / "a.html").read_text()


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match=r"must end in \.png, \.svg or \.html"):
        check_plot(tmp_path / "a.gif")
