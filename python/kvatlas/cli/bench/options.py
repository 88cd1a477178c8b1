"""The options that several commands of `kvatlas bench` have, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvatlas.bench.load.settings import PlanSettings
from kvatlas.bench.load.verdict import CLOCKS

_PLAN = PlanSettings()
_F = TypeVar("_F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def _options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _plan_option(name: str, metavar: str, text: str, **how: Any) -> Callable[[_F], _F]:
    # No default here: whether it was given must be known when a plan comes from a file.
    default = getattr(_PLAN, name.strip("-").replace("-", "_"), None)
    return click.option(
        name, metavar=metavar, help=f"{text}  [default: {'auto' if default is None else default}]", **how
    )


plan_options = _options(
    _plan_option("--workers", "N", "Engines."),
    _plan_option("--copies", "N", "Engines that get each request; a session goes to the same ones."),
    _plan_option("--duplication", "N", "Run the trace so many times at once, each time with blocks of its own."),
    _plan_option("--length", "N", "Blocks that each block of the trace becomes: prompts so many times as long."),
    _plan_option("--block-size", "TOKENS", "Tokens of a block; divides 512."),
    _plan_option("--cache-blocks", "N", "Blocks that each engine has room for."),
    _plan_option("--copy-spread", "SECONDS", "Of the trace's time: how late copies of a session may start."),
    _plan_option("--engine-speed", "FACTOR", "Of the engines, against `kvatlas replay`'s."),
    _plan_option("--seed", "N", "Of everything left to chance."),
    click.option(
        "--requests", type=click.IntRange(1), metavar="N", help="Only the first so many of TRACE, or so many generated."
    ),
    click.option("--skip-bad", is_flag=True, help="Leave out malformed lines and count them."),
)

run_options = _options(
    click.option(
        "--query-threads", type=click.IntRange(1, 1024), metavar="N", help="Threads that look up.  [default: 1]"
    ),
    click.option(
        "--event-threads", type=click.IntRange(1, 1024), metavar="N", help="Threads that apply events.  [default: 1]"
    ),
    click.option("--jump-size", type=click.IntRange(1), metavar="BLOCKS", help="Of the positional designs."),
    click.option("--shards", type=click.IntRange(1, 1024), metavar="N", help="Actors of radix-sharded."),
    click.option("--group-size", type=click.IntRange(1), metavar="WORKERS", help="Workers of a group of grouped."),
    click.option("--strict", is_flag=True, help="Mend what designs are known to get wrong, where that is possible."),
    click.option("--pin", metavar="CPUS", help="Generator, query threads, then event threads, as in 0,1,1."),
    click.option(
        "--check-seconds",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Time to compare answers with the reference, after each run.  [default: 2]",
    ),
    click.option("--peers", type=FILE, metavar="PROGRAM", help="kvatlas-replay-peers of benchmarks/peers: adds peers."),
)

limit_options = _options(
    click.option("--p99-limit", default="10ms", show_default=True, metavar="TIME", help="As in 500us, 5ms, 1s."),
    click.option(
        "--p99-of",
        type=click.Choice(CLOCKS),
        default="deadline",
        show_default=True,
        help="From a lookup's deadline (what a user waits), or in service (the call alone).",
    ),
)


def plan_settings(options: dict[str, Any]) -> PlanSettings:
    """The settings of a plan, as far as they were given."""
    from dataclasses import fields  # noqa: PLC0415

    given: dict[str, Any] = {}
    for field in fields(PlanSettings):
        text = options[field.name]
        if text is None:
            continue
        kind = float if field.name in ("copy_spread", "engine_speed") else int
        try:
            given[field.name] = kind(text)
        except ValueError:
            what = "a number" if kind is float else "a whole number"
            raise click.UsageError(f"--{field.name.replace('_', '-')} must be {what}, got {text!r}.") from None
    return PlanSettings(**given)


def _pin(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--pin must be numbers of CPUs as in 0,1,1, got {text!r}.") from None


def replay_options(options: dict[str, Any]) -> dict[str, object]:
    """The options of a run, as far as they were given."""
    names = ("query_threads", "event_threads", "jump_size", "shards", "group_size", "check_seconds")
    given: dict[str, object] = {name: options[name] for name in names if options[name] is not None}
    if options["strict"]:
        given["strict"] = True
    if (pin := _pin(options["pin"])) is not None:
        given["pin"] = pin
    return given


def index_names(text: str) -> list[str]:
    """The names between the commas of --index."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--index names no index.")
    return names
