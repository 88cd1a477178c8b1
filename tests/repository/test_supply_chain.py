"""All that builds and publishes kvatlas is named by what it is, not by a name that can be moved to something else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = [*sorted((ROOT / "requirements").glob("*.txt")), *sorted((ROOT / "benchmarks").rglob("requirements*.txt"))]
INSTALLERS = [ROOT / "Makefile", ROOT / "deploy" / "Containerfile", *WORKFLOWS]
# Released routers that are measured beside this one, each in an environment of its own, by nothing that is published.
UNPINNED = "target/router-peers"


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"^\s*(?:- )?uses: (.*)$", text, re.MULTILINE)
    assert len(used) == text.count("uses:") > 0
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_an_action_is_the_same_everywhere() -> None:
    used: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, commit in re.findall(r"uses: (\S+)@(.*)", path.read_text(encoding="utf-8")):
            used.setdefault(name, set()).add(commit)
    assert {name: commits for name, commits in used.items() if len(commits) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_read_only(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) in ({}, {"id-token": "write"} if name == "publish" else {}), name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    assert "pull_request_target" not in path.read_text(encoding="utf-8")
    assert not re.search(r"run:.*\$\{\{\s*github\.", path.read_text(encoding="utf-8"))


def test_what_is_published_is_built_where_nothing_else_runs() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    publishing = {name for name, job in release.items() if "id-token" in job.get("permissions", {})}
    assert publishing == {"publish"}
    assert not [step for step in release["publish"]["steps"] if "run" in step]
    runs = [step["run"] for step in release["build"]["steps"] if "run" in step]
    assert runs
    assert not [run for run in runs if "make test" in run]
    assert release["build"]["needs"] == "test"


def test_base_images_are_named_by_digest() -> None:
    bases = re.findall(r"^ARG (\w+_IMAGE)=(\S+):", (ROOT / "deploy" / "Containerfile").read_text("utf-8"), re.MULTILINE)
    lines = (ROOT / "deploy" / "images.lock").read_text("utf-8").splitlines()
    locked = dict(line.split("=", 1) for line in lines)
    assert len(bases) == len(locked) == 2
    for name, image in bases:
        assert re.fullmatch(re.escape(image) + r"@sha256:[0-9a-f]{64}", locked[name]), name


@pytest.mark.parametrize("path", INSTALLERS, ids=lambda path: path.name)
def test_packages_are_installed_by_hash(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    text = re.sub(rf"^{UNPINNED}/%.*(?:\n\t.*)*", "", text, flags=re.MULTILINE)
    for line in re.findall(r"^.*\bpip\b.*\binstall\b.*$", text, re.MULTILINE):
        if not line.startswith("#"):
            for command in re.findall(r"\binstall\b[^&|;]*", line):
                assert re.search(r"--require-hashes|--no-index|--root", command), line
    for line in re.findall(r"^.*\bcargo install\b.*$", text, re.MULTILINE):
        assert "--locked" in line, line
        assert re.search(r"@\$\(|--version", line), line


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_every_package_has_its_version_and_hashes(path: Path) -> None:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line.strip()]
    assert packages
    for package in packages:
        assert re.match(r"[\w.-]+(?:\[[\w,-]+\])?==[\w.+!-]+", package), package[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", package), package[:80]


@pytest.mark.parametrize("name", ["Cargo.lock", "benchmarks/engine_client/Cargo.lock", "benchmarks/peers/Cargo.lock"])
def test_lock_files_hold_what_their_crates_need(name: str) -> None:
    """`--locked` refuses a lock file that lacks a dependency which a crate of this repository has got since."""
    manifest = (ROOT / name).with_name("Cargo.toml")
    command = ["cargo", "update", "--quiet", "--workspace", "--locked", "--manifest-path", str(manifest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
