"""Tests of the imports between parts of the package: the product never needs the laboratory."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvatlas

# The directories with parts of the package: the product's, and the laboratory's.
ROOTS = [Path(path) for path in kvatlas.__path__]
ROOT = ROOTS[0]

# What each part must not import, besides what needs an extra. Files count with all their imports, lazy ones too.
FORBIDDEN = {
    "routing": ("sim", "lab", "service", "router", "client", "cli"),
    "client": ("sim", "lab", "service", "router", "routing", "cli"),
    "service": ("sim", "lab", "router", "routing", "cli"),
    "router": ("sim", "lab", "litellm", "cli"),
    "litellm": ("sim", "lab", "service", "router", "cli"),
    "tokenize": ("sim", "lab", "service", "router", "client", "routing", "cli"),
    "sites": ("sim", "lab", "service", "router", "client", "routing", "cli"),
    "trees": ("sim", "lab", "service", "router", "client", "routing", "cli"),
    "sim": ("lab", "service", "router", "client", "routing", "cli"),
    "lab": ("cli",),
}
# Below everything else: the index and what it needs.
INDEX = ("errors", "events", "reference", "types", "wire", "_extension", "_extras", "_hashes", "_tables", "_text")
ROOMS = ("cli", "client", "lab", "litellm", "router", "routing", "service", "sim", "sites", "tokenize", "trees")


def modules() -> dict[str, Path]:
    found = {}
    for root in ROOTS:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


EVERY = modules()


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, without `kvatlas.` before them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.append(whole if whole.removeprefix("kvatlas.") in EVERY else node.module)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name.removeprefix("kvatlas.") for name in names if name.startswith("kvatlas."))


def files(part: str) -> list[Path]:
    if not (ROOT / part).is_dir():
        return [ROOT / f"{part}.py"]
    return sorted(path for root in ROOTS for path in (root / part).rglob("*.py"))


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_room_imports_only_what_is_below_it(part: str) -> None:
    for path in files(part):
        found = {name.split(".")[0] for name in imports(path)}
        assert not found & set(FORBIDDEN[part]), path


@pytest.mark.parametrize("part", INDEX)
def test_the_index_imports_no_room(part: str) -> None:
    for path in files(part):
        assert not {name.split(".")[0] for name in imports(path)} & set(ROOMS), path


def test_no_circles_of_imports() -> None:
    """No two files import each other, over however many others."""
    # The package itself gives its clients and its service lazily, so it is below all and above all.
    below = {
        module: {name for name in imports(path) if name in EVERY and name != module}
        for module, path in EVERY.items()
        if module
    }
    # What is left after taking away, again and again, all files that import none of those left.
    while free := {module for module, names in below.items() if not names & below.keys()}:
        for module in free:
            del below[module]
    circles = {module: sorted(names & below.keys()) for module, names in below.items()}
    assert not circles


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_core_does_not_import_what_needs_an_extra() -> None:
    code = """
import sys
import kvatlas, kvatlas.client, kvatlas.service, kvatlas.routing, kvatlas.trees, kvatlas.sim, kvatlas.cli
from click.testing import CliRunner
assert CliRunner().invoke(kvatlas.cli.main, ["--help"]).exit_code == 0
for name in ("serve", "query", "workers", "decode"):
    assert CliRunner().invoke(kvatlas.cli.main, [name, "--help"]).exit_code == 0
wrong = ("kvatlas.lab", "matplotlib", "aiohttp", "msgspec", "zmq")
print([name for name in sys.modules if name.startswith(wrong)])
"""
    done = run(code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# Makes the packages of the extras impossible to import, as where they are not installed.
_WITHOUT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("matplotlib", "aiohttp", "msgspec", "zmq"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name in ("matplotlib", "aiohttp", "msgspec", "zmq") else find(name, *rest)
)
"""


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("kvatlas.lab", "matplotlib, aiohttp, msgspec, pyzmq", "lab"),
        ("kvatlas.lab.designs", "matplotlib, aiohttp, msgspec, pyzmq", "lab"),
        ("kvatlas.sim.server", "aiohttp, msgspec, pyzmq", "sim"),
    ],
)
def test_a_part_that_lacks_its_extra_says_what_to_install(module: str, missing: str, extra: str) -> None:
    code = f"""{_WITHOUT}
from kvatlas.errors import KvatlasError, MissingExtraError
try:
    import {module}
except MissingExtraError as error:
    assert isinstance(error, KvatlasError) and isinstance(error, ImportError)
    print(error.code, error)
"""
    done = run(code)
    part = "kvatlas.lab" if extra == "lab" else module
    assert done.stdout == f"missing_extra {part} needs {missing}: pip install 'kvatlas[{extra}]'\n", done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["replay"], "lab"),
        (["demo"], "lab"),
        (["bench", "sweep"], "lab"),
        (["bench", "--help"], "lab"),
        (["simulate"], "sim"),
    ],
)
def test_a_command_that_lacks_its_extra_says_so_in_a_line(command: list[str], extra: str) -> None:
    done = run(f"{_WITHOUT}\nsys.argv = ['kvatlas', *{command!r}]\nfrom kvatlas.cli import main\nmain()")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.endswith(f"pip install 'kvatlas[{extra}]'\n")
    assert done.stderr.count("\n") == 1


def test_help_needs_no_extra() -> None:
    done = run(f"{_WITHOUT}\nsys.argv = ['kvatlas', '--help']\nfrom kvatlas.cli import main\nmain()")
    assert done.returncode == 0
    assert "bench" in done.stdout
