"""`kvatlas plan`: what limits a fleet, and what more would be worth."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import click

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, exit_status, on_interrupt, progress_bar
from kvatlas.cli.replay_options import fleet_options, named_trace, prepare_replay, results_options, traffic_options
from kvatlas.cli.replay_results import write_results
from kvatlas.lab.capacity.plan import CapacityPlan, as_json, make_variants, measure_plan
from kvatlas.lab.capacity.plot import write_plot
from kvatlas.lab.capacity.report import print_plan
from kvatlas.sim import read_trace


@click.command(short_help="Say what limits a fleet, and what more cache, engines or speed would be worth.")
@traffic_options
@fleet_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("kvatlas",),
    show_default=True,
    metavar="NAME",
    help="Policy that the variants are simulated with; more of them are compared on the fleet as it is. Repeatable.",
)
@click.option(
    "--host-tokens",
    type=click.IntRange(0),
    metavar="N",
    help="Tokens of a host tier behind each engine's cache, as one of the variants; 0: none.  "
    "[default: four times the cache]",
)
@click.option("--quick", is_flag=True, help="Simulate nothing: only the hit rate by the size of the cache.")
@results_options
@exit_status
def plan(trace: Path | None, **options: Any) -> None:
    """Say what limits a fleet under the traffic of TRACE (room, cache or compute), and what more would be worth.

    The hit rate of one cache of any size is computed from the trace. Then the fleet that the options describe is
    simulated as it is, with more and less cache, with more and fewer engines, and with faster ones.

    Ctrl-C ends it with a report of the results so far. Exit status: 0; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    found = _run(trace, options)
    if found.partial:
        sys.exit(INTERRUPTED)


def _run(path: Path | None, options: dict[str, Any]) -> CapacityPlan:
    workload, record, config = prepare_replay(path, options)
    made = named_trace(workload, record, options)
    if made is None:
        if path is None:
            raise click.UsageError("Give a TRACE, --workload NAME or --decisions FILE.")
        made = read_trace(path, skip_bad=options["skip_bad"], limit=options["requests"])
    host = options["host_tokens"]
    host = 4 * config.fleet.engine.cache_tokens if host is None else host
    variants = [] if options["quick"] else make_variants(config, host)
    names = tuple(variant.name for variant in variants) or ("",)
    with on_interrupt() as stop, progress_bar(names, len(made.requests)) as bar:
        found = measure_plan(made, config, variants, host_tokens=host, progress=bar, stop=stop)
    text, written = write_results(options, as_json(found), functools.partial(write_plot, found))
    to_stdout = options["json_to"] == "-"
    print_plan(found, console(stderr=to_stdout))
    if to_stdout:
        click.echo(text)
    for file in written:
        click.echo(f"Wrote {file}.", err=True)
    return found
