"""`kvatlas trace`: describe a trace, or convert other records of traffic to a trace."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvatlas.cli.console import check_output, console, exit_status, write_output
from kvatlas.cli.engine_options import POSITIVE, seed_option, time_unit_option
from kvatlas.cli.query import open_tokenizer
from kvatlas.cli.standard_input import as_file
from kvatlas.lab.traffic.profile import as_json, profile
from kvatlas.lab.traffic.reading import FORMATS, read_traffic
from kvatlas.lab.traffic.report import print_profile
from kvatlas.lab.traffic.source import Conversion, Traffic
from kvatlas.lab.traffic.tables import FIELDS, parse_columns
from kvatlas.sim.trace import write_trace

_HOW = Conversion()
# Formats that an option applies to, where it does not apply to all.
_ONLY = {
    "columns": ("csv", "azure", "burstgpt"),
    "time_unit": ("trace", "bailian", "csv", "azure", "burstgpt", "openai"),
    "block_size": ("trace", "claude-logs", "bailian", "otel", "csv", "azure", "burstgpt", "openai", "vllm"),
    "tokenizer": ("csv", "otel", "openai", "vllm"),
    "session_rate": ("claude-code",),
    "longest_pause": ("claude-code", "claude-logs"),
    "seed": ("claude-code",),
    "model": ("record", "claude-code", "claude-logs", "dynamo", "otel", "burstgpt", "csv", "openai"),
}


@click.command(short_help="Describe a trace, or make one of other records of traffic.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, allow_dash=True), metavar="FILE..."
)
@click.option(
    "--from",
    "kind",
    metavar="FORMAT",
    type=click.Choice(tuple(FORMATS)),
    help=f"Format of FILE: {', '.join(FORMATS)}.  [default: what it looks like]",
)
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the trace to FILE; .gz packs it.")
@click.option(
    "--columns",
    metavar="FIELD=COLUMN,...",
    help=f"Columns of a table for our fields: {', '.join(FIELDS)}.",
)
@click.option(
    "--block-size",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens per block, where FILE does not say: what an id stands for, or what is to be made of a log.  "
    "[default: 512; 64 for logs and texts; 16 for bailian]",
)
@time_unit_option
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Tokenizer for logs and tables with text: a tokenizer.json, a model directory, or a model name on the Hugging "
    "Face hub.  [default: cut by characters]",
)
@click.option("--model", metavar="NAME", help="Use only the requests of this model.")
@click.option(
    "--session-rate",
    type=POSITIVE,
    default=_HOW.session_rate,
    show_default=True,
    metavar="RATE",
    help="Recorded Claude Code sessions (claude-code) that begin in an hour.",
)
@click.option(
    "--longest-pause",
    type=POSITIVE,
    default=_HOW.longest_pause,
    show_default=True,
    metavar="S",
    help="Cut pauses inside Claude Code sessions, recorded or logged, to S seconds.",
)
@seed_option
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Use only the first N requests.  [default: all]")
@click.option("--skip-bad", is_flag=True, help="Skip and count malformed rows.")
@click.option("--json", "json_to", metavar="FILE", help="Write the figures to FILE as JSON; - for stdout.")
@exit_status
def trace(files: tuple[Path, ...], **options: Any) -> None:
    """Describe the traffic in FILE: sizes, pauses, what repeats, and the hit rate of a cache of any size.

    FILE may be a trace, a router's record, or what others record: see --from. --save writes a trace that `kvatlas
    replay` and `kvatlas plan` read. Claude Code's sessions and logs, Dynamo's traces and spans may be several files, or
    a directory. FILE may be - for standard input.

    Exit status: 0; 2 if FILE cannot be read or an argument is invalid.
    """
    outputs = [options["save"], None if options["json_to"] in (None, "-") else Path(options["json_to"])]
    for output in outputs:
        if output is not None:
            check_output(output, files)
    traffic = _read(files, options)
    made = traffic.trace
    if options["save"] is not None:
        write_output(options["save"], functools.partial(write_trace, options["save"], made.requests, made.block))
    for warning in traffic.warnings:
        click.echo(f"Warning: {warning}", err=True)
    it = profile(made)
    to_stdout = options["json_to"] == "-"
    text = json.dumps(
        {"format": traffic.format, "assumptions": traffic.assumptions, "warnings": traffic.warnings, **as_json(it)},
        indent=2,
    )
    if options["json_to"] is not None and not to_stdout:
        path = Path(options["json_to"])
        write_output(path, functools.partial(path.write_text, text + "\n", encoding="utf-8"))
    out = console(stderr=to_stdout)
    out.print(f"Format: {traffic.format}. {' '.join(traffic.assumptions)}".strip(), highlight=False)
    if made.skipped:
        out.print(f"{made.skipped:,} malformed rows were left out; the first: {made.first_skipped}", highlight=False)
    print_profile(it, out)
    if to_stdout:
        click.echo(text)
    for output in outputs:
        if output is not None:
            click.echo(f"Wrote {output}.", err=True)


def _read(files: Sequence[Path], options: dict[str, Any]) -> Traffic:
    how = Conversion(
        block=options["block_size"],
        columns=parse_columns(options["columns"]) if options["columns"] is not None else None,
        model=options["model"],
        session_rate=options["session_rate"],
        longest_pause=options["longest_pause"],
        seed=options["seed"],
        unit=options["time_unit"],
        skip_bad=options["skip_bad"],
        **_tokenizer(options["tokenizer"]),
    )
    with ExitStack() as stack:
        paths = [stack.enter_context(as_file(file)) for file in files]
        traffic = read_traffic(paths, how, kind=options["kind"], limit=options["requests"])
    source = click.get_current_context().get_parameter_source
    for name, kinds in _ONLY.items():
        if traffic.format not in kinds and source(name) is not ParameterSource.DEFAULT:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} does not apply to the format {traffic.format}, but to {', '.join(kinds)}.")
    return traffic


def _tokenizer(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    tokenizer = open_tokenizer(name)
    return {
        "encode": tokenizer.encode,
        "encode_chat": lambda messages, tools: tokenizer.encode_chat(messages, tools=tools),
    }
