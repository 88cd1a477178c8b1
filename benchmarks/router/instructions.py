"""Instructions that our own router takes for a request: `python -m benchmarks.router.instructions --help`.

Requests a second depend on what else a machine does; instructions, which callgrind counts, do not. The extension that
is installed is measured, so compare builds of the same profile.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from .__main__ import ROOT, prompts
from .corpora import CORPORA, Corpora
from .fleet import Engines
from .routers import SETUPS, Place, Router

# A request in 50 ms: callgrind makes a router some fifty times slower.
RATE = "20"
NAMED = re.compile(r"\((\d+)\)(?: (.*))?")


def own(path: Path) -> Counter[str]:
    """Instructions of each function itself, of a file of callgrind's, without those of Python's interpreter."""
    names: dict[tuple[str, str], str] = {}
    found: Counter[str] = Counter()
    now, is_call = {"ob": "", "fn": ""}, False
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            what, _, rest = line.rstrip().partition("=")
            if what in {"ob", "cob", "fn", "cfn"} and (named := NAMED.match(rest)):
                kind = what.removeprefix("c")
                name = names.setdefault((kind, named[1]), named[2] or named[1])
                if what == kind:
                    now[kind] = name
            elif what == "calls":
                is_call = True
            elif line[:1].isdigit() or line[:1] in {"+", "-", "*"}:
                if not is_call and "libpython" not in now["ob"]:
                    found[now["fn"]] += int(line.split()[-1])
                is_call = False
    return found


def measure(cell: str, requests: int, warm: int, programs: Path, peers: Path) -> Counter[str]:
    """Instructions of each function of the router while it passes on this many requests of a corpus."""
    corpora = Corpora(programs / "corpora", peers / "tokenizer.json")
    setup = next(one for one in SETUPS if one.name == "kvatlas exact")
    with tempfile.TemporaryDirectory(prefix="kvatlas-router-") as folder:
        out = Path(folder) / "callgrind.out"

        def command(place: Place) -> Sequence[Sequence[str]]:
            tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
            return [[*tool, *setup.command(place)[0], "--http-threads", "1"]]

        slow = dataclasses.replace(setup, command=command, startup=600)
        with (
            Engines(programs / "engine", 2, Path(folder) / "engine.log", setup.model) as engines,
            Router(slow, engines, peers, Path(folder), corpora.model) as router,
        ):
            engines.announce(prompts(setup, corpora))
            time.sleep(2)
            assert router.process is not None
            pid = str(router.process.pid)
            bodies = corpora.bodies(cell, model=setup.model)
            line = [str(programs / "client"), "--port", str(router.port), "--bodies", str(bodies), "--rate", RATE]

            def load(first: int, count: int) -> None:
                more = ["--first-number", str(first), "--requests", str(count), "--connections", "32"]
                said = subprocess.run([*line, *more], capture_output=True, text=True, check=True).stdout
                if any(json.loads(said)["errors"].values()):
                    raise RuntimeError(f"requests failed: {json.loads(said)['first_error']}")

            def control(*what: str) -> None:
                subprocess.run(["callgrind_control", *what, pid], check=True, capture_output=True)

            load(0, warm)
            control("-i", "on")
            load(warm, requests)
            control("-i", "off")
            control("-d")
        return own(next(Path(folder).glob("callgrind.out.*")))


@click.command()
@click.option("--cell", default="1k", show_default=True, type=click.Choice(tuple(CORPORA)), help="The corpus.")
@click.option("--requests", default=500, show_default=True, help="Requests that are counted.")
@click.option("--warm", default=300, show_default=True, help="Requests before those.")
@click.option("--top", default=25, show_default=True, help="Functions that are listed.")
@click.option("--programs", default=ROOT / "target/router-bench", type=click.Path(path_type=Path))
@click.option("--peers", default=ROOT / "target/router-peers", type=click.Path(path_type=Path))
def main(cell: str, requests: int, warm: int, top: int, programs: Path, peers: Path) -> None:
    """Instructions that our own router takes for a request, without those of Python's interpreter beside it."""
    if shutil.which("callgrind_control") is None:
        sys.exit("valgrind is not installed")
    found = measure(cell, requests, warm, programs, peers)
    click.echo(f"{cell}: {found.total() / requests:,.0f} instructions a request")
    for name, count in found.most_common(top):
        click.echo(f"{count / requests:>12,.0f}  {name[:120]}")


if __name__ == "__main__":
    main()
