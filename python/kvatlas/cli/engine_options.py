"""Options that describe a simulated fleet, for the commands that run one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from kvatlas.errors import ConfigError
from kvatlas.sim.fleet import FleetConfig
from kvatlas.sim.scheduler import EngineConfig
from kvatlas.sim.tiers import TierConfig
from kvatlas.sim.times import UNITS
from kvatlas.sim.transfers import TRANSFERS, find_transfer

POSITIVE = click.FloatRange(min=0, min_open=True)
_DEFAULT = EngineConfig()
_TIERS = TierConfig()
_FROM = ("host", "pool", "pull")
_F = TypeVar("_F", bound=Callable[..., Any])


def engines_option(default: int, most: int) -> Callable[[_F], _F]:
    """Decorator that adds the option --engines to a command. `default`, `most`: the default and the largest value."""
    return click.option(
        "--engines",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        metavar="N",
        help="Number of simulated engines.",
    )


def cache_option(command: _F) -> _F:
    """Add the option --cache-tokens to a command."""
    return click.option(
        "--cache-tokens",
        type=click.IntRange(1),
        default=_DEFAULT.cache_tokens,
        show_default=True,
        metavar="N",
        help="KV-cache capacity of each rank of an engine, in tokens. Rounded down to whole blocks.",
    )(command)


def request_rate_option(text: str, **how: Any) -> Callable[[_F], _F]:
    """Decorator that adds the option --request-rate to a command. `text`: the option's help."""
    return click.option("--request-rate", type=POSITIVE, metavar="RATE", help=text, **how)


def policy_option(command: _F) -> _F:
    """Add the option --policy-option to a command."""
    return click.option(
        "--policy-option",
        "policy_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the policies that have it; a range, hold=0..2:0.5, makes one row for each value. Repeatable.",
    )(command)


def time_unit_option(command: _F) -> _F:
    """Add the option --time-unit to a command."""
    return click.option(
        "--time-unit",
        type=click.Choice(tuple(UNITS)),
        help="Unit of the trace's times that are numbers.  [default: what the format has, if that is plausible]",
    )(command)


def seed_option(command: _F) -> _F:
    """Add the option --seed to a command."""
    return click.option(
        "--seed",
        type=click.IntRange(0, (1 << 64) - 1),
        default=0,
        show_default=True,
        help="Seed of all random choices.",
    )(command)


def speed_options(command: _F) -> _F:
    """Add the options --prefill-rate, --decode-rate, --max-running and --chunk, an engine's speed, to a command."""
    for name, kind, default, text in reversed(
        (
            ("prefill-rate", POSITIVE, _DEFAULT.prefill_rate, "Prompt tokens that each rank computes per second."),
            ("decode-rate", POSITIVE, _DEFAULT.decode_rate, "Tokens that each running request generates per second."),
            ("max-running", click.IntRange(1), _DEFAULT.max_running, "Requests that each rank runs at the same time."),
            (
                "chunk",
                click.IntRange(0),
                _DEFAULT.chunk,
                "Prompt tokens per prefill step. 0 means the whole prompt at once.",
            ),
        )
    ):
        command = click.option(f"--{name}", type=kind, default=default, show_default=True, help=text)(command)
    return command


def engine_config(options: dict[str, Any], default: EngineConfig = _DEFAULT) -> EngineConfig:
    """The configuration of a simulated engine from a command's options.

    Missing options and None keep the value in `default`.
    """
    given: dict[str, Any] = {
        name: options[name]
        for name in ("block_size", "prefill_rate", "decode_rate", "max_running")
        if options.get(name) is not None
    }
    block_size = given.get("block_size", default.block_size)
    tokens = default.cache_tokens if (asked := options.get("cache_tokens")) is None else asked
    if tokens < block_size:
        raise ConfigError(f"cache_tokens must be at least one block of {block_size}, got {tokens}")
    if "chunk" in options:
        given["chunk"] = options["chunk"] or None
    return replace(default, blocks=tokens // block_size, **given)


def host_tier_options(command: _F) -> _F:
    """Add the options of tiers beyond the device: --host-tokens, --pulls, --offload-chunk and --transfer."""
    for option in (
        click.option(
            "--transfer",
            "transfers",
            multiple=True,
            metavar="[FROM=]NAME",
            help=f"Duration of loads from host, pool or pull: {', '.join(TRANSFERS)}. Without FROM, of the pool and "
            "pulls. Repeatable.  [default: host=pcie-host, pool=rdma-store, pull=h200-rdma]",
        ),
        click.option(
            "--offload-chunk",
            type=click.IntRange(1),
            default=_TIERS.chunk,
            show_default=True,
            metavar="BLOCKS",
            help="Blocks that are offloaded and loaded together.",
        ),
        click.option("--pulls", is_flag=True, help="Engines can pull blocks from each other's host memory."),
        click.option(
            "--host-tokens",
            type=click.IntRange(0),
            metavar="N",
            help="Tokens of host memory behind each engine's cache.  [default: none]",
        ),
    ):
        command = option(command)
    return command


def tier_options(command: _F) -> _F:
    """Add the options of `host_tier_options`, and --pool-tokens, to a command."""
    pool = click.option(
        "--pool-tokens",
        type=click.IntRange(0),
        metavar="N",
        help="Tokens of a pool that all engines share. Nobody announces what it evicts.  [default: no pool]",
    )
    return host_tier_options(pool(command))


def tier_config(options: dict[str, Any]) -> TierConfig:
    """The settings of tiers beyond the device from a command's options.

    Settings whose options a command lacks keep their defaults.
    """
    given: dict[str, Any] = {
        name: options[name] for name in ("host_tokens", "pool_tokens") if options.get(name) is not None
    }
    for text in options.get("transfers") or ():
        where, equals, name = text.rpartition("=")
        if equals and where not in _FROM:
            raise ConfigError(f"transfer {text!r}: it must be NAME, or FROM=NAME with a FROM of {', '.join(_FROM)}")
        given |= dict.fromkeys((where,) if equals else ("pool", "pull"), find_transfer(name))
    return TierConfig(**given, pulls=options.get("pulls", False), chunk=options.get("offload_chunk") or _TIERS.chunk)


def fleet_config(options: dict[str, Any]) -> FleetConfig:
    """The configuration of a simulated fleet from a command's options."""
    return FleetConfig(
        engines=options["engines"],
        engine=engine_config(options),
        own_names=options.get("own_names", False),
        seed=options["seed"],
    )
