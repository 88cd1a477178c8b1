"""Common code of the readers of foreign formats: options, ids of blocks, times, and the order of requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvatlas.errors import TraceError
from kvatlas.sim.times import check_unit
from kvatlas.sim.trace import Trace, TraceRequest

UNKNOWN_OUTPUT = 256
"""Assumed output tokens of a request if its source gives none."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Options of a conversion, for what a source does not record.

    Attributes:
        block: Tokens that an id stands for; None: what suits the source.
        columns: Columns of a table by the names of our fields; None for the columns of a known table.
        model: Use only the requests of this model.
        encode: Text to token ids; None: the text is cut by its characters.
        encode_chat: Messages and tools to token ids; None: as for text.
        session_rate: Sessions that begin in an hour, for sources that do not say when.
        longest_pause: Maximum pause inside a session, in seconds, for sources with people's pauses; longer ones are
            cut.
        seed: Seed of the sessions' beginnings.
        unit: Unit of times that are numbers: one of `kvatlas.sim.times.UNITS`. None: what suits the source.
        skip_bad: Leave malformed rows out and count them.
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
    """Trace made from foreign records, with its source format, the assumptions made, and warnings."""

    trace: Trace
    format: str
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Ids:
    """Ids of blocks by keys that distinguish them, numbered in order of first use."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._next = 0

    def of(self, key: Hashable) -> int:
        """The id of a block."""
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self.new()
        return known

    def new(self) -> int:
        """A fresh id."""
        self._next += 1
        return self._next - 1


def go_on(before: Sequence[int], full: int, ids: Ids) -> tuple[int, ...]:
    """The ids of a prompt of `full` blocks that begins with the blocks `before`, with fresh ids for the others."""
    return (*before[:full], *(ids.new() for _ in range(full - len(before))))


class BadRows:
    """Counter of the malformed rows of a source, which may raise at the first."""

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
    """Make a trace of requests with their times in seconds, in order of time and from 0.

    `guessed`: the unit assumed for times; None if the source names it. Raises `TraceError` if there are no requests, or
    the unit cannot be right.
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
    """Parse a whole number of tokens. Raises `TraceError`."""
    try:
        value = float(str(text).strip())
    except ValueError:
        raise TraceError(f"{name} must be a whole number, not {str(text)[:40]!r}") from None
    if not value.is_integer() or not least <= value < 1 << 31:
        raise TraceError(f"{name} must be a whole number from {least}, not {str(text)[:40]!r}")
    return int(value)
