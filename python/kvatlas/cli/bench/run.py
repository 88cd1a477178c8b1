"""`kvatlas bench run`: a load test of one design at one rate."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit
from rich.console import Console

from kvatlas.cli.bench.options import FILE, plan_options, run_options, run_values
from kvatlas.cli.bench.plan import get_plan, plan_facts
from kvatlas.cli.bench.running import CONTEXT, check_file
from kvatlas.cli.console import console, exit_status
from kvatlas.lab.bench.verdict import judge, parse_time


@click.command(context_settings=CONTEXT, short_help="Run one design at one rate.")
@click.argument("trace", required=False, type=FILE, metavar="[TRACE]")
@click.option(
    "--index",
    default="block-index",
    show_default=True,
    metavar="NAME",
    help="Name of a design, or module:attribute of your own in Python.",
)
@click.option("--rate", type=float, metavar="OPS", help="Offered load, in block operations per second.")
@click.option("--window", metavar="TIME", help="Instead of a rate: duration of the measured part, such as 2s.")
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 0.95),
    default=0.3,
    show_default=True,
    metavar="SHARE",
    help="Share of the plan to run before measuring.",
)
@click.option(
    "--until", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE", help="Share of the plan at which to end."
)
@click.option("--plan", type=FILE, metavar="FILE", help="Run the plan in FILE.")
@click.option("--save-plan", type=FILE, metavar="FILE", help="Save the plan to FILE.")
@click.option("--json", "json_to", metavar="FILE", help="Write the result to FILE as JSON; - for stdout.")
@plan_options
@run_options
@exit_status
def run(trace: Path | None, index: str, json_to: str | None, **options: Any) -> None:
    """Run a plan against one design, and report whether it kept up and how long lookups took.

    TRACE is a JSONL file as for `kvatlas replay`; without it, a workload is generated. The requests of a session go to
    one simulated engine (or several, with --copies). The events of the engines, and one lookup for each request and
    engine, make up the plan.

    Exit status: 0; 1 if the run was invalid, did not keep up or gave wrong answers; 2 if an argument is invalid; 130
    after Ctrl-C.
    """
    import tempfile  # noqa: PLC0415

    from kvatlas.lab.bench.designs import choose_designs  # noqa: PLC0415 - needs the extension
    from kvatlas.lab.bench.programs import run_point  # noqa: PLC0415
    from kvatlas.lab.bench.report import about_plan, examples, print_run, run_rows  # noqa: PLC0415

    rate, window = options["rate"], options["window"]
    if (rate is None) == (window is None):
        raise click.UsageError(
            "One of --rate and --window is required." if rate is None else "Give --rate or --window, not both."
        )
    if rate is not None and not 0 < rate < float("inf"):
        raise click.UsageError(f"--rate must be above 0 block operations per second, got {rate:g}.")
    chosen = choose_designs([index], options["peers"])
    if len(chosen) != 1:
        raise click.UsageError("`run` takes one index. To compare several, use `kvatlas bench sweep`.")
    design = chosen[0]
    asked = {**run_values(options), "warm_up": options["warm_up"]}
    if options["until"] is not None:
        asked["until"] = options["until"]
    asked |= {"rate": rate} if rate is not None else {"window_ns": round(parse_time(window))}
    if json_to not in (None, "-"):
        check_file(Path(str(json_to)))
    with tempfile.TemporaryDirectory(prefix="kvatlas-bench-") as folder:
        plan, path = get_plan(trace, options, Path(folder))
        facts = plan_facts(plan)
        counted = facts["facts"]
        blocks = sum(counted[name] for name in ("lookup_blocks", "stored_blocks", "removed_blocks"))
        seconds = (asked["window_ns"] / 1e9 / (1 - options["warm_up"])) if rate is None else blocks / rate
        del plan
        shown = Console(stderr=True)
        with shown.status(f"{design.name}: about {seconds:.1f} s") if shown.is_terminal else contextlib.nullcontext():
            result = run_point(design.program, path, design.index, asked, seconds=seconds)
    verdict = judge(result, deviates=design.deviates)
    text = json.dumps(result, indent=2)
    if json_to not in (None, "-"):
        Path(str(json_to)).write_text(text + "\n", encoding="utf-8")
    out = console(stderr=json_to == "-")
    out.print(about_plan(facts), highlight=False)
    print_run(run_rows(result, verdict), out)
    for example in examples(result)[:5]:
        out.print(f"  {example}", highlight=False)
    if json_to == "-":
        click.echo(text)
    if not verdict.passed:
        raise Exit(1)
