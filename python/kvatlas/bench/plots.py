"""Pictures of a replay: a PNG or SVG, or a page of HTML that needs nothing else. Needs matplotlib (`kvatlas[plot]`)."""

from __future__ import annotations

import html
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvatlas.bench import words
from kvatlas.bench.report import INDEX, ROUTING, index_rows, routing_rows
from kvatlas.bench.results import ReplayResult
from kvatlas.errors import KvatlasError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".html")
_OURS, _OTHERS, _LINES = "#1a7f5a", "#9aa7b1", "#45525c"


class PlotError(KvatlasError):
    """No plot can be made."""

    code = "cannot_plot"


def check_plot(path: Path) -> None:
    """Raise `PlotError` if a plot could not be written to `path`: do this before the work."""
    if path.suffix.lower() not in FORMATS:
        raise PlotError(f"cannot plot to {path}: its name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("plots need matplotlib, which is not installed: pip install 'kvatlas[plot]'")


def write_plot(result: ReplayResult, path: Path) -> None:
    """Write a plot in the format that the name of `path` says. Raises `PlotError` or `OSError`."""
    check_plot(path)
    figure = draw(result)
    kind = path.suffix.lower()
    if kind == ".html":
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
        path.write_text(page(result, picture.getvalue()), encoding="utf-8")
    else:
        figure.savefig(path, format=kind[1:], dpi=150)


def draw(result: ReplayResult) -> Figure:
    """Hit rate and time to first token by policy, and how long lookups took."""
    # An optional dependency. The object interface: no windows, no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    hits, ttft, finds = figure.subplots(1, 3)
    _draw_hits(hits, result)
    _draw_ttft(ttft, result)
    _draw_finds(finds, result)
    partial = " (interrupted: partial)" if result.partial else ""
    s = result.settings
    figure.suptitle(f"{result.trace}: {s.engines} engines, blocks of {s.block_size} tokens{partial}")
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
        axes.axvline(100 * rate, color=_LINES, linestyle=style, linewidth=1.2, label=f"{label}: {100 * rate:.1f}")
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
            axes.annotate(words.seconds(value), (value, place), above, textcoords="offset points", ha="center", size=8)
    for marker, label in (("o", "median"), ("D", "mean"), ("s", "p99")):
        axes.scatter([], [], marker=marker, color=_LINES, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.margins(x=0.12)
    _legend_below(axes)
    _finish(axes, "Time to first token", "simulated seconds, log scale")


def _draw_finds(axes: Axes, result: ReplayResult) -> None:
    all_finds = np.concatenate([np.array(p.find_ns, dtype=np.float64) for p in result.policies] or [np.zeros(0)])
    all_finds = all_finds[all_finds > 0]
    if all_finds.size:
        # Beyond the last of a thousand there are only a few pauses of the machine.
        low, high = all_finds.min(), np.quantile(all_finds, 0.999)
        bins = np.geomspace(low, max(high, low * 1.01), 70)
        axes.hist(np.clip(all_finds, low, bins[-1]), bins=list(bins), color=_OURS)
        for share, style in ((50, "--"), (99, ":")):
            value = float(np.percentile(all_finds, share))
            axes.axvline(value, color=_LINES, linestyle=style, label=f"p{share}: {words.nanoseconds(value)}")
        axes.set_xscale("log")
        _legend_below(axes)
    axes.set_ylabel("lookups")
    _finish(axes, f"Index lookups from Python ({words.count(all_finds.size)}, all policies)", "ns, log scale")


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize="small")


def _colors(names: Sequence[str]) -> list[str]:
    return [_OURS if name == "exact" else _OTHERS for name in names]


def page(result: ReplayResult, picture: str) -> str:
    """A page with the picture (SVG), the tables and the words."""
    picture = picture[picture.index("<svg") :]
    texts = [*words.about_trace(result), words.about_fleet(result)]
    endings = [*words.conclusion(result), words.about_check(result)]
    if result.partial:
        texts.insert(0, "Interrupted: this is what was done so far.")
    return _PAGE.format(
        title=html.escape(f"kvatlas replay: {result.trace}"),
        intro=_paragraphs(texts),
        picture=picture,
        routing=_html_table(ROUTING, routing_rows(result)),
        legend=html.escape(words.LEGEND),
        index=_html_table(INDEX, index_rows(result)),
        about_index=html.escape(words.about_index(result)),
        endings=_paragraphs(endings),
        version=html.escape(result.version),
    )


def _paragraphs(lines: Sequence[str]) -> str:
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = []
    for row in rows:
        kind = ' class="ours"' if row[0] == "exact" else ' class="bound"' if row[0].startswith("one ") else ""
        cells = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row)
        lines.append(f"<tr{kind}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1d2429; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }}
th, td {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #dde2e6; }}
th:first-child, td:first-child {{ text-align: left; }}
.ours td {{ font-weight: 600; color: #1a7f5a; }} .bound td, .note, footer {{ color: #66727c; }}
.note, footer {{ font-size: .85rem; }} svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{intro}
{picture}
<h2>What routing is worth</h2>
<div class="scroll">{routing}</div>
<p class="note">{legend}</p>
<h2>The index meanwhile</h2>
<div class="scroll">{index}</div>
<p class="note">{about_index}</p>
<h2>In short</h2>
{endings}
<footer>kvatlas {version}</footer>
</body>
</html>
"""
