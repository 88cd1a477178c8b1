"""`kvatlas bench sweep`: the threshold throughput and the curves of many designs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from kvatlas import _text
from kvatlas.cli import INTERRUPTED
from kvatlas.cli.bench.options import FILE, index_names, limit_options, plan_options, run_options, run_values
from kvatlas.cli.bench.plan import get_plan, plan_facts
from kvatlas.cli.bench.running import (
    CONTEXT,
    check_folder,
    draw_pictures,
    progress_bar,
    same_command,
)
from kvatlas.cli.console import console, exit_status
from kvatlas.lab.bench.verdict import Limit, parse_time


@click.command(context_settings=CONTEXT, short_help="Find the threshold throughput of designs and draw their curves.")
@click.argument("trace", required=False, type=FILE, metavar="[TRACE]")
@click.option(
    "--index", "indexes", default="all", show_default=True, metavar="NAMES", help="all, or names separated by commas."
)
@click.option(
    "--out", type=FILE, default=Path("sweep"), show_default=True, metavar="DIR", help="Directory for the results."
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Repeats of each search and point.  [default: 3; short: 1]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    metavar="S",
    help="Longest window of a point.  [default: 2; short: 0.3]",
)
@click.option("--short", is_flag=True, help="Quick run: one repeat, short windows, three points per curve.")
@click.option("--start", type=float, default=500_000.0, show_default=True, metavar="OPS", help="First rate to try.")
@click.option(
    "--width",
    type=click.FloatRange(0.005, 1),
    metavar="SHARE",
    help="Relative precision of the threshold.  [default: 0.06; short: 0.2]",
)
@click.option("--no-curves", is_flag=True, help="Measure only thresholds, no curves.")
@click.option("--fresh", is_flag=True, help="Repeat measurements that DIR already contains.")
@click.option("--plan", type=FILE, metavar="FILE", help="Run the plan in FILE.")
@click.option("--save-plan", type=FILE, metavar="FILE", help="Save the plan to FILE instead of DIR.")
@limit_options
@plan_options
@run_options
@exit_status
def sweep(trace: Path | None, indexes: str, **options: Any) -> None:
    """Find the threshold throughput of designs and draw their throughput-latency curves.

    Threshold throughput: the highest offered rate, in block operations per second, at which a run is valid, keeps up,
    agrees with the reference, and has its p99 within the limit. Each point runs in a new process; designs take turns.

    Results are written to points.jsonl (each point as soon as it is measured), sweep.json, sweep.html and sweep.png in
    DIR. After Ctrl-C, the same command continues where it stopped.

    Exit status: 0; 1 if no design has a threshold; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    from kvatlas.lab.bench.curve import draw_sweep, sweep_page  # noqa: PLC0415 - needs the extension
    from kvatlas.lab.bench.designs import choose_designs  # noqa: PLC0415
    from kvatlas.lab.bench.journal import Journal  # noqa: PLC0415
    from kvatlas.lab.bench.machine import machine  # noqa: PLC0415
    from kvatlas.lab.bench.programs import Result, run_point  # noqa: PLC0415
    from kvatlas.lab.bench.report import about_plan, print_sweep  # noqa: PLC0415
    from kvatlas.lab.bench.sweep import FRACTIONS, Step, SweepConfig, Sweeper  # noqa: PLC0415

    short = options["short"]
    fractions = () if options["no_curves"] else (0.25, 0.5, 1.0) if short else FRACTIONS
    config = SweepConfig(
        repeats=options["repeats"] or (1 if short else 3),
        seconds=options["seconds"] or (0.3 if short else 2.0),
        width=options["width"] or (0.2 if short else 0.06),
        fractions=fractions,
        start=options["start"],
        limit=Limit(parse_time(options["p99_limit"]), options["p99_of"]),
        options=run_values(options),
        seed=int(options["seed"] or 0),
    )
    designs = {design.name: design for design in choose_designs(index_names(indexes), options["peers"])}
    out: Path = options["out"]
    check_folder(out)
    plan, path = get_plan(trace, options, out)
    facts = plan_facts(plan)
    del plan
    journal_path = out / "points.jsonl"
    if options["fresh"]:
        journal_path.unlink(missing_ok=True)
    journal = Journal(journal_path)
    screen = console()
    screen.print(about_plan(facts), highlight=False)
    if len(journal):
        screen.print(f"{len(journal):,} points are already in {journal_path}: matching ones are not measured again.")

    def measure(index: str, asked: dict[str, object], seconds: float) -> Result:
        return run_point(designs[index].program, path, designs[index].index, asked, seconds=seconds)

    with progress_bar("") as bar:

        def progress(step: Step) -> None:

            bar(f"{step.phase} {step.repeat + 1}: {step.index} at {_text.short(step.rate)}/s", step.share, 1.0)

        sweeper = Sweeper(
            list(designs),
            config,
            facts,
            measure,
            machine(),
            journal=journal,
            deviates=lambda name: designs[name].deviates,
            progress=progress,
        )
        interrupted = False
        try:
            sweeper.run()
        except KeyboardInterrupt:
            interrupted = True
    result = sweeper.result
    again = same_command()
    (out / "sweep.json").write_text(
        json.dumps({**result.as_json(), "command": again}, indent=2) + "\n", encoding="utf-8"
    )
    draw_pictures(out, "sweep", lambda: draw_sweep(result), lambda: sweep_page(result, again))
    print_sweep(result, screen)
    if interrupted:
        click.echo(f"Interrupted. Results so far are kept. To continue: {again}", err=True)
        raise Exit(INTERRUPTED)
    if all(one.threshold is None for one in result.indexes):
        click.echo("Error: no design has a threshold.", err=True)
        raise Exit(1)
