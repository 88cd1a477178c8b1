"""`kvatlas check`: the checks of `kvatlas router --check` for the engines of a running router."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from kvatlas.cli.router_check import report
from kvatlas.cli.router_reader import ROUTER_URL, RouterReader
from kvatlas.cli.service_options import authenticates, ending, key_of, trust
from kvatlas.cli.settings import config_option, given, setting_flags
from kvatlas.router.check.running import RunningRouter
from kvatlas.router.config import ROUTER, read_router_config

_SETTINGS = ("router.tokenizer", "router.tokenizers", "router.no_events", "discovery.key_file")


@click.command(short_help="Test each engine of a running router, and say what is wrong.")
@click.option(
    "--url",
    envvar="KVATLAS_ROUTER_URL",
    default=ROUTER_URL,
    show_default=True,
    show_envvar=True,
    help="Address of the router.",
)
@authenticates("the router's key")
@config_option
@setting_flags(ROUTER, only=_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on a line for each engine.")
def check(url: str, key_file: Path | None, ca: Path | None, config: Path | None, as_json: bool, **options: Any) -> None:
    """Test each engine of a running router as `kvatlas router --check` does, and show what the router says of it.

    Engines are asked from here, each with two prompts of its own. The router says at GET /workers and GET /streams
    which engines it has, whether they get requests, and whether their events arrive. It does not say how it tokenizes:
    give the same --tokenizer and --model-tokenizer, environment or --config as to the router.

    Exit status: 0; 3 if an engine cannot be used, 4 if the events of one do not arrive or cannot be used, 5 if prompts
    become other tokens here than in an engine, 1 for any other problem, or if the router does not respond or refuses;
    of several, the first of these. 2 if an argument or setting is invalid, or the router has no engines.
    """
    with ending("kvatlas router", "KVATLAS_ROUTER_URL"):
        settings = read_router_config(given(ROUTER, options), file=config).config
        with RouterReader(url, key_of(key_file, os.environ), trust(ca)) as reader:
            running = RunningRouter(reader.look(0).workers, reader.streams())
        found = running.config(settings)
        status = report(found, as_json=as_json, add=lambda one: running.add_to(one, follows=found.follows_events))
    sys.exit(status)
