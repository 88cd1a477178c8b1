"""Every policy on every workload, beside bounds, with an ablation: see README.md.

python -m benchmarks.decisions --requests 3000
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from benchmarks.decisions import plan, report
from benchmarks.decisions.cells import Cell, kept, run_and_keep
from benchmarks.decisions.knee import find_knees

_FOLDER = Path("target/decisions")


def matrix(workloads: tuple[str, ...], policies: tuple[str, ...], requests: int | None, seed: int) -> list[Cell]:
    """All cells of the tables, those that matter most first."""
    plain = [p for p in (plan.OURS, plan.BASE, *plan.OTHERS, *plan.BOUNDS) if not policies or p in policies]
    cells = [Cell(w, p, requests=requests, seed=seed) for p in plain for w in workloads]
    cells = [c for c in cells if c.workload not in plan.EVENTS or c.policy in (plan.OURS, *plan.LISTENERS)]
    if not policies or plan.OURS in policies:
        if "no-events" in workloads:
            cells.append(Cell("no-events", plan.OURS, "kvatlas, ttl", requests=requests, seed=seed, guess="ttl"))
        cells += [
            Cell(w, plan.OURS, a.name, a.options, a.settings, seed, requests)
            for w in plan.ABLATED_ON
            if w in workloads
            for a in plan.ABLATIONS
        ]
    return cells


@click.command()
@click.option("--workload", "workloads", multiple=True, help="Only these. Repeatable.  [default: all]")
@click.option("--policy", "policies", multiple=True, help="Only these. Repeatable.  [default: all, and the bounds]")
@click.option("--requests", type=click.IntRange(1), help="Only the first N requests of each.  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of generated workloads.")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--knee/--no-knee", default=True, help="Search the highest load that each policy holds.")
@click.option("--folder", type=click.Path(path_type=Path), default=_FOLDER, show_default=True)
@click.option("--tables", is_flag=True, help="Run nothing; print what was found before.")
def main(
    workloads: tuple[str, ...],
    policies: tuple[str, ...],
    requests: int | None,
    seed: int,
    processes: int,
    *,
    knee: bool,
    folder: Path,
    tables: bool,
) -> None:
    """Run the matrix, or what is left of it, and print its tables as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = matrix(workloads or plan.WORKLOADS, policies, requests, seed)
    if not tables:
        left = [cell for cell in cells if kept(folder, cell) is None]
        with ProcessPoolExecutor(processes) as pool:
            runs = {pool.submit(run_and_keep, folder, cell): cell for cell in left}
            for number, done in enumerate(as_completed(runs), 1):
                cell = runs[done]
                one = done.result()
                click.echo(
                    f"{number}/{len(left)} {cell.workload} {cell.label or cell.policy}: "
                    f"{one['ttft']['mean']:.2f} s in {one['seconds']:.0f} s",
                    err=True,
                )
    results = [found for cell in cells if (found := kept(folder, cell)) is not None]
    knees = find_knees(folder, requests, policies, processes, only_kept=tables) if knee else {}
    click.echo(report.tables(results, knees))


if __name__ == "__main__":
    main()
