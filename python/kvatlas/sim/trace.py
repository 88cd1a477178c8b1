"""Request traces in Mooncake's format: one JSON object per line.

    {"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14, 15, ...]}

`timestamp` is in milliseconds (or another unit, if one is given, or a date) and does not decrease. Lengths are in
tokens. `hash_ids` identifies the prompt's blocks of 512 tokens (the last one may be partial); equal ids mean equal
blocks. A line may have a `session_id`, a string or a number: the conversation of the prompt. It may also name the
requests that must end before its request starts (`kvatlas.sim.dependencies`), and list only its new blocks
(`kvatlas.sim.increments`). A file may be compressed with gzip. A smaller `block_size` cuts each trace block into equal
parts, each with content of its own. A first line `{"block_size": 64}` says that an id stands for 64 tokens instead of
512.

The format cannot express two facts: that two prompts diverge *inside* a trace block (the part they share is lost), and
that a later prompt repeats an earlier output (its ids are new).
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from kvatlas import prefix_hashes
from kvatlas._hashes import Hashes
from kvatlas.errors import ConfigError, TraceError
from kvatlas.sim.dependencies import (
    Dependency,
    Header,
    check_dependencies,
    parse_after,
    parse_header,
    parse_id,
)
from kvatlas.sim.forms import DYNAMO, form_of
from kvatlas.sim.hashing import expand, output_blocks, rename
from kvatlas.sim.increments import FIELD as PREFIX
from kvatlas.sim.increments import Increments
from kvatlas.sim.request import Request, cacheable_tokens
from kvatlas.sim.times import UNITS, check_unit, is_number, parse_date, parse_time, unit_of_date

TRACE_BLOCK = 512  # tokens

# One line of a trace of million-token prompts is far below this: whatever is longer is not a trace.
_MAX_LINE = 64 << 20
_MAX_TOKENS = 1 << 31

_COMPRESSED = {
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"PK\x03\x04": "a ZIP archive",
}
_CONVERT = "`kvatlas trace FILE --save trace.jsonl` makes a trace of it"
_NEEDED = ("timestamp", "input_length", "output_length", "hash_ids")
_WANTED = "what is wanted is JSON lines, an object for each request"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Request of a trace: one line of the file."""

    timestamp: int  # milliseconds
    input_length: int  # tokens
    output_length: int  # tokens
    hash_ids: tuple[int, ...]
    session_id: str | int | None = None  # its session, if the trace names one
    id: str | int | None = None  # its id, for requests that wait for it
    after: tuple[Dependency, ...] = ()  # requests that it waits for


@dataclass(slots=True)
class Trace:
    """Trace: requests in the order of their start times."""

    requests: list[TraceRequest]
    name: str = "trace"
    skipped: int = 0  # malformed lines left out
    first_skipped: str | None = None  # error of the first of them
    facts: dict[str, float] = field(default_factory=dict)  # facts from the generator
    block: int = TRACE_BLOCK  # tokens that an id stands for
    timed: bool = True  # False: only requests that wait for nothing have a time

    @property
    def closed(self) -> bool:
        """True if any request depends on another one."""
        return any(request.after for request in self.requests)

    def check_timed(self) -> Trace:
        """Return the trace itself if all of its requests have a time. Raises `TraceError` otherwise."""
        if not self.timed:
            raise TraceError(
                f"{self.name} has no times but those of first requests: kvatlas replay can replay it, and {_CONVERT}"
            )
        return self


def check_block_size(block_size: int, trace_block: int = TRACE_BLOCK) -> int:
    """Number of blocks of `block_size` tokens in a trace block. Raises `ConfigError` unless it is a whole number."""
    if block_size < 1 or trace_block % block_size:
        sizes = [size for size in range(1, trace_block + 1) if trace_block % size == 0]
        raise ConfigError(
            f"block size {block_size} does not divide {trace_block}, the tokens of a trace block: --block-size may be "
            f"{', '.join(map(str, sizes))}"
        )
    return trace_block // block_size


def make_request(line: TraceRequest, number: int, block_size: int, trace_block: int = TRACE_BLOCK) -> Request:
    """Create the request of a trace line, in blocks of `block_size` tokens.

    `trace_block`: number of tokens that an id of the line stands for.
    """
    parts = check_block_size(block_size, trace_block)
    prompt = line.input_length // block_size
    total = cacheable_tokens(line.input_length, line.output_length) // block_size
    known = expand(np.array(line.hash_ids, dtype=np.uint64), parts)[:prompt]
    # Blocks that the ids do not reach, and those with generated tokens in them, are like no others.
    content = np.concatenate([known, output_blocks(number, known.size, total - known.size)])
    # A block hash must tell the whole prefix and nothing else: the prefix hash will do for all engines.
    names: Hashes = prefix_hashes(content)
    request = Request(number, line.input_length, line.output_length, content, names.tolist())
    request.session = None if line.session_id is None else str(line.session_id)
    return request


def use_own_names(request: Request, engine: int) -> None:
    """Give the blocks of `request` the block hashes of engine number `engine`, which has its own hash seed."""
    names = np.array(request.block_hashes, dtype=np.uint64)
    request.block_hashes = rename(names, engine).tolist()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a trace.

    Attributes:
        skip_bad: Leave malformed lines out, and count them.
        limit: Maximum number of requests.
        unit: Unit of the timestamps, one of `kvatlas.sim.times.UNITS`. None: milliseconds, if that is plausible.
        block: Number of tokens that an id stands for, unless the first line gives it. None: 512.
        sort: Accept requests in any order, and sort them by time.
    """

    skip_bad: bool = False
    limit: int | None = None
    unit: str | None = None
    block: int | None = None
    sort: bool = False


def read_trace(
    path: str | os.PathLike[str], *, skip_bad: bool = False, limit: int | None = None, unit: str | None = None
) -> Trace:
    """Read a trace from a file.

    `skip_bad`: leave malformed lines out, and count them. `limit`: maximum number of requests. `unit`: unit of the
    timestamps. Raises `TraceError` with one line of text: the file is missing or not a regular file, has no requests,
    or a line is wrong.
    """
    return read_trace_as(Path(path), ReadOptions(skip_bad, limit, unit))


def read_trace_as(path: Path, how: ReadOptions) -> Trace:
    """Read a trace from a file with the given options. Raises `TraceError`."""
    with open_trace(path) as file:
        return parse_trace(_lines(file), name=path.name, where=str(path), how=how)


@contextmanager
def open_trace(path: Path) -> Iterator[IO[bytes]]:
    """Context manager that opens a file, unpacked if compressed with gzip. Turns errors inside into `TraceError`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            logs = next((file for pattern in ("*.json*", "*/*.json*") for file in path.glob(pattern)), None)
            raise TraceError(f"{path} is a directory, not a trace file{f': {_CONVERT}' if logs is not None else ''}")
        with path.open("rb") as file:
            yield gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def parse_trace(lines: Iterable[bytes], *, name: str, where: str, how: ReadOptions | None = None) -> Trace:
    """Parse a trace from lines. `where`: name of the source, for errors."""
    how = how or ReadOptions()
    trace = Trace([], name=name, block=how.block or TRACE_BLOCK)
    previous = 0
    number = 0
    header: Header | None = None
    prompts = Increments()
    against: str | None = None
    numbers = False  # some times were numbers, of a unit that nothing told
    for number, line in enumerate(lines, 1):
        if how.limit is not None and len(trace.requests) >= how.limit:
            break
        if not line.strip():
            continue
        try:
            row = _parse_object(line)
            if "schema" in row and row["schema"] not in DYNAMO and header is None and not trace.requests:
                header = parse_header(row, _number)
                trace.block, trace.timed = header.block, False
                if (against := _contradiction(trace.block, how, header)) is not None:
                    break
                continue
            if row.keys() == {"block_size"} and not trace.requests:
                trace.block = _number(row, "block_size", 1, 1 << 20)
                if (against := _contradiction(trace.block, how, None)) is not None:
                    break
                continue
            request = _parse_row(row, header, trace.block, how.unit, prompts)
            if header is None and request.timestamp < previous and not how.sort:
                raise TraceError(
                    f"timestamp {request.timestamp} is earlier than the previous one, {previous}: `kvatlas trace FILE "
                    "--save trace.jsonl` puts requests in order"
                )
        except TraceError as error:
            message = f"{where}, line {number}: {error}"
            if not trace.requests and str(error).startswith("no '"):
                message += ": if it is called otherwise, `kvatlas trace FILE --columns` says how"
            if not how.skip_bad:
                raise TraceError(message) from None
            trace.skipped += 1
            trace.first_skipped = trace.first_skipped or message
            continue
        previous = request.timestamp
        numbers = numbers or type(row.get("timestamp")) is not str
        trace.requests.append(request)
    if against is not None:
        raise TraceError(f"{where}: {against}")
    if not trace.requests:
        if trace.skipped:
            raise TraceError(
                f"no line of {where} is a request ({trace.skipped} skipped; the first: {trace.first_skipped})"
            )
        raise TraceError(f"{where} is empty" if number == 0 else f"{where} holds no requests")
    if how.sort and header is None:
        trace.requests.sort(key=lambda request: request.timestamp)
    if header is None and numbers and how.unit is None:
        check_unit([request.timestamp / 1000 for request in trace.requests], "ms", where)
    if trace.closed:
        check_dependencies(trace.requests, where)
    return trace


def _contradiction(told: int, how: ReadOptions, header: Header | None) -> str | None:
    """Advice to leave out an option that contradicts a trace's first line; None without a contradiction.

    `told`: tokens of an id according to the first line. `header`: the first line of an `agentic_mooncake` trace.
    """
    if how.block not in (None, told):
        return f"the file says that its ids stand for {told} tokens: leave out --block-size"
    if header is not None and how.unit not in (None, "ms"):
        return "its times are in milliseconds: leave out --time-unit"
    return None


def parse_line(line: bytes) -> TraceRequest:
    """Parse one line of Mooncake's format. Raises `TraceError` that names the fault of an invalid line."""
    return _parse_row(_parse_object(line), None, TRACE_BLOCK, None, Increments())


def _parse_object(line: bytes) -> dict[str, object]:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise TraceError(f"not text ({other_format(line) or 'is this a JSONL file?'})") from None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        advice = f" ({_CONVERT}, if it is a log)" if line.strip() == b"{" else ""
        raise TraceError(f"not JSON: {other_format(line) or _brief(error)}{advice}") from None
    if not isinstance(row, dict):
        raise TraceError(f"a JSON object was expected, not {_kind(row)}")
    return row


def _parse_row(
    row: dict[str, object], header: Header | None, block: int, unit: str | None, prompts: Increments
) -> TraceRequest:
    if header is None and ("chat_id" in row or not all(name in row for name in _NEEDED)):
        raise TraceError(_foreign(row))
    if header is None:
        timestamp = _timestamp(row, unit)
    else:
        timestamp = _number(row, "not_before_ms", 0, 1 << 53) if row.get("not_before_ms") is not None else 0
    input_length = _number(row, "input_length", 1, _MAX_TOKENS)
    output_length = _number(row, "output_length", 0, _MAX_TOKENS)
    ids = _field(row, "hash_ids")
    if not isinstance(ids, list):
        raise TraceError(f"hash_ids must be a list, not {_kind(ids)}")
    for position, value in enumerate(ids):
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise TraceError(f"hash_ids[{position}] must be a whole number from 0 to 2**64 - 1, not {_show(value)}")
    if PREFIX in row:
        ids = prompts.spell_out(row, ids, input_length, block)
    full, needed = input_length // block, -(-input_length // block)
    if not full <= len(ids) <= needed:
        raise TraceError(
            f"{len(ids)} hash_ids for input_length {input_length}, which has {needed} blocks of {block}"
            f"{_other_block(len(ids), input_length, block)}"
        )
    session = parse_id(row, "session_id")
    its = tuple(ids)
    prompts.note(row, its)
    names = header.global_ids(row, its) if header is not None else its
    own = parse_id(row, "id" if header is None else "request_id")
    return TraceRequest(timestamp, input_length, output_length, names, session, own, parse_after(row, _number))


def _foreign(row: dict[str, object]) -> str:
    """Text of an error for an object that is not a request of a trace, with advice on foreign formats."""
    form = form_of(row)
    if form == "record":
        return "a decision of a router's record, not a request of a trace: use --decisions"
    if form is not None:
        return f"no request of a trace, but of the form {form}: {_CONVERT}"
    missing = next((name for name in _NEEDED if name not in row), "hash_ids")
    return f"no {missing!r}"


def _other_block(ids: int, length: int, block: int) -> str:
    """Advice, for an error, if a prompt's number of ids suggests another block size; "" otherwise."""
    likely = [size for size in (16, 32, 64, 128, 256, 512, 1_024, 2_048) if length // size <= ids <= -(-length // size)]
    if not ids or not likely or block in likely:
        return ""
    return (
        f": if an id stands for {likely[-1]} tokens, `kvatlas trace FILE --block-size {likely[-1]} --save trace.jsonl` "
        "makes a trace that says so"
    )


def _timestamp(row: dict[str, object], unit: str | None) -> int:
    """Parse the time of a row, a number or a date, as milliseconds. Raises `TraceError`."""
    value = _field(row, "timestamp")
    if isinstance(value, str) and (date := parse_date(value.strip())) is not None and not is_number(value):
        return round(date * 1000)
    if unit is None:
        try:
            return _number(row, "timestamp", 0, 1 << 53)
        except TraceError as error:
            if not is_number(value) or float(str(value)) < 0:
                raise
            likely = unit_of_date(float(str(value)))
            units = f"--time-unit {likely}" if likely else f"--time-unit with {', '.join(UNITS)}"
            raise TraceError(f"{error}: {units} says what it is, and fractions are read then") from None
    time = round(parse_time(value, unit) * 1000) if is_number(value) else -1
    if not 0 <= time <= 1 << 53:
        raise TraceError(f"timestamp must be a number from 0, or a date, not {_show(value)}")
    return time


def other_format(line: bytes) -> str | None:
    """Guess the format of a line that is not JSON. Returns advice for an error; None if no known format is likely."""
    for magic, name in _COMPRESSED.items():
        if line.startswith(magic):
            return f"the file is {name}: unpack it first"
    if line.startswith(b"PAR1"):
        return f"the file is in Parquet; {_WANTED}"
    if line.strip() in (b"[", b"[{"):
        return f"the file is a single JSON array; {_WANTED} ({_CONVERT})"
    if any(separator in line for separator in b",;\t") and not any(bracket in line for bracket in b"{}[]"):
        return "the file looks like CSV: `kvatlas trace FILE --save trace.jsonl` makes a trace of it"
    return None


def write_trace(path: str | os.PathLike[str], requests: Sequence[TraceRequest], block: int = TRACE_BLOCK) -> None:
    """Write a trace whose ids stand for `block` tokens each, compressed if `path` ends in ".gz". Raises `OSError`."""
    opened = gzip.open if Path(path).suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        if block != TRACE_BLOCK:
            file.write(json.dumps({"block_size": block}) + "\n")
        for r in requests:
            row: dict[str, object] = {
                "timestamp": r.timestamp,
                "input_length": r.input_length,
                "output_length": r.output_length,
                "hash_ids": list(r.hash_ids),
            }
            if r.session_id is not None:
                row["session_id"] = r.session_id
            if r.id is not None:
                row["id"] = r.id
            if len({each.delay for each in r.after}) > 1 or any(each.on_start for each in r.after):
                row["dependencies"] = [
                    {
                        "request_id": each.id,
                        "trigger": "dispatch" if each.on_start else "completion",
                        "delay_ms": each.delay,
                    }
                    for each in r.after
                ]
            elif r.after:
                row["after"] = [each.id for each in r.after]
                row["delay"] = r.after[0].delay
            file.write(json.dumps(row) + "\n")


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    # A file without line ends (a disk image, /dev/zero) must not fill the memory.
    read: Callable[[int], bytes] = file.readline  # type: ignore[attr-defined]
    while line := read(_MAX_LINE):
        if len(line) == _MAX_LINE:
            yield line[:0] + b"\xff"
            return
        yield line


def _field(row: dict[str, object], name: str) -> object:
    try:
        return row[name]
    except KeyError:
        raise TraceError(f"no {name!r}") from None


def _number(row: dict[str, object], name: str, low: int, high: int) -> int:
    value = _field(row, name)
    # Some writers give whole numbers as 12.0.
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise TraceError(f"{name} must be a whole number, not {_show(value)}")
    if not low <= value <= high:
        raise TraceError(f"{name} must be from {low} to {high}, not {value}")
    return value


def _kind(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _show(value: object) -> str:
    text = json.dumps(value) if isinstance(value, (str, int, float, bool, type(None))) else _kind(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _brief(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:80]
