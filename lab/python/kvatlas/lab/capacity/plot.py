"""Pictures of a capacity plan: the hit rate by cache size, and the time to first token of each variant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvatlas import _text
from kvatlas.lab import html
from kvatlas.lab.capacity import report
from kvatlas.lab.capacity.plan import NOW, CapacityPlan
from kvatlas.lab.figures import LINES, bare, plain_log_axis, svg_of, write_figure
from kvatlas.lab.replay import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS, _OTHERS = "#1a7f5a", "#9aa7b1"


def write_plot(plan: CapacityPlan, path: Path) -> None:
    """Write a plot in the format given by the suffix of `path`. Raises `PlotError` or `OSError`."""
    write_figure(path, lambda: draw(plan), lambda: page(plan))


def draw(plan: CapacityPlan) -> Figure:
    """Draw the hit-rate curve with the simulated hit rates, and the times to first token of the variants."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    figure = Figure(figsize=(12, 4.4), layout="constrained")
    if plan.rows:
        hits, times = figure.subplots(1, 2)
        _draw_times(times, plan)
    else:
        hits = figure.subplots(1, 1)
    _draw_curve(hits, plan)
    figure.suptitle(f"{plan.trace}: {plan.config.fleet.engines} engines" + (" (partial)" if plan.partial else ""))
    return figure


def _draw_curve(axes: Axes, plan: CapacityPlan) -> None:
    curve, fleet = plan.curve, plan.config.fleet
    now = fleet.engine.cache_tokens * fleet.engines
    top = max(float(curve.sizes[-1]) if curve.sizes.size else now, 8.0 * now)
    sizes = np.geomspace(now / 64, top, 300)
    axes.plot(sizes, [100 * curve.rate(size) for size in sizes], color=_OURS, linewidth=2, label="one cache")
    axes.axhline(100 * curve.most, color=LINES, linestyle=":", linewidth=1.2, label=f"no limit: {100 * curve.most:.1f}")
    axes.axvline(now, color=LINES, linestyle="--", linewidth=1.2, label=f"now: {_text.short(now)}")
    for row in plan.rows:
        axes.scatter([row.engines * row.cache_tokens], [100 * row.result.hit_rate], s=28, color=_OTHERS, zorder=3)
    if plan.rows:
        axes.scatter([], [], s=28, color=_OTHERS, label="simulated fleets")
    plain_log_axis(axes, "x", "")
    axes.set_ylim(0, None)
    axes.set_xlabel("tokens of cache, all engines together")
    axes.set_title("Prompt tokens found cached, %", fontsize="medium")
    axes.legend(frameon=False, fontsize="small")
    bare(axes)


def _draw_times(axes: Axes, plan: CapacityPlan) -> None:
    # Dots, not bars: the times of variants differ by factors.
    axes.set_xscale("log")
    for place, row in enumerate(plan.rows):
        color, ttft = _OURS if row.name == NOW else _OTHERS, row.result.ttft
        if ttft.mean <= 0:
            continue
        axes.plot([ttft.mean, ttft.p99], [place, place], color=color, linewidth=3, alpha=0.45, zorder=1)
        for value, marker in ((ttft.mean, "D"), (ttft.p99, "s")):
            axes.scatter([value], [place], s=45, marker=marker, color=color, zorder=2)
            above = (0, 7)
            axes.annotate(_text.seconds(value), (value, place), above, textcoords="offset points", ha="center", size=8)
    for marker, label in (("D", "mean"), ("s", "p99")):
        axes.scatter([], [], marker=marker, color=LINES, label=label)
    axes.set_yticks(range(len(plan.rows)), [row.name for row in plan.rows])
    axes.set_ylim(len(plan.rows) - 0.5, -0.7)
    axes.margins(x=0.12)
    axes.set_xlabel("simulated seconds, log scale")
    axes.set_title("Time to first token", fontsize="medium")
    axes.legend(frameon=False, fontsize="small")
    bare(axes)


def page(plan: CapacityPlan) -> str:
    """Create the HTML page of a capacity plan, with the picture and the tables."""
    parts = []
    if plan.base is not None:
        parts.append(html.paragraphs([*summary.about_trace(plan.base), summary.about_fleet(plan.base)]))
    bottleneck = plan.bottleneck
    if bottleneck is not None:
        parts.append(html.paragraphs(report.about_bottleneck(bottleneck, plan.rows)))
    parts += [
        svg_of(draw(plan)),
        html.heading("Cache"),
        html.table(report.CACHE, report.cache_rows(plan)),
        html.paragraphs(report.about_cache(plan)),
    ]
    if plan.rows:
        kinds = ["ours" if row.name == NOW else "" for row in plan.rows]
        parts += [
            html.heading("What more is worth"),
            html.table(report.VARIANTS, report.variant_rows(plan), kinds),
            html.paragraphs([report.NOTES], note=True),
        ]
    return html.page("kvatlas plan", parts)
