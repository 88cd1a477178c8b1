"""`kvatlas demo`: routing policies side by side on a live fleet of simulated engines."""

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
from kvatlas.cli.engine_options import cache_option, engines_option, fleet_config, request_rate_option, seed_option
from kvatlas.errors import KvatlasError
from kvatlas.lab.demo import MOST_ENGINES, DemoConfig, Race, Standing

_CONFIG = DemoConfig()


@click.command()
@engines_option(_CONFIG.fleet.engines, MOST_ENGINES)
@click.option("--seconds", default=_CONFIG.seconds, show_default=True, help="Duration of the demo.")
@click.option("--speed", default=_CONFIG.speed, show_default=True, help="Speed factor of the engines' clock.")
@request_rate_option("Requests per second of the engines' time.", default=_CONFIG.request_rate, show_default=True)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=_CONFIG.policies,
    show_default=True,
    help="A policy of `kvatlas replay`, or module:Class. Repeatable. Each policy has its own engines.",
)
@cache_option
@seed_option
def demo(seconds: float, speed: float, request_rate: float, policies: tuple[str, ...], **fleet: Any) -> None:
    """Compare routing policies live on simulated engines.

    Each policy has its own --engines engines: processes that publish KV events over ZMQ and serve requests like an
    OpenAI server. All policies get the same requests. A kvatlas service follows the engines; the policy `exact` asks it
    over HTTP where to send each request.

    Hit rate: the share of prompt tokens that the chosen engine had cached. First token: the mean time to first token
    over the last 10 seconds, in the engines' time.

    Exit status: 0; 1 if the engines or the service did not start; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    out = console()
    quiet = not out.is_terminal
    shown = 0.0

    def show(standing: Standing) -> None:
        nonlocal shown
        if not quiet:
            view.update(_table(standing, out.width), refresh=True)
        elif standing.elapsed - shown >= 10.0:
            shown = standing.elapsed
            out.print(_table(standing, out.width))

    try:
        config = DemoConfig(
            fleet=fleet_config(fleet),
            policies=tuple(dict.fromkeys(policies)),
            seconds=seconds,
            speed=speed,
            request_rate=request_rate,
        )
        race = Race(config, show)
        count = _text.counted(config.fleet.engines * len(config.policies), "simulated engine")
        with on_interrupt() as interrupt, Live(console=out, auto_refresh=False, transient=True) as view:
            out.print(f"Starting {count}, one process each, and a service that follows them.")
            last = race.run(interrupt)
    except KvatlasError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    out.print(_table(last, out.width))
    for policy in last.policies:
        if policy.failure is not None:
            out.print(f"The last failure of {policy.name}: {policy.failure}", highlight=False, markup=False)
    if interrupt.pressed:
        sys.exit(INTERRUPTED)


def _table(standing: Standing, width: int) -> Table:
    best = max((policy.hit_rate for policy in standing.policies), default=0.0)
    rows = [
        (
            policy.name,
            f"{policy.done:,}" + (f" ({policy.failed} failed)" if policy.failed else ""),
            f"{policy.in_flight:,}",
            _text.percent(policy.hit_rate),
            "-" if policy.hit_rate_now is None else _text.percent(policy.hit_rate_now),
            "-" if policy.first_token is None else _text.seconds(policy.first_token),
        )
        for policy in standing.policies
    ]
    table = make_table(
        ("policy", "requests", "in flight", "hit rate", "last 10 s", "first token"),
        rows,
        width,
        wrap=(1,),
        title=f"{standing.elapsed:.0f} s, {standing.live} of {standing.streams} event streams live",
        styles=["bold" if policy.hit_rate == best and best > 0 else None for policy in standing.policies],
    )
    table.caption = _caption(standing.lookups_per_second, standing.lookup_p50, standing.lag, standing.blocks)
    table.caption_justify = "left"
    return table


def _caption(rate: float, p50: float | None, lag: float | None, blocks: int) -> str:
    parts = [f"{rate:,.0f} lookups/s"]
    if p50 is not None:
        parts.append(f"{_text.milliseconds(p50 * 1e3)} each over HTTP (median, in the router's Python)")
    if lag is not None:
        parts.append(f"events visible {_text.milliseconds(lag * 1e3)} after the engine sent them")
    parts.append(f"{blocks:,} blocks indexed")
    return "; ".join(parts)
