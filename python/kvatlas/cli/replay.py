"""`kvatlas replay`: compare routing policies on a trace."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvatlas.cli import INTERRUPTED
from kvatlas.cli.console import console, exit_status, on_interrupt, progress_bar
from kvatlas.cli.engine_options import (
    POSITIVE,
    cache_option,
    engine_config,
    engines_option,
    request_rate_option,
    seed_option,
)
from kvatlas.lab.figures import check_plot
from kvatlas.lab.replay.bounds import BOUNDS
from kvatlas.lab.replay.config import GUESSES, POLICIES, ReplayConfig
from kvatlas.lab.replay.decisions import AsRecorded, Decisions, about_record, read_decisions
from kvatlas.lab.replay.plots import write_plot
from kvatlas.lab.replay.report import print_report
from kvatlas.lab.replay.results import ReplayResult, as_json
from kvatlas.lab.replay.runner import make_placer
from kvatlas.lab.replay.runner import replay as run_replay
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.lab.replay.workloads import TRACES, WORKLOADS, Workload, find_workload
from kvatlas.routing import policy_names
from kvatlas.sim import TRACE_BLOCK, Trace, WorkloadConfig, generate, read_trace, write_trace
from kvatlas.sim.fleet import MOST_ENGINES, FleetConfig
from kvatlas.sim.hardware import HARDWARE, StepTime, find_hardware

_CONFIG = ReplayConfig()
_WORK = WorkloadConfig()
# Options of a trace that is generated.
_OF_GENERATED = ("request_rate", "agents", "zipf", "save_trace")
_SECONDS = click.FloatRange(0)
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
@click.option(
    "--hardware",
    default="h100x4",
    show_default=True,
    metavar="NAME",
    help=f"Speed of an engine: {', '.join(HARDWARE)}. All are measured with a 70B model.",
)
@click.option("--step-base", type=_SECONDS, metavar="S", help="Seconds that every step takes.")
@click.option("--step-prefill", type=_SECONDS, metavar="S", help="Additional seconds for each prompt token of a step.")
@click.option("--step-running", type=_SECONDS, metavar="S", help="Additional seconds for each request in a step.")
@click.option(
    "--step-context", type=_SECONDS, metavar="S", help="Additional seconds for each token of KV that a step reads."
)
@click.option(
    "--max-running",
    type=click.IntRange(1),
    default=_CONFIG.fleet.engine.max_running,
    show_default=True,
    help="Requests that each engine runs at the same time.",
)
@click.option(
    "--chunk",
    type=click.IntRange(0),
    default=_CONFIG.fleet.engine.chunk,
    show_default=True,
    help="Maximum number of tokens in a step, prompts and decoding together. 0 means no limit.",
)
@click.option("--own-names", is_flag=True, help="Give each engine its own block hashes, as with random hash seeds.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=f"Policies to compare: {', '.join(policy_names())}; module:Class for your own; a bound: {', '.join(BOUNDS)}; "
    "or all. Repeatable.  "
    f"[default: {', '.join(POLICIES)}]",
)
@click.option(
    "--workload",
    metavar="NAME",
    help=f"Workload to replay instead of TRACE: {', '.join(WORKLOADS)}. The recorded ones are read from the directory "
    f"in the environment variable {TRACES}.",
)
@click.option(
    "--decisions",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Record of a router (kvatlas router --record) to replay instead of TRACE, first with the recorded choices, "
    "then with each policy.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Model whose requests are replayed from the record.  [default: the most frequent one]",
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
    workload = _workload(path, options)
    record = _record(path, options)
    config = _config(options, workload, record)
    for name in config.policies:
        make_placer(name, config)  # what cannot be made is told before anything is read or made
    _check_outputs(path, options)
    if record is not None:
        trace = record.trace
    elif workload is not None:
        trace = workload.make(options["seed"])
        if options["requests"] is not None:
            trace = replace(trace, requests=trace.requests[: options["requests"]])
    else:
        trace = _trace(path, options)
    first = AsRecorded(record.chosen) if record is not None else None
    names = (*((first.name,) if first is not None else ()), *config.policies)
    with on_interrupt() as stop, progress_bar(names, len(trace.requests)) as bar:
        result = run_replay(trace, config, progress=bar, stop=stop, first=first)
    _show(result, trace, options, record)
    return result


def _workload(path: Path | None, options: dict[str, Any]) -> Workload | None:
    if options["workload"] is None:
        return None
    if path is not None or options["decisions"] is not None:
        raise click.UsageError("--workload, --decisions and TRACE are mutually exclusive.")
    for flag in (*_OF_GENERATED, "skip_bad"):
        if options[flag] not in (None, False):
            raise click.UsageError(f"--{flag.replace('_', '-')} does not apply to --workload.")
    return find_workload(options["workload"])


def _check_recorded(name: str, recorded: int, what: str, options: dict[str, Any]) -> None:
    """Check that no option contradicts the record."""
    source = click.get_current_context().get_parameter_source(name)
    if options[name] != recorded and source is not ParameterSource.DEFAULT:
        flag = f"--{name.replace('_', '-')}"
        raise click.UsageError(
            f"{flag} {options[name]} does not apply to --decisions: the record has {recorded} {what}."
        )


def _record(path: Path | None, options: dict[str, Any]) -> Decisions | None:
    if options["decisions"] is None:
        if options["model"] is not None:
            raise click.UsageError("--model needs --decisions.")
        return None
    if path is not None:
        raise click.UsageError("--workload, --decisions and TRACE are mutually exclusive.")
    for flag in (*_OF_GENERATED, "skip_bad"):
        if options[flag] not in (None, False):
            raise click.UsageError(f"--{flag.replace('_', '-')} does not apply to --decisions.")
    record = read_decisions(options["decisions"], model=options["model"])
    if (limit := options["requests"]) is not None:
        record.trace = replace(record.trace, requests=record.trace.requests[:limit])
    return record


def _config(options: dict[str, Any], workload: Workload | None, record: Decisions | None) -> ReplayConfig:
    asked = tuple(dict.fromkeys(options["policies"]))
    policies = tuple(policy_names()) if "all" in asked else asked or POLICIES
    scenario = workload.scenario if workload is not None else Scenario()
    late = {name: options[name] for name in ("event_delay", "lose_events") if options[name] is not None}
    if options["no_events"] is not None:
        late["no_events"] = True
    engine = engine_config(options, _CONFIG.fleet.engine)
    engines = options["engines"]
    if record is not None:
        _check_recorded("engines", len(record.workers), "engines", options)
        _check_recorded("block_size", record.trace.block, "tokens per block", options)
        tokens, engines = engine.cache_tokens, len(record.workers)
        engine = replace(engine, block_size=record.trace.block, blocks=max(1, tokens // record.trace.block))
    constants = {
        name: value
        for name in ("base", "prefill", "running", "context")
        if (value := options[f"step_{name}"]) is not None
    }
    steps: StepTime = replace(find_hardware(options["hardware"]), **constants)
    speedup = options["speedup"] if workload is None else options["speedup"] * workload.speedup
    return ReplayConfig(
        fleet=FleetConfig(engines, engine, options["own_names"], options["seed"]),
        steps=steps,
        scenario=replace(scenario, **late),
        policies=policies,
        guess=options["no_events"] or "mock",
        speedup=speedup,
        check=options["check"],
        check_seconds=options["check_seconds"],
    )


def _trace(path: Path | None, options: dict[str, Any]) -> Trace:
    if path is not None:
        for flag in _OF_GENERATED:
            if options[flag] is not None:
                raise click.UsageError(
                    f"--{flag.replace('_', '-')} only applies to generated traces: omit it or TRACE."
                )
        return read_trace(path, skip_bad=options["skip_bad"], limit=options["requests"])
    if options["skip_bad"]:
        raise click.UsageError("--skip-bad requires a TRACE file.")
    names = ("requests", "request_rate", "agents", "zipf")
    given = {name: options[name] for name in names if options[name] is not None}
    trace = generate(WorkloadConfig(seed=options["seed"], **given))
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


def _show(result: ReplayResult, trace: Trace, options: dict[str, Any], record: Decisions | None) -> None:
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
    if record is not None:
        for line in about_record(record):
            click.echo(line, err=to_stdout)
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
