"""Environments of clients, in target/clients: made when they are missing or other versions are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TARGET = ROOT / "target" / "clients"


class NotInstalledError(Exception):
    """An environment cannot be made here: there is no network, or a tool is missing."""


def python(program: Path) -> list[str]:
    """The Python to run a program with: one of its own if a list of packages lies beside it, else the shared one."""
    own = program.with_suffix(".txt")
    folder, wanted = (TARGET / own.stem, own) if own.exists() else (TARGET / "python", HERE / "requirements.txt")
    if not _is_ready(folder, wanted):
        _run([sys.executable, "-m", "venv", str(folder)], ROOT)
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)], ROOT)
        shutil.copy(wanted, folder)
    return [str(folder / "bin" / "python"), "-m"]


def node() -> Path:
    """The folder with the clients for Node, and the programs: a module finds packages only in the folders above it."""
    folder, wanted = TARGET / "node", HERE / "package.json"
    if shutil.which("npm") is None:
        raise NotInstalledError("there is no npm here")
    if not _is_ready(folder / "wanted", wanted):
        folder.mkdir(parents=True)
        shutil.copy(wanted, folder)
        _run(["npm", "install", "--loglevel", "error", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
        (folder / "wanted").mkdir()
        shutil.copy(wanted, folder / "wanted")
    shutil.rmtree(folder / "programs", ignore_errors=True)
    (folder / "programs").mkdir()
    for program in (HERE / "programs").glob("*.mjs"):
        shutil.copy(program, folder / "programs")
    return folder


def path(folder: Path) -> str:
    """`PATH` for clients for Node: theirs comes before the machine's, which may be too old for them."""
    return os.pathsep.join([str(folder / "node_modules" / ".bin"), os.environ.get("PATH", os.defpath)])


def _is_ready(folder: Path, wanted: Path) -> bool:
    """True if a folder was made for these packages. One that was not is removed."""
    made = folder / wanted.name
    if made.exists() and made.read_bytes() == wanted.read_bytes():
        return True
    shutil.rmtree(folder.parent if folder.name == "wanted" else folder, ignore_errors=True)
    return False


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["no word"]
        raise NotInstalledError(f"{Path(command[0]).name} cannot install them: {lines[0][:200]}")
