"""`kvatlas top`: a running router's engines, their load and the latest decisions, in the terminal."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
from rich.live import Live
from rich.text import Text

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console
from kvatlas.cli.router_reader import ROUTER_URL, RouterReader
from kvatlas.cli.service_options import authenticates, ending, key_of, trust
from kvatlas.cli.top_view import View
from kvatlas.errors import UnreachableError


@click.command(short_help="Watch a running router: its engines, their work, the last decisions.")
@click.option(
    "--url",
    envvar="KVATLAS_ROUTER_URL",
    default=ROUTER_URL,
    show_default=True,
    show_envvar=True,
    help="Address of the router.",
)
@authenticates("the router's key")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between refreshes.",
)
@click.option(
    "--decisions",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of the last decisions to show.",
)
@click.option("--once", is_flag=True, help="Print it once and exit, without refreshing.")
def top(url: str, key_file: Path | None, ca: Path | None, interval: float, decisions: int, once: bool) -> None:
    """Watch a running router until Ctrl-C.

    For each engine: its models; whether it takes requests; the state of its event streams and how late events are
    visible (lag); requests that wait for their first token, and run; uncached prompt tokens queued; how full its KV
    cache is; the share of prompt tokens found in its cache (hits), since this command started, or with --once since the
    router did.

    For each decision: the engine, the model, the prompt's tokens, how many the router expected in the cache and how
    many the engine found there, why it was chosen, how long that took, and the time to the first token.

    Columns that do not fit are left out. Exit status: 0; 1 if the router does not respond or refuses; 2 if an argument
    is invalid; 130 after Ctrl-C.
    """
    out = console()
    try:
        with (
            ending("kvatlas router", "KVATLAS_ROUTER_URL"),
            RouterReader(url, key_of(key_file, os.environ), trust(ca)) as reader,
        ):
            view = View(decisions)
            first = view.show(reader.look(decisions), out)
            if once:
                out.print(first)
                return
            with Live(first, console=out, auto_refresh=False, screen=out.is_terminal) as live:
                while True:
                    time.sleep(interval)
                    try:
                        shown = view.show(reader.look(decisions), out)
                    except UnreachableError as error:
                        shown = Text(str(error), "red")
                    live.update(shown, refresh=True)
                    if not out.is_terminal:
                        out.print(shown)  # one after the other
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
