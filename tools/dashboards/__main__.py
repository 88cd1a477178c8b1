"""Writes the dashboards, and what the Helm chart has of them and of the alerts: python -m tools.dashboards [--check].

With `--check`, nothing is written, and the exit status is 1 if a file is missing, differs, or is not made any more.
It is 1 as well if a panel names a metric that the reference pages do not have.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tools.dashboards.layout import board
from tools.dashboards.panels import BOARDS
from tools.docs import metrics, router_metrics

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy/grafana"
RULES = ROOT / "deploy/prometheus/kvatlas.rules.yml"
CHART = ROOT / "deploy/helm/kvatlas/monitoring"  # Helm reads only what is in the chart


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.dashboards", description="Writes the dashboards for Grafana."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and fail on a file that is not up to date")
    check = parser.parse_args(arguments).check
    helps = described()
    if unknown := undescribed(helps):
        print(*(f"{name}: no reference page has this metric" for name in unknown), sep="\n", file=sys.stderr)
        return 1
    wanted = files(helps)
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    stale += [path for folder in (GRAFANA, CHART) for path in folder.glob("*.json") if path not in wanted]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m tools.dashboards", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 0


def described() -> dict[str, str]:
    """The help of every metric of the reference pages by its name."""
    return metrics.served() | {name: about for name, (_, about) in router_metrics.served().items()}


def undescribed(helps: dict[str, str]) -> list[str]:
    """The metrics of panels that have no help."""
    return sorted({name for panels in BOARDS.values() for panel in panels for name in panel.metrics()} - helps.keys())


def files(helps: dict[str, str]) -> dict[Path, str]:
    """The texts of all files that are made, by their paths."""
    made = {CHART / RULES.name: RULES.read_text()}
    for name, panels in BOARDS.items():
        text = json.dumps(board(name, panels, helps), indent=1) + "\n"
        made |= {folder / f"{name}.json": text for folder in (GRAFANA, CHART)}
    return made


if __name__ == "__main__":
    sys.exit(main())
