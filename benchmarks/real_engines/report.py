"""Writes what was measured as tables."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import kvatlas

from .compare import UNEXPLAINED, Tally, tally
from .run import Outcome

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def engines(outcomes: Sequence[Outcome]) -> str:
    """A line for each engine."""
    rows = []
    for outcome in outcomes:
        counted = Tally()
        for sample in outcome.samples:
            counted.add(sample)
        counts = [counted.verdicts[verdict] for verdict in ("equal", "low", "high")]
        rows.append([outcome.engine, outcome.found, counted.total, *counts, counted.wrong])
    return table(["engine", "followed by", "prompts", "equal", "low", "high", "of these unexplained"], rows)


def scenarios(outcomes: Sequence[Outcome]) -> str:
    """A line for each scenario, a column for each engine: equal/all."""
    tallies = [tally(outcome.samples) for outcome in outcomes]
    names = list(dict.fromkeys(name for each in tallies for name in each))
    rows = []
    for name in names:
        found = [each.get(name) for each in tallies]
        rows.append([name, *("" if each is None else f"{each.verdicts['equal']}/{each.total}" for each in found)])
    return table(["equal/all", *(outcome.engine for outcome in outcomes)], rows)


def differences(outcomes: Sequence[Outcome]) -> str:
    """A line for each kind of difference."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for outcome in outcomes:
        for scenario, found in tally(outcome.samples).items():
            for (verdict, cause), count in sorted(found.causes.items()):
                kinds.setdefault((scenario, verdict, cause), []).append(f"{outcome.engine}: {count}")
    if not kinds:
        return "None."
    return table(
        ["scenario", "the index was", "cause", "prompts"], [[*kind, ", ".join(of)] for kind, of in kinds.items()]
    )


def complaints(outcomes: Sequence[Outcome]) -> str:
    """A line for each fault that was tried on each engine."""
    rows = [
        [outcome.engine, row.tried, row.right, "the same" if row.is_right else f"**{row.happened}**"]
        for outcome in outcomes
        for row in outcome.complaints
    ]
    return table(["engine", "tried through the router", "right", "happened"], rows) if rows else "None."


def page(outcomes: Sequence[Outcome]) -> str:
    """All of it."""
    said = [(each.engine, [*each.noted, *each.failed]) for each in outcomes]
    notes = [f"- {engine}: {'; '.join(notes)}." for engine, notes in said if notes]
    parts = [
        f"kvatlas {kvatlas.__version__}, Python {platform.python_version()}, no GPU.",
        "### By engine",
        engines(outcomes),
        "### Prompts predicted right, by scenario",
        scenarios(outcomes),
        "### All differences",
        differences(outcomes),
        "### Faults that were tried",
        complaints(outcomes),
        "### Also noted",
        "\n".join(notes) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def fill(path: Path, text: str) -> None:
    """Puts the tables where a page of the documentation has the last ones."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for results between {BEGIN} and {END}")
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def unexplained(outcomes: Sequence[Outcome]) -> list[str]:
    """Differences that nothing known explains."""
    samples = [(outcome.engine, sample) for outcome in outcomes for sample in outcome.samples]
    return [f"{engine}: {sample}" for engine, sample in samples if sample.cause == UNEXPLAINED]
