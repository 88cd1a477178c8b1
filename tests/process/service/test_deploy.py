"""The files in `deploy/`: what they name is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kvatlas.service import Config
from kvatlas.service.config.read import CONFIG_ENV, LISTS, SECRETS
from kvatlas.service.config.schema import all_keys

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
FLAGS = {key.flag for key in all_keys()} | {flag for flag, _, _ in LISTS.values()} | {"--config"}
VARIABLES = (
    {key.env for key in all_keys()}
    | {variable for _, variable, _ in LISTS.values()}
    | {variable for variable, _ in SECRETS.values()}
    | {CONFIG_ENV}
)
PINNED = sorted((ROOT / "requirements").glob("*.txt"))


def test_settings_of_the_image_are_those_that_there_are() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    served = re.findall(r"kvatlas serve (.*)", text)
    assert served
    for flag in re.findall(r"--[a-z-]+", " ".join(served)):
        assert flag in FLAGS, flag
    for variable in re.findall(r"KVATLAS_[A-Z_]+", text):
        assert variable in VARIABLES, variable


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_every_package_is_pinned_with_hashes(path: Path) -> None:
    text = path.read_text().replace("\\\n", "")
    packages = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert packages
    for line in packages:
        assert re.match(r"[a-z0-9.-]+==\S+ ", line), line
        assert "--hash=sha256:" in line, line


def pins(text: str) -> dict[str, set[str]]:
    """The versions of each package: several if they depend on Python's."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)(?:\[\w+\])?==([^\s;]+)", text, re.MULTILINE):
        found.setdefault(name.replace("_", "-"), set()).add(version)
    return found


def test_files_of_pinned_packages_agree() -> None:
    tested = pins((ROOT / "requirements/dev.txt").read_text())
    for path in [*PINNED, *sorted((ROOT / "requirements").glob("*.in"))]:
        own = path.name in ("dev.in", "docs.in")
        for name, versions in pins(path.read_text()).items():
            assert versions == tested.get(name, set() if own else versions), f"{path.name}: {name}: `make requirements`"
        made = path.with_suffix(".txt")
        if made.exists():
            assert pins(path.read_text()).items() <= pins(made.read_text()).items(), path.name


def test_the_image_is_made_of_what_is_here() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = [path for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for path in line.split()]
    assert {"Cargo.lock", "crates", "python"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists(), path


def test_the_image_listens_on_loopback_until_it_is_told() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    instructions = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    (environment,) = re.findall(r"^ENV (.*(?:\\\n.*)*)", instructions, re.MULTILINE)
    assert "KVATLAS_ADMIN_BIND=127.0.0.1:" in environment
    assert "KVATLAS_BIND" not in environment
    assert Config().http.is_loopback()


@pytest.mark.parametrize(
    ("pinned", "base", "builds"),
    [
        ("yes", "docker.io/library/python:3.12-slim-bookworm", False),
        ("yes", "python@sha256:1234", True),
        ("no", "docker.io/library/python:3.12-slim-bookworm", True),
    ],
)
def test_the_image_needs_bases_with_digests(pinned: str, base: str, builds: bool) -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    bases = re.findall(r"^FROM \$\{(\w+)\}.*\nARG \1 PINNED\nRUN (case .*)$", text, re.MULTILINE)
    assert len(bases) == text.count("\nFROM ") == 2
    for name, check in bases:
        done = subprocess.run(
            ["sh", "-c", check], env={"PINNED": pinned, name: base}, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) is builds, done.stderr
        assert builds or base in done.stderr


def test_what_the_image_installs_has_hashes() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert installs
    for arguments in installs:
        assert "--require-hashes" in arguments or "--no-index" in arguments, arguments
