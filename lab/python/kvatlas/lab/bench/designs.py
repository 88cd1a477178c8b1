"""Registry of the index designs that can be measured: the ladder's, those of peer programs, and a user's own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvatlas._text import closest
from kvatlas.errors import DesignError
from kvatlas.lab.bench.programs import Program
from kvatlas.lab.designs import RUNGS, Deviation, NestedDict


@dataclass(frozen=True, slots=True)
class Design:
    """Design of the index that can be measured.

    Attributes:
        name: Name of the design in results.
        program: Program that runs the design.
        index: Name of the design in that program.
        about: Short description.
        deviates: True if some answers are known to differ from the reference's on event streams like real engines'.
    """

    name: str
    program: Program
    index: str
    about: str = ""
    deviates: bool = False


# Deviations that plans of engines can show: engines name a block once, and announce parents before children.
_CAN_HAPPEN = frozenset(("conflation", "holes"))


def _deviates(deviations: Sequence[Deviation] | None) -> bool:
    return not _CAN_HAPPEN.isdisjoint(deviation.name for deviation in deviations or ())


def known_designs(peers: Path | None = None) -> list[Design]:
    """List the ladder's designs, lowest rung first, then the peers' designs.

    A peer's design is named `peers/NAME` if the ladder has a design NAME.
    """
    designs = [Design(name, Program(), name, rung.what, _deviates(rung.deviations)) for name, rung in RUNGS.items()]
    if peers is not None:
        ours = {design.name for design in designs}
        for name, about in _list_peers(peers):
            shown = f"peers/{name}" if name in ours else name
            designs.append(Design(shown, Program(peers), name, about))
    return designs


def choose_designs(names: Sequence[str], peers: Path | None = None) -> list[Design]:
    """Find designs by name.

    `all` stands for all designs except peers' that only repeat a design of the ladder; `module:attribute` is a user's
    own design in Python.

    Raises:
        DesignError: A name is unknown, or a program of peers does not answer.
    """
    known = {design.name: design for design in known_designs(peers)}
    chosen: dict[str, Design] = {}
    for name in names:
        if name == "all":
            chosen.update({n: d for n, d in known.items() if not n.startswith("peers/")})
        elif ":" in name:
            make_design(name)  # to fail now, not at the first point
            chosen[name] = Design(name, Program(), name, "a design of one's own")
        elif name in known:
            chosen[name] = known[name]
        elif (strict := _strict(name)) is not None:
            chosen[name] = strict
        else:
            near = closest(name, known)
            raise DesignError(
                f"there is no index {name!r}{f' (did you mean {near!r}?)' if near else ''}: "
                f"it must be all, one of {', '.join(known)}, or module:attribute"
                + ("" if peers else "; peers need --peers"),
                "unknown_design",
            )
    return list(chosen.values())


def _strict(name: str) -> Design | None:
    base = name.removesuffix("-strict")
    if base == name or (rung := RUNGS.get(base)) is None:
        return None
    if rung.strict_deviations is None:
        raise DesignError(f"{base} cannot be strict: its errors follow from its design", "unknown_design")
    return Design(name, Program(), name, f"{rung.what}; strict", _deviates(rung.strict_deviations))


class _NumberAdapter:
    """Adapter from worker numbers, which a run uses, to worker names, which the nested dictionary uses."""

    def __init__(self, inner: NestedDict) -> None:
        self._inner = inner

    def store(
        self, worker: int, parent: int | None, block_hashes: Sequence[int], content_hashes: Sequence[int]
    ) -> None:
        self._inner.store(str(worker), block_hashes=block_hashes, content_hashes=content_hashes, parent=parent)

    def remove(self, worker: int, block_hashes: Sequence[int]) -> None:
        self._inner.remove(str(worker), block_hashes=block_hashes)

    def clear(self, worker: int) -> None:
        self._inner.clear(str(worker))

    def find(self, content_hashes: Sequence[int]) -> dict[int, int]:
        return {
            int(worker): depth for worker, depth in self._inner.find(content_hashes=content_hashes).scores().items()
        }


def make_design(name: str, *, strict: bool = False) -> Any:
    """Convert a design's name to the value that the native run expects.

    This is the name itself, or, for a design written in Python, an object created here.

    Raises:
        DesignError: The object of a `module:attribute` cannot be loaded or created.
    """
    if ":" not in name:
        if name in ("dict-python", "dict-python-strict"):
            return _NumberAdapter(NestedDict(strict=strict or name.endswith("-strict")))
        return name
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), attribute)
        return found() if callable(found) else found
    except Exception as error:
        raise DesignError(f"cannot load the index {name!r}: {type(error).__name__}: {error}", "cannot_load") from error


def _list_peers(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        raise DesignError(
            f"there is no program {path}: build the peers with "
            "cargo build --release --manifest-path benchmarks/peers/Cargo.toml --bin kvatlas-bench-peers",
            "cannot_load",
        )
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user named
            [str(path), "--list"], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DesignError(f"cannot run {path}: {error}", "cannot_load") from error
    lines = [line.strip().split(None, 1) for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise DesignError(f"{path} --list printed no names, but: {said}", "cannot_load")
    return [(line[0].rstrip(":"), line[1] if len(line) > 1 else "") for line in lines]
