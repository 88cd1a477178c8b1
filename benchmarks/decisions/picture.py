"""A picture of the tables: time to first token as the load grows, and ours beside the best other on each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decisions import plan
from benchmarks.decisions.cells import workload_name
from benchmarks.decisions.report import rivals
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

_LOADS = {"conversation": 1.0, "conversation-2x": 2.0, "conversation-2.5x": 2.5, "conversation-3x": 3.0}
_LINES = {
    plan.OURS: ("#1a7f5a", 2.4),
    "llm-d-token-load": ("#d08a1d", 1.4),
    "dynamo-agentic": ("#7a5195", 1.4),
    "vllm-router-kv-aware": ("#ef5675", 1.4),
    plan.BASE: ("#9aa7b1", 1.4),
    "shared-cache": ("#444444", 1.0),
}


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture of `results` to `path`, in the format that its name says. Raises `OSError`."""
    by = {(workload_name(r["cell"]), r["cell"]["label"] or r["cell"]["policy"]): r for r in results}
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (color, width) in _LINES.items():
        points = [(load, by[w, name]["ttft"]["mean"]) for w, load in _LOADS.items() if (w, name) in by]
        if points:
            style = "--" if name in plan.BOUNDS else "-"
            left.plot(*zip(*points, strict=True), style, color=color, linewidth=width, marker="o", label=name)
    left.set_yscale("log")
    left.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    left.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    left.yaxis.set_minor_locator(NullLocator())
    left.set_xticks(list(_LOADS.values()))
    left.set_xlabel("speed of the conversation trace")
    left.set_ylabel("time to first token, mean (s)")
    left.legend(frameon=False)
    rows = []
    for workload in plan.WORKLOADS:
        found = rivals(by, workload)
        if workload not in plan.EVENTS and (workload, plan.OURS) in by and found:
            rows.append(
                (
                    workload,
                    *(
                        by[workload, plan.OURS]["ttft"][part] / min(other["ttft"][part] for _, other in found)
                        for part in ("mean", "p99")
                    ),
                )
            )
    places = range(len(rows))
    right.barh([p - 0.2 for p in places], [row[1] for row in rows], height=0.38, color="#1a7f5a", label="mean")
    right.barh([p + 0.2 for p in places], [row[2] for row in rows], height=0.38, color="#9fd3bd", label="p99")
    right.axvline(1.0, color="#444444", linewidth=0.8)
    right.set_yticks(list(places), [row[0] for row in rows])
    right.invert_yaxis()
    right.set_xlabel("time to first token of kvatlas / of the best other policy there")
    right.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
