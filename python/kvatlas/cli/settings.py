"""Flags of the commands that have settings: one flag for each setting."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, TypeVar

import click

from kvatlas.service.config.kinds import Switch
from kvatlas.service.config.read import CONFIG_ENV, Schema

_F = TypeVar("_F", bound=Callable[..., Any])


def _keys(schema: Schema[Any]) -> dict[str, Any]:
    return {path.replace(".", "__"): key for path, key in schema.keys.items()}


def setting_flags(schema: Schema[Any], only: Container[str] | None = None) -> Callable[[_F], _F]:
    """Decorator that adds a flag for each setting, in order.

    The configuration parses the values, so that all sources agree.

    Args:
        schema: The declaration of the settings.
        only: The paths of the settings that get a flag; None for all.
    """

    def decorate(command: _F) -> _F:
        for name, key in reversed(_keys(schema).items()):
            if only is not None and key.path not in only:
                continue
            shown = key.show_default().strip('"')
            if isinstance(key.kind, Switch):
                command = click.option(key.flag, name, flag_value="true", default=None, help=key.help)(command)
                continue
            default = f"  [default: {shown}]" if shown else ""
            command = click.option(
                key.flag, name, metavar=key.kind.metavar, multiple=key.kind.repeatable, help=f"{key.help}{default}"
            )(command)
        return command

    return decorate


def given(schema: Schema[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The texts of the flags on the command line, by the settings' paths, as an argument of `read_as`."""
    keys = _keys(schema)
    found: dict[str, Any] = {}
    for name, text in options.items():
        if text is None or text == ():
            continue
        if name in schema.lists:
            found[name] = text
        else:
            key = keys[name]
            found[key.path] = "\n".join(text) if key.kind.repeatable else text
    return found


def config_option(command: _F) -> _F:
    """Add the option --config to a command."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"TOML configuration file. Alternatively, set {CONFIG_ENV}.",
    )(command)


def pool_option(command: _F) -> _F:
    """The option --pool."""
    return click.option(
        "--pool",
        multiple=True,
        metavar="NAME[,KEY=VALUE...]",
        help="Store that several engines put blocks in and load from: folder,members=w1|w2,chunk=4. Other keys: tier, "
        "announces_removals, lifetime, budget, chunk_bytes, directory, look_every. Repeatable.",
    )(command)


def print_config_option(command: _F) -> _F:
    """Add the option --print-config to a command."""
    return click.option(
        "--print-config",
        is_flag=True,
        help="Print the effective configuration with the source of each value, and exit.",
    )(command)
