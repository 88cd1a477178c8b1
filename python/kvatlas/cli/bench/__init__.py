"""`kvatlas bench`: which design of the index bears how much, on this trace and this machine? One file a command."""

from __future__ import annotations

import click

from kvatlas.cli.bench import grow, plan, run, sweep
from kvatlas.cli.bench.running import InOrder


@click.group(cls=InOrder)
def bench() -> None:
    """Measure designs of the index under a fleet's load, open loop.

    A plan has every lookup and every event of a fleet of simulated engines, each with its time. It is replayed
    against an index by absolute deadlines, on threads that do not wait for answers. A run counts only if it kept its
    schedule (valid), if what was asked was done when it was over (kept up), and if the index then knew what the
    reference knows (agrees).

    Rates are in block operations a second: blocks of queries, blocks stored, blocks removed.
    """


for _command in (plan.plan, run.run, sweep.sweep, grow.grow):
    bench.add_command(_command)
