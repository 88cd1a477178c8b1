"""`kvatlas workers`: the fleet that a service follows, and how its streams are."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvatlas.cli.ask import asking, asks
from kvatlas.cli.console import INTERRUPTED, console
from kvatlas.cli.query import lag
from kvatlas.client import Client, StreamStatus, WorkerStatus
from kvatlas.errors import UnreachableError

_COLORS = {"live": "green", "replaying": "yellow", "gap": "yellow", "connecting": "yellow", "stale": "red"}


@click.command(short_help="Show the fleet that a service follows.")
@asks
@click.option("--model", metavar="NAME", help="Only workers of this model.")
@click.option("--group", metavar="NAME", help="Only workers of this routing group.")
@click.option("--watch", is_flag=True, help="Refresh, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often, with --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, a line each time.")
def workers(
    url: str,
    key_file: Path | None,
    ca: Path | None,
    timeout: float,
    model: str | None,
    group: str | None,
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show the workers that a service follows, one line for each stream of events.

    gaps: times that batches were missing. lost: batches that no replay brought. refused: events that could not be
    used. parked: blocks that wait for the one before them. lag: from the engine's clock to being visible here.

    Exit status: 0; 1 if the service does not answer or refuses; 2 if something given cannot be used; 130 after Ctrl-C.
    """
    with asking(url, key_file, ca, timeout, os.environ) as client:

        def look() -> list[WorkerStatus]:
            return client.workers(model=model, group=group)

        try:
            if as_json:
                while True:
                    listed = [dataclasses.asdict(worker) for worker in look()]
                    click.echo(json.dumps(listed, indent=None if watch else 2))
                    if not watch:
                        return
                    time.sleep(interval)
            out = console()
            first = _shown(client, look())
            if not watch:
                out.print(first)
                return
            with Live(first, console=out, auto_refresh=False) as live:
                while True:
                    if not out.is_terminal:
                        out.print(first)  # a table after the other
                    time.sleep(interval)
                    try:
                        first = _shown(client, look())
                    except UnreachableError as error:
                        first = Text(str(error), "red")
                    live.update(first, refresh=True)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _shown(client: Client, fleet: list[WorkerStatus]) -> RenderableType:
    streams = [(worker, stream) for worker in fleet for stream in worker.streams]
    if not streams:
        return Text(f"{client.url} follows no workers.")
    ready = client.ready()
    trusted = sum(stream.trusted for _worker, stream in streams)
    state = "ready" if ready else f"not ready: {ready}"
    words = f"{len(fleet)} workers, {len(streams)} streams, {trusted} trusted; {state}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    keyspaces = {(worker.model, worker.group) for worker in fleet}
    table.add_column("worker")
    table.add_column("rank", justify="right")
    if len(keyspaces) > 1:
        table.add_column("model")
    table.add_column("state")
    table.add_column("trusted")
    for name in ("epoch", "seq", "lag", "blocks", "gaps", "lost", "refused", "parked"):
        table.add_column(name, justify="right")
    errors = []
    for worker, stream in streams:
        table.add_row(*_row(worker, stream, with_model=len(keyspaces) > 1))
        if stream.last_error and not stream.trusted:
            errors.append(f"{worker.worker} rank {stream.rank}: {stream.last_error}")
    return Group(Text(words), table, *(Text(error, "yellow") for error in errors[:8]))


def _row(worker: WorkerStatus, stream: StreamStatus, *, with_model: bool) -> list[Text]:
    model = worker.model if worker.group == "default" else f"{worker.model} ({worker.group})"
    trust = "no" if not stream.trusted else "partial" if stream.partial else "yes"
    cells = [worker.worker, str(stream.rank), *([model] if with_model else [])]
    numbers = [
        f"{stream.epoch:,}",
        "" if stream.seq is None else f"{stream.seq:,}",
        lag(stream.lag_ms),
        f"{stream.blocks:,}",
        *(f"{stream.counters.get(name, 0):,}" for name in ("gaps", "lost_batches")),
        f"{sum(stream.refused.values()):,}",
        f"{stream.parked:,}",
    ]
    return [
        *map(Text, cells),
        Text(stream.state, _COLORS.get(stream.state, "")),
        Text(trust, "green" if trust == "yes" else "yellow" if trust == "partial" else "red"),
        *map(Text, numbers),
    ]
