"""`kvatlas bench plan`, and the loading or making of the plan of the other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kvatlas.cli.bench.options import FILE, OF_TRACE, PLAN_OPTIONS, plan_config, plan_options
from kvatlas.cli.bench.running import CONTEXT, check_file, progress_bar
from kvatlas.cli.console import console, exit_status


def load_trace(trace: Path | None, options: dict[str, Any]) -> Any:
    """Read the trace in a file, or generate a workload if there is none."""
    from kvatlas.sim import WorkloadConfig, generate, read_trace  # noqa: PLC0415 - slow to import

    if trace is not None:
        read = read_trace(
            trace, skip_bad=options["skip_bad"], limit=options["requests"], unit=options["time_unit"]
        ).check_timed()
        if read.skipped:
            click.echo(f"{read.skipped} malformed lines were skipped; the first: {read.first_skipped}", err=True)
        return read
    for flag in OF_TRACE:
        if options[flag]:
            raise click.UsageError(f"--{flag.replace('_', '-')} requires a TRACE file.")
    return generate(WorkloadConfig(seed=int(options["seed"] or 0), requests=options["requests"] or 4_000))


def get_plan(trace: Path | None, options: dict[str, Any], keep: Path | None) -> tuple[Any, Path]:
    """Make or read the plan of a load test.

    Returns the plan and its file, from which the measuring processes read it.
    """
    from kvatlas._native import Plan  # noqa: PLC0415
    from kvatlas.lab.bench.plan import cached_plan, make_plan, save_plan  # noqa: PLC0415

    if (path := options["plan"]) is not None:
        given = [name for name in (*PLAN_OPTIONS, "requests", *OF_TRACE) if options[name] not in (None, False)]
        if trace is not None or given or options.get("save_plan"):
            what = "TRACE" if trace is not None else f"--{(given or ['save_plan'])[0].replace('_', '-')}"
            raise click.UsageError(f"--plan and {what} are mutually exclusive: the file contains the whole plan.")
        return Plan.load(str(path)), path
    config = plan_config(options)
    source = load_trace(trace, options)
    with progress_bar("requests") as bar:

        def progress(done: int, of: int) -> None:
            bar("plan", done, of)

        if (save := options["save_plan"]) is not None:
            check_file(save)
            plan = make_plan(source, config, progress=progress)
            save_plan(plan, save)
            click.echo(f"Wrote {save}.", err=True)
            return plan, save
        folder = keep or Path()
        return cached_plan(source, config, folder, progress=progress)


def plan_facts(plan: Any) -> dict[str, Any]:
    """The properties of a plan that are written into results."""
    return {"digest": plan.digest, "facts": plan.facts(), "meta": json.loads(plan.meta)}


@click.command(context_settings=CONTEXT, short_help="Make a plan and save it.")
@click.argument("trace", required=False, type=FILE, metavar="[TRACE]")
@click.option("--save-plan", type=FILE, required=True, metavar="FILE", help="File to write the plan to.")
@plan_options
@exit_status
def plan(trace: Path | None, **options: Any) -> None:
    """Make the plan of a trace for `run --plan`, `sweep --plan` and kvatlas-bench-peers, and summarize it."""
    from kvatlas.lab.bench.report import about_plan  # noqa: PLC0415 - needs the extension

    made, _ = get_plan(trace, {**options, "plan": None}, None)
    out = console()
    facts = plan_facts(made)
    out.print(about_plan(facts), highlight=False)
    meta = facts["meta"]
    out.print(
        f"Engines {meta['engine_speed']:.3g} times as fast as the default; "
        f"{meta['refused_requests']:,} requests refused, {meta['preemptions']:,} preemptions. "
        f"Digest {facts['digest']}.",
        highlight=False,
    )
