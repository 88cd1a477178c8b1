"""`kvatlas bench grow`: growth of a lookup's cost with the size of the index, for each design."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from kvatlas._tables import make_table
from kvatlas.cli import INTERRUPTED
from kvatlas.cli.bench.options import FILE, index_names
from kvatlas.cli.bench.running import (
    CONTEXT,
    check_folder,
    draw_pictures,
    progress_bar,
    same_command,
)
from kvatlas.cli.console import console, exit_status

_WIDE = 100  # characters in which a size has room for both times beside each other


@click.command(context_settings=CONTEXT, short_help="Measure how the cost of a lookup grows for each design.")
@click.option(
    "--index", "indexes", default="all", show_default=True, metavar="NAMES", help="all, or names separated by commas."
)
@click.option(
    "--out", type=FILE, default=Path("grow"), show_default=True, metavar="DIR", help="Directory for the results."
)
@click.option("--short", is_flag=True, help="Quick run with small sizes.")
@click.option(
    "--build-seconds",
    type=click.FloatRange(0.01),
    default=20.0,
    show_default=True,
    help="Time limit for building one index.",
)
@click.option(
    "--lookup-seconds",
    type=click.FloatRange(0.01),
    default=2.0,
    show_default=True,
    help="Time limit for the lookups of one point.",
)
@click.option(
    "--memory",
    type=click.FloatRange(0),
    default=4.0,
    show_default=True,
    metavar="GB",
    help="Memory limit. 0 means no limit.",
)
@click.option("--fresh", is_flag=True, help="Repeat measurements that DIR already contains.")
@click.option("--seed", type=click.IntRange(0, 1 << 20), default=0, show_default=True)
@exit_status
def grow(indexes: str, **options: Any) -> None:
    """Measure how the time of one lookup grows with depth, workers, holders of a block, and blocks stored.

    There is no other load: an index is built, then one thread runs lookups. A design that exceeds --build-seconds or
    --memory is left out from that size on. Results are written to points.jsonl, grow.json, grow.html and grow.png in
    DIR.

    Exit status: 0; 1 if nothing could be measured; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from kvatlas.lab.bench.designs import choose_designs  # noqa: PLC0415 - needs the extension
    from kvatlas.lab.bench.grow import Growth, Shape, series  # noqa: PLC0415
    from kvatlas.lab.bench.grow import grow as run_grow  # noqa: PLC0415
    from kvatlas.lab.bench.grow_plot import draw_growth, growth_page, growth_rows, skipped  # noqa: PLC0415
    from kvatlas.lab.bench.journal import Journal  # noqa: PLC0415
    from kvatlas.lab.bench.machine import machine  # noqa: PLC0415
    from kvatlas.lab.bench.programs import Result, run_child  # noqa: PLC0415

    designs = choose_designs(index_names(indexes))
    out: Path = options["out"]
    check_folder(out)
    journal_path = out / "points.jsonl"
    if options["fresh"]:
        journal_path.unlink(missing_ok=True)
    config: dict[str, object] = {
        "build_seconds": options["build_seconds"],
        "lookup_seconds": options["lookup_seconds"],
        "memory": round(options["memory"] * 1e9),
        "seed": options["seed"],
        "options": {},
    }

    def probe(shape: Shape, index: str) -> Result:
        command = [
            sys.executable,
            "-m",
            "kvatlas.lab.bench.probe",
            json.dumps(asdict(shape)),
            index,
            json.dumps(config),
        ]
        return run_child(command, index, 120 + 4 * options["build_seconds"] + 2 * options["lookup_seconds"])

    every = series(short=options["short"])
    growth = Growth([], list(every), machine(), options["seed"])
    interrupted = False
    with progress_bar("") as bar:
        try:
            run_grow(
                [design.index for design in designs],
                every,
                probe,
                growth,
                config=config,
                journal=Journal(journal_path),
                progress=lambda name, index, size, share: bar(f"{name} {size:,}: {index}", share, 1.0),
            )
        except KeyboardInterrupt:
            interrupted = True
    again = same_command()
    (out / "grow.json").write_text(
        json.dumps({**growth.as_json(), "command": again}, indent=2) + "\n", encoding="utf-8"
    )
    draw_pictures(out, "grow", lambda: draw_growth(growth), lambda: growth_page(growth, again))
    screen = console()
    for one in every:
        columns, rows = growth_rows(growth, one.name)
        rows = [[cell.replace(" / ", " /\n") for cell in row] for row in rows] if screen.width < _WIDE else rows
        screen.print(make_table(columns, rows, screen.width, title=f"{one.name}: {one.label} (p50 / p99)"))
    for line in skipped(growth):
        screen.print(f"left out: {line}", highlight=False)
    if interrupted:
        click.echo(f"Interrupted. Results so far are kept. To continue: {again}", err=True)
        raise Exit(INTERRUPTED)
    if not any(point.p50 for point in growth.points):
        click.echo("Error: nothing could be measured.", err=True)
        raise Exit(1)
