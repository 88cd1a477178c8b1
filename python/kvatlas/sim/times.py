"""Times in traces and logs: numbers in a unit, or dates, with checks that an assumed unit is plausible."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from kvatlas._text import counted
from kvatlas.errors import TraceError

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds of each unit of time, by the unit's name."""

WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

_FEW = 10  # requests that say nothing of the unit
_FASTEST = 200.0  # requests a second, on average
_SLOWEST = 200.0  # seconds between two requests, in the middle
_USUAL = 0.3  # seconds between two requests of the traces that are published
# Seconds since 1970 between 2001 and 2096.
_EPOCH = (1e9, 4e9)


def parse_time(text: object, unit: str | None = None) -> float:
    """Parse a time, in seconds: a number in `unit` (None: guessed from its size), or a date. Raises `TraceError`."""
    if isinstance(text, bool) or text is None:
        raise TraceError(f"{text!r} is no time")
    value = str(text).strip()
    try:
        seconds = float(value) * UNITS[unit or "s"]
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        # Numbers of this size are milliseconds since 1970, or still smaller parts.
        while unit is None and seconds > 1e11:
            seconds /= 1_000
        return seconds
    if (date := parse_date(value)) is not None:
        return date
    raise TraceError(f"{value[:40]!r} is no time: a number of seconds or an ISO date is read")


def parse_date(text: str) -> float | None:
    """Parse an ISO date and time as seconds since 1970 (UTC if no zone is given); None for other text."""
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return when.replace(tzinfo=when.tzinfo or dt.UTC).timestamp()


def is_number(value: object) -> bool:
    """True for a finite number, or a text that is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        return math.isfinite(float(value))
    except (ValueError, OverflowError):
        return False


def unit_of_date(number: float) -> str | None:
    """Name of the unit in which a number is a plausible present-day time since 1970; None if no unit fits."""
    return next((unit for unit, seconds in UNITS.items() if _EPOCH[0] <= number * seconds < _EPOCH[1]), None)


def check_unit(times: Sequence[float], unit: str, where: str) -> None:
    """Check that times are plausible for the unit in which they were read.

    Raises `TraceError` that names the command-line option. `times`: seconds, rising, from numbers read in `unit`.
    `where`: name of the trace in errors.
    """
    if not times:
        return
    duration, first = times[-1] - times[0], times[0] / UNITS[unit]
    # Microseconds since 1970 would be tens of thousands of years in a larger unit.
    if (other := unit_of_date(first)) in ("us", "ns") and other != unit:
        raise TraceError(f"{where} begins at {first:.0f}: {_advice(other, unit)}")
    if len(times) < _FEW or duration <= 0:
        return
    if len(times) / duration > _FASTEST:
        what = f"{counted(len(times), 'request')} within {_length(duration)}"
        gap = duration / len(times)
    else:
        gap = statistics.median([after - before for before, after in pairwise(times) if after > before])
        if gap < _SLOWEST:
            return
        what = f"a request every {_length(gap)}"
    likely = min((each for each in UNITS if each != unit), key=lambda each: _distance(gap / UNITS[unit] * UNITS[each]))
    raise TraceError(f"{where} has {what}: {_advice(likely, unit)}")


def _advice(likely: str, unit: str) -> str:
    return (
        f"are its times in {WORDS[likely]}, not in {WORDS[unit]}? --time-unit {likely} reads them so, "
        f"--time-unit {unit} as they were read now"
    )


def _distance(gap: float) -> float:
    return abs(math.log10(gap / _USUAL))


def _length(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 1_000 else f"{seconds:,.0f} s"
