"""Runs the benchmark: `python -m benchmarks.service --help`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from . import churn, cold, idle, ingest, load, queries

PHASES = ("queries", "ingest", "ingest-small", "steady", "burst", "lateness", "idle", "churn", "cold")


@click.command()
@click.option(
    "--dynamo-python", default="", help="A Python that has ai-dynamo 1.6.1, unless kvatlas is measured alone."
)
@click.option("--only", multiple=True, type=click.Choice(PHASES), help="Some phases; all if not given.")
@click.option("--rounds", default=5, show_default=True, help="Turns that each service has.")
@click.option("--seconds", default=5.0, show_default=True, help="Length of one load.")
@click.option(
    "--batches", default=1_000, show_default=True, help="Batches of 64 blocks that each of 32 engines publishes."
)
@click.option("--engines", default=1_000, show_default=True, help="Engines of the cold start.")
@click.option("--buffer", default=10_000, show_default=True, help="Batches in the replay buffer of each of them.")
@click.option("--minutes", default=3.0, show_default=True, help="Length of the churn.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the figures.")
def main(
    dynamo_python: str,
    only: tuple[str, ...],
    rounds: int,
    seconds: float,
    batches: int,
    engines: int,
    buffer: int,
    minutes: float,
    out: Path | None,
) -> None:
    """Queries, ingest, lateness, idle cost and memory of kvatlas beside python -m dynamo.indexer."""
    phases: dict[str, Callable[[], Any]] = {
        "queries": lambda: queries.measure(dynamo_python, rounds, seconds, click.echo),
        "ingest": lambda: ingest.ingest(dynamo_python, rounds, batches, 64, click.echo),
        "ingest-small": lambda: ingest.ingest(dynamo_python, rounds, 4 * batches, 1, click.echo),
        "steady": lambda: ingest.steady(dynamo_python, rounds, 20_000, seconds, click.echo),
        "burst": lambda: ingest.burst(dynamo_python, 100_000, click.echo),
        "lateness": lambda: ingest.lateness(20_000, 4 * seconds, click.echo),
        "idle": lambda: idle.idle(4 * seconds, click.echo),
        "cold": lambda: cold.cold(engines, buffer, click.echo),
        "churn": lambda: churn.churn(dynamo_python, minutes, click.echo),
    }
    try:
        chosen = only or PHASES
        if not dynamo_python and not set(chosen) <= {"lateness", "idle", "cold"}:
            sys.exit("--dynamo-python is missing")
        if set(chosen) & {"queries"}:
            load.check()
        results = {name: run() for name, run in phases.items() if name in chosen}
    except RuntimeError as error:
        sys.exit(str(error))
    if out is not None:
        out.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
