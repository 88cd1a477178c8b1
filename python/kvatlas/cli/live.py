"""`kvatlas live`: a fleet of simulated engines, routed by the index and otherwise, as it happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.live import Live
from rich.table import Table

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, counted, on_interrupt
from kvatlas.errors import KvatlasError

if TYPE_CHECKING:
    from kvatlas.bench.live import Standing


@click.command()
@click.option("--engines", default=4, show_default=True, help="Simulated engines of each policy, a process each.")
@click.option("--seconds", default=45.0, show_default=True, help="How long.")
@click.option("--speed", default=8.0, show_default=True, help="How many times faster than ours the engines' time goes.")
@click.option("--rate", default=1.25, show_default=True, help="Requests a second of the engines' time.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("round-robin", "exact"),
    show_default=True,
    help="A policy of `kvatlas replay`, or module:Class. Repeat for more; each has engines of its own.",
)
@click.option("--pool-tokens", default=393_216, show_default=True, help="Room in each engine's cache, in tokens.")
@click.option("--seed", default=0, show_default=True, help="Of the workload.")
def live(
    engines: int, seconds: float, speed: float, rate: float, policies: tuple[str, ...], pool_tokens: int, seed: int
) -> None:
    """Run a live fleet of simulated engines and show how routing policies fare.

    Engines are processes that publish their cache events over ZMQ and answer like an OpenAI server. A kvatlas service
    follows them all; the policy `exact` asks it over HTTP where to send each request. Every policy has the same
    requests and engines of its own.

    Hit rate: the share of prompt tokens that the chosen engine had in its cache. First token: the mean of the last 10
    seconds, in the engines' time.

    Exit status: 0; 1 if the engines or the service did not start; 2 if something given cannot be used; 130 after
    Ctrl-C.
    """
    try:
        from kvatlas.bench.live import LiveOptions, Race  # noqa: PLC0415 - needs the extra `sim`
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: `kvatlas live` needs pip install 'kvatlas[sim]'") from error

    out = console()
    quiet = not out.is_terminal
    shown = 0.0

    def show(standing: Standing) -> None:
        nonlocal shown
        if not quiet:
            view.update(_table(standing), refresh=True)
        elif standing.elapsed - shown >= 10.0:
            shown = standing.elapsed
            out.print(_table(standing))

    try:
        options = LiveOptions(
            policies=tuple(dict.fromkeys(policies)),
            engines=engines,
            seconds=seconds,
            speed=speed,
            rate=rate,
            pool_tokens=pool_tokens,
            seed=seed,
        )
        race = Race(options, show)
        count = counted(engines * len(options.policies), "simulated engine")
        with on_interrupt() as interrupt, Live(console=out, auto_refresh=False, transient=True) as view:
            out.print(f"Starting {count}, a process each, and a service that follows them.")
            last = race.run(interrupt)
    except KvatlasError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    out.print(_table(last))
    for policy in last.policies:
        if policy.failure is not None:
            out.print(f"The last failure of {policy.name}: {policy.failure}", highlight=False, markup=False)
    if interrupt.pressed:
        sys.exit(INTERRUPTED)


def _table(standing: Standing) -> Table:
    table = Table(
        "policy",
        "requests",
        "in flight",
        "hit rate",
        "last 10 s",
        "first token",
        title=f"{standing.elapsed:.0f} s, {standing.live} of {standing.streams} event streams live",
        caption=_caption(standing.lookups_per_second, standing.lookup_p50, standing.lag, standing.blocks),
    )
    for column in table.columns[1:]:
        column.justify = "right"
    best = max((policy.hit_rate for policy in standing.policies), default=0.0)
    for policy in standing.policies:
        table.add_row(
            policy.name,
            f"{policy.done:,}" + (f" ({policy.failed} failed)" if policy.failed else ""),
            f"{policy.in_flight:,}",
            f"{policy.hit_rate:.1%}",
            "-" if policy.hit_rate_now is None else f"{policy.hit_rate_now:.1%}",
            "-" if policy.first_token is None else f"{policy.first_token:.2f} s",
            style="bold" if policy.hit_rate == best and best > 0 else "",
        )
    return table


def _caption(rate: float, p50: float | None, lag: float | None, blocks: int) -> str:
    parts = [f"{rate:,.0f} lookups/s"]
    if p50 is not None:
        parts.append(f"{p50 * 1e3:.1f} ms each over HTTP (median, in the router's Python)")
    if lag is not None:
        parts.append(f"events visible {lag * 1e3:.1f} ms after the engine sent them")
    parts.append(f"{blocks:,} blocks indexed")
    return "; ".join(parts)
