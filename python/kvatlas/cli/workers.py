"""`kvatlas workers`: the workers of a service or a router, and the state of their event streams."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvatlas._text import counted, milliseconds
from kvatlas.cli import INTERRUPTED
from kvatlas.cli.conditions import condition_words
from kvatlas.cli.console import console
from kvatlas.cli.service_options import asking, asks, no_workers
from kvatlas.client import EngineStatus, Readiness, StreamStatus, WorkerStatus
from kvatlas.errors import UnreachableError

_COUNTERS = ("gaps", "lost", "refused", "unlinked")
_PAGES = "https://github.com/kvatlas/kvatlas/blob/main/docs"
_RUNBOOK = f"{_PAGES}/guides/sick-engines.md"
_ADVICE = {
    "misconfigured": "its blocks have another size than --block-size: leave the option out, or set it to their size",
    "refusing": "some of its events could not be used: `kvatlas decode` shows them",
    "partial": "events were missed: give it a replay socket with a larger buffer",
}
_COLORS = {
    "live": "green",
    "replaying": "yellow",
    "gap": "yellow",
    "connecting": "yellow",
    "stale": "red",
    "conflict": "red",
    "limited": "red",
    "unreadable": "red",
}


@click.command(short_help="Show the workers of a running service or router and their streams.")
@asks
@click.option("--model", metavar="NAME", help="Show only workers of this model.")
@click.option("--routing-group", metavar="NAME", help="Show only workers of this routing group.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between refreshes with --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON. With --watch, one line per refresh.")
def workers(
    url: str | None,
    key_file: Path | None,
    ca: Path | None,
    timeout: float,
    model: str | None,
    routing_group: str | None,
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show the workers that a service or a router follows, one line per event stream.

    gaps: how often batches were missing. lost: batches that no replay recovered. refused: events that could not be
    used. unlinked: blocks below a missing one. lag: time from the engine's timestamp until a batch is visible in
    answers.

    What a router knows of its engines (their conditions, with reason, advice and runbook) is below the table.

    Engines that the service was told to follow, but could not register, are listed below the table with the reason, and
    engines to which a router sends requests without following their events.

    Untrusted streams come first. If the table is too wide, columns among gaps, lost, refused and unlinked that are 0 in
    every row are left out.

    Exit status: 0; 1 if the service does not respond or refuses; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    with asking(url, key_file, ca, timeout, os.environ) as client:
        out = console()

        def look() -> list[WorkerStatus]:
            return client.workers(model=model, routing_group=routing_group)

        def shown() -> RenderableType:
            fleet, ready = look(), client.ready()
            table = _shown(out, fleet, ready)
            if table is None and fleet:
                table = Text(f"{client.url} follows no events of {counted(len(fleet), 'worker')}; {ready}")
            if table is None:
                state = "" if ready else f"; {ready}"
                table = Text(f"{client.url} has {no_workers(client, model, routing_group)}{state}.")
            unfollowed = (worker for worker in fleet if not worker.streams)
            conditions = (
                Text(f"{worker.worker}: {condition_words(dataclasses.asdict(worker.condition))}", "yellow")
                for worker in fleet
                if worker.condition
            )
            return Group(
                table,
                *conditions,
                *(Text(_unfollowed(worker), "yellow") for worker in unfollowed),
                *(Text(_engine(engine), "red") for engine in ready.engines),
            )

        try:
            if as_json:
                while True:
                    listed = [dataclasses.asdict(worker) for worker in look()]
                    click.echo(json.dumps(listed, indent=None if watch else 2))
                    if not watch:
                        return
                    time.sleep(interval)
            first = shown()
            if not watch:
                out.print(first)
                return
            with Live(first, console=out, auto_refresh=False) as live:
                while True:
                    if not out.is_terminal:
                        out.print(first)  # a table after the other
                    time.sleep(interval)
                    try:
                        first = shown()
                    except UnreachableError as error:
                        first = Text(str(error), "red")
                    live.update(first, refresh=True)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _unfollowed(worker: WorkerStatus) -> str:
    """The line about an engine whose events the router does not receive."""
    return f"no event stream: {worker.worker}, {worker.status}, model {worker.model or 'not known yet'}"


def _engine(engine: EngineStatus) -> str:
    """The line about the problem of an engine that is not registered."""
    which = engine.url if engine.rank is None else f"stream {engine.worker}, rank {engine.rank}, {engine.url}"
    named = "" if engine.rank is not None or engine.worker in engine.url else f"{engine.worker}, "
    state = engine.state.replace("_", " ")
    why = f": {engine.reason}" if engine.reason else ""
    return f"not registered: {named}{which}, {state} for {milliseconds(engine.since_ms)}{why}"


def _shown(out: Console, fleet: list[WorkerStatus], ready: Readiness) -> RenderableType | None:
    """A summary line and a table of the fleet; None if there are no workers."""
    streams = [(worker, stream) for worker in fleet for stream in worker.streams]
    if not streams:
        return None
    streams.sort(key=lambda pair: (pair[1].trusted, _doubt(pair[1]) is None))  # what needs a look stays on the screen
    trusted = sum(stream.trusted for _worker, stream in streams)
    words = f"{counted(len(fleet), 'worker')}, {counted(len(streams), 'stream')}, "
    is_emergency = trusted == 0
    if is_emergency and ready:
        words += f"NONE TRUSTED: queries find nothing. Check that the engines run and can be reached: {_RUNBOOK}"
    else:
        words += f"{trusted:,} trusted; {ready}"
    with_model = len({(worker.model, worker.routing_group) for worker in fleet}) > 1
    table = _table(streams, _COUNTERS, with_model=with_model)
    if out.measure(table, options=out.options.update(max_width=1_000)).maximum > out.width:
        told = [name for name in _COUNTERS if any(_counters(stream)[name] for _worker, stream in streams)]
        table = _table(streams, told, with_model=with_model)
    errors = [
        f"{worker.worker} rank {stream.rank}: {stream.last_error}"
        for worker, stream in streams
        if stream.last_error and not stream.trusted
    ] + [
        f"{worker.worker} rank {stream.rank}: {doubt}: {_ADVICE[doubt]}: {_PAGES}/runbooks/{doubt}.md"
        for worker, stream in streams
        if worker.condition is None and (doubt := _doubt(stream)) in _ADVICE
    ]
    return Group(
        Text(words, "bold white on red" if is_emergency else ""),
        table,
        *(Text(error, "yellow") for error in errors[:8]),
    )


def _table(streams: list[tuple[WorkerStatus, StreamStatus]], counters: Sequence[str], *, with_model: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker", overflow="fold")
    table.add_column("rank", justify="right", no_wrap=True)
    if with_model:
        table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("trusted", no_wrap=True)
    for name in ("epoch", "seq", "lag", "blocks", *counters):
        table.add_column(name, justify="right", no_wrap=True)
    for worker, stream in streams:
        table.add_row(*_row(worker, stream, counters, with_model=with_model))
    return table


def _row(worker: WorkerStatus, stream: StreamStatus, counters: Sequence[str], *, with_model: bool) -> list[Text]:
    model = worker.model if worker.routing_group == "default" else f"{worker.model} ({worker.routing_group})"
    trust = "no" if not stream.trusted else _doubt(stream) or "yes"
    counts = _counters(stream)
    cells = [worker.worker, str(stream.rank), *([model] if with_model else [])]
    numbers = [
        f"{stream.epoch:,}",
        "" if stream.seq is None else f"{stream.seq:,}",
        "" if stream.lag_ms is None else milliseconds(stream.lag_ms),
        f"{stream.blocks:,}",
        *(f"{counts[name]:,}" for name in counters),
    ]
    return [
        *map(Text, cells),
        Text(stream.state, _COLORS.get(stream.state, "")),
        Text(trust, "green" if trust == "yes" else "red" if trust == "no" else "yellow"),
        *map(Text, numbers),
    ]


def _doubt(stream: StreamStatus) -> str | None:
    """The worst reason to doubt the blocks known from a stream, as a word; None if there is none."""
    # A partial block cannot be used anyway, and a chunk of LMCache with an unknown salt is beyond the device: no doubt.
    partial = stream.refused.get("partial_block", 0)
    refused = sum(stream.refused.values()) - partial - stream.refused.get("hidden_salt", 0)
    if stream.refused.get("block_size", 0) + partial > stream.counters.get("stored_blocks", 0):
        return "misconfigured"
    if refused:
        return "refusing"
    return "partial" if stream.partial else "unverified" if stream.unverified else None


def _counters(stream: StreamStatus) -> dict[str, int]:
    counters = (
        stream.counters.get("gaps", 0),
        stream.counters.get("lost_batches", 0),
        sum(stream.refused.values()),
        stream.unlinked,
    )
    return dict(zip(_COUNTERS, counters, strict=True))
