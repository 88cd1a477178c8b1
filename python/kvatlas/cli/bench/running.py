"""Progress, files and plots of the commands of `kvatlas bench`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

CONTEXT = {"max_content_width": 110}


class OrderedGroup(click.Group):
    """A command group that lists its commands in the order in which they were added, not alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[str, float, float], None]]:
    """A context with a progress bar on stderr, as a function of the current work, the steps done and all steps.

    Prints nothing if stderr is not a terminal.
    """
    made = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with made:
        task = made.add_task("", total=1.0, shown="")

        def update(what: str, done: float, of: float) -> None:
            shown = f"{done:,.0f} of {of:,.0f} {unit}" if unit else f"{done / of:.0%}"
            made.update(task, description=what, completed=done / of if of else 0.0, shown=shown)

        yield update


def check_file(path: Path) -> None:
    """Refuse, before the work begins, a file that could not be written at the end."""
    if path.is_dir():
        raise click.UsageError(f"Cannot write {path}: it is a directory.")
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"Cannot write {path}: there is no directory {path.absolute().parent}.")


def check_folder(path: Path) -> None:
    """Create the directory for the results."""
    if path.exists() and not path.is_dir():
        raise click.UsageError(f"{path} is not a directory.")
    path.mkdir(parents=True, exist_ok=True)


def same_command() -> str:
    """The command line of this process, to be repeated."""
    return shlex.join(["kvatlas", *sys.argv[1:]])


def draw_pictures(out: Path, name: str, draw: Callable[[], Any], page: Callable[[], str]) -> None:
    """Write the plot and the HTML page of results into their directory."""
    from kvatlas.lab.figures import save_png  # noqa: PLC0415 - slow to import

    save_png(draw(), out / f"{name}.png")
    (out / f"{name}.html").write_text(page(), encoding="utf-8")
    click.echo(f"Wrote {name}.json, {name}.html and {name}.png in {out}.", err=True)
