"""Options shared by several commands of `kvatlas bench`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from kvatlas.cli.engine_options import engine_config, time_unit_option
from kvatlas.lab.bench.config import PlanConfig
from kvatlas.lab.bench.verdict import CLOCKS

_PLAN = PlanConfig()
_F = TypeVar("_F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)
OF_TRACE = ("time_unit", "skip_bad")
"""Names of the options for reading a trace."""


def _options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _plan_option(
    name: str, kind: click.IntRange | click.FloatRange, metavar: str, text: str, default: object
) -> Callable[[_F], _F]:
    # No default for click: whether it was given must be known when a plan comes from a file.
    shown = "auto" if default is None else default
    return click.option(f"--{name}", type=kind, metavar=metavar, help=f"{text}  [default: {shown}]")


_NUMBER = click.IntRange(1)
_ENGINE = _PLAN.fleet.engine
PLAN_OPTIONS = (
    "engines",
    "copies",
    "duplication",
    "length",
    "block_size",
    "cache_tokens",
    "copy_spread",
    "engine_speed",
    "seed",
)

plan_options = _options(
    _plan_option("engines", _NUMBER, "N", "Number of simulated engines.", _PLAN.fleet.engines),
    _plan_option(
        "copies",
        _NUMBER,
        "N",
        "Number of engines that get each request. A session stays on the same engines.",
        _PLAN.copies,
    ),
    _plan_option(
        "duplication",
        _NUMBER,
        "N",
        "Run the trace N times at once, each time with different blocks.",
        _PLAN.duplication,
    ),
    _plan_option(
        "length",
        _NUMBER,
        "N",
        "Replace each block of the trace by N blocks, for longer prompts.",
        _PLAN.length,
    ),
    _plan_option("block-size", _NUMBER, "TOKENS", "Tokens per block. Must divide 512.", _ENGINE.block_size),
    _plan_option("cache-tokens", _NUMBER, "N", "KV-cache capacity of each engine, in tokens.", _ENGINE.cache_tokens),
    _plan_option(
        "copy-spread",
        click.FloatRange(0),
        "SECONDS",
        "Longest delay of a session's copies, in trace time.",
        _PLAN.copy_spread,
    ),
    _plan_option(
        "engine-speed",
        click.FloatRange(0, min_open=True),
        "FACTOR",
        "Speed of the engines relative to `kvatlas replay`.",
        _PLAN.engine_speed,
    ),
    _plan_option("seed", click.IntRange(0, (1 << 64) - 1), "N", "Seed of all random choices.", _PLAN.fleet.seed),
    click.option(
        "--requests", type=click.IntRange(1), metavar="N", help="Use only the first N requests of TRACE, or generate N."
    ),
    time_unit_option,
    click.option("--skip-bad", is_flag=True, help="Skip and count malformed lines."),
)

run_options = _options(
    click.option(
        "--query-threads", type=click.IntRange(1, 1024), metavar="N", help="Threads that run lookups.  [default: 1]"
    ),
    click.option(
        "--event-threads", type=click.IntRange(1, 1024), metavar="N", help="Threads that apply events.  [default: 1]"
    ),
    click.option("--jump-size", type=click.IntRange(1), metavar="BLOCKS", help="Jump size of the positional designs."),
    click.option("--shards", type=click.IntRange(1, 1024), metavar="N", help="Number of shards of radix-sharded."),
    click.option(
        "--group-size", type=click.IntRange(1), metavar="WORKERS", help="Workers per group of the design `grouped`."
    ),
    click.option("--strict", is_flag=True, help="Correct known errors of the designs where possible."),
    click.option(
        "--pin", metavar="CPUS", help="CPUs of the generator, the query threads and the event threads, such as 0,1,1."
    ),
    click.option(
        "--check-seconds",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Time limit for comparing answers with the reference after each run.  [default: 2]",
    ),
    click.option(
        "--peers",
        type=FILE,
        metavar="PROGRAM",
        help="The program kvatlas-bench-peers of benchmarks/peers. Adds the peers to the designs.",
    ),
)

limit_options = _options(
    click.option(
        "--p99-limit",
        default="10ms",
        show_default=True,
        metavar="TIME",
        help="Limit of the p99 latency of lookups, such as 500us, 5ms or 1s.",
    ),
    click.option(
        "--p99-of",
        type=click.Choice(CLOCKS),
        default="deadline",
        show_default=True,
        help="Measure latency from a lookup's deadline (what a user waits) or in service (the call alone).",
    ),
)


def plan_config(options: dict[str, Any]) -> PlanConfig:
    """The configuration of a load test's plan, from the options of the command line."""
    given = {name: options[name] for name in PLAN_OPTIONS if options[name] is not None}
    engine = engine_config({name: given.pop(name, None) for name in ("block_size", "cache_tokens")}, _ENGINE)
    fleet = {name: given.pop(name) for name in ("engines", "seed") if name in given}
    return PlanConfig(fleet=replace(_PLAN.fleet, engine=engine, **fleet), **given)


def _pin(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--pin must be CPU numbers such as 0,1,1, got {text!r}.") from None


def run_values(options: dict[str, Any]) -> dict[str, object]:
    """The options of a load test that the command line gives, by name."""
    names = ("query_threads", "event_threads", "jump_size", "shards", "group_size", "check_seconds")
    given: dict[str, object] = {name: options[name] for name in names if options[name] is not None}
    if options["strict"]:
        given["strict"] = True
    if (pin := _pin(options["pin"])) is not None:
        given["pin"] = pin
    return given


def index_names(text: str) -> list[str]:
    """The comma-separated names of the option --index."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--index is empty: give all, or names separated by commas.")
    return names
