"""Any traffic that can be read, by its format or by a look at its beginning."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from kvatlas._text import nearest
from kvatlas.errors import TraceError
from kvatlas.lab.replay.decisions import read_decisions
from kvatlas.lab.traffic import claude_code, openai, tables, vllm
from kvatlas.lab.traffic.schedule import schedule
from kvatlas.lab.traffic.source import Conversion, Traffic
from kvatlas.sim.trace import open_trace, other_format, read_trace

FORMATS = {
    "trace": "a trace that kvatlas replay reads: Mooncake's format, or Dynamo's agentic_mooncake",
    "record": "a router's record (kvatlas router --record)",
    "claude-code": "Claude Code sessions of kv-cache-tester: files or a directory",
    "azure": "Azure's LLM inference traces (CSV)",
    "burstgpt": "BurstGPT (CSV)",
    "openai": "a log of OpenAI's API: JSON lines with requests, and answers if there are any",
    "vllm": "the text log of a vLLM server with --enable-log-requests",
    "csv": "any other table (CSV, or JSON lines); --columns says which column is which",
}
"""The formats that can be read, each in a line."""

_LOOK = 400  # lines at the beginning that may tell the format


def read_traffic(
    paths: Sequence[Path], how: Conversion | None = None, *, kind: str | None = None, limit: int | None = None
) -> Traffic:
    """Read traffic of any format.

    `kind`: one of `FORMATS`; None: what it looks like. `limit`: only so many requests. Raises `TraceError` with one
    line of text.
    """
    how = how or Conversion()
    if kind is not None and kind not in FORMATS:
        raise TraceError(f"no format {kind!r}; {nearest(kind, FORMATS)}")
    if kind is None:
        kind = "csv" if how.columns is not None else detect_format(paths[0])
    if kind != "claude-code" and len(paths) > 1:
        raise TraceError(f"{len(paths)} files: only Claude Code sessions come in several")
    traffic = _READERS[kind](paths, how, kind)
    trace = traffic.trace
    if limit is not None and len(trace.requests) > limit:
        traffic.trace = replace(trace, requests=trace.requests[:limit])
    return traffic


def detect_format(path: Path) -> str:
    """The format that a file or directory looks to be. Raises `TraceError` if it looks like none."""
    if path.is_dir():
        return "claude-code"
    with _open_text(path) as file:
        lines = [line for line in islice(file, _LOOK) if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    first = lines[0]
    if first.lstrip().startswith("["):
        first = next(_lines(path))
    row = _json(first)
    if isinstance(row, dict):
        if {"t", "hashes"} <= row.keys():
            return "record"
        if claude_code.is_session(row):
            return "claude-code"
        return "openai" if "hash_ids" not in row and openai.has_request(row) else "trace"
    if first.lstrip().startswith("{") and claude_code.is_session(_json("".join(_all_lines(path)))):
        return "claude-code"
    if any(vllm.is_log(line) for line in lines):
        return "vllm"
    if (known := tables.table_of(first)) is not None:
        return known
    if any(each in first for each in tables.SEPARATORS) and not any(bracket in first for bracket in "{}[]"):
        return "csv"
    why = other_format(first.encode())
    raise TraceError(f"{path}: {why or 'no format that is known'}; --from takes {', '.join(FORMATS)}")


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
    """The lines of a file; of a single JSON array, each of its items."""
    lines = _all_lines(path)
    first = next(lines, "")
    if not first.lstrip().startswith("["):
        yield from chain([first], lines)
        return
    items = _json(first + "".join(lines))
    if not isinstance(items, list) or not items:
        raise TraceError(f"{path} begins like a JSON array, and is none")
    yield from map(json.dumps, items)


def _read_trace(paths: Sequence[Path], how: Conversion, kind: str) -> Traffic:
    trace = read_trace(paths[0], skip_bad=how.skip_bad)
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
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise TraceError(f"{paths[0]} has no .json files")

    def sessions() -> Iterator[tuple[str, dict[str, Any]]]:
        for file in files:
            data = _json("".join(_all_lines(file)))
            if claude_code.is_session(data):
                yield file.stem, data
            elif not how.skip_bad:
                raise TraceError(f"{file} is no Claude Code session of kv-cache-tester")

    return claude_code.read_sessions(sessions(), how, name=paths[0].name, where=str(paths[0]))


def _read_table(paths: Sequence[Path], how: Conversion, kind: str) -> Traffic:
    return tables.read_table(_lines(paths[0]), how, kind=kind, name=paths[0].name, where=str(paths[0]))


def _read_openai(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    return openai.read_log(_lines(paths[0]), how, name=paths[0].name, where=str(paths[0]))


def _read_vllm(paths: Sequence[Path], how: Conversion, _kind: str) -> Traffic:
    return vllm.read_log(_all_lines(paths[0]), how, name=paths[0].name, where=str(paths[0]))


_READERS: dict[str, Callable[[Sequence[Path], Conversion, str], Traffic]] = {
    "trace": _read_trace,
    "record": _read_record,
    "claude-code": _read_sessions,
    "azure": _read_table,
    "burstgpt": _read_table,
    "csv": _read_table,
    "openai": _read_openai,
    "vllm": _read_vllm,
}
