"""Runs tests again and again on a busy machine, and lists those that fail at least once: `make flaky`.

    python -m tools.flaky --times 20 --load 2 --pytest "tests/process -n 2" --cargo "--test proxying"

Each round runs pytest, cargo, or both, without reruns. Failures are listed with the number of rounds in which they
failed; the output of a round with a failure is kept in target/flaky.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "target" / "flaky"
_PYTEST = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
_CARGO = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", re.MULTILINE)


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Start processes that compute without pause, at the priority of the tests."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def failures(command: list[str], pattern: re.Pattern[str], log: Path) -> list[str]:
    """The tests that fail in one run of a command; its own name if it fails without naming one."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    failed = sorted(set(pattern.findall(done.stdout)))
    if done.returncode and not failed:
        failed = [f"{shlex.join(command)} (exit status {done.returncode})"]
    if failed:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout, encoding="utf-8")
    return failed


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 if a test failed."""
    parser = argparse.ArgumentParser(description="Runs tests again and again on a busy machine.")
    parser.add_argument("--times", type=int, default=20, help="rounds")
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="processes that compute beside the tests")
    parser.add_argument("--pytest", metavar="ARGUMENTS", help="run pytest with these arguments")
    parser.add_argument("--cargo", metavar="ARGUMENTS", help="run `cargo tests` with these arguments")
    given = parser.parse_args(arguments)
    commands: list[tuple[list[str], re.Pattern[str]]] = []
    if given.pytest is not None:
        pytest = [sys.executable, "-m", "pytest", "-q", "-rfE", "--color=no", "--reruns=0", *shlex.split(given.pytest)]
        commands.append((pytest, _PYTEST))
    if given.cargo is not None:
        commands.append((["cargo", "tests", "--color=never", *shlex.split(given.cargo)], _CARGO))
    if not commands:
        parser.error("give --pytest, --cargo, or both")
    counts: Counter[str] = Counter()
    with load(given.load):
        for number in range(1, given.times + 1):
            began = time.monotonic()
            failed = []
            for kind, (command, pattern) in enumerate(commands):
                failed += failures(command, pattern, LOGS / f"{number}-{kind}.log")
            counts.update(failed)
            print(
                f"round {number} of {given.times}: {len(failed)} failed in {time.monotonic() - began:.0f} s", flush=True
            )
            for test in failed:
                print(f"  {test}", flush=True)
    print(f"{len(counts)} tests failed in {given.times} rounds" + (f"; output in {LOGS}" if counts else ""))
    for test, count in counts.most_common():
        print(f"{count:4} {test}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
