"""Draws every panel of the dashboards as a real Prometheus answers it, one picture a dashboard.

    python -m tests.process.monitoring.draw_dashboards FOLDER [--seconds 120]

A router serves conversations of two kinds of clients with four engines: one refuses requests in the second quarter of
the time, one loses events, one is killed in the third quarter, and one was never there. Prometheus must be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl

from kvatlas.sim import EngineConfig

from .prometheus import BOARDS, Panel, Prometheus, panels, watched
from .tools import tool

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ENGINE = EngineConfig(prefill_rate=20_000.0, decode_rate=400.0, blocks=3_000)
COLUMNS = 3


def main() -> None:
    """Serve for a while, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--seconds", type=float, default=120.0, help="time of service (default: 120)")
    told = parser.parse_args()
    told.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, watched(tool("prometheus"), Path(folder), ENGINE, 3) as running:
        prometheus, fleet, router = running
        fleet.engines[1].faults(http_refuse=0.0)
        start, over = time.time(), threading.Event()
        clients = [threading.Thread(target=converse, args=(router.url, number, over)) for number in range(8)]
        for client in clients:
            client.start()
        quarter = told.seconds / 4
        time.sleep(quarter)
        fleet.engines[1].faults(http_refuse=1.0)
        time.sleep(quarter)
        fleet.engines[1].faults(http_refuse=0.0)
        fleet.engines[0].kill()
        time.sleep(quarter)
        fleet.engines[0].respawn()
        time.sleep(quarter)
        over.set()
        for client in clients:
            client.join()
        for board in BOARDS:
            draw(
                prometheus, [panel for panel in panels() if panel.board == board.stem], start, time.time(), told.folder
            )


def converse(router: str, client: int, over: threading.Event) -> None:
    """Chats of a few turns each; every second client names its session."""
    for chat in itertools.count():
        messages = [{"role": "system", "content": f"You are assistant {client % 2}. " + "Be exact and brief. " * 100}]
        headers = {"x-session-id": f"session-{client}-{chat}"} if client % 2 else {}
        for turn in range(6):
            if over.wait(0.3):
                return
            messages.append({"role": "user", "content": f"Turn {turn} of chat {chat}. " + "Some more words. " * 30})
            body = {"model": "sim-model", "stream": True, "max_tokens": 40, "messages": messages}
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.post(f"{router}/v1/chat/completions", json=body, headers=headers, timeout=60)
                messages.append({"role": "assistant", "content": answer.text[:200]})


def draw(prometheus: Prometheus, queries: list[Panel], start: float, end: float, folder: Path) -> None:
    """One picture with all panels of a dashboard."""
    by_title: dict[str, list[Panel]] = defaultdict(list)
    for query in queries:
        by_title[query.title].append(query)
    rows = -(-len(by_title) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(6 * COLUMNS, 2.8 * rows), squeeze=False, layout="constrained")
    places: list[Axes] = list(axes.flat)
    for place, (title, parts) in zip(places, by_title.items(), strict=False):
        draw_panel(place, prometheus, title, parts, start, end)
    for place in places[len(by_title) :]:
        place.axis("off")
    board = queries[0].board
    figure.savefig(folder / f"{board}.png", dpi=70)
    print(folder / f"{board}.png")


def draw_panel(axes: Axes, prometheus: Prometheus, title: str, parts: list[Panel], start: float, end: float) -> None:
    """The series of one panel."""
    axes.set_title(f"{title} ({parts[0].unit})", fontsize=9)
    axes.tick_params(labelsize=7)
    lines = 0
    for part in parts:
        for series in prometheus.series(part.query, start, end, 1.0):
            times, values = zip(*((moment - start, float(value)) for moment, value in series["values"]), strict=True)
            axes.plot(times, values, label=legend(part, series["metric"]), linewidth=1)
            lines += 1
    if lines == 0:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center")
    else:
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=6, loc="upper left", ncols=2 if lines > 4 else 1)


def legend(part: Panel, labels: dict[str, Any]) -> str:
    """The name of a series."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: str(labels.get(found[1], "")), part.legend) or part.ref


if __name__ == "__main__":
    main()
