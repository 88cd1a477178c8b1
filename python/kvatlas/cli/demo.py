"""`kvatlas demo`: the router in front of simulated engines, with routing policies in turn."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.live import Live
from rich.table import Table

from kvatlas import _text
from kvatlas._tables import make_table
from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, on_interrupt
from kvatlas.cli.engine_options import (
    cache_option,
    engines_option,
    fleet_config,
    policy_option,
    request_rate_option,
    seed_option,
)
from kvatlas.errors import KvatlasError
from kvatlas.lab.demo import MOST_ENGINES, Demo, DemoConfig, PolicyResults
from kvatlas.lab.demo.demo import check_policy
from kvatlas.lab.replay.variants import with_options

_CONFIG = DemoConfig()


@click.command()
@engines_option(_CONFIG.fleet.engines, MOST_ENGINES)
@click.option("--seconds", default=_CONFIG.seconds, show_default=True, help="Duration of each policy's turn.")
@click.option("--speed", default=_CONFIG.speed, show_default=True, help="Speed factor of the engines' clock.")
@request_rate_option("Requests per second of the engines' time.", default=_CONFIG.request_rate, show_default=True)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=_CONFIG.policies,
    show_default=True,
    help="A policy of `kvatlas router`, or module:Class. Repeatable. Each has its turn with the same engines.",
)
@policy_option
@cache_option
@seed_option
def demo(
    seconds: float,
    speed: float,
    request_rate: float,
    policies: tuple[str, ...],
    policy_options: tuple[str, ...],
    **fleet: Any,
) -> None:
    """Run the router in front of simulated engines, with one routing policy after the other.

    The engines are processes that publish KV events over ZMQ and serve requests like an OpenAI server. The router is
    `kvatlas router`. Each policy gets the same requests, and engines with empty caches.

    Hit rate: the share of prompt tokens that the chosen engine had cached. First token: the time to the first token, in
    the engines' time; a good policy makes both the mean and the slowest (p99) short. Decision: how long the router took
    to choose (median).

    Exit status: 0; 1 if the engines or the router did not start; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    out = console()
    quiet = not out.is_terminal

    def show(standings: list[PolicyResults]) -> None:
        if not quiet:
            view.update(_table(standings, out.width), refresh=True)

    try:
        asked = with_options(
            tuple(dict.fromkeys(policies)), policy_options, lambda policy: check_policy(policy, fleet["seed"])
        )
        config = DemoConfig(
            fleet=fleet_config(fleet),
            policies=asked,
            seconds=seconds,
            speed=speed,
            request_rate=request_rate,
        )
        turns = Demo(config, show)
        with on_interrupt() as interrupt, Live(console=out, auto_refresh=False, transient=True) as view:
            count = _text.counted(config.fleet.engines, "simulated engine")
            out.print(f"Starting {count}, one process each; then the router, {seconds:g} s with each policy.")
            last = turns.run(interrupt)
    except KvatlasError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    if last:
        out.print(_table(last, out.width))
    for policy in last:
        if policy.failure is not None:
            out.print(f"The last failure of {policy.name}: {policy.failure}", highlight=False, markup=False)
    if interrupt.pressed:
        sys.exit(INTERRUPTED)


def _table(standings: list[PolicyResults], width: int) -> Table:
    best = min((one.first_token for one in standings if one.first_token is not None), default=None)
    rows = [
        (
            policy.name,
            f"{policy.done:,}" + (f" ({policy.failed} failed)" if policy.failed else ""),
            _text.percent(policy.hit_rate),
            "-" if policy.first_token is None else _text.seconds(policy.first_token),
            "-" if policy.first_token_p99 is None else _text.seconds(policy.first_token_p99),
            "-" if policy.decision is None else _text.nanoseconds(policy.decision * 1e9),
        )
        for policy in standings
    ]
    return make_table(
        ("policy", "requests", "hit rate", "first token", "p99", "decision"),
        rows,
        width,
        wrap=(1,),
        styles=["bold" if policy.first_token == best and best is not None else None for policy in standings],
    )
