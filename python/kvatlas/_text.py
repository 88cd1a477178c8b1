"""Counts, shares and times formatted for people, and hints for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NOTHING = "—"
"""Text for a mean or a share that cannot be computed, for lack of values."""


def closest(name: str, names: Iterable[str]) -> str | None:
    """The name in `names` most similar to a misspelt `name`; None if none is similar."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return near[0] if near else None


def nearest(name: str, names: Iterable[str], *, otherwise: str | None = None) -> str:
    """The end of a message about the unknown `name`: `did you mean 'exact'?`.

    If no name is similar: `otherwise`, or all the names: `it must be one of random, exact`.
    """
    known = list(names)
    near = closest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"it must be one of {', '.join(known)}" if otherwise is None else otherwise


def counted(number: int, word: str) -> str:
    """A number with its noun: `1 worker`, `2 workers`, `1,204 workers`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def count(value: float) -> str:
    """A count for a sentence, exact up to a million: 12031 as `12,031`, 144793823 as `144.8 M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,.0f}"


def short(value: float) -> str:
    """A count for a table or an axis, to three figures: 393970 as `394 k`, 2500000 as `2.5 M`."""
    return _three_figures(value, ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, "")))


def percent(share: float) -> str:
    """A share as text in percent: 0.3734 as `37.3 %`."""
    return f"{100 * share:.1f} %"


def share(part: float, whole: float) -> str:
    """The ratio of a part to a whole as text, `37.3 %`; `—` if the whole is 0."""
    return percent(part / whole) if whole else NOTHING


def nanoseconds(value: float) -> str:
    """A time in nanoseconds as text in the fitting unit, to three figures: 1500 as `1.5 µs`."""
    return _three_figures(value, ((1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1, " ns")))


def milliseconds(value: float) -> str:
    """A time in milliseconds as text, in seconds if above a thousand: `12.5 ms`, `3.2 s`."""
    return f"{value:,.1f} ms" if value < 1000 else f"{value / 1000:,.1f} s"


def seconds(value: float) -> str:
    """A time in seconds as text, to two or three significant figures: `0.31 s`, `12.5 s`, `140 s`."""
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def duration(value: float) -> str:
    """A duration in seconds as text: `45 seconds`, `12 minutes`, `3.5 hours`."""
    if value >= 7200:
        return f"{value / 3600:.1f} hours"
    return f"{value / 60:.0f} minutes" if value >= 120 else f"{value:.0f} seconds"


def _three_figures(value: float, units: tuple[tuple[float, str], ...]) -> str:
    # 999.5 and more would be shown as 1000: the next unit has it as 1.
    size, unit = next((pair for pair in units if value >= 0.9995 * pair[0]), units[-1])
    scaled = value / size
    return f"{scaled:,.0f}{unit}" if scaled >= 99.95 else f"{scaled:.3g}{unit}"
