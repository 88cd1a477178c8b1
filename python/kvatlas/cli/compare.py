"""`kvatlas compare`: the differences between the workers of two indexes."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import httpx
from rich.table import Table
from rich.text import Text

from kvatlas._http import options
from kvatlas._native import compare_snapshots
from kvatlas._text import counted
from kvatlas.cli.console import console, exit_status
from kvatlas.cli.service_options import asking, authenticates, key_of, trust
from kvatlas.client.answers import WorkerStatus
from kvatlas.client.parse import parsed, worker_statuses
from kvatlas.service.peer import fetch

DIFFERENT = 1


@click.command(short_help="Show which workers differ between two services, or two snapshots.")
@click.argument("a")
@click.argument("b")
@click.option("--deep", is_flag=True, help="Compare block by block even if all fingerprints are equal.")
@authenticates("the admin key of the services")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time within which each service must have sent its snapshot.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@exit_status
def compare(a: str, b: str, deep: bool, key_file: Path | None, ca: Path | None, timeout: float, as_json: bool) -> None:
    """Show which workers differ between A and B, and where. Each is a URL or the file of a snapshot.

    A URL names a service, or a router that follows events itself.

    Two services are compared by their fingerprints first: one word for each rank. Ranks with equal words hold the same
    blocks on the same tiers. Only if some differ, or with --deep, both snapshots are fetched and compared block by
    block, with contents and numbers of copies.

    Services that follow busy engines are rarely at the same batch: compare the numbers under "batch".

    Exit status: 0 if they are equal; 1 if they differ; 2 if one of them cannot be read.
    """
    key, context = key_of(key_file, os.environ), trust(ca)
    if not deep and _is_url(a) and _is_url(b):
        ours, theirs = (_words(url, key_file, ca, timeout) for url in (a, b))
        if ours == theirs:
            if as_json:
                click.echo("[]")
            else:
                click.echo(f"Equal: the fingerprints of {counted(len(ours), 'rank')}.")
            return
    with tempfile.TemporaryDirectory(prefix="kvatlas-") as directory:
        files = [str(_file(each, key, context, timeout, Path(directory) / name)) for each, name in ((a, "a"), (b, "b"))]
        ranks: list[dict[str, Any]] = json.loads(compare_snapshots(files[0], files[1]))
    different = [rank for rank in ranks if _differs(rank)]
    if as_json:
        click.echo(json.dumps(different, indent=2))
    else:
        _show(a, b, ranks, different)
    if different:
        sys.exit(DIFFERENT)


def _is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _words(url: str, key_file: Path | None, ca: Path | None, timeout: float) -> dict[tuple[str, ...], str]:
    """Fetch the fingerprint of each rank, by model, routing group, worker and rank."""
    with asking(url, key_file, ca, min(timeout, 10.0), os.environ) as client:
        return {
            (worker.model, worker.routing_group, worker.worker, str(rank)): word
            for worker in _of_router(url, key_file, ca, min(timeout, 10.0)) or client.workers()
            for stream in worker.streams
            for rank, word in stream.fingerprints.items()
        }


def _of_router(url: str, key_file: Path | None, ca: Path | None, timeout: float) -> list[WorkerStatus]:
    """The workers whose events a router receives; empty for a service, or for a router without events."""
    set_up = options(url, key_of(key_file, os.environ), timeout, trust(ca))
    with contextlib.suppress(httpx.HTTPError), httpx.Client(**set_up) as client:
        answer = client.get("/streams")
        if answer.status_code == httpx.codes.OK:
            return parsed(answer.content, worker_statuses, answer.request.url)
    return []


def _file(place: str, key: str | None, context: ssl.SSLContext | None, timeout: float, to: Path) -> Path:
    if not _is_url(place):
        return Path(place)
    with to.open("wb") as out:
        fetch(place.rstrip("/"), key, timeout, out, ssl_context=context)
    return to


def _differs(rank: dict[str, Any]) -> bool:
    return any(rank["only"]) or bool(rank["other_content"]) or bool(rank["other_copies"])


def _show(a: str, b: str, ranks: list[dict[str, Any]], different: list[dict[str, Any]]) -> None:
    out = console()
    blocks = [sum(rank["blocks"][side] for rank in ranks) for side in (0, 1)]
    out.print(Text(f"A: {a}, {counted(blocks[0], 'block')}"))
    out.print(Text(f"B: {b}, {counted(blocks[1], 'block')}"))
    if not different:
        out.print(Text(f"Equal: {counted(len(ranks), 'rank')}, block by block."))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker", overflow="fold")
    names = ("rank", "batch A", "batch B", "blocks A", "blocks B", "only A", "only B", "content", "copies", "depth")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for rank in different:
        numbers = [
            rank["rank"],
            *rank["seqs"],
            *rank["blocks"],
            *rank["only"],
            rank["other_content"],
            rank["other_copies"],
            rank["first_depth"],
        ]
        table.add_row(Text(rank["worker"]), *("" if number is None else f"{number:,}" for number in numbers))
    out.print(table)
    out.print(Text(f"{counted(len(different), 'rank')} of {len(ranks):,} differ. The first blocks, by block hash:"))
    for rank in different[:8]:
        for block in rank["first"][:3]:
            depth = "" if block["depth"] is None else f", depth {block['depth']:,}"
            out.print(Text(f"  {rank['worker']} rank {rank['rank']}: {block['block_hash']} on {block['tier']}{depth}"))
