"""`kvatlas bench`: measurement of the load that each design of the index sustains. One file per command."""

from __future__ import annotations

import click

from kvatlas.cli.bench import grow, plan, run, sweep
from kvatlas.cli.bench.running import OrderedGroup


@click.group(cls=OrderedGroup)
def bench() -> None:
    """Measure designs of the index under the load of a fleet (open loop).

    A plan contains every lookup and every event of a fleet of simulated engines, each with its time. Its operations are
    issued to an index at absolute deadlines, by threads that do not wait for answers. A run counts only if it kept
    its schedule (valid), if no work was left at its end (kept up), and if the index then equals the reference (agrees).

    Rates are in block operations per second: blocks queried, stored and removed.
    """


for _command in (plan.plan, run.run, sweep.sweep, grow.grow):
    bench.add_command(_command)
