"""Insertion of measured figures into a document: `python -m kvatlas.lab.bench.fill DOCUMENT NAME=FILE...`.

The table of FILE (a sweep.json or grow.json), with the machine of the measurement, replaces the text between `<!-- NAME
-->` and `<!-- end NAME -->`. The rest of the document stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvatlas import _text
from kvatlas.errors import PageError
from kvatlas.lab.bench.machine import about_machine
from kvatlas.lab.bench.report import ns, speed, wrong_words


def fill(text: str, name: str, table: str) -> str:
    """Replace the text between the marks of `name`. Raises `PageError` unless the marks occur exactly once."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise PageError(f"the document must have {begin} and {end} once")
    return pattern.sub(lambda _: f"{begin}\n{table.strip()}\n{end}", text)


def sweep_table(data: dict[str, Any]) -> str:
    """Format the thresholds of a sweep as a Markdown table, highest first.

    If the sweep repeated its searches, the range of their results is included.
    """
    repeats = data["config"]["repeats"]
    found = sorted(data["indexes"], key=lambda one: -(one["threshold"] or 0))
    right = all(one["threshold"] and not one["wrong"] for one in found)
    rows = []
    for one in found:
        half: dict[str, Any] = next((p for p in one["curve"] if p["fraction"] == 0.5 and p["passed"]), {})
        more = "≥ " if one["threshold"] and one["bound_by"] in ("", "invalid") else ""
        star = " \\*" if one["deviates"] else ""
        spread = f"{speed(min(one['searches']))} to {speed(max(one['searches']))}" if one["searches"] else "-"
        rows.append(
            [
                f"`{one['index']}`{star}",
                more + speed(one["threshold"]),
                *([spread] if repeats > 1 else []),
                ns(half.get("service_p50")),
                *([] if right else [wrong_words(one["wrong"], one["compared"]) if one["threshold"] else one["note"]]),
            ]
        )
    ranges = ["of the repeats"] if repeats > 1 else []
    wrong = [] if right else ["wrong"]
    head = ["index", "threshold", *ranges, "p50 in service", *wrong]
    limit = data["config"]["limit"]
    clock = "from the deadline" if limit["clock"] == "deadline" else "in service"
    searches = f"medians of {repeats}" if repeats > 1 else "one search each"
    compared = [one["compared"] for one in found]
    none_wrong = f"Of {min(compared):,} to {max(compared):,} answers of each, none was wrong. " if right else ""
    note = f"p99 {clock} at most {_text.nanoseconds(limit['p99_ns'])}; {searches}. {none_wrong}{_where(data)}"
    return markdown(head, rows) + "\n\n" + note


def grow_table(data: dict[str, Any]) -> str:
    """Format growth as a Markdown table: the smallest and the largest size of each series."""
    points = data["points"]
    heads, columns = [], []
    for one in data["series"]:
        sizes = [p["size"] for p in points if p["series"] == one["name"]]
        least, most = min(sizes), max(sizes)
        heads.append(f"{one['name']} {least:,}; {most:,}")
        columns.append([(one["name"], least), (one["name"], most)])
    names = list(dict.fromkeys(p["index"] for p in points))
    cells = {(p["index"], p["series"], p["size"]): ns(p["p50"]) for p in points}
    rows = [
        [f"`{name}`", *("; ".join(cells.get((name, *where), "-") for where in pair) for pair in columns)]
        for name in names
    ]
    labels = "; ".join(f"{one['name']}: {one['label']}" for one in data["series"])
    parts = [markdown(["index", *heads], rows), f"p50 in service. {labels[:1].upper()}{labels[1:]}."]
    left_out = [
        f"{p['index']} with {p['series']} {p['size']:,} ({p['skipped']})"
        for p in points
        if p["skipped"] and not p["skipped"].startswith("not tried")
    ]
    if left_out:
        parts.append("Left out, and all larger sizes: " + "; ".join(left_out) + ".")
    return "\n\n".join([*parts, _where(data)])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns and rows as a Markdown table."""
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]])


def _where(data: dict[str, Any]) -> str:
    partial = "" if data["complete"] else "Interrupted: partial. "
    return f"{partial}Measured on {about_machine(data['machine'])}."


def main(arguments: Sequence[str]) -> int:
    """Fill in the document given on the command line. Returns the exit status."""
    if len(arguments) < 2 or not all("=" in pair for pair in arguments[1:]):
        print("Error: usage: python -m kvatlas.lab.bench.fill DOCUMENT NAME=FILE...", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        text = path.read_text(encoding="utf-8")
        for pair in arguments[1:]:
            name, _, file = pair.partition("=")
            data = json.loads(Path(file).read_text(encoding="utf-8"))
            text = fill(text, name, sweep_table(data) if "indexes" in data else grow_table(data))
        path.write_text(text, encoding="utf-8")
    except (PageError, OSError, ValueError, KeyError) as error:
        print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
