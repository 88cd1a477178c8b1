"""Reader of tables with one row per request: Azure's LLM traces, BurstGPT, other CSV or JSON lines with named columns.

Most tables have arrival times and lengths, but not the blocks that prompts share. A column of block ids provides these.
With a column of sessions, each prompt is assumed to begin with the previous one of its session. A table with a column
of texts or chats has the complete prompts, and is read like a log.
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
from kvatlas.lab.traffic.chats import TEXT_BLOCK, add_messages, add_text, prompt_traffic
from kvatlas.lab.traffic.source import BadRows, Conversion, Ids, Traffic, go_on, make_trace, parse_count
from kvatlas.lab.traffic.text import Prompt, text_of
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
    "text": "the prompt's text, instead of its blocks",
    "messages": "the prompt as a list of chat messages in JSON, or as a chat request, instead of its blocks",
    "duration": "seconds from the request to the end of its answer",
}
"""Fields of a request, each of which a mapping can assign to a column."""

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
"""Columns of the known tables by field, by the tables' names."""

SEPARATORS = (",", ";", "\t", "|")
"""Characters that may separate the columns of a table."""

_REQUIRED = ("input_length", "output_length")
_CONTENT = ("text", "messages")
_LONGEST = 1 << 30  # characters of a cell with text
_MODEL = ("Model", "model")


def parse_columns(text: str) -> dict[str, str]:
    """Parse a mapping from fields to columns, for example `input_length=Prompt,timestamp=Arrived`.

    Raises `TraceError`.
    """
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
    """Name of the known table with the first line `header`; None for another table."""
    columns = {column.strip().strip('"') for column in header.lstrip("\ufeff").split(",")}
    for name, known in TABLES.items():
        if {known["timestamp"], *(known[field] for field in _REQUIRED)} <= columns:
            return name
    return None


@dataclass(frozen=True, slots=True)
class _Row:
    """Row of a table. Times are in seconds."""

    at: float
    prompt: int
    output: int
    ids: tuple[int, ...] | None
    session: str | None
    duration: float | None


def read_table(lines: Iterable[str], how: Conversion, *, kind: str, name: str, where: str) -> Traffic:
    """Read a table of `kind`: a name in `TABLES`, or "csv". Raises `TraceError`."""
    is_text = how.columns is not None and any(name in how.columns for name in _CONTENT)
    usual = csv.field_size_limit()
    try:
        if is_text:
            csv.field_size_limit(_LONGEST)
        return _read(lines, how, kind, name, where)
    except csv.Error as error:
        raise TraceError(f"{where} cannot be read as CSV: {error}") from error
    finally:
        csv.field_size_limit(usual)


def _read(lines: Iterable[str], how: Conversion, kind: str, name: str, where: str) -> Traffic:
    there, table = _open(iter(lines))
    columns = _columns(how, kind, there, where)
    content = next((field for field in _CONTENT if field in columns), None)
    if content is None and how.encode is not None:
        raise TraceError(f"{where}: a tokenizer is for a column of text: --columns says which is text, or messages")
    block = how.block or (TRACE_BLOCK if content is None else TEXT_BLOCK)
    bad = BadRows(where, how.skip_bad)
    model = next((column for column in _MODEL if column in there), None)
    if how.model is not None and model is None:
        raise TraceError(f"{where} has no column {_MODEL[0]!r}: its requests cannot be told apart by model")
    unanswered = 0
    numbers = False  # some times are numbers, of a unit that nothing tells
    rows: list[_Row] = []
    prompts: list[Prompt] = []
    for number, cells in table:
        if how.model is not None and cells.get(model or "") != how.model:
            continue
        try:
            if content is not None:
                prompts.append(_parse_prompt(cells, columns, how))
                numbers = numbers or is_number(cells.get(columns.get("timestamp", "")))
                continue
            row = _parse(cells, columns, block, how.unit)
        except TraceError as error:
            bad.add(number, error)
            continue
        if kind == "burstgpt" and not row.output:
            unanswered += 1  # those that failed
            continue
        rows.append(row)
        numbers = numbers or is_number(cells.get(columns.get("timestamp", "")))
    guessed = "s" if numbers and how.unit is None else None
    if content is not None:
        return prompt_traffic(prompts, kind, block, name=name, where=where, bad=bad, guessed=guessed)
    # Sessions follow the order of time, in which the rows need not be.
    rows.sort(key=lambda row: row.at)
    trace = make_trace(_requests(rows, block), name, block, where, bad, guessed)
    return Traffic(trace, kind, _assumptions(columns, unanswered))


def _open(lines: Iterator[str]) -> tuple[list[str], Iterator[tuple[int, Mapping[str, str | None]]]]:
    """Read the names of the columns, and the rows with their numbers."""
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
            yield number, {name: None if value is None else text_of(value) for name, value in _object(line).items()}


def _object(line: str) -> dict[str, object]:
    """Parse a JSON object. Other text gives an empty object, whose row is then refused for missing columns."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of a row by the names of fields."""

    cells: Mapping[str, str | None]
    columns: Mapping[str, str]

    def needed(self, name: str) -> str:
        """Text in the cell of a required field. Raises `TraceError` if it is empty."""
        value = self.cells.get(self.columns[name])
        if value is None or not value.strip():
            raise TraceError(f"no {self.columns[name]!r}")
        return value

    def optional(self, name: str) -> str:
        """Text in the cell of an optional field; "" if the table has no column for it."""
        return (self.cells.get(self.columns[name]) or "").strip() if name in self.columns else ""

    def at(self, unit: str | None) -> float:
        """Time of the request, in seconds. Raises `TraceError`."""
        if "timestamp" in self.columns:
            return parse_time(self.needed("timestamp"), unit)
        return parse_time(self.needed("timestamp_ms"), "ms")

    def count(self, name: str, least: int) -> int:
        """Number of tokens in a field, at least `least`. Raises `TraceError`."""
        return parse_count(self.needed(name), self.columns[name], least)

    def duration(self) -> float | None:
        """Seconds to the end of the answer; None if unknown. Raises `TraceError`."""
        took = self.optional("duration")
        return parse_time(took) if took else None


def _parse(cells: Mapping[str, str | None], columns: Mapping[str, str], block: int, unit: str | None) -> _Row:
    """Parse a row. Raises `TraceError`."""
    row = _Cells(cells, columns)
    at, prompt, output = row.at(unit), row.count("input_length", 1), row.count("output_length", 0)
    ids = None
    if "hash_ids" in columns:
        ids = tuple(int(digits) for digits in re.findall(r"\d+", row.needed("hash_ids")))
        if not prompt // block <= len(ids) <= -(-prompt // block):
            raise TraceError(f"{len(ids)} ids for {prompt} tokens in blocks of {block}: --block-size says their size")
    return _Row(at, prompt, output, ids, row.optional("session_id") or None, row.duration())


def _parse_prompt(cells: Mapping[str, str | None], columns: Mapping[str, str], how: Conversion) -> Prompt:
    """Parse a row with a text or a chat; the numbers of tokens may be missing. Raises `TraceError`."""
    row = _Cells(cells, columns)
    made = Prompt(row.at(how.unit), session=row.optional("session_id") or None)
    if row.optional("input_length"):
        made.reported = row.count("input_length", 1)
    if row.optional("output_length"):
        made.output = row.count("output_length", 0)
    if (took := row.duration()) is not None:
        made.end = made.at + took
    if "text" in columns:
        add_text(made, row.needed("text"), how)
    else:
        add_messages(made, *_chat(row.needed("messages"), columns["messages"]), how)
    return made


def _chat(text: str, column: str) -> tuple[list[object], object]:
    """Parse the messages and tools in a cell. Raises `TraceError`."""
    try:
        chat: object = json.loads(text)
    except (ValueError, RecursionError):
        chat = None
    tools: object = None
    if isinstance(chat, dict):
        tools, chat = chat.get("tools"), chat.get("messages")
    if not isinstance(chat, list) or not chat or not all(isinstance(each, dict) for each in chat):
        raise TraceError(f"{column} must be a list of chat messages in JSON, not {text.strip()[:40]!r}")
    return chat, tools


def _requests(rows: Iterable[_Row], block: int) -> Iterator[tuple[float, TraceRequest]]:
    """Convert rows to requests with their times.

    Each request depends on the previous one in its session, if the end of that is known.
    """
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
            "timestamp=COLUMN,input_length=COLUMN,output_length=COLUMN, or timestamp=COLUMN,text=COLUMN"
        )
    columns = dict(how.columns) if how.columns is not None else dict(TABLES[kind])
    if how.columns is None:
        columns = {name: column for name, column in columns.items() if column in there}
    content = [name for name in (*_CONTENT, "hash_ids") if name in columns]
    if len(content) > 1:
        raise TraceError(f"{where}: --columns may say only one of {', '.join(content)}: each is the prompt")
    for name in _REQUIRED:
        if name not in columns and not set(content) & set(_CONTENT):
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
