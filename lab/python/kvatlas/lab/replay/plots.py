"""Pictures of a replay: a PNG, an SVG, or a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvatlas import _text
from kvatlas.lab import html
from kvatlas.lab.figures import LINES, bare, svg_of, write_figure
from kvatlas.lab.replay import summary
from kvatlas.lab.replay.report import INDEX, ROUTING, WAITS, index_rows, routing_rows, wait_rows
from kvatlas.lab.replay.results import ReplayResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS, _OTHERS = "#1a7f5a", "#9aa7b1"


def write_plot(result: ReplayResult, path: Path) -> None:
    """Write a plot in the format given by the suffix of `path`. Raises `PlotError` or `OSError`."""
    write_figure(path, lambda: draw(result), lambda: page(result))


def draw(result: ReplayResult) -> Figure:
    """Draw the hit rate and time to first token by policy, and the durations of lookups."""
    # The object interface: no windows, no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    hits, ttft, finds = figure.subplots(1, 3)
    _draw_hits(hits, result)
    _draw_ttft(ttft, result)
    _draw_finds(finds, result)
    partial = " (interrupted: partial)" if result.partial else ""
    fleet = result.config.fleet
    figure.suptitle(f"{result.trace}: {fleet.engines} engines, blocks of {fleet.engine.block_size} tokens{partial}")
    return figure


def _draw_hits(axes: Axes, result: ReplayResult) -> None:
    names = [p.policy for p in result.policies]
    rates = [100 * p.hit_rate for p in result.policies]
    axes.barh(names, rates, color=_colors(names))
    top = max([100 * result.bound_rate, *rates, 1.0])
    for place, rate in enumerate(rates):
        # In the bar where it fits, else behind it: never on the lines.
        inside = rate > 0.15 * top
        axes.annotate(
            f"{rate:.1f}",
            (rate, place),
            xytext=(-5 if inside else 5, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color="white" if inside else "black",
            fontweight="bold",
        )
    for rate, style, label in (
        (result.shared_rate, "--", "one shared cache"),
        (result.bound_rate, ":", "one infinite cache"),
    ):
        axes.axvline(100 * rate, color=LINES, linestyle=style, linewidth=1.2, label=f"{label}: {100 * rate:.1f}")
    axes.set_xlim(0, 1.05 * top)
    axes.invert_yaxis()
    _legend_below(axes)
    _finish(axes, "Prompt tokens found cached", "% of all prompt tokens")


def _draw_ttft(axes: Axes, result: ReplayResult) -> None:
    # Dots, not bars: bars have no length on a log scale.
    names = [p.policy for p in result.policies]
    for place, (policy, color) in enumerate(zip(result.policies, _colors(names), strict=True)):
        ttft = policy.ttft
        if ttft.p50 <= 0:  # stopped before the first one
            continue
        axes.set_xscale("log")
        axes.plot([ttft.p50, ttft.p99], [place, place], color=color, linewidth=3, alpha=0.45, zorder=1)
        for value, marker in ((ttft.p50, "o"), (ttft.mean, "D"), (ttft.p99, "s")):
            axes.scatter([value], [place], s=55, marker=marker, color=color, zorder=2)
            above = (0, 8)
            axes.annotate(_text.seconds(value), (value, place), above, textcoords="offset points", ha="center", size=8)
    for marker, label in (("o", "median"), ("D", "mean"), ("s", "p99")):
        axes.scatter([], [], marker=marker, color=LINES, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.margins(x=0.12)
    _legend_below(axes)
    _finish(axes, "Time to first token", "simulated seconds, log scale")


def _draw_finds(axes: Axes, result: ReplayResult) -> None:
    all_finds = np.concatenate([np.array(p.find_ns, dtype=np.float64) for p in result.policies] or [np.zeros(0)])
    all_finds = all_finds[all_finds > 0]
    if all_finds.size:
        # Above p99.9 there are only pauses of the machine.
        low, high = all_finds.min(), np.quantile(all_finds, 0.999)
        bins = np.geomspace(low, max(high, low * 1.01), 70)
        axes.hist(np.clip(all_finds, low, bins[-1]), bins=list(bins), color=_OURS)
        for share, style in ((50, "--"), (99, ":")):
            value = float(np.percentile(all_finds, share))
            axes.axvline(value, color=LINES, linestyle=style, label=f"p{share}: {_text.nanoseconds(value)}")
        axes.set_xscale("log")
        _legend_below(axes)
    axes.set_ylabel("lookups")
    _finish(axes, f"Index lookups from Python ({_text.count(all_finds.size)}, all policies)", "ns, log scale")


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(label)
    bare(axes)


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize="small")


def _colors(names: Sequence[str]) -> list[str]:
    return [_OURS if name == "kvatlas" else _OTHERS for name in names]


def page(result: ReplayResult) -> str:
    """Create the HTML page of a replay, with the picture, the tables and the summary."""
    texts = [*summary.about_trace(result), summary.about_fleet(result)]
    if result.partial:
        texts.insert(0, "Interrupted: this is what was done so far.")
    rows = routing_rows(result)
    kinds = ["ours" if row[0] == "kvatlas" else "bound" if row[0].startswith("one ") else "" for row in rows]
    return html.page(
        f"kvatlas replay: {result.trace}",
        [
            html.paragraphs(texts),
            svg_of(draw(result)),
            html.heading("What routing is worth"),
            html.table(ROUTING, rows, kinds),
            html.paragraphs([summary.LEGEND], note=True),
            html.heading("What requests waited for"),
            html.table(WAITS, wait_rows(result), kinds),
            html.paragraphs([summary.WAITING], note=True),
            html.heading("The index meanwhile"),
            html.table(INDEX, index_rows(result), kinds),
            html.paragraphs([summary.about_index(result)], note=True),
            html.heading("In short"),
            html.paragraphs(
                [
                    *summary.conclusion(result),
                    *summary.about_missed(result),
                    *summary.about_sessions(result),
                    summary.about_check(result),
                ]
            ),
        ],
    )
