"""`kvatlas serve`: the service, until somebody stops it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvatlas.errors import KvatlasError
from kvatlas.service.config import read_config, show_config
from kvatlas.service.config.read import CONFIG_ENV
from kvatlas.service.config.schema import all_keys
from kvatlas.service.serve import serve as run

_KEYS = {key.path.replace(".", "__"): key for key in all_keys()}


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each setting, in their order. The configuration reads their values, so that all sources agree."""
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
    "--stream",
    multiple=True,
    metavar="WORKER=ENDPOINT[,KEY=VALUE...]",
    help="A stream of events registered by hand: w1=tcp://host:5557,replay_endpoint=tcp://host:5657. Other keys: rank, "
    "topic, model, block_size, routing_group, count_copies. Repeat for several.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=f"A TOML file; or {CONFIG_ENV}.")
@click.option("--print-config", is_flag=True, help="Print the settings in force, with where each came from, and exit.")
@_flags
def serve(
    engine: tuple[str, ...], stream: tuple[str, ...], config: Path | None, print_config: bool, **flags: str | None
) -> None:
    """Follow the events of vLLM and SGLang engines, and answer over HTTP which of them holds how much of a prompt.

    Every setting is a flag, an environment variable (--stale-after is KVATLAS_STALE_AFTER) and a key of the file; the
    first of these that says something counts. Durations are like 30s or 500ms, sizes like 8MiB.

    SIGTERM and Ctrl-C finish what runs; a second one stops at once. Exit status: 0; 1 if requests were cut off or the
    service could not start; 2 if something given cannot be used.
    """
    given: dict[str, Any] = {_KEYS[name].path: text for name, text in flags.items() if text is not None}
    given |= {name: items for name, items in (("engine", engine), ("stream", stream)) if items}
    try:
        resolved = read_config(given, file=config)
        if print_config:
            click.echo(show_config(resolved), nl=False)
            return
        status = run(resolved.config)
    except KvatlasError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    sys.exit(status)
