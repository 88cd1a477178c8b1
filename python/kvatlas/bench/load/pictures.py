"""What the pictures of this folder share: colours, labels that keep out of each other's way, files."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import kvatlas
from kvatlas.bench.plots import check_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = "#45525c"

# Okabe and Ito's colours, told apart by colour-blind eyes; a colour for a family, a mark for each of its members.
_FAMILIES = (
    ("dict", "#e69f00"),
    ("inverted", "#8c6d00"),
    ("radix", "#56b4e9"),
    ("positional", "#cc79a7"),
    ("grouped", "#7b3f8c"),
    ("block-index", "#009e73"),
    ("smg", "#3d3d3d"),
    ("dynamo", "#d55e00"),
)
_OTHER = "#0072b2"
_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a mark for each name: members of a family share the colour."""
    used: dict[str, int] = {}
    found = {}
    for name in names:
        base = name.rpartition("/")[2]
        color = next((color for family, color in _FAMILIES if base.startswith(family)), _OTHER)
        mark = _MARKS[used.get(color, 0) % len(_MARKS)]
        used[color] = used.get(color, 0) + 1
        found[name] = (color, mark)
    return found


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move `places` until they are `gap` apart (less if there is no room) within low to high, and no further.

    Least squares with order kept: pools of places that touch move as one.
    """
    if not len(places):
        return []
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    order = np.argsort(np.array(places), kind="stable")
    shifted = [float(places[i]) - rank * gap for rank, i in enumerate(order)]
    pools: list[tuple[float, int]] = []  # mean, size
    for value in shifted:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (m + n), m + n))
    flat = [mean for mean, size in pools for _ in range(size)]
    limit = high - (len(places) - 1) * gap
    result = [0.0] * len(places)
    for rank, i in enumerate(order):
        result[i] = min(max(flat[rank], low), limit) + rank * gap
    return result


def plain_log_axis(axes: Axes, which: Literal["x", "y"], unit: str) -> None:
    """Ticks as people say them: 1 µs, 10 M."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(10, numticks=20))
    axis.set_minor_locator(LogLocator(10, subs=(2, 5), numticks=60))
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    words = FuncFormatter(lambda value, _: time_tick(value) if unit == "ns" else count_tick(value))
    axis.set_major_formatter(words)
    # Where there is hardly a power of ten to see, the ticks between them speak, too.
    axis.set_minor_formatter(words if high < 30 * low else NullFormatter())
    axes.grid(visible=True, axis=which, color="#e3e7ea", linewidth=0.7)
    axes.set_axisbelow(True)


def time_tick(ns: float) -> str:
    """1500 as 1.5 µs."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size * 0.9999:
            return f"{ns / size:g} {unit}"
    return f"{ns:g} ns"


def count_tick(value: float) -> str:
    """2500000 as 2.5 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size * 0.9999:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def bare(axes: Axes) -> None:
    """No frame on top and at the right."""
    axes.spines[["top", "right"]].set_visible(False)


def svg_of(figure: Figure) -> str:
    """A figure as inline SVG."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def save_png(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a PNG of few colours' size. Raises `OSError`."""
    check_plot(path)
    figure.savefig(path, format="png", dpi=dpi, metadata={"Software": None})


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], bad: Sequence[bool] = ()) -> str:
    """An HTML table."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row)
        lines.append(f"<tr{' class=bad' if number < len(bad) and bad[number] else ''}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def page(title: str, parts: Sequence[str], data: Any) -> str:
    """A page that needs nothing else: `parts` of HTML, and what it shows as JSON for whoever wants to compute."""
    facts = html.escape(json.dumps(data, indent=1, sort_keys=True, default=str), quote=False)
    facts = re.sub(r"\n +(?=[\]}\d])", " ", facts)
    return _PAGE.format(title=html.escape(title), body="\n".join(parts), data=facts, version=kvatlas.__version__)


def paragraphs(lines: Sequence[str]) -> str:
    """Lines of text as HTML."""
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1d2429; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; font-size: .9rem; }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #dde2e6; }}
th:first-child, td:first-child, td:last-child, th:last-child {{ text-align: left; }}
.bad td {{ color: #9c3b00; }} footer, details {{ font-size: .85rem; color: #66727c; }}
pre {{ overflow-x: auto; }} svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
<details><summary>All figures (JSON)</summary><pre>{data}</pre></details>
<footer>kvatlas {version}</footer>
</body>
</html>
"""
