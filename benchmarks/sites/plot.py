"""A plot of what digests cost and lose, by grain, from the lines that `--json` wrote.

python -m benchmarks.sites.plot docs/lab/sites/grain.png trace.jsonl made-up.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

_PANELS = (
    ("memory", "memory above, % of the sites'", 100.0, 2.0),
    ("traffic", "digests, % of events' bytes", 100.0, 2.0),
    ("best_asked", "best site among those asked, %", 100.0, 99.0),
)


def main() -> None:
    mpl.use("Agg")
    to, *sources = map(Path, sys.argv[1:])
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for source in sources:
        for text in source.read_text(encoding="utf-8").splitlines():
            row = json.loads(text)
            if row["policy"] == "digests" and not row["scenario"]:
                lines[_label(row)].append(row)
    figure, axes = plt.subplots(1, len(_PANELS), figsize=(11, 3.4), layout="constrained")
    for axis, (name, title, factor, bar) in zip(axes, _PANELS, strict=True):
        for label, rows in lines.items():
            rows.sort(key=lambda row: row["grain"])
            axis.plot(
                [row["grain"] for row in rows],
                [factor * row[name] for row in rows],
                marker="o",
                markersize=4,
                label=label,
            )
        axis.axhline(bar, color="0.4", linestyle="--", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xticks([16, 32, 64, 128], ["16", "32", "64", "128"])
        axis.minorticks_off()
        axis.set_xlabel("grain, blocks of 16 tokens")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(0, 2.2)
    axes[0].legend(fontsize=8)
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=110)


def _label(row: dict[str, Any]) -> str:
    load = "trace" if row["trace"].endswith(".jsonl") else "made up"
    ragged = ", ragged" if row["ragged"] else ""
    return f"{row['sites']} x {row['workers']:,}, {load}{ragged}"


if __name__ == "__main__":
    main()
