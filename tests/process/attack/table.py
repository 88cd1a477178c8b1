"""A table of kinds of attack: how often each ran, what it sent and got, and how its connections ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

OUTCOMES = ("2xx", "3xx", "4xx", "5xx", "other", "closed", "silent")


@dataclass
class Line:
    """One kind of attack: how often it ran, what it sent and got, and how its connections ended."""

    without_key: int = 0
    with_key: int = 0
    traffic: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)


def lines(done: dict[str, Line]) -> Iterator[str]:
    """The lines of the table."""
    titles = ("kind", "no key", "key", "sent MiB", "got MiB", *OUTCOMES)
    rows: list[tuple[str, ...]] = [titles]
    for name, line in sorted(done.items()):
        sizes = (f"{line.traffic[way] / (1 << 20):,.1f}" for way in ("sent", "received"))
        counts = (f"{line.outcomes[outcome]:,}" if line.outcomes[outcome] else "" for outcome in OUTCOMES)
        rows.append((name, f"{line.without_key:,}", f"{line.with_key:,}", *sizes, *counts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    for number, row in enumerate(rows):
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *others)).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)
