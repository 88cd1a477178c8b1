"""The options that describe a simulated fleet, shared by the commands that run one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvatlas.errors import ConfigError
from kvatlas.sim.engine import EngineConfig
from kvatlas.sim.fleet import FleetConfig

POSITIVE = click.FloatRange(min=0, min_open=True)
_DEFAULT = EngineConfig()
_F = TypeVar("_F", bound=Callable[..., Any])


def engines_option(default: int, most: int) -> Callable[[_F], _F]:
    """--engines."""
    return click.option(
        "--engines",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        metavar="N",
        help="Number of simulated engines.",
    )


def pool_option(command: _F) -> _F:
    """--pool-tokens."""
    return click.option(
        "--pool-tokens",
        type=click.IntRange(1),
        default=_DEFAULT.pool_tokens,
        show_default=True,
        metavar="N",
        help="KV-cache capacity of each engine, in tokens.",
    )(command)


def request_rate_option(text: str, **how: Any) -> Callable[[_F], _F]:
    """--request-rate."""
    return click.option("--request-rate", type=POSITIVE, metavar="RATE", help=text, **how)


def seed_option(command: _F) -> _F:
    """--seed."""
    return click.option(
        "--seed",
        type=click.IntRange(0, (1 << 64) - 1),
        default=0,
        show_default=True,
        help="Seed of all random choices.",
    )(command)


def speed_options(command: _F) -> _F:
    """--prefill-rate, --decode-rate, --max-running and --chunk: the speed of an engine."""
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


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """The configuration of one engine from these options; the rest has its defaults."""
    given: dict[str, Any] = {
        name: options[name] for name in ("block_size", "blocks", "prefill_rate", "decode_rate") if name in options
    }
    block_size = given.get("block_size", _DEFAULT.block_size)
    if (tokens := options.get("pool_tokens")) is not None:
        if tokens < block_size:
            raise ConfigError(f"pool_tokens must be at least one block of {block_size}, got {tokens}")
        given["blocks"] = tokens // block_size
    if "chunk" in options:
        given |= {"max_running": options["max_running"], "chunk": options["chunk"] or None}
    return EngineConfig(**given)


def fleet_config(options: dict[str, Any]) -> FleetConfig:
    """The configuration of a fleet from these options."""
    return FleetConfig(
        engines=options["engines"],
        engine=engine_config(options),
        own_names=options.get("own_names", False),
        seed=options["seed"],
    )
