"""The reference of the command line, from click."""

from __future__ import annotations

import inspect
import re

import click
from tools.docs.markdown import cell, code, join, table

_URL = re.compile(r"(?<![(<`\[])(https?://[^\s),]+)")


def page() -> str:
    """Every command with its arguments, options and exit codes, in the order of `kvatlas --help`."""
    from kvatlas.cli import main  # noqa: PLC0415 - only when the page is built

    context = click.Context(main, info_name="kvatlas", **main.context_settings)
    return join(_commands(main, context, depth=2))


def _commands(group: click.Group, context: click.Context, depth: int) -> list[str]:
    parts: list[str] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        parts += _command(command, click.Context(command, info_name=name, parent=context), depth)
    return parts


def _command(command: click.Command, context: click.Context, depth: int) -> list[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [
        f"{'#' * depth} {context.command_path}",
        f"```text\n{usage}\n```",
        _prose(command.help or ""),
        _options(command, context),
    ]
    if isinstance(command, click.Group):
        parts += _commands(command, context, depth + 1)
    return parts


def _prose(text: str) -> str:
    # Line breaks that click is told to keep stay: \b begins a kept paragraph.
    paragraphs = [part for part in inspect.cleandoc(text).split("\n\n") if part.strip()]
    return join(
        "```text\n" + part.replace("\b", "").strip("\n") + "\n```" if "\b" in part else _escape(" ".join(part.split()))
        for part in paragraphs
    )


def _options(command: click.Command, context: click.Context) -> str:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Argument):
            rows.append((code(parameter.make_metavar(context)), "argument"))
        elif record is not None and record[0] not in ("-h, --help", "--help"):
            rows.append((code(record[0]), _escape(cell(record[1]))))
    return table(("option", "meaning"), rows)


def _escape(text: str) -> str:
    """Help is plain text: what Markdown or HTML would take for markup is kept as it is."""
    text = text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
    return _URL.sub(r"`\1`", text)
