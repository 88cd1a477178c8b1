"""Every policy on every workload, beside bounds, with an ablation: see README.md.

python -m benchmarks.decisions --requests 3000
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from benchmarks.decisions import plan, report
from benchmarks.decisions.cells import CONVERSATIONS, Cell, kept, run_and_keep, workload_name
from benchmarks.decisions.knee import find_knees
from benchmarks.decisions.picture import draw

_FOLDER = Path("target/decisions")


def _cell(workload: str, policy: str, recorded: int | None, seed: int, **more: Any) -> Cell:
    if workload in plan.CLIENTS:
        workload, clients = plan.CLIENTS[workload]
        more = {"clients": clients, **more}
    if workload in plan.FLEETS:
        workload, engines, block = plan.FLEETS[workload]
        return Cell(workload, policy, seed=seed, engines=engines, block=block, **more)
    if workload.startswith("conversation"):
        return Cell(workload, policy, requests=recorded, **more)  # there is one recorded trace
    if workload == "claude-code":
        return Cell(workload, policy, engines=plan.AGENT_ENGINES, **more)  # a part of its hours would be the empty ones
    return Cell(workload, policy, seed=seed, **more)


def matrix(
    workloads: tuple[str, ...],
    policies: tuple[str, ...],
    recorded: int | None,
    seed: int,
    clients: int | None = None,
    routers: int = 1,
) -> list[Cell]:
    """All cells of the tables, those that matter most first. `clients`: of workloads that have some."""
    plain = [p for p in (plan.OURS, plan.BASE, *plan.OTHERS, *plan.BOUNDS) if not policies or p in policies]
    cells = [_cell(w, p, recorded, seed) for p in plain for w in workloads]
    cells = [c for c in cells if c.workload not in plan.EVENTS or c.policy in (plan.OURS, *plan.LISTENERS)]
    if not policies or plan.OURS in policies:
        cells += [
            _cell(w, plan.OURS, recorded, seed, label=plan.BY_TTL, guess="ttl")
            for w in workloads
            if w.endswith("no-events")
        ]
        cells += [
            _cell(w, plan.OURS, recorded, seed, label=a.name, options=a.options, settings=a.settings)
            for w in plan.ABLATED_ON
            if w in workloads
            for a in plan.ABLATIONS
        ]
    cells += [replace(c, troubles=("all",)) for c in cells if c.workload in plan.TROUBLED and not c.label]
    if clients is not None:
        cells = [replace(c, clients=clients) if c.workload in CONVERSATIONS else c for c in cells]
        cells = list({c.key: c for c in cells}.values())
    return [replace(c, routers=routers) for c in cells]


@click.command()
@click.option("--workload", "workloads", multiple=True, help="Only these. Repeatable.  [default: all]")
@click.option("--policy", "policies", multiple=True, help="Only these. Repeatable.  [default: all, and the bounds]")
@click.option(
    "--recorded", type=click.IntRange(1), help="Only the first N requests of recorded traces.  [default: all]"
)
@click.option("--seed", type=int, default=1000, show_default=True, help="Seed of generated workloads.")
@click.option("--clients", type=click.IntRange(1), help="Clients of workloads that have some.  [default: their own]")
@click.option(
    "--routers", type=click.IntRange(1), default=1, show_default=True, help="Routers that share the requests."
)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--knee/--no-knee", default=True, help="Search the highest load that each policy holds.")
@click.option("--folder", type=click.Path(path_type=Path), default=_FOLDER, show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), help="Also draw the results to this file: .svg or .png.")
@click.option("--tables", is_flag=True, help="Run nothing; print what was found before.")
def main(
    workloads: tuple[str, ...],
    policies: tuple[str, ...],
    recorded: int | None,
    seed: int,
    clients: int | None,
    routers: int,
    processes: int,
    *,
    knee: bool,
    folder: Path,
    picture: Path | None,
    tables: bool,
) -> None:
    """Run the matrix, or what is left of it, and print its tables as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = matrix(workloads or plan.WORKLOADS, policies, recorded, seed, clients, routers)
    if not tables:
        left = [cell for cell in cells if kept(folder, cell) is None]
        with ProcessPoolExecutor(processes) as pool:
            runs = {pool.submit(run_and_keep, folder, cell): cell for cell in left}
            for number, done in enumerate(as_completed(runs), 1):
                cell = runs[done]
                one = done.result()
                click.echo(
                    f"{number}/{len(left)} {workload_name(asdict(cell))} {cell.label or cell.policy}: "
                    f"{one['ttft']['mean']:.2f} s in {one['seconds']:.0f} s",
                    err=True,
                )
    results = [found for cell in cells if (found := kept(folder, cell)) is not None]
    knees = find_knees(folder, recorded, policies, processes, only_kept=tables) if knee else {}
    click.echo(report.tables(results, knees))
    if picture is not None:
        draw(results, picture)


if __name__ == "__main__":
    main()
