"""`kvatlas bench run`: one design, at one rate."""

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


@click.command(context_settings=CONTEXT, short_help="One design, at one rate.")
@click.argument("trace", required=False, type=FILE, metavar="[TRACE]")
@click.option(
    "--index", default="block-index", show_default=True, metavar="NAME", help="Or module:attribute, in Python."
)
@click.option("--rate", type=float, metavar="OPS", help="Block operations a second to offer.")
@click.option("--window", metavar="TIME", help="How long the measured part is to take, instead of a rate, as in 2s.")
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 0.95),
    default=0.3,
    show_default=True,
    metavar="SHARE",
    help="Of the plan, run before measuring.",
)
@click.option("--until", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE", help="Of the plan, where to end.")
@click.option("--plan", type=FILE, metavar="FILE", help="Run this plan.")
@click.option("--save-plan", type=FILE, metavar="FILE", help="Keep the plan.")
@click.option("--json", "json_to", metavar="FILE", help="Write the result as JSON; - for stdout.")
@plan_options
@run_options
@exit_status
def run(trace: Path | None, index: str, json_to: str | None, **options: Any) -> None:
    """Run a plan against one design and say whether it kept up, and how long lookups took.

    TRACE is a JSONL file as `kvatlas replay` reads it; without it a workload is generated. A session's requests go to
    one of the engines (--copies: to several), each engine's share runs through a simulated engine, and what they
    announce comes together with a lookup for each request and engine.

    Exit status: 0; 1 if the run was invalid, did not keep up or was wrong; 2 if something given cannot be used; 130
    after Ctrl-C.
    """
    import tempfile  # noqa: PLC0415

    from kvatlas.lab.bench.designs import choose_designs  # noqa: PLC0415 - needs the extension
    from kvatlas.lab.bench.programs import run_point  # noqa: PLC0415
    from kvatlas.lab.bench.report import about_plan, examples, print_run, run_rows  # noqa: PLC0415

    rate, window = options["rate"], options["window"]
    if (rate is None) == (window is None):
        raise click.UsageError(
            "Give either --rate or --window." if rate is None else "Give --rate or --window, not both."
        )
    if rate is not None and not 0 < rate < float("inf"):
        raise click.UsageError(f"--rate must be above 0 block operations a second, got {rate:g}.")
    chosen = choose_designs([index], options["peers"])
    if len(chosen) != 1:
        raise click.UsageError("`run` takes one index: `kvatlas bench sweep --index all` compares several.")
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
