"""`kvatlas` itself."""

import pytest

import kvatlas
from kvatlas.cli import main, query

from .conftest import Run


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"kvatlas, version {kvatlas.__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(run: Run, flag: str) -> None:
    done = run(flag)
    assert done.returncode == 0
    assert "replay" in done.stdout


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
