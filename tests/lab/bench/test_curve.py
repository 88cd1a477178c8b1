"""Pictures of sweeps and of growth, from designs that are formulas."""

import json
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from kvatlas.lab.bench.curve import draw_sweep, sweep_page
from kvatlas.lab.bench.grow import Growth, Shape, grow, series
from kvatlas.lab.bench.grow_plot import draw_growth, growth_page, skipped
from kvatlas.lab.bench.sweep import Sweep, SweepConfig, Sweeper
from kvatlas.lab.figures import apart, save_png, styles

from .fake import MACHINE, PLAN, Designs, times

NAMES = ("dict", "radix", "radix-concurrent", "positional", "block-index", "smg-chain", "mine:<b>")


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    designs = Designs({name: 1e5 * 3.1**place for place, name in enumerate(NAMES)})
    config = SweepConfig(repeats=2)
    return Sweeper(NAMES, config, PLAN, designs, MACHINE, deviates=lambda name: name == "dict").run()


def test_a_sweep_is_drawn(sweep: Sweep, tmp_path: Path) -> None:
    save_png(draw_sweep(sweep), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def alone(text: str) -> None:
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    assert not re.search(r"<(script|img|link|iframe)\b", text)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))
    assert "<b>" not in text


def test_its_page_needs_nothing_else_and_says_where_and_how(sweep: Sweep) -> None:
    text = sweep_page(sweep, "kvatlas bench sweep --seed 5")
    alone(text)
    for word in (
        "mine:&lt;b&gt;",
        "kvatlas bench sweep --seed 5",
        MACHINE["processor"],
        PLAN["digest"],
        "Medians of 2",
    ):
        assert str(word) in text
    assert "Interrupted" not in text


def test_part_of_a_sweep_is_drawn(sweep: Sweep) -> None:
    for capacities in ({"dict": 1e6}, {"dict": 1.0}, {"a": 1.0, "b": 1e6}):
        for fractions in ((), (0.5, 1.0)):
            part = Sweeper(
                list(capacities), SweepConfig(repeats=1, fractions=fractions), PLAN, Designs(capacities), MACHINE
            ).run()
            part.complete = False
            assert "Interrupted" in sweep_page(part, "x")


def grown(short: bool = True) -> Growth:
    def probe(shape: Shape, index: str) -> dict[str, object]:
        if index == "dict" and shape.held > 100_000:
            return {"built": False, "build_ns": 20e9}
        if index == "wrong":
            return {"built": True, "build_ns": 1, "wrong": 3, "lookups": 9, "example": "worker 1: depth 2, should be 8"}
        cost = 100 + shape.depth * (shape.workers if index == "dict" else 1)
        return {"built": True, "build_ns": 1e9, "wrong": 0, "lookups": 9, "blocks": 1, "service": times(cost, 3 * cost)}

    every = series(short=short)
    return grow(["dict", "block-index", "wrong"], every, probe, Growth([], list(every), MACHINE, 0), config={"x": 1})


def test_growth_is_drawn_and_what_was_left_out_is_said(tmp_path: Path) -> None:
    growth = grown(short=False)
    save_png(draw_growth(growth), tmp_path / "a.png")
    text = growth_page(growth, "kvatlas bench grow")
    alone(text)
    lines = skipped(growth)
    assert any("dict, holders" in line and "not built within 20 s" in line for line in lines)
    assert "wrong, depth 8: 3 of 9 answers were wrong: worker 1: depth 2, should be 8" in lines
    assert lines[0] in text
    # After a size that was too much, larger ones are not tried.
    late = [p for p in growth.points if p.index == "dict" and p.series == "blocks"]
    assert [p.p50 is None for p in late] == sorted(p.p50 is None for p in late)
    assert late[-1].skipped
    assert all(p.p50 is None for p in growth.points if p.index == "wrong")
    json.dumps(growth.as_json())


def test_growth_covers_what_it_should() -> None:
    sizes = {one.name: [size for size, _ in one.shapes] for one in series()}
    assert (sizes["depth"][0], sizes["depth"][-1]) == (8, 8_192)
    assert (sizes["workers"][0], sizes["workers"][-1]) == (1, 10_000)
    assert (sizes["blocks"][0], sizes["blocks"][-1]) == (10_000, 10_000_000)
    assert sizes["holders"][-1] == 1_024
    assert all(shape.held < 12_000_000 for one in series() for _, shape in one.shapes)
    assert {one.name for one in series(short=True)} == set(sizes)


@pytest.mark.parametrize("seed", range(20))
def test_labels_keep_apart_and_near_their_places(seed: int) -> None:
    rng = random.Random(seed)
    places = [rng.random() for _ in range(rng.randrange(1, 15))]
    moved = apart(places, 0.04, 0.0, 1.0)
    assert all(0 <= place <= 1 + 1e-9 for place in moved)
    order = sorted(range(len(places)), key=places.__getitem__)
    assert all(moved[b] - moved[a] >= 0.04 - 1e-9 for a, b in pairwise(order))
    if all(places[b] - places[a] >= 0.04 for a, b in pairwise(order)) and max(places) < 0.95:
        assert moved == pytest.approx(places)


def test_too_many_labels_share_the_room() -> None:
    moved = sorted(apart([0.5] * 60, 0.04, 0.0, 1.0))
    assert moved[0] == pytest.approx(0.0)
    assert moved[-1] == pytest.approx(1.0)


def test_designs_can_be_told_apart() -> None:
    assert len(set(styles([f"radix-{n}" for n in range(7)]).values())) == 7
    assert styles(["peers/block-index"])["peers/block-index"][0] == styles(["block-index"])["block-index"][0]
