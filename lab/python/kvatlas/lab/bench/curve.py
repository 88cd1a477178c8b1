"""Picture of a sweep: the threshold throughput of each design, and throughput-latency curves.

Four panels: two clocks (from the deadline, in service) by two percentiles. A filled mark is a run that kept up with the
offered rate; the large filled mark is the threshold. Hollow marks on dotted lines are runs that did not keep up: they
measure a growing queue, so their latencies depend on the length of the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvatlas import _text
from kvatlas.lab import html
from kvatlas.lab.bench.machine import about_machine
from kvatlas.lab.bench.report import COLUMNS, about_plan, curve_rows, sweep_rows
from kvatlas.lab.figures import LINES, apart, bare, plain_log_axis, styles, svg_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvatlas.lab.bench.sweep import IndexResult, Sweep

_PANELS = (
    ("deadline_p50", "p50 from deadline"),
    ("deadline_p99", "p99 from deadline"),
    ("service_p50", "p50 in service"),
    ("service_p99", "p99 in service"),
)


def draw_sweep(sweep: Sweep, title: str = "") -> Figure:
    """Draw the four panels as one figure."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    found = sorted((one for one in sweep.indexes if one.threshold), key=lambda one: -(one.threshold or 0))
    lost = [one for one in sweep.indexes if not one.threshold]
    look = styles([one.index for one in sweep.indexes])
    rows = len(found) + len(lost)
    figure = Figure(figsize=(15, max(8.5, 0.42 * rows + 3)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.0, 2.0], squeeze=False)[0]
    _draw_ladder(left.subplots(), found, lost, look)
    panels = right.subplots(2, 2, sharex=True, sharey="row").reshape(-1)
    for axes, (column, name) in zip(panels, _PANELS, strict=True):
        _draw_curves(axes, found, look, column, name, sweep)
    for axes in panels[2:]:
        axes.set_xlabel("offered block operations per second")
    _label_tops(panels, found, look)
    partial = "" if sweep.complete else " (interrupted: partial)"
    figure.suptitle((title or about_plan(sweep.plan)) + partial, fontsize="medium")
    return figure


def _draw_ladder(
    axes: Axes, found: list[IndexResult], lost: list[IndexResult], look: dict[str, tuple[str, str]]
) -> None:
    every = [*found, *lost]
    for place, one in enumerate(found):
        color, mark = look[one.index]
        threshold = one.threshold or 0.0
        axes.plot([min(one.searches), max(one.searches)], [place, place], color=color, linewidth=5, alpha=0.35)
        axes.scatter([threshold], [place], s=75, marker=mark, color=color, zorder=3)
        more = "≥ " if one.bound_by in ("", "invalid") else ""
        axes.annotate(
            f"{more}{_text.short(threshold)}",
            (max(threshold, *one.searches), place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    low = min((one.threshold or 1.0 for one in found), default=1e5)
    for place, _ in enumerate(lost, len(found)):
        axes.annotate("no threshold found", (low, place), va="center", fontsize=9, color=LINES)
    axes.set_yticks(range(len(every)), [one.index + (" *" if one.deviates else "") for one in every])
    for label, one in zip(axes.get_yticklabels(), every, strict=True):
        label.set_color(look[one.index][0])
        label.set_fontweight("bold")
    axes.set_ylim(len(every) - 0.4, -0.6)
    plain_log_axis(axes, "x", "count")
    if found:
        high = max(one.threshold or 1.0 for one in found)
        axes.set_xlim(low / 2, high * (high / low) ** 0.25 * 2)
    axes.set_xlabel(
        "block operations per second" + (" (* known wrong answers)" if any(o.deviates for o in every) else "")
    )
    axes.set_title("Threshold throughput", fontsize="medium")
    bare(axes)


def _draw_curves(
    axes: Axes, found: list[IndexResult], look: dict[str, tuple[str, str]], column: str, name: str, sweep: Sweep
) -> None:
    for one in found:
        color, mark = look[one.index]
        points = [(p.rate, getattr(p, column), p.passed, p.fraction) for p in one.curve if getattr(p, column)]
        kept = [p for p in points if p[2]]
        after = [p for p in points if not p[2]]
        axes.plot([p[0] for p in kept], [p[1] for p in kept], color=color, linewidth=1.6, zorder=2)
        axes.scatter([p[0] for p in kept], [p[1] for p in kept], color=color, marker=mark, s=16, zorder=3)
        top = [p for p in kept if p[3] == 1.0]
        axes.scatter(
            [p[0] for p in top], [p[1] for p in top], color=color, marker=mark, s=85, edgecolor="white", zorder=4
        )
        if after:
            # A failure below a passing point is due to the machine: it gets a mark, and no line.
            line = kept[-1:] + [p for p in after if not kept or p[0] > kept[-1][0]]
            axes.plot([p[0] for p in line], [p[1] for p in line], color=color, linewidth=1.1, linestyle=":", zorder=1)
            axes.scatter(
                [p[0] for p in after],
                [p[1] for p in after],
                facecolor="white",
                edgecolor=color,
                marker=mark,
                s=22,
                zorder=3,
            )
    axes.set_title(name, fontsize="medium", loc="left")
    bare(axes)
    if not any(one.curve for one in found):
        axes.annotate("nothing measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color=LINES)
        return
    plain_log_axis(axes, "x", "count")
    plain_log_axis(axes, "y", "ns")
    limit = sweep.config.limit
    if column == f"{limit.clock}_p99":
        axes.axhline(limit.p99_ns, color=LINES, linestyle="--", linewidth=1)
        axes.annotate(
            f"limit {_text.nanoseconds(limit.p99_ns)}",
            (0.01, limit.p99_ns),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
            color=LINES,
        )


def _label_tops(panels: list[Axes], found: list[IndexResult], look: dict[str, tuple[str, str]]) -> None:
    """Write the designs' names above the upper panels, each over its threshold.

    Names that would overlap are moved apart.
    """
    if not any(one.curve for one in found):
        return
    thresholds = [one.threshold or 1.0 for one in found]
    for axes in panels:
        for one, threshold in zip(found, thresholds, strict=True):
            axes.axvline(threshold, color=look[one.index][0], linewidth=0.6, alpha=0.35, zorder=0)
    # Limits are final only now, because lines widen them.
    low, high = panels[0].get_xlim()
    panels[0].set_xlim(low, high)
    wide = math.log10(high / low)
    places = apart([math.log10(t / low) / wide for t in thresholds], 0.045, 0.0, 0.97)
    for axes in panels[:2]:
        axes.set_title(axes.get_title(loc="left"), fontsize="medium", loc="left", pad=112)
        for one, threshold, place in zip(found, thresholds, places, strict=True):
            color = look[one.index][0]
            axes.annotate(
                one.index,
                xy=(threshold, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(place, 1.09),
                textcoords="axes fraction",
                rotation=55,
                rotation_mode="anchor",
                ha="left",
                va="center",
                fontsize=8.5,
                color=color,
                fontweight="bold",
                arrowprops={
                    "arrowstyle": "-",
                    "color": color,
                    "linewidth": 0.8,
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "relpos": (0, 0),
                },
                annotation_clip=False,
            )


def sweep_page(sweep: Sweep, command: str) -> str:
    """Create the HTML page of a sweep: picture, table, machine and options."""
    rows = sweep_rows(sweep)
    points, kinds = curve_rows(sweep)
    limit = sweep.config.limit
    parts = [
        html.paragraphs(
            [
                *([] if sweep.complete else ["Interrupted: this is what was done so far."]),
                about_plan(sweep.plan),
                (
                    "Threshold throughput: the highest offered rate that is valid, keeps up, is right, and has "
                    f"{limit}. "
                    f"Medians of {sweep.config.repeats}, a fresh process a point, designs interleaved."
                ),
            ]
        ),
        svg_of(draw_sweep(sweep)),
        html.heading("Thresholds"),
        html.table(COLUMNS, rows, ["bad" if one.threshold is None else "" for one in sweep.indexes]),
        html.heading("Curves"),
        html.table(
            ("index", "of threshold", "offered", "achieved", "deadline p50", "p99", "service p50", "p99", "runs", ""),
            points,
            kinds,
        ),
        html.heading("Where and how"),
        html.paragraphs([about_machine(sweep.machine), f"Command: {command}", f"Plan: {sweep.plan['digest']}"]),
    ]
    return html.page("kvatlas bench sweep", parts, {**sweep.as_json(), "command": command})
