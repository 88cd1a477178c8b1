"""Our policy with tiers, pools and pulls, beside fixed rules and bounds: see README.md.

python -m benchmarks.tiers
"""

from __future__ import annotations

from pathlib import Path

import click
from benchmarks.tiers.cells import run_and_keep
from benchmarks.tiers.plan import BARS, Bar, Result
from benchmarks.tiers.report import table

_FOLDER = Path("target/tiers")


@click.command()
@click.option("--bar", "names", multiple=True, type=click.Choice(tuple(BARS)), help="Only these.  [default: all]")
@click.option("--tables", is_flag=True, help="Run nothing: print what was found before.")
@click.option("--folder", type=click.Path(path_type=Path), default=_FOLDER, show_default=True)
def main(names: tuple[str, ...], *, tables: bool, folder: Path) -> None:
    """Run what was not run before, one after the other, and print the bars as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[Bar, Result, Result]] = []
    for name in names or tuple(BARS):
        for bar in BARS[name]():
            ours, other = (run_and_keep(folder, cell, only_kept=tables) for cell in (bar.ours, bar.other))
            if ours is None or other is None:
                continue
            rows.append((bar, ours, other))
            click.echo(table(rows[-1:]).splitlines()[-1], err=True)
    click.echo(table(rows))


main()
