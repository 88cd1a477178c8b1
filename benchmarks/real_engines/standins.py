"""Compiles what engines need here: stand-ins for the libraries of CUDA that PyTorch's ordinary build is linked with.

PyTorch does not start without them, and on a machine without a GPU calls next to nothing in them. A stand-in has all
their names, and every function of it answers 100, which is how CUDA says that there is no device.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

OF_CUDA = re.compile(r"lib(cu|nccl|nv)")
FUNCTION = re.compile(r"(__)?(cu|nccl|nv|Nv)\w*")


@dataclass
class MissingSymbols:
    """The symbols that the libraries of a directory take from libraries that are not there."""

    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of a library, its symbol versions
    symbols: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of a symbol version; "" is none


def stand_in(torch: Path) -> list[str]:
    """Puts stand-ins beside PyTorch's libraries, and names them."""
    library = torch / "lib"
    compiler = _compiler()
    found = _wanted(library)
    for name, versions in found.versions.items():
        _compile(compiler, library / name, versions, found.symbols, everything="cudart" in name)
    return sorted(found.versions)


def loopback(home: Path) -> Path:
    """Compiles what lets an engine listen on this machine only."""
    out = home / "loopback.so"
    source = Path(__file__).parent / "startup" / "loopback.c"
    subprocess.run([_compiler(), "-shared", "-fPIC", "-O1", str(source), "-o", str(out), "-ldl"], check=True)
    return out


def _compiler() -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or shutil.which("readelf") is None or shutil.which("nm") is None:
        raise RuntimeError("the engines need a C compiler and binutils (cc, readelf, nm)")
    return compiler


def _wanted(library: Path) -> MissingSymbols:
    there = {each.name for each in library.iterdir()}
    wanted = MissingSymbols()
    for each in sorted(library.glob("*.so*")):
        needs = re.findall(r"NEEDED.*\[(.*?)\]", _run("readelf", "-d", "-W", str(each)))
        missing = {name for name in needs if OF_CUDA.match(name) and name not in there}
        for name in missing:
            wanted.versions[name] |= set()
        if missing:
            _versions(each, missing, wanted)
            _symbols(each, wanted)
    return wanted


def _versions(of: Path, missing: set[str], wanted: MissingSymbols) -> None:
    file = ""
    for line in _run("readelf", "-V", "-W", str(of)).splitlines():
        if start := re.search(r"Version: \d+\s+File: (\S+)", line):
            file = start[1]
        elif (version := re.search(r"Name: (\S+)\s+Flags", line)) and file in missing:
            wanted.versions[file].add(version[1])


def _symbols(of: Path, wanted: MissingSymbols) -> None:
    for line in _run("nm", "-D", "--undefined-only", str(of)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if version or FUNCTION.fullmatch(name):
            wanted.symbols[version.lstrip("@")].add(name)


def _compile(compiler: str, out: Path, versions: set[str], symbols: dict[str, set[str]], *, everything: bool) -> None:
    names = set().union(*(symbols[version] for version in versions), symbols[""] if everything else set())
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "standin.c"
        source.write_text("".join(f"long {name}(void) {{ return 100; }}\n" for name in sorted(names)), "ascii")
        command = [compiler, "-shared", "-fPIC", "-w", "-fno-builtin", str(source), "-o", str(out)]
        command.append(f"-Wl,-soname,{out.name}")
        if versions:
            script = Path(place) / "standin.map"
            nodes = (f"{v} {{ global: {' '.join(f'{s};' for s in sorted(symbols[v]))} }};\n" for v in sorted(versions))
            script.write_text("".join(nodes), "ascii")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
