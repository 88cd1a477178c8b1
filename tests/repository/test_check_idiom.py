"""The check of the idiom finds phrases in comments and pages and names of several types; its lists only shrink."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools import check_idiom

RUST = """\
//! Copies that nobody
//! reads.

/// A block's place, of
/// which there are three. Files such as this; there is no such file.
pub struct Copy;

fn whoever() {} // `nobody`
"""

PYTHON = '''\
"""Pages of whoever asks."""

TEXT = "nobody"
# so
# many
NUMBER = 1  # such
'''

PAGE = """\
# For nobody

```sh
echo whoever
```

The `told of` that of
which it is of.

<!-- generated: cli -->

Such help.

<!-- end of generated: cli -->

<!-- generated: other -->

Whoever forgets the end.
"""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.rs", RUST, [(1, "nobody"), (4, "of which")]),
        ("a.py", PYTHON, [(1, "whoever"), (4, "so many"), (6, "such")]),
        ("a.md", PAGE, [(1, "nobody"), (7, "that of"), (8, "is of"), (18, "Whoever")]),
    ],
)
def test_phrases_are_found_in_comments_and_pages(name: str, text: str, found: list[tuple[int, str]]) -> None:
    assert sorted((place.line, place.text) for place in check_idiom.phrases(Path(name), text)) == found


@pytest.mark.parametrize(
    ("path", "name"),
    [("README.md", "."), ("docs/how/exact.md", "docs"), ("crates/index/src/raw/mod.rs", "crates/index")],
)
def test_an_area_is_a_crate_or_a_top_directory(path: str, name: str) -> None:
    assert check_idiom.area(Path(path)) == name


def test_types_of_tests_do_not_count() -> None:
    text = "struct A;\npub enum B {}\n#[cfg(test)]\nmod tests {\n    struct C;\n}\n"
    found = check_idiom.types(Path("crates/index/src/index.rs"), text)
    assert [place.text for place in found] == ["A", "B"]
    assert not list(check_idiom.types(Path("crates/index/src/index/tests.rs"), text))
    assert not list(check_idiom.types(Path("crates/index/tests/late.rs"), text))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two crates, a type of one name in both, and two phrases in a page."""
    for crate in ("a", "b"):
        (tmp_path / f"crates/{crate}/src").mkdir(parents=True)
        (tmp_path / f"crates/{crate}/src/lib.rs").write_text("struct Place;\nenum Error {}\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("Nobody told of it.\n", encoding="utf-8")
    git = shutil.which("git")
    assert git is not None
    subprocess.run([git, "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run([git, "add", "."], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_idiom, "BUDGET", tmp_path / "budget.toml")
    return tmp_path


def check(monkeypatch: pytest.MonkeyPatch, budget: str, *arguments: str) -> int:
    check_idiom.BUDGET.write_text(budget, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["check_idiom", *arguments])
    return check_idiom.main()


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize(
    ("most", "shared", "status", "said"),
    [
        (2, '["Place"]', 0, ""),
        (3, '["Place", "Other"]', 0, ""),
        (1, '["Place"]', 1, "README.md:1: 'told of' in a comment or page"),
        (2, "[]", 1, "crates/b/src/lib.rs:1: type Place: another type of the workspace has this name"),
    ],
)
def test_a_budget_may_not_be_exceeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most: int, shared: str, status: int, said: str
) -> None:
    assert check(monkeypatch, f'[phrases]\n"." = {most}\n[types]\nshared = {shared}\n') == status
    assert said in capsys.readouterr().out


@pytest.mark.usefixtures("checkout")
def test_a_budget_is_only_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = '[phrases]\n"." = {}\ngone = 3\n[types]\nshared = ["Place", "Other"]\n'
    check(monkeypatch, budget.format(5), "--lower")
    lowered = tomllib.loads(check_idiom.BUDGET.read_text(encoding="utf-8"))
    assert lowered == {"phrases": {".": 2}, "types": {"shared": ["Place"]}}
    check(monkeypatch, budget.format(1), "--lower")
    assert tomllib.loads(check_idiom.BUDGET.read_text(encoding="utf-8"))["phrases"] == {".": 1}
