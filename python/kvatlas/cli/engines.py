"""`kvatlas engines`: the engines of a router, and changes of them at all routers of its group."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click
from rich.table import Table

from kvatlas._text import counted, nearest
from kvatlas.cli.console import console
from kvatlas.cli.router_reader import ROUTER_URL, RouterReader
from kvatlas.cli.service_options import authenticates, ending, key_of, trust
from kvatlas.errors import ConfigError
from kvatlas.service.config import Engine
from kvatlas.service.config.section import read_secret

_F = TypeVar("_F", bound=Callable[..., None])
_KINDS = {
    each.name: each.metadata["kind"]
    for each in dataclasses.fields(Engine)
    if each.name not in ("url", "name", "key")  # a key is no argument: other users would see it
}
_TIMEOUT = 20.0  # seconds: a router gives its peers 5 s, and an engine's streams 10 s to end


def _asks(command: _F) -> _F:
    """Add the options for the router's address and key to a command."""
    url = click.option(
        "--url",
        envvar="KVATLAS_ROUTER_URL",
        default=ROUTER_URL,
        show_default=True,
        show_envvar=True,
        help="Address of the router.",
    )
    return url(authenticates("the router's admin key")(command))  # type: ignore[return-value]


def _changes(command: _F) -> _F:
    """Add the options of a command that changes engines."""
    here = click.option("--this-router", is_flag=True, help="Change this router only, and not its peers.")
    as_json = click.option("--json", "as_json", is_flag=True, help="Print the outcome at each router as JSON.")
    return _asks(here(as_json(command)))


@click.group(short_help="Add, remove and drain engines of a running router and its peers.")
def engines() -> None:
    """Add, remove and drain engines of a running router.

    A change is made at the router and at all of its peers (--peer), and the outcome at each is printed. Engines that
    are added are followed like those of the engines file, and changes outlive a restart: by the router's --state-file,
    or because its peers know them.

    Exit status: 0; 1 if a router did not make the change or does not respond; 2 if an argument is invalid.
    """


@engines.command()
@click.argument("engine", metavar="[NAME=]URL")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the engine, as in the engines file: weight=2, role=decode, drain=true. Repeatable.",
)
@click.option(
    "--engine-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the bearer key that the engine wants.",
)
@_changes
def add(engine: str, settings: tuple[str, ...], engine_key_file: Path | None, **asked: Any) -> None:
    """Add an engine, or change the one of that name."""
    with ending("kvatlas router", "KVATLAS_ROUTER_URL"):
        own_key = None if engine_key_file is None else read_secret(engine_key_file, "--engine-key-file")
        about = dataclasses.replace(Engine.parse(engine), key=own_key, **_read(settings))
        _change("POST", "/engines", about.table(), f"engine {about.worker} was added", **asked)


@engines.command(short_help="Remove an engine.")
@click.argument("name")
@_changes
def remove(name: str, **asked: Any) -> None:
    """Remove an engine: open requests finish, and its blocks are forgotten."""
    _change("DELETE", f"/engines/{quote(name, safe='')}", None, f"engine {name} was removed", **asked)


@engines.command(short_help="Send an engine no new requests.")
@click.argument("name")
@_changes
def drain(name: str, **asked: Any) -> None:
    """Send an engine no new requests: open ones finish, and its events are followed."""
    _change("POST", f"/engines/{quote(name, safe='')}/drain", None, f"engine {name} is drained", **asked)


@engines.command()
@click.argument("name")
@_changes
def undrain(name: str, **asked: Any) -> None:
    """Send a drained engine requests again."""
    _change("POST", f"/engines/{quote(name, safe='')}/undrain", None, f"engine {name} gets requests again", **asked)


@engines.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_asks
def list_engines(url: str, key_file: Path | None, ca: Path | None, as_json: bool) -> None:
    """Show the router's engines, and what was changed over HTTP."""
    with (
        ending("kvatlas router", "KVATLAS_ROUTER_URL"),
        RouterReader(url, key_of(key_file, os.environ), trust(ca)) as reader,
    ):
        rows, orders = reader.look(0).workers, {order["name"]: order for order in reader.orders()}
        names = {row["name"] for row in rows}
        listed = [
            {
                "name": row["name"],
                "url": row["url"],
                "standing": row["standing"],
                "changed": _changed(orders.get(row["name"])),
            }
            for row in rows
        ]
        removed = sorted(name for name, order in orders.items() if order["removed"] and name not in names)
        if as_json:
            click.echo(json.dumps({"engines": listed, "removed": removed}, indent=2))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("engine", "url", "state", "over HTTP"):
            table.add_column(name, overflow="fold")
        for row in listed:
            table.add_row(row["name"], row["url"], row["standing"], ", ".join(row["changed"]))
        out = console()
        out.print(table)
        if removed:
            out.print(f"removed over HTTP: {', '.join(removed)}", markup=False)


def _changed(order: Mapping[str, Any] | None) -> list[str]:
    """Descriptions of the changes of an engine that were made over HTTP."""
    if order is None:
        return []
    words = []
    if order["engine"] is not None:
        words.append("added" if order["listed"] is None else "changed")
    if order["drained"] is not None:
        words.append("drained" if order["drained"] else "undrained")
    return words


def _change(
    method: str,
    path: str,
    body: dict[str, Any] | None,
    done: str,
    *,
    url: str,
    key_file: Path | None,
    ca: Path | None,
    this_router: bool,
    as_json: bool,
) -> None:
    """Request a change of the fleet, print its outcome at each router, and end with the exit status."""
    with (
        ending("kvatlas router", "KVATLAS_ROUTER_URL"),
        RouterReader(url, key_of(key_file, os.environ), trust(ca), timeout=_TIMEOUT) as reader,
    ):
        at_peers = "" if this_router else "?peers=true"
        answer = reader.change(method, path + at_peers, body)
        outcomes = [{**outcome, "router": outcome["router"]} for outcome in answer.get("routers") or []]
        if outcomes:
            outcomes[0]["router"] = url  # as it is called here
        else:
            outcomes = [{"router": url, "status": 200, "code": None, "message": None}]
        failed = [outcome for outcome in outcomes if not _is_done(outcome)]
        if as_json:
            click.echo(json.dumps(outcomes, indent=2))
        else:
            made = len(outcomes) - len(failed)
            click.echo(f"{done} at {made} of {counted(len(outcomes), 'router')}")
            for outcome in failed:
                why = outcome["message"] or f"it answered with status {outcome['status']}"
                click.echo(f"not at {outcome['router']}: {why}", err=True)
    sys.exit(1 if failed else 0)


def _is_done(outcome: Mapping[str, Any]) -> bool:
    status = outcome["status"]
    return isinstance(status, int) and 200 <= status < 300


def _read(settings: tuple[str, ...]) -> dict[str, Any]:
    """Parse the settings of an engine given as KEY=VALUE.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    found = {}
    for text in settings:
        key, equals, value = text.partition("=")
        key = key.strip().lower().replace("-", "_")
        if not equals:
            raise ConfigError(f"--set must be KEY=VALUE, got {text!r}")
        if key not in _KINDS:
            raise ConfigError(f"--set: unknown key {key!r}: {nearest(key, _KINDS)}")
        try:
            found[key] = _KINDS[key].parse(value)
        except ValueError as error:
            raise ConfigError(f"--set: {key} {error}") from None
    return found
