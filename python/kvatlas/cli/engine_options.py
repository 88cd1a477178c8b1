"""The options that say how quick a simulated engine is: the same for `kvatlas engines` and `kvatlas replay`."""

from __future__ import annotations

from collections.abc import Callable

import click

from kvatlas.sim.engine import EngineConfig

POSITIVE = click.FloatRange(min=0, min_open=True)
_DEFAULT = EngineConfig()


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """--prefill-rate, --decode-rate, --max-running and --chunk."""
    for option in reversed(
        (
            click.option(
                "--prefill-rate",
                type=POSITIVE,
                default=_DEFAULT.prefill_rate,
                show_default=True,
                help="Prompt tokens that an engine's rank computes a second.",
            ),
            click.option(
                "--decode-rate",
                type=POSITIVE,
                default=_DEFAULT.decode_rate,
                show_default=True,
                help="Tokens that each running request generates a second.",
            ),
            click.option(
                "--max-running",
                type=click.IntRange(1),
                default=_DEFAULT.max_running,
                show_default=True,
                help="Requests that an engine's rank runs at once.",
            ),
            click.option(
                "--chunk",
                type=click.IntRange(0),
                default=_DEFAULT.chunk,
                show_default=True,
                help="Prompt tokens of one prefill step; 0: all at once.",
            ),
        )
    ):
        command = option(command)
    return command
