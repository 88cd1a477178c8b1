"""Options of the commands that replay traffic over simulated engines, and configurations made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kvatlas.cli.engine_options import (
    POSITIVE,
    cache_option,
    engine_config,
    engines_option,
    seed_option,
    tier_config,
    time_unit_option,
)
from kvatlas.cli.replay_results import check_results
from kvatlas.cli.standard_input import as_file
from kvatlas.lab.replay.config import POLICIES, ReplayConfig
from kvatlas.lab.replay.decisions import Decisions, read_decisions
from kvatlas.lab.replay.runner import make_placer
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.lab.replay.tiers import MIN_DELTA
from kvatlas.lab.replay.variants import with_options
from kvatlas.lab.replay.workloads import TRACES, WORKLOADS, Workload, find_workload
from kvatlas.routing import policy_names
from kvatlas.sim import TRACE_BLOCK, Trace, WorkloadConfig, read_trace
from kvatlas.sim.fleet import MOST_ENGINES, FleetConfig
from kvatlas.sim.hardware import HARDWARE, StepTime, find_hardware
from kvatlas.sim.loop import LOOPS
from kvatlas.sim.tiers import TierConfig

_F = TypeVar("_F", bound=Callable[..., Any])
_CONFIG = ReplayConfig()
_WORK = WorkloadConfig()
# Options of a trace that is generated.
OF_GENERATED = ("request_rate", "agents", "zipf", "save_trace")
# Options of a trace that is read.
OF_FILES = ("time_unit", "skip_bad")
_SECONDS = click.FloatRange(0)
_BLOCK_SIZES = [size for size in range(1, TRACE_BLOCK + 1) if TRACE_BLOCK % size == 0]


def _block_size(_ctx: click.Context, _param: click.Parameter, value: int) -> int:
    if value not in _BLOCK_SIZES:
        sizes = ", ".join(map(str, _BLOCK_SIZES[:-1]))
        raise click.BadParameter(f"{value} does not divide {TRACE_BLOCK}, a trace block: use {sizes} or {TRACE_BLOCK}.")
    return value


def _all(options: Sequence[Callable[[Any], Any]], command: _F) -> _F:
    for option in reversed(options):
        command = option(command)
    return command


def fleet_options(command: _F) -> _F:
    """Add the options for simulated engines: their number, caches and speed."""
    options = (
        engines_option(_CONFIG.fleet.engines, MOST_ENGINES),
        click.option(
            "--block-size",
            type=int,
            default=_CONFIG.fleet.engine.block_size,
            show_default=True,
            callback=_block_size,
            metavar="TOKENS",
            help=f"Tokens per block of an engine. Must divide {TRACE_BLOCK}.",
        ),
        cache_option,
        click.option(
            "--hardware",
            default="h100x4",
            show_default=True,
            metavar="NAME",
            help=f"Speed of an engine: {', '.join(HARDWARE)}. Without a model in its name, of a 70B model.",
        ),
        click.option("--step-base", type=_SECONDS, metavar="S", help="Seconds that every step takes."),
        click.option(
            "--step-prefill", type=_SECONDS, metavar="S", help="More seconds for each prompt token of a step."
        ),
        click.option("--step-running", type=_SECONDS, metavar="S", help="More seconds for each request in a step."),
        click.option(
            "--step-context",
            type=_SECONDS,
            metavar="S",
            help="More seconds for each token of KV that a step reads.",
        ),
        click.option(
            "--step-attention",
            type=_SECONDS,
            metavar="S",
            help="More seconds for each pair of a prompt token of a step and a token before it.",
        ),
        click.option(
            "--max-running",
            type=click.IntRange(1),
            default=_CONFIG.fleet.engine.max_running,
            show_default=True,
            help="Requests that each engine runs at the same time.",
        ),
        click.option(
            "--chunk",
            type=click.IntRange(0),
            default=_CONFIG.fleet.engine.chunk,
            show_default=True,
            help="Maximum number of tokens in a step, prompts and decoding together. 0 means no limit.",
        ),
    )
    return _all(options, command)


def results_options(command: _F) -> _F:
    """Add the options for result files."""
    options = [
        click.option("--json", "json_to", metavar="FILE", help="Write the results to FILE as JSON; - for stdout."),
        click.option(
            "--plot",
            "plots",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Plot the results to FILE: .png, .svg or .html. Repeatable.",
        ),
    ]
    return _all(options, command)


def traffic_options(command: _F) -> _F:
    """Add the options for traffic: TRACE, a workload by name or a router's record, and changes of it."""
    options = (
        click.argument("trace", required=False, type=click.Path(path_type=Path), metavar="[TRACE]"),
        click.option(
            "--workload",
            metavar="NAME",
            help=f"Workload to replay instead of TRACE: {', '.join(WORKLOADS)}. The recorded ones are read from the "
            f"directory in the environment variable {TRACES}.",
        ),
        click.option(
            "--decisions",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Record of a router (kvatlas router --record) to replay instead of TRACE, first with the recorded "
            "choices, then with each policy.",
        ),
        click.option(
            "--model",
            metavar="NAME",
            help="Model whose requests are replayed from the record.  [default: the most frequent one]",
        ),
        click.option(
            "--loop",
            type=click.Choice(LOOPS),
            help="When requests come: at the trace's times (open), or when those they wait for have ended, plus their "
            "pause (closed).  [default: closed if the trace says which requests wait for which]",
        ),
        click.option(
            "--speedup",
            type=POSITIVE,
            default=_CONFIG.speedup,
            show_default=True,
            help="Speed factor of the trace's clock. In a closed loop it applies to requests that wait for no other "
            "one.",
        ),
        click.option(
            "--requests",
            type=click.IntRange(1),
            help=f"Use only the first N requests of TRACE, or generate N.  [default: all; {_WORK.requests}]",
        ),
        seed_option,
        time_unit_option,
        click.option("--skip-bad", is_flag=True, help="Skip and count malformed lines."),
    )
    return _all(options, command)


def read_asked(path: Path, options: dict[str, Any]) -> Trace:
    """Read the trace in a file, or from standard input (`-`). Raises `TraceError`."""
    with as_file(path) as file:
        return read_trace(file, skip_bad=options["skip_bad"], limit=options["requests"], unit=options["time_unit"])


def asked_workload(path: Path | None, options: dict[str, Any]) -> Workload | None:
    """The generated workload that the options request; None if they request none.

    Raises `UsageError`, `ConfigError`.
    """
    if options["workload"] is None:
        return None
    if path is not None or options["decisions"] is not None:
        raise click.UsageError("--workload, --decisions and TRACE are mutually exclusive.")
    for flag in (*OF_GENERATED, *OF_FILES):
        if options.get(flag) not in (None, False):
            raise click.UsageError(f"--{flag.replace('_', '-')} does not apply to --workload.")
    return find_workload(options["workload"])


def _check_recorded(name: str, recorded: int, what: str, options: dict[str, Any]) -> None:
    """Check that no option contradicts a value of the router's record."""
    source = click.get_current_context().get_parameter_source(name)
    if options[name] != recorded and source is not ParameterSource.DEFAULT:
        flag = f"--{name.replace('_', '-')}"
        raise click.UsageError(
            f"{flag} {options[name]} does not apply to --decisions: the record has {recorded} {what}."
        )


def read_record(path: Path | None, options: dict[str, Any]) -> Decisions | None:
    """Read the router's record that the options name; None if they name none. Raises `UsageError`, `TraceError`."""
    if options["decisions"] is None:
        if options["model"] is not None:
            raise click.UsageError("--model needs --decisions.")
        return None
    if path is not None:
        raise click.UsageError("--workload, --decisions and TRACE are mutually exclusive.")
    for flag in (*OF_GENERATED, *OF_FILES):
        if options.get(flag) not in (None, False):
            raise click.UsageError(f"--{flag.replace('_', '-')} does not apply to --decisions.")
    record = read_decisions(options["decisions"], model=options["model"])
    if (limit := options["requests"]) is not None:
        record.trace = replace(record.trace, requests=record.trace.requests[:limit])
    return record


def prepare_replay(
    path: Path | None, options: dict[str, Any]
) -> tuple[Workload | None, Decisions | None, ReplayConfig]:
    """The workload or record that the options name, and the configuration of its replay.

    Impossible options raise an error at once, before anything is read or generated.
    """
    workload = asked_workload(path, options)
    record = read_record(path, options)
    config = replay_config(options, workload, record)
    for name in config.policies:
        make_placer(name, config)
    check_results(path, options)
    return workload, record, config


def named_trace(workload: Workload | None, record: Decisions | None, options: dict[str, Any]) -> Trace | None:
    """The trace of a workload or a record, cut to --requests; None without either."""
    if record is not None:
        return record.trace
    if workload is None:
        return None
    trace = workload.make(options["seed"])
    return trace if options["requests"] is None else replace(trace, requests=trace.requests[: options["requests"]])


def replay_config(options: dict[str, Any], workload: Workload | None, record: Decisions | None) -> ReplayConfig:
    """The configuration of a replay from a command's options. Options that a command lacks keep their defaults."""
    asked = tuple(dict.fromkeys(options["policies"]))
    names = tuple(policy_names()) if "all" in asked else asked or POLICIES
    scenario = workload.scenario if workload is not None else Scenario()
    late = {name: options[name] for name in ("event_delay", "lose_events") if options.get(name) is not None}
    if options.get("no_events") is not None:
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
        for name in ("base", "prefill", "running", "context", "attention")
        if (value := options[f"step_{name}"]) is not None
    }
    steps: StepTime = replace(find_hardware(options["hardware"]), **constants)
    speedup = options["speedup"] if workload is None else options["speedup"] * workload.speedup
    config = ReplayConfig(
        fleet=FleetConfig(engines, engine, options.get("own_names", False), options["seed"]),
        steps=steps,
        scenario=replace(scenario, **late),
        policies=names,
        guess=options.get("no_events") or "mock",
        routers=options.get("routers", 1),
        loop=options["loop"],
        speedup=speedup,
        tiers=tier_config(options) if "pulls" in options else TierConfig(),
        pull_delta=options.get("pull_delta", MIN_DELTA),
        check=options.get("check", 0.0),
        check_seconds=options.get("check_seconds", 0.0),
    )
    policies = with_options(names, options["policy_options"], lambda policy: make_placer(policy, config))
    return replace(config, policies=policies)
