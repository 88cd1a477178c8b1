"""`kvatlas replay`: comparison of routing policies on a trace."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, exit_status, on_interrupt, progress_bar, write_output
from kvatlas.cli.engine_options import (
    policy_option,
    request_rate_option,
    tier_options,
)
from kvatlas.cli.replay_options import (
    OF_FILES,
    OF_GENERATED,
    fleet_options,
    named_trace,
    prepare_replay,
    read_asked,
    results_options,
    traffic_options,
)
from kvatlas.cli.replay_results import write_results
from kvatlas.lab.replay.bounds import BOUNDS
from kvatlas.lab.replay.config import GUESSES, POLICIES, ReplayConfig
from kvatlas.lab.replay.decisions import Decisions, RecordedChoices, about_record
from kvatlas.lab.replay.plots import write_plot
from kvatlas.lab.replay.report import print_report
from kvatlas.lab.replay.results import ReplayResult, as_json
from kvatlas.lab.replay.runner import replay as run_replay
from kvatlas.lab.replay.trouble import TROUBLES, parse_troubles, trace_seconds, with_troubles
from kvatlas.routing import policy_names
from kvatlas.sim import Trace, WorkloadConfig, generate, write_trace

_CONFIG = ReplayConfig()
_WORK = WorkloadConfig()


@click.command(short_help="Replay a trace over simulated engines with each routing policy.")
@traffic_options
@fleet_options
@tier_options
@click.option(
    "--pull-delta",
    type=click.IntRange(0),
    default=_CONFIG.pull_delta,
    show_default=True,
    metavar="TOKENS",
    help="Tokens by which a peer must be ahead for policies that end in +pull (llm-d-token-load+pull).",
)
@click.option("--own-names", is_flag=True, help="Give each engine its own block hashes, as with random hash seeds.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=f"Policies to compare: {', '.join(policy_names())}; module:Class for your own; a bound: {', '.join(BOUNDS)}; "
    "or all. With +pull behind it, engines also pull by llm-d's fixed rule. Repeatable.  "
    f"[default: {', '.join(POLICIES)}]",
)
@policy_option
@click.option(
    "--routers",
    type=click.IntRange(1, 64),
    default=_CONFIG.routers,
    show_default=True,
    help="Routers that take the requests by turns, and tell each other what they have sent.",
)
@click.option("--event-delay", type=click.FloatRange(0), metavar="S", help="Delay of the engines' events, in seconds.")
@click.option(
    "--lose-events",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="Share of the engines' events that are lost. The next event reveals the gap, and the lost ones arrive a "
    "second later.",
)
@click.option(
    "--no-events",
    is_flag=False,
    flag_value="mock",
    type=click.Choice(GUESSES),
    help="Publish no events. Caches are guessed: simulated (mock), or what was sent in the last 2 minutes (ttl).",
)
@click.option(
    "--trouble",
    "troubles",
    multiple=True,
    metavar="KIND[=RATE]",
    help=f"Engines misbehave: {', '.join(TROUBLES)}; or all. RATE is the share of the requests (late), of the engines "
    "(limit) or of their time, from 0 to 1. Repeatable.",
)
@request_rate_option(f"Generated requests per second.  [default: {_WORK.request_rate:g}]")
@click.option(
    "--agents",
    type=click.FloatRange(0, 1),
    help=f"Share of the generated sessions that are agents.  [default: {_WORK.agents:g}]",
)
@click.option(
    "--zipf",
    type=click.FloatRange(0),
    help=f"Zipf exponent of the popularity of system prompts. 0 means equally popular.  [default: {_WORK.zipf:g}]",
)
@click.option(
    "--save-trace", type=click.Path(path_type=Path), metavar="FILE", help="Write the generated trace to FILE."
)
@click.option(
    "--check",
    type=click.FloatRange(0, 1),
    default=_CONFIG.check,
    show_default=True,
    metavar="SHARE",
    help="Share of queries whose answers are compared with the reference. 0 means none.",
)
@click.option(
    "--check-seconds",
    type=click.FloatRange(0),
    default=_CONFIG.check_seconds,
    show_default=True,
    help="Time limit per policy for these comparisons. Some are skipped if it is too short.",
)
@results_options
@exit_status
def replay(trace: Path | None, **options: Any) -> None:
    """Route TRACE over simulated engines, once with each policy, and compare the policies.

    TRACE is a JSONL file in Mooncake's format: timestamp (ms), input_length, output_length and hash_ids, which name
    the prompt's blocks of 512 tokens; or - for standard input. Without TRACE, a workload is generated: chats and agents
    that share system prompts.

    The engines are simulated. The cache behaves exactly like vLLM's. Engines work in steps, in which prompts and
    decoding requests share: time of a step = base + prefill * prompt tokens + running * requests + context * tokens of
    KV read. The engines' events feed an index that policies use.

    Columns that do not fit the terminal are left out; --json has everything.

    Ctrl-C ends the replay with a report of the results so far. Exit status: 0; 1 if the index gave any wrong answer; 2
    if an argument is invalid; 130 after Ctrl-C.
    """
    result = _run(trace, options)
    if result.disagreements:
        sys.exit(1)
    if result.partial:
        sys.exit(INTERRUPTED)


def _run(path: Path | None, options: dict[str, Any]) -> ReplayResult:
    rates = parse_troubles(options["troubles"])
    workload, record, config = prepare_replay(path, options)
    trace = named_trace(workload, record, options) or _trace(path, options)
    if rates:
        seconds = trace_seconds(trace, config.speedup)
        config = replace(config, scenario=with_troubles(config.scenario, rates, config.fleet.engines, seconds))
    first = RecordedChoices(record.chosen) if record is not None else None
    names = (*((first.name,) if first is not None else ()), *config.policies)
    with on_interrupt() as stop, progress_bar(names, len(trace.requests)) as bar:
        result = run_replay(trace, config, progress=bar, stop=stop, first=first)
    _show(result, trace, options, record)
    return result


def _trace(path: Path | None, options: dict[str, Any]) -> Trace:
    if path is not None:
        for flag in OF_GENERATED:
            if options[flag] is not None:
                raise click.UsageError(
                    f"--{flag.replace('_', '-')} only applies to generated traces: omit it or TRACE."
                )
        return read_asked(path, options)
    for flag in OF_FILES:
        if options[flag]:
            raise click.UsageError(f"--{flag.replace('_', '-')} requires a TRACE file.")
    names = ("requests", "request_rate", "agents", "zipf")
    given = {name: options[name] for name in names if options[name] is not None}
    trace = generate(WorkloadConfig(seed=options["seed"], **given))
    if (path := options["save_trace"]) is not None:
        write_output(path, functools.partial(write_trace, path, trace.requests, trace.block))
    return trace


def _show(result: ReplayResult, trace: Trace, options: dict[str, Any], record: Decisions | None) -> None:
    to_stdout = options["json_to"] == "-"
    # Files first: they are written even if the reader of the report closes the pipe.
    text, written = write_results(options, as_json(result), functools.partial(write_plot, result))
    if options["save_trace"] is not None:
        written.append(options["save_trace"])
    print_report(result, console(stderr=to_stdout))
    if record is not None:
        for line in about_record(record):
            click.echo(line, err=to_stdout)
    if to_stdout:
        click.echo(text)
    if trace.first_skipped:
        click.echo(f"First malformed line: {trace.first_skipped}", err=True)
    for path in written:
        click.echo(f"Wrote {path}.", err=True)
