"""Runs clients as people use them against a router and its engines, and says how each case went: `make clients`."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.process.router.running import PLAIN, Router, wait_until
from tests.support.engine import Engine

from . import agents, expected, installing
from .answers import Engines, wait_for_engines

CASES = ("whole", "stream", "tools", "embeddings", "cancelled", "retried", "refused", "unknown model", "broken off")
# Seconds that the engines have to notice that a client has left.
NOTICE = 20.0


@dataclass
class Outcome:
    """The outcome of a case."""

    client: str
    version: str
    case: str
    problem: str | None


def main() -> int:
    parser = argparse.ArgumentParser(prog="make clients", description=__doc__)
    parser.add_argument("--only", default="", help="the beginning of the names of the clients to run")
    only = parser.parse_args().only
    console = Console(width=170)
    outcomes: list[Outcome] = []
    skipped: list[str] = []
    engines = Engines()
    with (
        Engine(behaviour=engines.answer) as first,
        Engine(behaviour=engines.answer) as second,
        Router(first, second, flags=PLAIN) as router,
    ):
        for about, some in (("Python", run_python), ("Node", run_node), ("agents", run_agents)):
            try:
                for outcome in some(router, engines, only):
                    console.print(f"{outcome.client}: {outcome.case}: {outcome.problem or 'ok'}", highlight=False)
                    outcomes.append(outcome)
            except installing.NotInstalledError as error:
                skipped.append(f"{about}: skipped: {error}")
    console.print(table(outcomes))
    for line in skipped:
        console.print(line)
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    for outcome in failed:
        console.print(f"{outcome.client}: {outcome.case}: {outcome.problem}", highlight=False)
    console.print(
        f"{len({outcome.client for outcome in outcomes})} clients, {len(outcomes)} cases, {len(failed)} failed"
    )
    return 1 if failed else 0


def table(outcomes: list[Outcome]) -> Table:
    """A row for each client, and a column for each case."""
    table = Table("client", "version", *CASES)
    for client, version in dict.fromkeys((outcome.client, outcome.version) for outcome in outcomes):
        its = {one.case: one.problem for one in outcomes if one.client == client}
        cells = ["-" if case not in its else "ok" if its[case] is None else "FAILED" for case in CASES]
        table.add_row(client, version, *cells)
    return table


def run_python(router: Router, engines: Engines, only: str) -> Iterator[Outcome]:
    for program in sorted((installing.HERE / "programs").glob("*.py")):
        if program.stem != "cases":
            name = f"tests.process.clients.programs.{program.stem}"
            yield from run_program(
                [*installing.python(program), name, f"http://127.0.0.1:{router.port}", only], router, engines
            )


def run_node(router: Router, engines: Engines, only: str) -> Iterator[Outcome]:
    folder = installing.node()
    names = ("model", "text", "tool", "arguments", "schema", "vector", "refusal")
    wanted = json.dumps({name: getattr(expected, name.upper()) for name in names})
    command = shutil.which("node", path=installing.path(folder)) or "node"
    for program in sorted((folder / "programs").glob("*.mjs")):
        if program.stem != "cases":
            yield from run_program(
                [command, str(program), f"http://127.0.0.1:{router.port}", only, wanted], router, engines
            )


def run_program(command: list[str], router: Router, engines: Engines) -> Iterator[Outcome]:
    """Runs a program, which tells each case in a line, and waits for one before it goes on."""
    wait_for_engines(router)
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, cwd=installing.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            told: dict[str, Any] = json.loads(line)
            problem = told["problem"] or look(told["case"], told["tag"], engines)
            yield Outcome(told["client"], told["version"], told["case"], problem)
            wait_for_engines(router)
            process.stdin.write("\n")
            process.stdin.flush()
        if process.wait():
            log.seek(0)
            yield Outcome(
                " ".join(command[:3]), "", "whole", f"it ended with {process.returncode}: {log.read()[-2000:]}"
            )


def look(case: str, tag: str, engines: Engines) -> str | None:
    """The problem that the engines have with a case that went well for the client."""
    tries = engines.tries[tag]
    if not tag:
        return None
    if case == "cancelled":
        try:
            wait_until(lambda: tag in engines.given_up, "the engine notices that the client has left", NOTICE)
        except AssertionError as error:
            return str(error)
    elif case == "retried" and tries < 4:
        return f"the engines were asked {tries} times, not 4"
    elif case == "refused" and (not tries or tries > len(engines.different[tag])):
        return f"the engines were asked {tries} times for {len(engines.different[tag])} requests"
    return None


def run_agents(router: Router, engines: Engines, only: str) -> Iterator[Outcome]:
    for agent in agents.found(installing.node()):
        if agent.name.startswith(only):
            for case, tag, problem in agents.cases(agent, router, engines):
                yield Outcome(agent.name, agent.version, case, problem or look(case, tag, engines))


if __name__ == "__main__":
    raise SystemExit(main())
