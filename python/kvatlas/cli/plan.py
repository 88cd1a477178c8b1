"""`kvatlas plan`: the limits of a fleet under given traffic, and the benefit of more capacity."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, exit_status, on_interrupt, progress_bar, write_output
from kvatlas.cli.engine_options import policy_option
from kvatlas.cli.replay_options import (
    fleet_options,
    named_trace,
    prepare_replay,
    read_asked,
    results_options,
    traffic_options,
)
from kvatlas.cli.replay_results import write_results
from kvatlas.cli.router_reader import RouterReader
from kvatlas.cli.service_options import authenticates, ending, key_of, trust
from kvatlas.lab.capacity.live import live_as_json, live_plan
from kvatlas.lab.capacity.live_report import print_live
from kvatlas.lab.capacity.plan import CapacityPlan, as_json, make_variants, measure_plan
from kvatlas.lab.capacity.plot import write_plot
from kvatlas.lab.capacity.report import print_plan
from kvatlas.lab.capacity.target import TargetPlan, parse_target, search_target, target_as_json
from kvatlas.lab.capacity.target_report import print_target
from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.sim import Trace
from kvatlas.sim.tiers import TierConfig

# What goes with --router.
_LIVE = {"router", "key_file", "ca", "watch", "json_to"}
_MOST = 10_000  # decisions that are asked for at once
_PAUSE = 2.0  # seconds; the router keeps terms for ten after each question


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
@policy_option
@click.option(
    "--host-tokens",
    type=click.IntRange(0),
    metavar="N",
    help="Tokens of a host tier behind each engine's cache, as one of the variants; 0: none.  "
    "[default: four times the cache]",
)
@click.option("--quick", is_flag=True, help="Simulate nothing: only the hit rate by the size of the cache.")
@click.option(
    "--target",
    metavar="TARGET",
    help="Instead of the variants, find the fewest engines with which each policy meets TARGET: mean, p50 or p99 of "
    "the time to first token (p99<2s), or the share of good requests (good>95%).",
)
@click.option(
    "--price",
    type=click.FloatRange(0, min_open=True),
    metavar="PRICE",
    help="Price of one engine for an hour, in any currency, for --target.",
)
@click.option(
    "--router", metavar="URL", help="A running router, whose own figures of the last hour are used: no TRACE."
)
@authenticates("the router's key")
@click.option(
    "--watch",
    type=click.FloatRange(0, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for which the router's decisions are watched, to say what requests wait for.",
)
@results_options
@exit_status
def plan(trace: Path | None, **options: Any) -> None:
    """Say what limits a fleet under the traffic of TRACE (room, cache or compute), and what more would be worth.

    TRACE is a file as for `kvatlas replay`, or - for standard input.

    The hit rate of one cache of any size is computed from the trace. Then the fleet that the options describe is
    simulated as it is, with more and less cache, with more and fewer engines, and with faster ones.

    With --target, the number of engines is searched instead: the fewest with which each policy meets the target, the
    differences, and their price with --price.

    With --router, nothing is simulated: the router says what its engines found in their caches, what one cache of any
    size could have held of the same prompts, and what its decisions expect requests to wait for.

    Ctrl-C ends it with a report of the results so far. Exit status: 0; 2 if an argument is
    invalid; 1 if the router does not respond or refuses; 130 after Ctrl-C.
    """
    if options["router"] is not None:
        _run_live(options)
        return
    found = _run(trace, options)
    if found.partial:
        sys.exit(INTERRUPTED)


def _run(path: Path | None, options: dict[str, Any]) -> CapacityPlan | TargetPlan:
    _check_target(options)
    workload, record, config = prepare_replay(path, options)
    made = named_trace(workload, record, options)
    if made is None:
        if path is None:
            raise click.UsageError("Give a TRACE, --workload NAME, --decisions FILE or --router URL.")
        made = read_asked(path, options)
    if options["target"] is not None:
        return _search(made, replace(config, tiers=TierConfig(host_tokens=options["host_tokens"] or 0)), options)
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


def _check_target(options: dict[str, Any]) -> None:
    """Check that --target can be parsed and does not contradict other options. Raises `UsageError`, `ConfigError`."""
    if options["target"] is None:
        if options["price"] is not None:
            raise click.UsageError("--price needs --target.")
        return
    parse_target(options["target"])
    for name in ("quick", "plots"):
        if options[name]:
            raise click.UsageError(f"--{name.removesuffix('s')} does not apply to --target.")


def _search(trace: Trace, config: ReplayConfig, options: dict[str, Any]) -> TargetPlan:
    target = parse_target(options["target"])
    with on_interrupt() as stop, progress_bar(config.policies, len(trace.requests)) as bar:
        found = search_target(trace, config, target, price=options["price"], progress=bar, stop=stop)
    text, written = write_results(options, target_as_json(found), lambda _path: None)  # no --plot
    to_stdout = options["json_to"] == "-"
    print_target(found, console(stderr=to_stdout))
    if to_stdout:
        click.echo(text)
    for file in written:
        click.echo(f"Wrote {file}.", err=True)
    return found


def _run_live(options: dict[str, Any]) -> None:
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if others := sorted(set(given) - _LIVE):
        flags = ", ".join("TRACE" if name == "trace" else _flag(context, name) for name in others)
        raise click.UsageError(f"--router measures a running fleet: leave out {flags}.")
    key, trusted = key_of(options["key_file"], os.environ), trust(options["ca"])
    with ending("kvatlas router", "--router"), RouterReader(options["router"], key, trusted) as reader:
        decisions = _watched(reader, options["watch"])
        found = live_plan(reader.reuse(), decisions)
    to_stdout = options["json_to"] == "-"
    print_live(found, options["router"], console(stderr=to_stdout))
    if options["json_to"] is not None:
        text = json.dumps(live_as_json(found), indent=2)
        if to_stdout:
            click.echo(text)
        else:
            file = Path(options["json_to"])
            write_output(file, functools.partial(file.write_text, text + "\n", encoding="utf-8"))
            click.echo(f"Wrote {file}.", err=True)


def _watched(reader: RouterReader, seconds: float) -> list[dict[str, Any]]:
    """The decisions that the router has kept or makes within the next `seconds`, each once."""
    found = {decision["number"]: decision for decision in reader.decisions(_MOST)}
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _PAUSE))
        found |= {decision["number"]: decision for decision in reader.decisions(_MOST)}
    return list(found.values())


def _flag(context: click.Context, name: str) -> str:
    return next(option.opts[0] for option in context.command.params if option.name == name)
