"""`kvatlas router`: run the router until it is stopped, or check the engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvatlas.cli.console import show_cause
from kvatlas.cli.grouped_help import GroupedCommand
from kvatlas.cli.settings import config_option, given, pool_option, print_config_option, setting_flags
from kvatlas.errors import KvatlasError
from kvatlas.router.config import ROUTER, read_router_config, show_router_config
from kvatlas.service.reread import SettingsReader

ENGINES_HELP = (
    "HTTP address of a vLLM or SGLang server, such as http://host:8000. Requests are sent there, and its "
    "event sockets are discovered. Repeatable."
)
_ENGINES = {
    "engine": ENGINES_HELP,
    "prefill": "HTTP address of an engine that only computes prompts, for --decode engines. Repeatable.",
    "decode": "HTTP address of an engine that generates answers to prompts computed by --prefill engines. Repeatable.",
}

_MOST_USED = (
    "engine",
    "discovery__sources",
    "http__bind",
    "router__policy",
    "router__tokenizer",
    "http__key_file",
    "router__peers",
    "config",
    "print_config",
    "check",
)
TITLES = {
    "router": "Placing requests",
    "http": "Clients",
    "upstream": "Speaking to engines",
    "health": "Engines' health",
    "discovery": "Finding and asking engines",
    "streams": "Engines' event streams",
    "relay": "Relays",
    "snapshot": "Snapshots",
    "adopt": "Blocks that were never announced",
    "limits": "Limits",
    "log": "Logs",
}


def _engines(command: Any) -> Any:
    for name, text in reversed(_ENGINES.items()):
        command = click.option(f"--{name}", multiple=True, metavar="[NAME=]URL", help=text)(command)
    return command


@click.command(
    cls=GroupedCommand,
    most_used=_MOST_USED,
    titles=TITLES,
    short_help="Route requests by what engines have cached and how busy they are.",
)
@_engines
@click.option(
    "--stream",
    multiple=True,
    metavar="WORKER=ENDPOINT[,KEY=VALUE...]",
    help="Event stream to follow without discovery, as for `kvatlas serve`; WORKER is an engine's name. Repeatable.",
)
@pool_option
@config_option
@print_config_option
@click.option("--check", is_flag=True, help="Send a prompt through each engine, say what is wrong, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --check: print a JSON object on a line for each engine.")
@setting_flags(ROUTER)
def router(config: Path | None, print_config: bool, check: bool, as_json: bool, **options: Any) -> None:
    """Route requests of OpenAI clients to vLLM and SGLang engines, by what each has cached and how busy it is.

    One process: it follows the engines' KV events like `kvatlas serve`, and sends each request to the engine where it
    does the least harm. Point clients at http://HOST:8080/v1, and add --bind 0.0.0.0:8080 for other machines.

    Every setting is a flag, an environment variable (--queue-timeout is KVATLAS_QUEUE_TIMEOUT) and a key of the
    configuration file, in this order of precedence. Durations are written like 30s or 500ms, sizes like 8MiB.

    SIGHUP reads keys, certificates and settings again, and logs each changed setting that needs a restart.
    SIGTERM or Ctrl-C lets open requests finish; a second one stops at once. Exit status: 0; 1 if requests were cut off,
    or the router could not start; 2 if an argument or setting is invalid; 130 after Ctrl-C.

    With --check: 3 if an engine cannot be used, 4 if the events of one do not arrive or cannot be used, 5 if prompts
    become other tokens here than in an engine, 1 for any other problem; of several, the first of these.
    """
    if as_json and not check:
        raise click.UsageError("--json can only be used with --check.")
    try:
        flags = given(ROUTER, options)
        resolved = read_router_config(flags, file=config)
        if print_config:
            click.echo(show_router_config(resolved), nl=False)
            return
        if check:
            from kvatlas.cli.router_check import report  # noqa: PLC0415 - not needed to run

            status = report(resolved.config, as_json=as_json)
        else:
            from kvatlas.router.run import run  # noqa: PLC0415 - not needed to check

            reader = SettingsReader(ROUTER, lambda: read_router_config(flags, file=config).config)
            status = run(resolved.config, reader)
    except KvatlasError as error:
        show_cause(error)
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    sys.exit(status)
