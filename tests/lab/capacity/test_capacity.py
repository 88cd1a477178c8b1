"""The worth of more: what limits a fleet, its variants, the report and the pictures."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kvatlas.lab.capacity import CapacityPlan, make_variants, measure_plan
from kvatlas.lab.capacity.plan import NOW, SHARED, Bottleneck, as_json
from kvatlas.lab.capacity.plot import write_plot
from kvatlas.lab.capacity.report import about_bottleneck, about_variants, cache_rows, print_plan
from kvatlas.lab.replay import ReplayConfig
from kvatlas.lab.replay.results import Latency
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest
from kvatlas.sim.hardware import StepTime

STEPS = StepTime(base=1.0, prefill=0.0, running=0.0, context=0.0)


def asks(at: int, ids: tuple[int, ...], output: int = 1) -> TraceRequest:
    return TraceRequest(at, 512 * len(ids) - 10, output, ids)


def config(engines: int = 1, blocks: int = 3) -> ReplayConfig:
    fleet = FleetConfig(engines, EngineConfig(512, blocks, chunk=None))
    return ReplayConfig(fleet=fleet, steps=STEPS, policies=("round-robin",), check=0.0)


def size(lines: list[TraceRequest], its: ReplayConfig) -> CapacityPlan:
    return measure_plan(Trace(lines), its, make_variants(its)[:1])


def bottleneck(lines: list[TraceRequest], its: ReplayConfig) -> tuple[str, float, float, float]:
    found = size(lines, its).bottleneck
    assert found is not None
    return found.largest, round(found.room, 3), round(found.cache, 3), round(found.compute, 3)


def test_prompts_that_nobody_had_are_limited_by_compute() -> None:
    assert bottleneck([asks(0, (1, 2)), asks(10_000, (3, 4))], config()) == ("compute", 0.0, 0.0, 1.0)


def test_prompts_that_find_the_cache_full_are_limited_by_room() -> None:
    # Three blocks are taken until 5 s; the next three wait for them from 1 s on.
    lines = [asks(0, (1, 2, 3), output=5), asks(500, (4, 5, 6))]
    assert bottleneck(lines, config()) == ("room", 2.0, 0.0, 1.25)


def test_what_was_pushed_out_is_limited_by_the_cache() -> None:
    # Two contexts by turns in a cache for one. Of 12 blocks an infinite cache would find 2 in each of two prompts.
    lines = [asks(10_000 * n, ids) for n, ids in enumerate([(1, 2, 3), (4, 5, 6), (1, 2, 3), (4, 5, 6)])]
    _, room, cache, compute = bottleneck(lines, config())
    share = 4 * 512 / (12 * 512 - 40)
    assert (room, cache, compute) == (0.0, round(share, 3), round(1 - share, 3))
    lines += [asks(40_000 + 10_000 * n, ids) for n, ids in enumerate([(1, 2, 3), (4, 5, 6)] * 9)]
    assert bottleneck(lines, config())[0] == "cache"
    assert bottleneck(lines, config(blocks=6))[2] == 0.0


@pytest.fixture(scope="module")
def plan() -> CapacityPlan:
    lines = [asks(2_000 * n, (1, 2, n % 4 * 10 + 3, n % 4 * 10 + 4), output=3) for n in range(60)]
    its = replace(config(engines=2, blocks=8), policies=("kvatlas", "least-loaded"))
    return measure_plan(Trace(lines, name="t.jsonl"), its, make_variants(its, 16_384), host_tokens=16_384)


def test_the_variants_have_more_and_less_of_everything(plan: CapacityPlan) -> None:
    rows = {row.name: row for row in plan.rows}
    assert list(rows)[:2] == [NOW, "policy least-loaded"]
    assert rows["twice the cache"].cache_tokens == 2 * rows[NOW].cache_tokens
    assert rows["half the cache"].cache_tokens * 2 == rows[NOW].cache_tokens
    assert rows["a host tier"].result.hit_rate >= rows[NOW].result.hit_rate
    assert rows["3 engines"].engines == 3
    assert rows["1 engine"].engines == 1
    assert rows["policy least-loaded"].result.policy == "least-loaded"
    assert rows["twice as fast"].result.ttft.mean < 0.7 * rows[NOW].result.ttft.mean
    assert rows["4 x the cache"].result.hit_rate >= rows["half the cache"].result.hit_rate


def test_the_curve_rises_with_the_cache(plan: CapacityPlan) -> None:
    rates = [rate for _, rate in plan.cache_rates()]
    assert rates == sorted(rates)
    assert rates[-1] == plan.curve.most
    data = json.loads(json.dumps(as_json(plan)))
    assert data["hit_rate_with_host_tier"] >= data["one_cache"][2]["hit_rate"]
    assert data["bottleneck"]["largest"] in ("room", "cache", "compute")
    assert len(data["variants"]) == len(plan.rows)


@pytest.mark.parametrize("width", [50, 110])
def test_the_report_fits(plan: CapacityPlan, width: int) -> None:
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=width))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for word in (NOW, "twice the cache", "(now)", "no limit", "What more is worth", "host tier"):
        assert word in text
    assert "limits this fleet" in " ".join(text.split())


def test_a_share_of_nothing_is_not_shown_as_all_of_it() -> None:
    lines = [asks(10_000 * n, (2 * n, 2 * n + 1)) for n in range(3)]
    found = size(lines, config())
    assert found.curve.most == 0.0
    assert {row[-1] for row in cache_rows(found)} == {"—"}
    assert {row[-2] for row in cache_rows(found)} == {"0.0 %"}


def test_pictures_are_written(plan: CapacityPlan, tmp_path: Path) -> None:
    write_plot(plan, tmp_path / "a.png")
    write_plot(plan, tmp_path / "a.html")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert "twice as fast" in (tmp_path / "a.html").read_text()


def test_an_interrupted_one_keeps_what_it_has() -> None:
    its = config()
    calls = iter([False, False, True])
    lines = [asks(0, (1, 2)), asks(10_000, (3, 4))]
    found = measure_plan(Trace(lines), its, make_variants(its), stop=lambda: next(calls, True))
    assert found.partial
    assert [row.name for row in found.rows] == [NOW]


def test_what_helps_is_what_the_table_says(plan: CapacityPlan) -> None:
    base = plan.rows[0].result.ttft.mean
    said = " ".join(about_variants(plan.rows))
    helps, _, rest = said.partition("Less than")
    for row in plan.rows[1:]:
        change = row.result.ttft.mean / base - 1
        is_less = row.name in ("half the cache", "1 engine")
        assert (row.name in helps) == (change <= -0.1 and not is_less)
        assert (row.name in rest) == (change < 0.1 if is_less else change > -0.1)


def test_a_table_where_everything_helps_leaves_nothing_out() -> None:
    # F3: the largest part was compute by little, and "more cache hardly helps" stood below -37 % for more cache.
    ttfts = {NOW: 1.0, "half the cache": 4.0, "4 x the cache": 0.63, "twice as fast": 0.5, "6 engines": 0.97}
    one = size([asks(0, (1, 2))], config()).rows[0]
    rows = [replace(one, name=name, cache_tokens=1 if name.startswith("half") else one.cache_tokens) for name in ttfts]
    rows = [replace(row, result=replace(row.result, ttft=Latency(ttfts[row.name], 0.0, 0.0))) for row in rows]
    assert about_variants(rows) == [
        "The first token comes sooner, most of all, with twice as fast (-50 %), 4 x the cache (-37 %).",
        "Less than 10.0 % sooner, or later: 6 engines (-3 %).",
    ]
    sentences = about_bottleneck(Bottleneck(0.0, 0.4, 0.6), rows)
    assert sentences[1] == "Compute limits this fleet most."
    assert "hardly does" not in " ".join(sentences)


def test_one_shared_cache_is_a_row(plan: CapacityPlan) -> None:
    rows = {row.name: row.result for row in plan.rows}
    assert rows[SHARED].policy == "shared-cache"
    assert rows[SHARED].hit_rate >= rows[NOW].hit_rate
