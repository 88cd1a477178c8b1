"""Reader of tables with a row a request: Azure's LLM traces, BurstGPT, and other CSV or JSON lines with named columns.

Most have arrival times and lengths, but not which blocks prompts share. A column of block ids has that. With a column
of sessions, each prompt is assumed to begin with the one before it in its session.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvatlas._text import count, nearest
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Ids, Traffic, go_on, make_trace, parse_count
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.times import is_number, parse_time
from kvatlas.sim.trace import TRACE_BLOCK, TraceRequest

FIELDS = {
    "timestamp": "when the request came: seconds, or an ISO date",
    "timestamp_ms": "the same in milliseconds",
    "input_length": "prompt tokens",
    "output_length": "generated tokens",
    "hash_ids": "ids of the prompt's blocks, in brackets or with spaces between",
    "session_id": "the conversation",
    "duration": "seconds from the request to the end of its answer",
}
"""Fields of a request, which a mapping assigns to columns."""

TABLES: dict[str, dict[str, str]] = {
    "azure": {"timestamp": "TIMESTAMP", "input_length": "ContextTokens", "output_length": "GeneratedTokens"},
    "burstgpt": {
        "timestamp": "Timestamp",
        "input_length": "Request tokens",
        "output_length": "Response tokens",
        "session_id": "Session ID",
        "duration": "Elapsed time",
    },
}
"""Columns of the known tables, by the tables' names."""

SEPARATORS = (",", ";", "\t", "|")
"""Characters that may separate the columns of a table."""

_REQUIRED = ("input_length", "output_length")
_MODEL = ("Model", "model")


def parse_columns(text: str) -> dict[str, str]:
    """Parse a mapping such as `input_length=Prompt,timestamp=Arrived`. Raises `TraceError`."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, given, column = part.partition("=")
        name, column = name.strip(), column.strip()
        if name not in FIELDS:
            raise TraceError(f"columns: no field {name!r}; {nearest(name, FIELDS)}")
        if not given or not column:
            raise TraceError(f"columns: {name} needs a column: {name}=COLUMN")
        found[name] = column
    return found


def table_of(header: str) -> str | None:
    """The known table with this first line; None for another table."""
    columns = {column.strip().strip('"') for column in header.lstrip("\ufeff").split(",")}
    for name, known in TABLES.items():
        if {known["timestamp"], *(known[field] for field in _REQUIRED)} <= columns:
            return name
    return None


@dataclass(frozen=True, slots=True)
class _Row:
    """Row of a table. Times in seconds."""

    at: float
    prompt: int
    output: int
    ids: tuple[int, ...] | None
    session: str | None
    duration: float | None


def read_table(lines: Iterable[str], how: Conversion, *, kind: str, name: str, where: str) -> Traffic:
    """Read a table of `kind`: a name of `TABLES`, or "csv". Raises `TraceError`."""
    try:
        return _read(lines, how, kind, name, where)
    except csv.Error as error:
        raise TraceError(f"{where} cannot be read as CSV: {error}") from error


def _read(lines: Iterable[str], how: Conversion, kind: str, name: str, where: str) -> Traffic:
    there, table = _open(iter(lines))
    columns = _columns(how, kind, there, where)
    block = how.block or TRACE_BLOCK
    bad = BadRows(where, how.skip_bad)
    model = next((column for column in _MODEL if column in there), None)
    if how.model is not None and model is None:
        raise TraceError(f"{where} has no column {_MODEL[0]!r}: its requests cannot be told apart by model")
    unanswered = 0
    numbers = False  # some times are numbers, of a unit that nothing tells
    rows: list[_Row] = []
    for number, cells in table:
        if how.model is not None and cells.get(model or "") != how.model:
            continue
        try:
            row = _parse(cells, columns, block, how.unit)
        except TraceError as error:
            bad.add(number, error)
            continue
        if kind == "burstgpt" and not row.output:
            unanswered += 1  # those that failed
            continue
        rows.append(row)
        numbers = numbers or is_number(cells.get(columns.get("timestamp", "")))
    # Sessions follow the order of time, in which the rows need not be.
    rows.sort(key=lambda row: row.at)
    guessed = "s" if numbers and how.unit is None else None
    trace = make_trace(_requests(rows, block), name, block, where, bad, guessed)
    return Traffic(trace, kind, _assumptions(columns, unanswered))


def _open(lines: Iterator[str]) -> tuple[list[str], Iterator[tuple[int, Mapping[str, str | None]]]]:
    """The names of the columns, and the rows with their numbers."""
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        return list(_object(first)), _json_rows(itertools.chain([first], lines))
    header = first.lstrip("\ufeff")
    separator = max(SEPARATORS, key=header.count)
    table = csv.DictReader(itertools.chain([header], lines), skipinitialspace=True, delimiter=separator)
    table.fieldnames = [column.strip() for column in table.fieldnames or ()]
    return list(table.fieldnames), _csv_rows(table)


def _csv_rows(table: csv.DictReader[str]) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    for row in table:
        yield table.line_num, row


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, {name: None if value is None else str(value) for name, value in _object(line).items()}


def _object(line: str) -> dict[str, object]:
    """Parse a JSON object; other text gives an empty one, whose row is then refused for missing columns."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _parse(cells: Mapping[str, str | None], columns: Mapping[str, str], block: int, unit: str | None) -> _Row:
    """Parse a row. Raises `TraceError`."""

    def cell(name: str) -> str:
        value = cells.get(columns[name])
        if value is None or not value.strip():
            raise TraceError(f"no {columns[name]!r}")
        return value

    def optional(name: str) -> str:
        return (cells.get(columns[name]) or "").strip() if name in columns else ""

    at = parse_time(cell("timestamp"), unit) if "timestamp" in columns else parse_time(cell("timestamp_ms"), "ms")
    prompt = parse_count(cell("input_length"), columns["input_length"], 1)
    output = parse_count(cell("output_length"), columns["output_length"], 0)
    ids = None
    if "hash_ids" in columns:
        ids = tuple(int(digits) for digits in re.findall(r"\d+", cell("hash_ids")))
        if not prompt // block <= len(ids) <= -(-prompt // block):
            raise TraceError(f"{len(ids)} ids for {prompt} tokens in blocks of {block}: --block-size says their size")
    took = optional("duration")
    return _Row(at, prompt, output, ids, optional("session_id") or None, parse_time(took) if took else None)


def _requests(rows: Iterable[_Row], block: int) -> Iterator[tuple[float, TraceRequest]]:
    """Make requests with their times. Each waits for the one before it in its session, if the end of that is known."""
    ids = Ids()
    prompts: dict[str, tuple[int, ...]] = {}
    ends: dict[str, tuple[int, float]] = {}
    for number, row in enumerate(rows):
        names, full = row.ids, row.prompt // block
        after: tuple[Dependency, ...] = ()
        if names is None:
            before = prompts.get(row.session, ())[:full] if row.session is not None else ()
            names = go_on(before, full, ids)
        if row.session is not None:
            prompts[row.session] = names
            previous = ends.pop(row.session, None)
            if previous is not None and row.at >= previous[1]:
                after = (Dependency(previous[0], round(1000 * (row.at - previous[1]))),)
            if row.duration is not None:
                ends[row.session] = number, row.at + row.duration
        yield row.at, TraceRequest(0, row.prompt, row.output, names, row.session, number, after)


def _columns(how: Conversion, kind: str, there: list[str], where: str) -> dict[str, str]:
    if how.columns is None and kind not in TABLES:
        raise TraceError(
            f"{where} is a table with the columns {', '.join(there[:12])}: say which are which with --columns, such as "
            "timestamp=COLUMN,input_length=COLUMN,output_length=COLUMN"
        )
    columns = dict(how.columns) if how.columns is not None else dict(TABLES[kind])
    if how.columns is None:
        columns = {name: column for name, column in columns.items() if column in there}
    for name in _REQUIRED:
        if name not in columns:
            raise TraceError(f"{where}: --columns must say which column is {name}")
    if how.unit is not None and "timestamp_ms" in columns:
        raise TraceError(f"{where}: --time-unit goes with the field timestamp; timestamp_ms is in milliseconds")
    if ("timestamp" in columns) == ("timestamp_ms" in columns):
        raise TraceError(f"{where}: --columns must say which column is timestamp, or timestamp_ms")
    for name, column in columns.items():
        if column not in there:
            raise TraceError(f"{where} has no column {column!r} for {name}; {nearest(column, there)}")
    return columns


def _assumptions(columns: Mapping[str, str], unanswered: int) -> list[str]:
    lines = []
    if "hash_ids" not in columns:
        lines.append(
            "The table does not say what prompts have in common. Each is taken to begin with the prompt before it in "
            "its session, and to share nothing else."
            if "session_id" in columns
            else "The table does not say what prompts have in common: here they share nothing, so no cache helps."
        )
    if unanswered:
        lines.append(f"{count(unanswered)} requests without an answer were left out.")
    return lines
