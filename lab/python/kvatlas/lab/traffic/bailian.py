"""Reader of the usage traces of Alibaba's Bailian, published for Qwen: JSON lines with the blocks of each prompt.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, ...]}

`timestamp` is in seconds, and ids stand for 16 tokens. `parent_chat_id` is the previous request of the conversation, -1
for its first one. The times at which answers ended are unknown, unless `time_to_parent_chat` has the seconds from the
end of the previous answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Traffic, make_trace, parse_count
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.times import parse_time
from kvatlas.sim.trace import TraceRequest

BLOCK = 16
"""Number of tokens in a block of the trace."""

_GAP = "time_to_parent_chat"


def read_chats(lines: Iterable[str], how: Conversion, *, name: str, where: str) -> Traffic:
    """Read a Bailian trace from lines. Raises `TraceError`."""
    bad = BadRows(where, how.skip_bad)
    block = how.block or BLOCK
    rows: list[tuple[float, TraceRequest]] = []
    sessions: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TraceError("an object was expected")
            rows.append(_chat(row, sessions, block, how))
        except TraceError as error:
            bad.add(number, error)
        except (ValueError, RecursionError):
            bad.add(number, TraceError("not JSON"))
    trace = make_trace(rows, name, block, where, bad, "s" if how.unit is None else None)
    assumptions = []
    if not trace.closed and len(sessions) > len(set(sessions.values())):
        assumptions.append("The trace does not say when answers ended: a replay is an open loop.")
    return Traffic(trace, "bailian", assumptions)


def _chat(row: Mapping[str, Any], sessions: dict[str, str], block: int, how: Conversion) -> tuple[float, TraceRequest]:
    for name in ("chat_id", "timestamp", "input_length", "output_length", "hash_ids"):
        if row.get(name) is None:
            raise TraceError(f"no {name!r}")
    try:
        at = parse_time(row["timestamp"], how.unit or "s")
    except TraceError as error:
        raise TraceError(f"timestamp: {error}") from None
    prompt = parse_count(row["input_length"], "input_length", 1)
    output = parse_count(row["output_length"], "output_length", 0)
    ids = row["hash_ids"]
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 1 << 64 for each in ids):
        raise TraceError("hash_ids must be a list of whole numbers from 0")
    if not prompt // block <= len(ids) <= -(-prompt // block):
        raise TraceError(
            f"{len(ids)} hash_ids for input_length {prompt} in blocks of {block}: --block-size says their size"
        )
    own, parent = str(row["chat_id"]), row.get("parent_chat_id")
    above = None if parent in (None, -1, "-1", "") else str(parent)
    known = above in sessions
    if own in sessions:
        raise TraceError(f"two chats have the chat_id {own}")
    sessions[own] = sessions[above] if above is not None and known else own
    after: tuple[Dependency, ...] = ()
    if above is not None and known and row.get(_GAP) is not None:
        gap = parse_time(row[_GAP], how.unit or "s")
        after = (Dependency(above, max(round(1000 * gap), 0)),)
    return at, TraceRequest(0, prompt, output, tuple(ids), sessions[own], own, after)
