"""Measurement of single lookups in an index of a given shape: `python -m kvatlas.lab.bench.probe SHAPE INDEX OPTIONS`.

SHAPE is a `Shape` as JSON; OPTIONS has "seed", "build_seconds", "lookup_seconds", "memory" (maximum bytes of the
process; 0 for no limit) and "options": further options of the design. The result is one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from time import perf_counter, perf_counter_ns
from typing import Any

from kvatlas.lab.bench.child import result_to_stdout
from kvatlas.lab.bench.designs import make_design
from kvatlas.lab.bench.grow import Shape, ShapeColumns, shape_columns

_CHECKED = 64


def run(arguments: Sequence[str]) -> str:
    """Build an index and measure lookups, in this process. Returns the result as JSON."""
    if len(arguments) != 3:
        raise SystemExit("Error: usage: python -m kvatlas.lab.bench.probe SHAPE INDEX OPTIONS")
    options: dict[str, Any] = json.loads(arguments[2])
    _limit_memory(int(options["memory"]))
    columns = shape_columns(Shape(**json.loads(arguments[0])), options["seed"])
    design = make_design(arguments[1])
    if isinstance(design, str):
        from kvatlas._native import probe  # noqa: PLC0415 - what a wrong build says belongs into `_told`

        return probe(
            columns.plan(),
            design,
            json.dumps(options["options"]),
            build_seconds=options["build_seconds"],
            lookup_seconds=options["lookup_seconds"],
        )
    return json.dumps(probe_python(columns, design, options["build_seconds"], options["lookup_seconds"]))


def probe_python(columns: ShapeColumns, design: Any, build_seconds: float, lookup_seconds: float) -> dict[str, Any]:
    """Build and measure a design written in Python, as the native probe does for the other designs."""
    contents, names = columns.contents, columns.names
    found: dict[str, Any] = {"built": True, "events": 0, "blocks": None, "lookups": 0, "wrong": 0, "example": None}
    start = perf_counter()
    for worker, first, length, parent in columns.stores():
        design.store(worker, parent, names[first : first + length], contents[first : first + length])
        found["events"] += 1
        if found["events"] % 64 == 0 and perf_counter() - start > build_seconds:
            found["built"] = False
            break
    found["build_ns"] = round((perf_counter() - start) * 1e9)
    if not found["built"]:
        return found
    asked = [(worker, contents[first : first + length]) for worker, first, length in columns.lookups()]
    for worker, query in asked[:_CHECKED]:
        depth = design.find(query).get(worker, 0)
        if depth != len(query):
            found["wrong"] += 1
            found["example"] = found["example"] or f"worker {worker}: depth {depth}, should be {len(query)}"
    times = []
    begun = perf_counter()
    for _, query in asked:
        before = perf_counter_ns()
        design.find(query)
        times.append(perf_counter_ns() - before)
        if perf_counter() - begun > lookup_seconds:
            break
    times.sort()
    found["lookups"] = len(times)
    found["service"] = {
        "count": len(times),
        **{name: times[min(len(times) - 1, int(len(times) * q))] for name, q in (("p50", 0.5), ("p99", 0.99))},
    }
    return found


def _limit_memory(most: int) -> None:
    if not most:
        return
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    sys.exit(result_to_stdout(run, sys.argv[1:]))
