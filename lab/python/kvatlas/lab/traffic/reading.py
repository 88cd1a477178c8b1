"""Reader of request logs in any known format, named or detected."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from kvatlas._text import nearest
from kvatlas.errors import TraceError
from kvatlas.lab.replay.decisions import read_decisions
from kvatlas.lab.traffic import bailian, claude_code, claude_logs, dynamo, openai, otel, tables, vllm
from kvatlas.lab.traffic.documents import documents
from kvatlas.lab.traffic.schedule import schedule
from kvatlas.lab.traffic.source import Conversion, Traffic
from kvatlas.sim.forms import form_of, sessions_of
from kvatlas.sim.trace import ReadOptions, open_trace, other_format, parse_trace, read_trace_as

FORMATS = {
    "trace": "a trace that kvatlas replay reads: Mooncake's format, or Dynamo's agentic_mooncake",
    "record": "a router's record (kvatlas router --record)",
    "claude-logs": "Claude Code's own logs: .jsonl files, or a directory such as ~/.claude/projects",
    "claude-code": "Claude Code sessions of kv-cache-tester: files or a directory",
    "dynamo": "Dynamo's request trace: files or a directory",
    "bailian": "usage traces of Alibaba's Bailian",
    "otel": "OpenTelemetry's gen_ai spans: OTLP in JSON, or a span a line; files or a directory",
    "azure": "Azure's LLM inference traces (CSV)",
    "burstgpt": "BurstGPT (CSV)",
    "openai": "a log of OpenAI's API: JSON lines with requests, and answers if there are any",
    "vllm": "the text log of a vLLM server with --enable-log-requests",
    "csv": "any other table (CSV, or JSON lines); --columns says which column is which",
}
"""Known formats by name, each with a description in one line."""

SEVERAL = ("claude-logs", "claude-code", "dynamo", "otel")
"""Names of the formats that may consist of several files, or a directory."""

_CLAUDE = ("claude-logs", "claude-code")
_OBJECTS = 50  # at the beginning that are tried for the format
_LOOK = 400  # lines at the beginning that may tell the format
_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def read_traffic(
    paths: Sequence[Path], how: Conversion | None = None, *, kind: str | None = None, limit: int | None = None
) -> Traffic:
    """Read a request log of any known format.

    `kind`: one of `FORMATS`; None to detect the format. `limit`: maximum number of requests. Raises `TraceError` with
    one line of text.
    """
    how = how or Conversion()
    if kind is not None and kind not in FORMATS:
        raise TraceError(f"no format {kind!r}; {nearest(kind, FORMATS)}")
    if kind is None:
        kind = "csv" if how.columns is not None else detect_format(paths[0])
    elif kind in _CLAUDE:
        # Both are sessions of Claude Code, and look quite different.
        kind = found if (found := detect_format(paths[0])) in _CLAUDE else kind
    if kind not in SEVERAL:
        if len(paths) > 1:
            raise TraceError(f"{len(paths)} files of the format {kind}: only {', '.join(SEVERAL)} come in several")
        if paths[0].is_dir():
            raise TraceError(f"{paths[0]} is a directory: only {', '.join(SEVERAL)} come in one (--from says which)")
    traffic = _READERS[kind](paths, how, kind)
    trace = traffic.trace
    if limit is not None and len(trace.requests) > limit:
        traffic.trace = replace(trace, requests=trace.requests[:limit])
    return traffic


def detect_format(path: Path) -> str:
    """Detect the format of a file or directory. Raises `TraceError` for an unknown format."""
    if path.is_dir():
        found = (form for file in _files([path]) if (form := _form(file)) in SEVERAL)
        return next(found, None) or "claude-code"
    with _open_text(path) as file:
        lines = [line for line in islice(file, _LOOK) if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    first = lines[0]
    if (form := _form(path)) is not None:
        return form
    if any(vllm.is_log(line) for line in lines):
        return "vllm"
    if (known := tables.table_of(first)) is not None:
        return known
    if any(each in first for each in tables.SEPARATORS) and not any(bracket in first for bracket in "{}[]"):
        return "csv"
    why = other_format(first.encode())
    raise TraceError(f"{path}: {why or 'no format that is known'}; --from takes {', '.join(FORMATS)}")


def _form(path: Path) -> str | None:
    """Format of a file's first objects; None if unknown."""
    form = None
    for _, text in islice(_documents(path), _OBJECTS):
        row = _json(text)
        if (found := form_of(row)) is not None:
            return found
        form = form or ("trace" if isinstance(row, dict) and row else None)
    return form


def _files(paths: Sequence[Path], suffixes: tuple[str, ...] = _SUFFIXES) -> list[Path]:
    """List the files among the paths, and those in directories, recursively."""
    found = []
    for path in paths:
        if path.is_dir():
            its = sorted(file for file in path.rglob("*") if file.name.endswith(suffixes) and file.is_file())
            found += its
        else:
            found.append(path)
    if not found:
        raise TraceError(f"{paths[0]} has no .json files, and none that end in {', '.join(suffixes)}")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    with open_trace(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        try:
            yield text
        except UnicodeDecodeError as error:
            with path.open("rb") as again:
                what = other_format(again.read(8))
            raise TraceError(f"{path} is not text{f': {what}' if what else ''}") from error


def _all_lines(path: Path) -> Iterator[str]:
    with _open_text(path) as file:
        yield from file


def _lines(path: Path) -> Iterator[str]:
    """Iterate over the lines of a file, or, if it is a single JSON array, over its items."""
    lines = _all_lines(path)
    first = next(lines, "")
    if not first.lstrip().startswith("["):
        yield from chain([first], lines)
        return
    items = _json(first + "".join(lines))
    if not isinstance(items, list) or not items:
        raise TraceError(f"{path} begins like a JSON array, and is none")
    yield from map(json.dumps, items)


def _documents(path: Path) -> Iterator[tuple[int, str]]:
    return documents(_lines(path))


def _read_trace(paths: Sequence[Path], how: Conversion, kind: str) -> Traffic:
    path, reading = paths[0], ReadOptions(how.skip_bad, unit=how.unit, block=how.block, sort=True)
    with open_trace(path) as file:
        array = file.read(1) == b"["
    if array:
        trace = parse_trace(map(str.encode, _lines(path)), name=path.name, where=str(path), how=reading)
    else:
        trace = read_trace_as(path, reading)
    if trace.timed:
        return Traffic(trace, kind)
    return Traffic(
        schedule(trace), kind, ["Requests that wait for others have no times: those of idle engines are taken."]
    )


def _read_record(paths: Sequence[Path], how: Conversion, kind: str) -> Traffic:
    record = read_decisions(paths[0], model=how.model)
    assumptions = []
    if record.left_out:
        assumptions.append(
            f"{record.left_out:,} decisions were left out: of another model or block size, or without hashes."
        )
    return Traffic(record.trace, kind, assumptions)


def _read_sessions(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    files = _files(paths)

    def sessions() -> Iterator[tuple[str, Mapping[str, Any]]]:
        for file in files:
            first: Mapping[str, Any] | None = None
            count = 0
            for count, one in enumerate(_sessions_of_file(file), 1):
                # One that is alone in its file has the file's name; others have their own.
                if first is not None:
                    yield str(first.get("id", f"{file.stem}.1")), first
                    first = None
                if count == 1:
                    first = one
                else:
                    yield str(one.get("id", f"{file.stem}.{count}")), one
            if first is not None:
                yield file.stem, first
            if not count and not how.skip_bad:
                raise TraceError(f"{file} is no Claude Code session of kv-cache-tester")

    return claude_code.read_sessions(sessions(), how, name=paths[0].name, where=str(paths[0]))


def _sessions_of_file(file: Path) -> Iterator[Mapping[str, Any]]:
    for _, text in _documents(file):
        yield from sessions_of(_json(text))


def _read_claude_logs(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    files = ((str(file), _all_lines(file)) for file in _files(paths, (".jsonl", ".jsonl.gz")))
    return claude_logs.read_logs(files, how, name=paths[0].name, where=str(paths[0]))


def _read_dynamo(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    files = ((str(file), _lines(file)) for file in _files(paths))
    return dynamo.read_requests(files, how, name=paths[0].name, where=str(paths[0]))


def _read_otel(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    files = ((str(file), _documents(file)) for file in _files(paths))
    return otel.read_spans(files, how, name=paths[0].name, where=str(paths[0]))


def _read_bailian(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    return bailian.read_chats(_lines(paths[0]), how, name=paths[0].name, where=str(paths[0]))


def _read_table(paths: Sequence[Path], how: Conversion, kind: str) -> Traffic:
    return tables.read_table(_lines(paths[0]), how, kind=kind, name=paths[0].name, where=str(paths[0]))


def _read_openai(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    return openai.read_log(_lines(paths[0]), how, name=paths[0].name, where=str(paths[0]))


def _read_vllm(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    return vllm.read_log(_all_lines(paths[0]), how, name=paths[0].name, where=str(paths[0]))


_READERS: dict[str, Callable[[Sequence[Path], Conversion, str], Traffic]] = {
    "trace": _read_trace,
    "record": _read_record,
    "claude-logs": _read_claude_logs,
    "claude-code": _read_sessions,
    "dynamo": _read_dynamo,
    "bailian": _read_bailian,
    "otel": _read_otel,
    "azure": _read_table,
    "burstgpt": _read_table,
    "csv": _read_table,
    "openai": _read_openai,
    "vllm": _read_vllm,
}
