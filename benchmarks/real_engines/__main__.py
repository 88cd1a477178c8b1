"""Runs the comparison: `python -m benchmarks.real_engines --help`."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path

import click

from . import mooncake, report
from .compare import Sample
from .complaints import Row
from .install import CannotInstall, Product, install
from .run import Outcome, Run

VERSIONS = ("0.33.0", "0.32.0", "0.31.0", "0.27.1", "0.22.1", "0.18.1", "0.14.1", "0.11.0.post2")
ENGINES = (
    *(f"vllm-{version}" for version in VERSIONS),
    "sglang-0.5.23",
    f"mooncake-{mooncake.VERSION}",
)
PARTS = ("two", "hybrid", "ranks", "images", "agents", "offload", "pulls", "complaints")
PRODUCTS: dict[str, Product] = {"vllm": "vLLM", "sglang": "SGLang"}


@click.command()
@click.option("--engine", "chosen", multiple=True, help="PRODUCT-VERSION; if not given: " + ", ".join(ENGINES))
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Some parts; all if not given.")
@click.option("--seed", default=1, show_default=True, help="Chooses the prompts.")
@click.option("--install-only", is_flag=True, help="Install, and run nothing.")
@click.option("--resume", is_flag=True, help="Take the results in HOME of engines that were run before.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("target/real-engines"),
    show_default=True,
    help="Where engines, models, logs and results are kept.",
)
@click.option(
    "--docs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A page whose results to replace."
)
def main(
    chosen: tuple[str, ...],
    only: tuple[str, ...],
    seed: int,
    home: Path,
    docs: Path | None,
    *,
    install_only: bool,
    resume: bool,
) -> None:
    """Compares what the index says of real engines with what they reuse. See benchmarks/real_engines/README.md."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines are ended on the way out
    home = home.resolve()
    results = home / "results"
    results.mkdir(parents=True, exist_ok=True)
    outcomes = []
    failed: list[str] = []
    for name in chosen or ENGINES:
        product, _, version = name.partition("-")
        if product == "mooncake" and version:
            failed += _store(home, version, seed, install_only=install_only)
            continue
        if product not in PRODUCTS or not version:
            raise click.BadParameter(
                f"{name} is not like vllm-0.32.0, sglang-0.5.23 or mooncake-0.3.13", param_hint="--engine"
            )
        path = results / f"{name}.json"
        if resume and path.exists() and not install_only:
            outcomes.append(_read(path))
            continue
        try:
            engine = install(PRODUCTS[product], version, home, click.echo)
        except CannotInstall as error:
            outcomes.append(Outcome(f"{PRODUCTS[product]} {version}", failed=[f"was not installed: {error}"]))
            continue
        if not install_only:
            outcome = Run(engine, home, seed, click.echo).all(only)
            outcomes.append(outcome)
            path.write_text(json.dumps(dataclasses.asdict(outcome), indent=1), encoding="utf-8")
    if not outcomes:
        for each in failed:
            click.echo(each, err=True)
        sys.exit(1 if failed else 0)
    page = report.page(outcomes)
    (home / "report.md").write_text(page, encoding="utf-8")
    if docs is not None:
        report.fill(docs, page)
    click.echo(f"\n{page}")
    wrong = failed + report.unexplained(outcomes)
    for each in wrong:
        click.echo(f"unexplained: {each}", err=True)
    for row in (row for outcome in outcomes for row in outcome.complaints if not row.is_right):
        click.echo(f"{row.tried}: {row.happened}, not {row.right}", err=True)
        wrong.append(row.tried)
    if wrong or any(outcome.failed for outcome in outcomes):
        sys.exit(1)


def _store(home: Path, version: str, seed: int, *, install_only: bool) -> list[str]:
    """Try Mooncake's store. Returns what was wrong."""
    try:
        if install_only:
            mooncake.install(home, version, click.echo)
            return []
        return mooncake.run(home, version, seed, click.echo)
    except mooncake.MooncakeError as error:
        return [f"mooncake {version}: {error}"]


def _read(path: Path) -> Outcome:
    found = json.loads(path.read_text(encoding="utf-8"))
    samples = [Sample(**each) for each in found["samples"]]
    return Outcome(**found | {"samples": samples, "complaints": [Row(**each) for each in found.get("complaints", ())]})


if __name__ == "__main__":
    main()
