"""Picture of the growth of lookup times: four panels, with one labelled line for each design."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvatlas.lab import html
from kvatlas.lab.bench.machine import about_machine
from kvatlas.lab.bench.report import ns
from kvatlas.lab.figures import apart, bare, plain_log_axis, styles, svg_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvatlas.lab.bench.grow import Growth, GrowthPoint


def draw_growth(growth: Growth, title: str = "Time of one lookup (p50 in service)") -> Figure:
    """Draw the four series as one figure."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    names = list(dict.fromkeys(point.index for point in growth.points))
    look = styles(names)
    figure = Figure(figsize=(14, 10.5), layout="constrained")
    for axes, one in zip(figure.subplots(2, 2).reshape(-1), growth.series, strict=False):
        points = [p for p in growth.points if p.series == one.name and p.p50]
        _draw(axes, points, names, look)
        axes.set_xlabel(one.label)
        axes.set_title(f"… with {one.name}", fontsize="medium", loc="left")
    figure.suptitle(title + ("" if growth.complete else " (interrupted: partial)"), fontsize="medium")
    return figure


def _draw(axes: Axes, points: list[GrowthPoint], names: list[str], look: dict[str, tuple[str, str]]) -> None:
    ends: list[tuple[str, float, float]] = []
    for name in names:
        color, mark = look[name]
        line = sorted((p.size, p.p50 or 0.0) for p in points if p.index == name)
        if not line:
            continue
        axes.plot(*zip(*line, strict=True), color=color, marker=mark, markersize=5, linewidth=1.5)
        ends.append((name, *line[-1]))
    plain_log_axis(axes, "x", "count")
    plain_log_axis(axes, "y", "ns")
    bare(axes)
    if not ends:
        axes.annotate("nothing measured", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    low, high = axes.get_ylim()
    wide = math.log10(high / low)
    places = apart([math.log10(y / low) / wide for _, _, y in ends], 0.042, 0.0, 1.0)
    for (name, x, y), place in zip(ends, places, strict=True):
        color = look[name][0]
        axes.annotate(
            name,
            xy=(x, y),
            xytext=(1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            color=color,
            fontweight="bold",
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.7,
                "alpha": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def growth_rows(growth: Growth, series: str) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of one series: one row for each design, one column for each size, with p50 / p99."""
    sizes = sorted({p.size for p in growth.points if p.series == series})
    names = list(dict.fromkeys(p.index for p in growth.points))
    cells = {(p.index, p.size): f"{ns(p.p50)} / {ns(p.p99)}" for p in growth.points if p.series == series and p.p50}
    return (
        ["index", *(f"{size:,}" for size in sizes)],
        [[name, *(cells.get((name, size), "-") for size in sizes)] for name in names],
    )


def skipped(growth: Growth) -> list[str]:
    """List the skipped points with the reasons, one line for each."""
    return [
        f"{p.index}, {p.series} {p.size:,}: {p.skipped}"
        for p in growth.points
        if p.skipped and not p.skipped.startswith("not tried")
    ]


def growth_page(growth: Growth, command: str) -> str:
    """Create the HTML page of growth: picture, tables, skipped points, machine and options."""
    parts = [svg_of(draw_growth(growth))]
    for one in growth.series:
        columns, rows = growth_rows(growth, one.name)
        parts += [html.heading(one.name), html.paragraphs([f"{one.label}; p50 / p99."]), html.table(columns, rows)]
    if left_out := skipped(growth):
        parts += [html.heading("Left out"), html.paragraphs(left_out)]
    parts += [html.heading("Where and how"), html.paragraphs([about_machine(growth.machine), f"Command: {command}"])]
    return html.page("kvatlas bench grow", parts, growth.as_json())
