"""Records of a router's decisions, replayed under other policies with the same requests.

A record is JSON lines, one for each decision, as `kvatlas router --record` writes them:

    {"t": 12.5, "id": 7, "model": "m", "tokens": 4000, "block_size": 16, "hashes": ["9f…", …], "worker": "http://a:8000",
     "cached": 3200, "output": 250, "first_token": 0.41}

`t` is in seconds on the router's clock; `hashes` are the content hashes of the prompt's full blocks; `cached`, `output`
and `first_token` (seconds after `t`) are the outcome, or null if unknown. Records contain no text.

If the router knew a request's session, `session_id`, `after` and `delay` give its dependencies, as in a trace, so that
the record can be replayed in the closed loop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvatlas._hashes import Hashes
from kvatlas._text import count, percent, seconds
from kvatlas.errors import TraceError
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.lab.replay.misbehaviour import EngineReport
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.request import Request
from kvatlas.sim.stepped import SteppedEngine
from kvatlas.sim.trace import Trace, TraceRequest, other_format

RECORDED = "as recorded"
"""Name, in place of a policy, under which the recorded choices are replayed."""

_OUTPUT = 256  # tokens, where the record does not say


@dataclass(slots=True)
class Decisions:
    """Record of a router's decisions, read from a file.

    Attributes:
        trace: The recorded requests, in order of time; an id stands for a block.
        workers: Names of the workers, in order.
        chosen: Number of the worker chosen for each request.
        first_tokens: Measured seconds to the first token, for requests whose record has them.
        cached: Number of cached prompt tokens that engines reported, over all requests with a report.
        cached_of: Number of prompt tokens of the requests with a report.
        left_out: Number of lines left out: another block size or model, no hashes or no worker.
    """

    trace: Trace
    workers: list[str]
    chosen: list[int]
    first_tokens: list[float] = field(default_factory=list)
    cached: int = 0
    cached_of: int = 0
    left_out: int = 0


def read_decisions(path: str | os.PathLike[str], *, model: str | None = None) -> Decisions:
    """Read the decisions for one model with the most frequent block size.

    `model`: the model; None for the one with most decisions. Raises `TraceError` with one line of text.
    """
    rows: list[dict[str, Any]] = []
    bad = 0
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                row = _row(text, f"{path}:{number}") if text.strip() else None
                if row is None:
                    bad += bool(text.strip())
                else:
                    rows.append(row)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TraceError(f"cannot read {path}: {reason}") from error
    if not rows:
        raise TraceError(f"{path} has no decisions with hashes and a worker")
    kinds = [(row["model"], row["block_size"]) for row in rows if model is None or row["model"] == model]
    if not kinds:
        models = sorted({str(row["model"]) for row in rows})
        raise TraceError(f"{path} has no decisions for model {model!r}, but for {', '.join(models)}")
    kind = max(sorted(set(kinds), key=str), key=kinds.count)
    _resolve_after(rows)
    kept = [row for row in rows if (row["model"], row["block_size"]) == kind]
    kept.sort(key=lambda row: float(row["t"]))
    workers = sorted({row["worker"] for row in kept})
    number_of = {name: number for number, name in enumerate(workers)}
    begin = float(kept[0]["t"])
    made = Decisions(Trace([], name=Path(path).name, block=kind[1]), workers, [], left_out=bad + len(rows) - len(kept))
    places = {id(row): place for place, row in enumerate(kept)}
    for place, row in enumerate(kept):
        tokens, block = int(row["tokens"]), kind[1]
        ids = [int(name, 16) for name in row["hashes"][: tokens // block]]
        output = row.get("output")
        when = round((float(row["t"]) - begin) * 1000)
        length = _OUTPUT if output is None else int(output)
        after = _dependencies(row, places)
        session = row.get("session_id")
        made.trace.requests.append(TraceRequest(when, tokens, length, tuple(ids), session, place, after))
        made.chosen.append(number_of[row["worker"]])
        if isinstance(row.get("first_token"), (int, float)):
            made.first_tokens.append(float(row["first_token"]))
        if isinstance(row.get("cached"), int):
            made.cached += row["cached"]
            made.cached_of += tokens
    return made


def about_record(record: Decisions) -> list[str]:
    """Describe the measurements of the router and its engines, in sentences, for comparison with the simulation."""
    lines = []
    if record.first_tokens:
        mean, p99 = float(np.mean(record.first_tokens)), float(np.percentile(record.first_tokens, 99))
        lines.append(
            f"Measured, says the record: first tokens after {seconds(mean)} on average, p99 {seconds(p99)} "
            f"({count(len(record.first_tokens))} requests)."
        )
    if record.cached_of:
        lines.append(f"Engines said that {percent(record.cached / record.cached_of)} of the prompt tokens were cached.")
    if record.left_out:
        lines.append(f"{count(record.left_out)} decisions were left out: of another model or block size, or too brief.")
    return lines


def _resolve_after(rows: Sequence[dict[str, Any]]) -> None:
    """Replace request numbers in dependencies by the rows of these requests.

    Numbers start again when the router restarts, so a number refers to the last row with that number before the row
    that names it.
    """
    last: dict[object, dict[str, Any]] = {}
    for row in rows:
        found = [last[number] for number in row.get("after") or () if number in last]
        row["after"] = [each for each in found if float(each["t"]) <= float(row["t"])]
        last[row.get("id")] = row


def _dependencies(row: dict[str, Any], places: Mapping[int, int]) -> tuple[Dependency, ...]:
    """Find the replayed requests on which a row depends, directly or through rows that are left out."""
    found: dict[int, dict[str, Any]] = {}
    seen: set[int] = set()
    todo = list(row["after"])
    whole = True
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if id(each) in places:
            found[places[id(each)]] = each
        else:
            whole = False
            todo += each["after"]
    if not found:
        return ()
    delay = row.get("delay")
    if not whole or not isinstance(delay, int):
        end = max(float(each["t"]) + float(each.get("took") or 0.0) for each in found.values())
        delay = round(max(0.0, float(row["t"]) - end) * 1000)
    return tuple(Dependency(place, delay) for place in sorted(found))


def _row(text: str, where: str) -> dict[str, Any] | None:
    """Parse a decision; None if a value that a replay needs is missing."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise TraceError(
            f"{where}: not JSON: {other_format(text.encode()) or 'is this a record of a router?'}"
        ) from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: must be an object")
    if "hash_ids" in row and "hashes" not in row:
        raise TraceError(f"{where}: a request of a trace, not a decision of a router: give the file as TRACE")
    row.setdefault("model", None)
    if row.get("rank") and isinstance(row.get("worker"), str):
        row["worker"] = f"{row['worker']}#{row['rank']}"  # each rank has a cache of its own
    for name in ("t", "tokens", "block_size", "worker"):
        if row.get(name) is None:
            return None
    hashes = row.get("hashes")
    if not isinstance(hashes, list):
        return None
    after = row.get("after")
    try:
        ok = after is None or (isinstance(after, list) and all(type(number) is int for number in after))
        ok = ok and isinstance(row.get("session_id"), str | int | None)
        ok = ok and float(row["t"]) >= 0 and int(row["tokens"]) > 0 and int(row["block_size"]) > 0
        ok = ok and all(0 <= int(name, 16) < 1 << 64 for name in hashes)
    except (TypeError, ValueError):
        ok = False
    if not (ok and isinstance(row["worker"], str)):
        raise TraceError(f"{where}: t, tokens, block_size, worker, hashes, session_id or after cannot be what they are")
    return row


class RecordedChoices:
    """Placer that repeats the recorded choices on the simulated engines."""

    name = RECORDED
    uses_index = False

    def __init__(self, chosen: Sequence[int]) -> None:
        self._chosen = chosen

    def choose(
        self,
        request: Request,
        query: Hashes,
        match: IndexMatch | None,
        now: float,
        *,
        without: frozenset[int] = frozenset(),
        waited: float = 0.0,
    ) -> int | None:
        """Choose the engine that represents the recorded worker."""
        return self._chosen[request.number]

    @property
    def waiting(self) -> Sequence[Request]:
        """Empty list, because no request waits in the router (see `Placer`)."""
        return ()

    def avoid(self, request: Request, without: frozenset[int]) -> None:
        pass

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        return ()

    def first_token(self, request: Request, now: float) -> None:
        pass

    def finished(self, request: Request, now: float) -> None:
        pass

    def failed(self, request: Request, now: float) -> None:
        pass

    def observe(self, engines: Sequence[SteppedEngine | EngineReport], now: float) -> None:
        pass

    def joins(self, engine: int, now: float) -> None:
        pass

    def leaves(self, engine: int, now: float) -> None:
        pass
