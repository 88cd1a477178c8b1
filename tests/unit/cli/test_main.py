"""`kvatlas` itself."""

import os
import subprocess
import sys

import pytest
from tests.support.command import Run

import kvatlas
from kvatlas.cli import COMMANDS, main, query


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"kvatlas, version {kvatlas.__version__}\n"


def test_the_package_can_be_run() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "kvatlas", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"kvatlas, version {kvatlas.__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(run: Run, flag: str) -> None:
    done = run(flag)
    assert done.returncode == 0
    groups = [line for line in done.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == ["Options:", "Run:", "Ask:", "Simulate:", "Measure:"]
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("args", [[], ["bench"], *([name] for name in COMMANDS)])
def test_help_is_whole_in_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*args, "--help").stdout.splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("...")]


def test_a_wrong_command_names_the_nearest(run: Run) -> None:
    done = run("reply")
    assert done.returncode == 2
    assert "No such command 'reply'. Did you mean 'replay'?" in done.stderr
    assert "Did you mean" not in run("xyz").stderr


def test_ctrl_c_where_a_command_does_not_see_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(query, "asking", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["query", "--tokens", "1"])
    assert ended.value.code == 130


def test_the_help_of_the_router_is_in_groups_with_the_most_used_first(run: Run) -> None:
    lines = run("router", "--help").stdout.splitlines()
    groups = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert groups[:3] == ["Most used:", "Placing requests:", "Clients:"]
    assert groups[-1] == "Other options:"
    flags = [line.split()[0] for line in lines[lines.index("Most used:") :] if line.startswith("  --")]
    assert flags[:10] == [
        *("--engine", "--discover", "--bind", "--policy", "--tokenizer"),
        *("--key-file", "--peer", "--config", "--print-config", "--check"),
    ]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    environment = os.environ | {"_KVATLAS_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-W", "ignore", "-c", "from kvatlas.cli import main; main(prog_name='kvatlas')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 or "Bash version is not supported" in done.stderr, done.stderr
    assert f"_KVATLAS_COMPLETE={shell}_complete" in done.stdout
