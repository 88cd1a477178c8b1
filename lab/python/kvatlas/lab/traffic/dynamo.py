"""Reader of Dynamo's request trace (`DYN_REQUEST_TRACE=1`): one record per request, with hashes of its prompt's blocks.

A record has the schema `dynamo.request.trace.v1`, or an older one, and is a whole object or its field `event`. Records
of the type `request_end` are requests; others (tools, payloads) are left out. A hash covers `replay.trace_block_size`
tokens and all tokens before them; the last hash may cover a partial block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvatlas._text import count
from kvatlas.errors import TraceError
from kvatlas.lab.traffic.source import BadRows, Conversion, Traffic, make_trace
from kvatlas.lab.traffic.turns import Turn, link_turns
from kvatlas.sim.forms import DYNAMO
from kvatlas.sim.trace import TraceRequest

# A session may have several agents, each with a trajectory (a program, in older records) of its own.
_SESSIONS = ("trajectory_id", "program_id", "session_id")
_PARENTS = ("parent_trajectory_id", "parent_program_id", "parent_session_id")


def read_requests(files: Iterable[tuple[str, Iterable[str]]], how: Conversion, *, name: str, where: str) -> Traffic:
    """Read Dynamo's records from the lines of named files. Raises `TraceError`."""
    bad = BadRows(where, how.skip_bad)
    turns: list[Turn] = []
    block = others = 0
    for file, lines in files:
        bad.where = file
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = _record(line)
                if record.get("event_type") != "request_end":
                    others += 1
                    continue
                request = _object(record, "request")
                if how.model is not None and request.get("model") != how.model:
                    continue
                size = _number(_object(request, "replay", _NO_HASHES), "request.replay.trace_block_size", 1)
                if block and size != block:
                    raise TraceError(
                        f"request.replay.trace_block_size is {size}, before it was {block}: --model takes the requests "
                        "of one model"
                    )
                turns.append(_turn(record, request, size))
                block = size
            except TraceError as error:
                bad.add(number, error)
    trace = make_trace(link_turns(turns), name, block or 1, where, bad)
    assumptions = [f"{count(others)} records of other kinds than request_end were left out."] if others else []
    return Traffic(trace, "dynamo", assumptions)


_NO_HASHES = ": Dynamo records hashes where the model's block size is known"


def _record(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError("not JSON") from None
    record = row.get("event", row) if isinstance(row, dict) else row
    if not isinstance(record, dict) or record.get("schema") not in DYNAMO:
        raise TraceError(f"no record of the schema {' or '.join(DYNAMO)}")
    return record


def _turn(record: Mapping[str, Any], request: Mapping[str, Any], block: int) -> Turn:
    replay = request["replay"]
    prompt = _number(replay, "request.replay.input_length", 1)
    hashes = replay.get("input_sequence_hashes")
    if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise TraceError("request.replay.input_sequence_hashes must be a list of whole numbers")
    if not prompt // block <= len(hashes) <= -(-prompt // block):
        raise TraceError(
            f"{len(hashes)} request.replay.input_sequence_hashes for input_length {prompt} in blocks of {block}"
        )
    output = _number(request, "request.output_tokens", 0) if request.get("output_tokens") is not None else 0
    took = request.get("total_time_ms")
    seconds = float(took) / 1000 if isinstance(took, (int, float)) and took >= 0 else None
    if request.get("request_received_ms") is not None:
        at = _number(request, "request.request_received_ms", 0) / 1000
        end = at + seconds if seconds is not None else _number(record, "event_time_unix_ms", 0) / 1000
    else:
        end = _number(record, "event_time_unix_ms", 0) / 1000
        at = end - (seconds or 0.0)
    context = record.get("agent_context")
    context = context if isinstance(context, dict) else {}
    session, parent = (_first(context, names) for names in (_SESSIONS, _PARENTS))
    # Some writers have signed hashes.
    names = tuple(each & 0xFFFF_FFFF_FFFF_FFFF for each in hashes)
    return Turn(at, max(end, at), TraceRequest(0, prompt, output, names, session), parent)


def _first(context: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((str(context[name]) for name in names if context.get(name) is not None), None)


def _object(row: Mapping[str, Any], name: str, why: str = "") -> Mapping[str, Any]:
    value = row.get(name)
    if not isinstance(value, dict):
        raise TraceError(f"no {name!r}{why}" if value is None else f"{name} must be an object, not {value!r:.40}")
    return value


def _number(row: Mapping[str, Any], path: str, least: int) -> int:
    value = row.get(path.rpartition(".")[2])
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value < 1 << 53:
        raise TraceError(f"{path} must be a whole number from {least}, not {value!r:.40}")
    return value
