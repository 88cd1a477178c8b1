"""`kvatlas serve`: the service, until somebody stops it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvatlas.errors import KvatlasError
from kvatlas.service.load import CONFIG_ENV, effective, load
from kvatlas.service.serve import serve as run
from kvatlas.service.settings import all_keys

_KEYS = {key.path.replace(".", "__"): key for key in all_keys()}


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting, in their order. Values are read by the settings, so that all sources agree."""
    for name, key in reversed(_KEYS.items()):
        shown = key.show_default().strip('"')
        default = f"  [default: {shown}]" if shown else ""
        command = click.option(key.flag, name, metavar=key.kind.metavar, help=f"{key.help}{default}")(command)
    return command


@click.command(short_help="Follow engines, and answer which of them holds how much of a prompt.")
@click.option(
    "--engine",
    multiple=True,
    metavar="[NAME=]URL",
    help="A vLLM or SGLang server, asked where its events are: http://host:8000. Repeat for several.",
)
@click.option(
    "--worker",
    multiple=True,
    metavar="ID=ENDPOINT[,KEY=VALUE...]",
    help="A worker registered by hand: w1=tcp://host:5557,replay=tcp://host:5558; also rank, topic, model, block_size "
    "and routing_group. Repeat for several.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=f"A TOML file; or {CONFIG_ENV}.")
@click.option("--print-config", is_flag=True, help="Print the settings in force, with where each came from, and end.")
@_flags
def serve(
    engine: tuple[str, ...], worker: tuple[str, ...], config: Path | None, print_config: bool, **flags: str | None
) -> None:
    """Follow the events of vLLM and SGLang engines, and answer over HTTP which of them holds how much of a prompt.

    Every setting is a flag, an environment variable (--stale-after is KVATLAS_STALE_AFTER) and a key of the file; the
    first of these that says something counts. Durations are like 30s or 500ms, sizes like 8MiB.

    SIGTERM and Ctrl-C finish what runs; a second one stops at once. Exit status: 0; 1 if requests were cut off or the
    service could not start; 2 if something given cannot be used.
    """
    given: dict[str, Any] = {_KEYS[name].path: text for name, text in flags.items() if text is not None}
    given |= {name: items for name, items in (("engine", engine), ("worker", worker)) if items}
    try:
        loaded = load(given, config=config)
        if print_config:
            click.echo(effective(loaded), nl=False)
            return
        status = run(loaded.settings)
    except KvatlasError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    sys.exit(status)
