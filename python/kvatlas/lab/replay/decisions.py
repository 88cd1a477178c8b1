"""A router's record of its decisions: what would another policy have done with the same requests?

The record is JSON lines, one a decision, as `kvatlas router --record` writes them:

    {"t": 12.5, "id": 7, "model": "m", "tokens": 4000, "block_size": 16, "hashes": ["9f…", …], "worker": "http://a:8000",
     "cached": 3200, "output": 250, "first_token": 0.41}

`t` is in seconds on the router's clock; `hashes` are the content hashes of the prompt's full blocks; `cached`, `output`
and `first_token` (seconds after `t`) are what came of it, or null where nobody knows. There is no text in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvatlas._hashes import Hashes
from kvatlas._text import count, percent, seconds
from kvatlas.errors import TraceError
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.sim.request import Request
from kvatlas.sim.stepped import SteppedEngine
from kvatlas.sim.trace import Trace, TraceRequest, other_format

RECORDED = "as recorded"
"""What the replay of the recorded choices is called."""

_OUTPUT = 256  # tokens, where the record does not say


@dataclass(slots=True)
class Decisions:
    """A record, read.

    Attributes:
        trace: Its requests, in order of time; an id stands for a block.
        workers: The workers' names, in order.
        chosen: The number of the worker of each request.
        first_tokens: Measured seconds to the first token, of requests where the record says.
        cached: Tokens that engines said were cached, of all requests that say so.
        cached_of: Prompt tokens of those requests.
        left_out: Lines left out: of another block size or model, without hashes or a worker.
    """

    trace: Trace
    workers: list[str]
    chosen: list[int]
    first_tokens: list[float] = field(default_factory=list)
    cached: int = 0
    cached_of: int = 0
    left_out: int = 0


def read_decisions(path: str | os.PathLike[str], *, model: str | None = None) -> Decisions:
    """Read a record: of one model, and of the block size that most of it has.

    `model`: which one; None: the one that has most decisions. Raises `TraceError` with one line of text.
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
    kept = [row for row in rows if (row["model"], row["block_size"]) == kind]
    kept.sort(key=lambda row: float(row["t"]))
    workers = sorted({row["worker"] for row in kept})
    number_of = {name: number for number, name in enumerate(workers)}
    begin = float(kept[0]["t"])
    made = Decisions(Trace([], name=Path(path).name, block=kind[1]), workers, [], left_out=bad + len(rows) - len(kept))
    for row in kept:
        tokens, block = int(row["tokens"]), kind[1]
        ids = [int(name, 16) for name in row["hashes"][: tokens // block]]
        output = row.get("output")
        when = round((float(row["t"]) - begin) * 1000)
        length = _OUTPUT if output is None else int(output)
        made.trace.requests.append(TraceRequest(when, tokens, length, tuple(ids)))
        made.chosen.append(number_of[row["worker"]])
        if isinstance(row.get("first_token"), (int, float)):
            made.first_tokens.append(float(row["first_token"]))
        if isinstance(row.get("cached"), int):
            made.cached += row["cached"]
            made.cached_of += tokens
    return made


def about_record(record: Decisions) -> list[str]:
    """What the router and its engines really measured, in sentences, to hold the simulated figures against."""
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


def _row(text: str, where: str) -> dict[str, Any] | None:
    """A decision that can be replayed; None for one that says too little."""
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
    try:
        ok = float(row["t"]) >= 0 and int(row["tokens"]) > 0 and int(row["block_size"]) > 0
        ok = ok and all(0 <= int(name, 16) < 1 << 64 for name in hashes)
    except (TypeError, ValueError):
        ok = False
    if not (ok and isinstance(row["worker"], str)):
        raise TraceError(f"{where}: t, tokens, block_size, worker or hashes cannot be what they are")
    return row


class AsRecorded:
    """A placer that repeats the choices of a record: what they come to on the simulated engines."""

    name = RECORDED
    uses_index = False

    def __init__(self, chosen: Sequence[int]) -> None:
        self._chosen = chosen

    def choose(self, request: Request, query: Hashes, match: IndexMatch | None, now: float) -> int | None:
        """The engine that stands for the recorded worker."""
        return self._chosen[request.number]

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        """Nothing ever waits."""
        return ()

    def first_token(self, request: Request, now: float) -> None:
        """See `Placer`."""

    def finished(self, request: Request, now: float) -> None:
        """See `Placer`."""

    def failed(self, request: Request, now: float) -> None:
        """See `Placer`."""

    def observe(self, engines: Sequence[SteppedEngine], now: float) -> None:
        """See `Placer`."""

    def joins(self, engine: int, now: float) -> None:
        """See `Placer`."""

    def leaves(self, engine: int, now: float) -> None:
        """See `Placer`."""
