"""Output of `kvatlas router --check`: findings for people or as JSON, and the exit status."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvatlas._text import counted
from kvatlas.cli.console import console
from kvatlas.router.check import EngineReport, check
from kvatlas.router.check.codes import exit_status
from kvatlas.router.check.findings import GLOBAL, SETTINGS, STORE
from kvatlas.router.config import RouterConfig
from kvatlas.router.config.schema import ROUTER_SECTIONS
from kvatlas.service.config.section import exposure, secret_files

_MARKS = {"ok": ("✓", "green"), "note": ("·", "dim"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def report(config: RouterConfig, *, as_json: bool, add: Callable[[EngineReport], None] | None = None) -> int:
    """Check every engine, and print the findings. Returns the exit status.

    Args:
        config: The router's configuration.
        as_json: True to print a line of JSON for each engine instead of text.
        add: Function that adds to a report before it is printed.
    """
    out = console(stderr=as_json)
    for name, path in secret_files(*(getattr(config, section) for section in ROUTER_SECTIONS if section)):
        with contextlib.suppress(OSError):  # reading the file later reports the error
            if (exposed := exposure(path)) is not None:
                out.print(Text("!", "yellow"), Text(f"{name}: {exposed}"))

    def done(one: EngineReport) -> None:
        if add is not None:
            add(one)
        if as_json:
            click.echo(json.dumps(one.as_json()))
        else:
            _print(out, one)

    reports = check(config, done)
    if not reports:
        click.echo("Error: there are no engines to check: give --engine URL, or --discover", err=True)
        return 2
    if not as_json:
        _sum_up(out, reports)
    return exit_status(finding.code for one in reports for finding in one.problems)


def _sum_up(out: Console, reports: list[EngineReport]) -> None:
    bad = [one for one in reports if one.problems]
    engines = counted(sum(one.is_of_engine for one in reports), "engine")
    asleep = sum(any(finding.what == "asleep" for finding in one.findings) for one in reports)
    untested = f" {asleep} asleep, so not tested with prompts." if asleep else ""
    if not bad:
        above = " and the service above them" if any(one.role == GLOBAL for one in reports) else ""
        out.print(f"No problems with {engines}{above}.{untested}", highlight=False)
        return
    places = [f"{count} of {engines}"] if (count := sum(one.is_of_engine for one in bad)) else []
    if any(one.role == GLOBAL for one in bad):
        places.append("the service above")
    if any(one.role == STORE for one in bad):
        places.append("the store of a pool")
    if any(one.role == SETTINGS for one in bad):
        places.append("settings")
    problems = sum(len(one.problems) for one in bad)
    out.print(
        f"{counted(problems, 'problem')} at {' and '.join(places)}.{untested}",
        style="bold",
        highlight=False,
    )


def _print(out: Console, one: EngineReport) -> None:
    role = "" if one.role in ("both", SETTINGS) else f" ({one.role})"
    out.print(Text(f"{one.worker}{role}", "bold"), Text("" if one.worker in one.url else one.url, "dim"))
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=True)
    for _column in range(3):
        table.add_column(overflow="fold")
    for finding in one.findings:
        mark, style = _MARKS[finding.level]
        words = Text(finding.words)
        if finding.change:
            words.append(f"\n→ {finding.change}", "cyan")
        table.add_row(Text(mark, style), finding.what, words)
    out.print(table, highlight=False)
    out.print()
