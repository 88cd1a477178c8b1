"""`kvatlas serve`: run the index service until it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from kvatlas.cli.settings import config_option, given, pool_option, print_config_option, setting_flags
from kvatlas.errors import KvatlasError
from kvatlas.service.config import Config, read_config, show_config
from kvatlas.service.config.read import SERVICE
from kvatlas.service.reread import SettingsReader
from kvatlas.service.serve import serve as run

_F = TypeVar("_F", bound=Callable[..., Any])


def follow_options(command: _F) -> _F:
    """Add the options for engines, for every setting, and for files with engines or settings."""
    command = print_config_option(setting_flags(SERVICE)(command))
    command = click.option(
        "--stream",
        multiple=True,
        metavar="WORKER=ENDPOINT[,KEY=VALUE...]",
        help="Event stream to follow without discovery: w1=tcp://host:5557,replay_endpoint=tcp://host:5757. Other "
        "keys: rank, topic, model, block_size, routing_group, count_copies, host_chunk, aliases, adapters. Repeatable.",
    )(pool_option(config_option(command)))
    return click.option(
        "--engine",
        multiple=True,
        metavar="[NAME=]URL",
        help="HTTP address of a vLLM or SGLang server, such as http://host:8000. Its event sockets are discovered. "
        "Repeatable.",
    )(command)


def run_service(
    config: Path | None,
    print_config: bool,
    options: dict[str, Any],
    adapt: Callable[[Config], Config] = lambda config: config,
) -> NoReturn:
    """Run a service with the given flags until it is stopped, and end the command.

    `adapt`: changes the configuration, or refuses it by raising an error.
    """
    try:
        flags = given(SERVICE, options)
        resolved = read_config(flags, file=config)
        if print_config:
            click.echo(show_config(resolved), nl=False)
            sys.exit(0)
        reader = SettingsReader(SERVICE, lambda: adapt(read_config(flags, file=config).config))
        status = run(adapt(resolved.config), reader)
    except KvatlasError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    sys.exit(status)


@click.command(short_help="Follow engines and answer how much of a prompt each holds.")
@follow_options
def serve(config: Path | None, print_config: bool, **options: Any) -> None:
    """Follow the KV events of vLLM and SGLang engines, and answer over HTTP how much of a prompt each worker holds.

    Every setting is a flag, an environment variable (--stale-after is KVATLAS_STALE_AFTER) and a key of the
    configuration file, in this order of precedence. Durations are written like 30s or 500ms, sizes like 8MiB.

    SIGHUP reads keys, certificates and settings again, and logs each changed setting that needs a restart.
    SIGTERM or Ctrl-C lets open requests finish; a second one stops at once. Exit status: 0; 1 if requests were cut off
    or the service could not start; 2 if an argument or setting is invalid; 130 after Ctrl-C.
    """
    run_service(config, print_config, options)
