"""`kvatlas replay`: what routing by the index is worth on a trace."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, exit_status, on_interrupt, progress_bar
from kvatlas.cli.engine_options import (
    POSITIVE,
    cache_option,
    engines_option,
    fleet_config,
    request_rate_option,
    seed_option,
    speed_options,
)
from kvatlas.lab.figures import check_plot
from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.plots import write_plot
from kvatlas.lab.replay.report import print_report
from kvatlas.lab.replay.results import ReplayResult, as_json
from kvatlas.lab.replay.runner import replay as run_replay
from kvatlas.routing import POLICIES, find_policy
from kvatlas.sim import TRACE_BLOCK, Trace, WorkloadConfig, generate, read_trace, write_trace
from kvatlas.sim.fleet import MOST_ENGINES

_CONFIG = ReplayConfig()
_WORK = WorkloadConfig()
_BLOCK_SIZES = [size for size in range(1, TRACE_BLOCK + 1) if TRACE_BLOCK % size == 0]


def _block_size(_ctx: click.Context, _param: click.Parameter, value: int) -> int:
    if value not in _BLOCK_SIZES:
        sizes = ", ".join(map(str, _BLOCK_SIZES[:-1]))
        raise click.BadParameter(f"{value} does not divide {TRACE_BLOCK}, a trace block: use {sizes} or {TRACE_BLOCK}.")
    return value


@click.command(short_help="Replay a trace over simulated engines with each routing policy.")
@click.argument("trace", required=False, type=click.Path(path_type=Path), metavar="[TRACE]")
@engines_option(_CONFIG.fleet.engines, MOST_ENGINES)
@click.option(
    "--block-size",
    type=int,
    default=_CONFIG.fleet.engine.block_size,
    show_default=True,
    callback=_block_size,
    metavar="TOKENS",
    help=f"Tokens per block of an engine. Must divide {TRACE_BLOCK}.",
)
@cache_option
@speed_options
@click.option("--own-names", is_flag=True, help="Give each engine its own block hashes, as with random hash seeds.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=f"{', '.join(POLICIES)}, or module:Class for your own. Repeatable.  [default: all]",
)
@click.option(
    "--speedup",
    type=POSITIVE,
    default=_CONFIG.speedup,
    show_default=True,
    help="Speed factor of the trace's clock.",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    help=f"Use only the first N requests of TRACE, or generate N.  [default: all; {_WORK.requests}]",
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
@seed_option
@click.option("--skip-bad", is_flag=True, help="Skip and count malformed lines.")
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
@click.option("--json", "json_to", metavar="FILE", help="Write the results to FILE as JSON; - for stdout.")
@click.option(
    "--plot",
    "plots",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Plot the results to FILE: .png, .svg or .html. Repeatable.",
)
@exit_status
def replay(trace: Path | None, **options: Any) -> None:
    """Route TRACE over simulated engines, once with each policy, and compare the policies.

    TRACE is a JSONL file in Mooncake's format: timestamp (ms), input_length, output_length and hash_ids, which name
    the prompt's blocks of 512 tokens. Without TRACE, a workload is generated: chats and agents that share system
    prompts.

    The engines are simulated. The cache behaves exactly like vLLM's. Time follows a simple model: time to first token =
    wait in the queue + uncached tokens / prefill rate. The engines' events feed an index that the policy `exact` uses.

    Ctrl-C ends the replay with a report of the results so far. Exit status: 0; 1 if the index gave any wrong answer; 2
    if an argument is invalid; 130 after Ctrl-C.
    """
    result = _run(trace, options)
    if result.disagreements:
        sys.exit(1)
    if result.partial:
        sys.exit(INTERRUPTED)


def _run(path: Path | None, options: dict[str, Any]) -> ReplayResult:
    sys.path.insert(0, "")  # policies of one's own, from here
    policies = tuple(dict.fromkeys(options["policies"])) or tuple(POLICIES)
    for name in policies:
        find_policy(name)
    config = ReplayConfig(
        fleet=fleet_config(options),
        policies=policies,
        speedup=options["speedup"],
        check=options["check"],
        check_seconds=options["check_seconds"],
    )
    _check_outputs(path, options)
    trace = _trace(path, options)
    with on_interrupt() as stop, progress_bar(policies, len(trace.requests)) as bar:
        result = run_replay(trace, config, progress=bar, stop=stop)
    _show(result, trace, options)
    return result


def _trace(path: Path | None, options: dict[str, Any]) -> Trace:
    if path is not None:
        for flag in ("request_rate", "agents", "zipf", "save_trace"):
            if options[flag] is not None:
                raise click.UsageError(
                    f"--{flag.replace('_', '-')} only applies to generated traces: omit it or TRACE."
                )
        return read_trace(path, skip_bad=options["skip_bad"], limit=options["requests"])
    if options["skip_bad"]:
        raise click.UsageError("--skip-bad requires a TRACE file.")
    names = ("requests", "request_rate", "agents", "zipf")
    given = {name: options[name] for name in names if options[name] is not None}
    trace = generate(WorkloadConfig(seed=options["seed"], decode_rate=options["decode_rate"], **given))
    if (path := options["save_trace"]) is not None:
        _write(path, functools.partial(write_trace, path, trace.requests))
    return trace


def _check_outputs(trace: Path | None, options: dict[str, Any]) -> None:
    """Check before the replay that every output can be written."""
    for plot in options["plots"]:
        check_plot(plot)
    files = [*options["plots"]]
    if options["json_to"] not in (None, "-"):
        files.append(Path(options["json_to"]))
    if options["save_trace"] is not None:
        files.append(options["save_trace"])
    for file in files:
        if file.is_dir():
            raise click.UsageError(f"Cannot write {file}: it is a directory.")
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"Cannot write {file}: there is no directory {file.absolute().parent}.")
        if trace is not None and file.absolute() == trace.absolute():
            raise click.UsageError(f"{file} is the trace: it would be overwritten.")


def _show(result: ReplayResult, trace: Trace, options: dict[str, Any]) -> None:
    text = json.dumps(as_json(result), indent=2)
    to_stdout = options["json_to"] == "-"
    # Files first: they are there even if nobody reads the report.
    written = [_write(plot, functools.partial(write_plot, result, plot)) for plot in options["plots"]]
    if options["json_to"] is not None and not to_stdout:
        path = Path(options["json_to"])
        written.append(_write(path, functools.partial(path.write_text, text + "\n", encoding="utf-8")))
    if options["save_trace"] is not None:
        written.append(options["save_trace"])
    print_report(result, console(stderr=to_stdout))
    if to_stdout:
        click.echo(text)
    if trace.first_skipped:
        click.echo(f"First malformed line: {trace.first_skipped}", err=True)
    for path in written:
        click.echo(f"Wrote {path}.", err=True)


def _write(path: Path, write: Callable[[], object]) -> Path:
    try:
        write()
    except OSError as error:
        raise click.UsageError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path
