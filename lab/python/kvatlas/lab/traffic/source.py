"""Common code of the readers of foreign formats: options, ids of blocks, times, and the order of requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvatlas.errors import TraceError
from kvatlas.sim.times import check_unit
from kvatlas.sim.trace import Trace, TraceRequest

UNKNOWN_OUTPUT = 256
"""Assumed number of output tokens of a request if its source has none."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Options of a conversion, for facts that a source does not record.

    Attributes:
        block: Number of tokens that an id stands for; None for a default that depends on the source.
        columns: Columns of a table by the names in `kvatlas.lab.traffic.tables.FIELDS`; None for the columns
            of a known table.
        model: Use only the requests of this model.
        encode: Function from text to token ids; None to cut the text by characters.
        encode_chat: Function from messages and tools to token ids; None to treat them as text.
        session_rate: Sessions that begin per hour, for sources without start times.
        longest_pause: Maximum pause inside a session, in seconds, for sources that include the pauses of people; longer
            ones are cut.
        seed: Seed of the random start times of sessions.
        unit: Unit of numeric times: one of `kvatlas.sim.times.UNITS`; None for a default that depends on the source.
        skip_bad: Leave malformed rows out, and count them.
    """

    block: int | None = None
    columns: dict[str, str] | None = None
    model: str | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    encode_chat: Callable[[Sequence[dict[str, object]], Sequence[dict[str, object]] | None], Sequence[int]] | None = (
        None
    )
    session_rate: float = 48.0
    longest_pause: float = 600.0
    seed: int = 0
    unit: str | None = None
    skip_bad: bool = False


@dataclass(slots=True)
class Traffic:
    """Trace made from a foreign log, with the log's format, the assumptions made, and warnings."""

    trace: Trace
    format: str
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Ids:
    """Ids of blocks by keys that identify them, numbered in order of first use."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._next = 0

    def of(self, key: Hashable) -> int:
        """Id of the block with the key `key`; a new id for a new key."""
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self.new()
        return known

    def new(self) -> int:
        """New id that no other block has."""
        self._next += 1
        return self._next - 1


def go_on(before: Sequence[int], full: int, ids: Ids) -> tuple[int, ...]:
    """Ids of a prompt of `full` blocks that begins with the blocks `before`, with new ids for the other blocks."""
    return (*before[:full], *(ids.new() for _ in range(full - len(before))))


class BadRows:
    """Counter of the malformed rows of a source, which may raise an error at the first one."""

    def __init__(self, where: str, skip: bool) -> None:
        self.where, self.skip = where, skip
        self.count = 0
        self.first: str | None = None

    def add(self, number: int, error: Exception) -> None:
        """Count a malformed row. Raises `TraceError` unless malformed rows are to be left out."""
        message = f"{self.where}, line {number}: {error}"
        if not self.skip:
            raise TraceError(message) from None
        self.count += 1
        self.first = self.first or message


def make_trace(
    requests: Iterable[tuple[float, TraceRequest]],
    name: str,
    block: int,
    where: str,
    bad: BadRows | None = None,
    guessed: str | None = None,
) -> Trace:
    """Make a trace from requests with times in seconds: sorted by time, with times from 0.

    `guessed`: the unit assumed for times; None if the source names it. Raises `TraceError` if there are no requests, or
    the times are implausible for the unit.
    """
    rows = sorted(requests, key=lambda row: row[0])
    if not rows:
        raise TraceError(
            f"{where} holds no requests" + (f" (the first skipped: {bad.first})" if bad and bad.first else "")
        )
    if guessed is not None:
        check_unit([at for at, _ in rows], guessed, where)
    begin = rows[0][0]
    made = [replace(request, timestamp=round(1000 * (at - begin))) for at, request in rows]
    return Trace(
        made, name=name, block=block, skipped=bad.count if bad else 0, first_skipped=bad.first if bad else None
    )


def parse_count(text: object, name: str, least: int) -> int:
    """Parse a whole number of tokens, at least `least`. Raises `TraceError`."""
    try:
        value = float(str(text).strip())
    except ValueError:
        raise TraceError(f"{name} must be a whole number, not {str(text)[:40]!r}") from None
    if not value.is_integer() or not least <= value < 1 << 31:
        raise TraceError(f"{name} must be a whole number from {least}, not {str(text)[:40]!r}")
    return int(value)
