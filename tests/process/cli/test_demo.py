"""`kvatlas demo`: simulated engines in processes, a router on a port of its own."""

import signal
import subprocess
import sys

import pytest
from tests.support.command import Run


@pytest.mark.slow
def test_policies_in_turn(run: Run) -> None:
    done = run(
        "demo", "--engines", 2, "--seconds", 2, "--request-rate", 2, "--policy", "round-robin", "--policy", "kvatlas"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "Starting 2 simulated engines, one process each; then the router, 2 s with each policy."
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    by_policy = {row[0]: row[1:] for row in rows if row and row[0] in ("round-robin", "kvatlas")}
    assert by_policy.keys() == {"round-robin", "kvatlas"}
    assert all(int(row[0]) > 0 for row in by_policy.values())
    assert "decision" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.slow
def test_why_requests_failed(run: Run) -> None:
    """Prompts that the engine has no room for."""
    flags = ("--engines", 1, "--seconds", 2, "--request-rate", 2, "--cache-tokens", 32, "--policy", "kvatlas")
    done = run("demo", *flags)
    assert done.returncode == 0, done.stderr
    assert "failed)" in done.stdout
    assert "The last failure of kvatlas: " in done.stdout
    assert "status 400" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--engines", 0], "0 is not in the range 1<=x<=64"),
        (["--seconds", 0], "seconds must be above 0 and finite, got 0.0"),
        (["--speed", "inf"], "speed must be above 0 and finite, got inf"),
        (["--seconds", 1e9], "seconds x speed x request_rate are 10,000,000,000 requests; the limit is 1,000,000"),
        (["--cache-tokens", 1], "cache_tokens must be at least one block of 16, got 1"),
        (["--seed", -1], "-1 is not in the range"),
        (["--policy", "kvatlsa"], "no policy 'kvatlsa': did you mean 'kvatlas'"),
        (["--engines", "x"], "'x' is not a valid integer"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_starts(run: Run, args: list[object], words: str) -> None:
    done = run("demo", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_ctrl_c_ends_it_with_a_table() -> None:
    command = [sys.executable, "-u", "-m", "kvatlas.cli", "demo", "--engines", "1", "--policy", "kvatlas"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("Starting 1 simulated engine, ")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stdout.read()
        assert process.stderr.read() == ""
