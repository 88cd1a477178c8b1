"""The bars as a table: ratios, those that are missed in bold."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.tiers.plan import Bar, Result, value


def table(rows: Sequence[tuple[Bar, Result, Result]]) -> str:
    """The bars as Markdown, each with the results of our cell and of the other one."""
    lines = [
        "| scenario | figure | kvatlas | compared with | its figure | ratio | wanted |",
        "|---|---|---|---|---|---|---|",
    ]
    for bar, ours, other in rows:
        mine, theirs = value(ours, bar.figure), value(other, bar.figure)
        ratio = mine / theirs if theirs else float("nan")
        unit = "requests/s" if bar.is_floor else "s"
        kept = bar.limit == 0.0 or (ratio >= bar.limit if bar.is_floor else ratio <= bar.limit)
        wanted = "" if bar.limit == 0.0 else f"{'>=' if bar.is_floor else '<='} {bar.limit:g}"
        text = f"{ratio:.2f}" if kept else f"**{ratio:.2f}**"
        figure = "throughput" if bar.is_floor else f"TTFT {bar.figure}"
        lines.append(
            f"| {bar.what} | {figure} | {mine:.3g} {unit} | {bar.than} | {theirs:.3g} {unit} | {text} | {wanted} |"
        )
    return "\n".join(lines)
