"""Console, Ctrl-C, exit statuses and progress bars of the commands."""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
from click.exceptions import Exit
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvatlas.cli import INTERRUPTED
from kvatlas.errors import KvatlasError, PolicyError
from kvatlas.routing.policies import own_traceback

_F = TypeVar("_F", bound=Callable[..., Any])
_WIDTH = 110  # when the output is not a terminal, unless COLUMNS says another


def console(*, stderr: bool = False) -> Console:
    """Create a console on stdout or stderr, wide enough for the tables when not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a terminal that cannot show µ still gets the numbers
    made = Console(stderr=stderr)
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(stderr=stderr, width=_WIDTH)


class Interrupt:
    """A flag that becomes true when Ctrl-C is pressed.

    A second Ctrl-C stops the command at once (KeyboardInterrupt).
    """

    def __init__(self) -> None:
        self.pressed = False
        self._at_once = False

    def __call__(self) -> bool:
        return self.pressed

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which already the first Ctrl-C stops the command at once: for reads that nothing else ends."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.pressed or self._at_once:
            raise KeyboardInterrupt
        self.pressed = True


def show_cause(error: KvatlasError) -> None:
    """Print the place of an error in the code of a user's policy."""
    if isinstance(error, PolicyError) and error.__cause__ is not None:
        click.echo(own_traceback(error.__cause__), err=True, nl=False)


def exit_status(function: _F) -> _F:
    """Decorate a command so that errors become one line and exit status 2, and Ctrl-C becomes 130."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Exit:
            raise
        except KvatlasError as error:
            # The usage line would not help here; the text is enough.
            show_cause(error)
            click.echo(f"Error: {error}", err=True)
            sys.exit(2)
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            click.echo(f"Error: {error.filename or 'cannot write'}: {error.strerror or error}", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            sys.exit(INTERRUPTED)

    return command  # type: ignore[return-value]


def check_output(file: Path, inputs: Sequence[Path] = ()) -> None:
    """Check, before the work begins, that a file can be written and is not an input of the command.

    Raises `UsageError`.
    """
    if file.is_dir():
        raise click.UsageError(f"Cannot write {file}: it is a directory.")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"Cannot write {file}: there is no directory {file.absolute().parent}.")
    if any(file.absolute() == path.absolute() for path in inputs):
        raise click.UsageError(f"{file} is the trace: it would be overwritten.")


def write_output(file: Path, write: Callable[[], object]) -> Path:
    """Write a file by calling `write`. Raises `UsageError` if that fails."""
    try:
        write()
    except OSError as error:
        raise click.UsageError(f"Cannot write {file}: {error.strerror or error}.") from error
    return file


@contextmanager
def on_interrupt() -> Iterator[Interrupt]:
    """A context in which Ctrl-C sets a flag instead of stopping the command."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_bar(names: tuple[str, ...], total: int) -> Iterator[Bar]:
    """A context with a progress bar on stderr for work on each of `names`, with `total` steps each.

    Prints nothing if stderr is not a terminal.
    """
    bar = Progress(
        TextColumn("{task.description:>18}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} requests"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with bar:
        yield Bar(bar, names, total)


class Bar:
    """A progress bar for work on several names, one after the other."""

    def __init__(self, bar: Progress, names: tuple[str, ...], total: int) -> None:
        self._bar = bar
        self._names = list(names)
        self._total = total
        self._task = bar.add_task(names[0], total=len(names) * total)

    def __call__(self, name: str, done: int) -> None:
        before = self._names.index(name) * self._total
        self._bar.update(self._task, description=name, completed=before + done)
