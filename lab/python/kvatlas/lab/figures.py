"""Common parts of figures: colours, axes, labels that do not overlap, and files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvatlas import _text
from kvatlas.errors import PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".html")
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
    """Choose a colour and a mark for each name; names of the same family share the colour."""
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
    """Move `places` by the least squares so that they are `gap` apart within `low` to `high`, in the same order.

    They are closer if the range is too small. Places that would overlap move as a group.
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
    """Label the ticks of a logarithmic axis with values in units, for example 1 µs or 10 M."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(10, numticks=20))
    axis.set_minor_locator(LogLocator(10, subs=(2, 5), numticks=60))
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    words = FuncFormatter(lambda value, _: _text.nanoseconds(value) if unit == "ns" else _text.short(value))
    axis.set_major_formatter(words)
    # Where there is hardly a power of ten to see, the ticks between them speak, too.
    axis.set_minor_formatter(words if high < 30 * low else NullFormatter())
    axes.grid(visible=True, axis=which, color="#e3e7ea", linewidth=0.7)
    axes.set_axisbelow(True)


def bare(axes: Axes) -> None:
    """Remove the upper and right lines of the frame."""
    axes.spines[["top", "right"]].set_visible(False)


def svg_of(figure: Figure) -> str:
    """Render a figure as inline SVG."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def save_png(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure as a PNG file. Raises `OSError`."""
    figure.savefig(path, format="png", dpi=dpi, metadata={"Software": None})


def check_plot(path: Path) -> None:
    """Raise `PlotError` unless the suffix of `path` names a picture or a page. Call this before the work."""
    if path.suffix.lower() not in FORMATS:
        raise PlotError(f"cannot plot to {path}: its name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")


def write_figure(path: Path, draw: Callable[[], Figure], page: Callable[[], str]) -> None:
    """Write a picture or an HTML page, depending on the suffix of `path`. Raises `PlotError` or `OSError`."""
    check_plot(path)
    kind = path.suffix.lower()
    if kind == ".html":
        path.write_text(page(), encoding="utf-8")
    else:
        draw().savefig(path, format=kind[1:], dpi=150)
