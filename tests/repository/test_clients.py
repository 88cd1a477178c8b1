"""The versions of clients that the documentation names are those that `make clients` installs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests" / "process" / "clients"
PAGE = ROOT / "docs" / "guides" / "sdks-and-agents.md"
# A row of the table: client, language if it has to be said, version, the version of a package it is used with, APIs.
ROW = re.compile(
    r"^\| `?([^`|]+?)`?(?: \((Python|Node)\))? \| (\d[\d.]+)(?: \(`([^`]+)` ([\d.]+)\))? \| [^|]+ \|$", re.MULTILINE
)
AGENTS = {"Claude Code": "@anthropic-ai/claude-code", "Codex CLI": "@openai/codex"}
PACKAGES = json.loads((CLIENTS / "package.json").read_text(encoding="utf-8"))


def requirements(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


SHARED = requirements(CLIENTS / "requirements.txt")
OWN = [requirements(path) for path in sorted((CLIENTS / "programs").glob("*.txt"))]
NODE: dict[str, str] = PACKAGES["dependencies"]


def environment(client: str, language: str | None) -> dict[str, str]:
    """The packages, with their versions, that are installed together with a client."""
    if language is None:
        return next((packages for packages in (SHARED, *OWN, NODE) if client in packages), {})
    return SHARED if language == "Python" else NODE


ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("client", "language", "version", "beside", "its_version"), ROWS, ids=lambda value: value or "-"
)
def test_documented_versions(client: str, language: str, version: str, beside: str, its_version: str) -> None:
    name = AGENTS.get(client, client)
    packages = environment(name, language or None)
    assert packages.get(name) == version
    assert not beside or packages.get(beside) == its_version


def test_each_client_is_documented() -> None:
    named = {AGENTS.get(row[0], row[0]) for row in ROWS} | {row[3] for row in ROWS if row[3]}
    installed = set(SHARED).union(NODE, *OWN)
    assert installed - named == {"@langchain/core"}  # what LangChain.js's packages are used with


def test_the_page_names_the_version_of_node() -> None:
    (version,) = set(PACKAGES["optionalDependencies"].values())
    assert f"Node {version}" in PAGE.read_text(encoding="utf-8")


def test_lists_of_packages_lie_beside_programs() -> None:
    lists = sorted((CLIENTS / "programs").glob("*.txt"))
    assert [path.name for path in lists if not path.with_suffix(".py").exists()] == []
