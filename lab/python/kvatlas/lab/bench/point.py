"""One measurement in a process of its own: `python -m kvatlas.lab.bench.point PLAN INDEX [OPTIONS]`.

PLAN is a file, INDEX a design's name or the `module:attribute` of a user's design in Python, OPTIONS are the options of
the run as JSON. The result is one line of JSON on stdout; any other output of the design goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvatlas.lab.bench.child import result_to_stdout
from kvatlas.lab.bench.designs import make_design


def run(arguments: Sequence[str]) -> str:
    """Measure one point in this process. Returns the result as JSON."""
    if not 2 <= len(arguments) <= 3:
        raise SystemExit("Error: usage: python -m kvatlas.lab.bench.point PLAN INDEX [OPTIONS]")
    from kvatlas._native import Plan, run_plan  # noqa: PLC0415 - what a wrong build says must go where results go

    plan = Plan.load(arguments[0])
    options = arguments[2] if len(arguments) == 3 else "{}"
    strict = '"strict": true' in options  # the run reads them properly, and says what is wrong with them
    return run_plan(plan, make_design(arguments[1], strict=strict), options)


if __name__ == "__main__":
    sys.exit(result_to_stdout(run, sys.argv[1:]))
