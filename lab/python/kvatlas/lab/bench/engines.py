"""Simulation of each worker's share of a plan, in virtual time.

The blocks of an engine's announcement are a slice of a request's chain of blocks. So an operation stores only the
slice: its start in the plan's contents, and its length. To let a receiver of announcements see the slice, requests have
the *places* of their blocks (a `range`) instead of content hashes: the engine only slices them and passes the slices
on.

The simulated engine announces the store and the removal of every physical copy of a block. A plan announces a block
once for a worker: when the first copy is stored and when the last one is removed. All designs can process this, but few
can count copies.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvatlas._hashes import Hashes
from kvatlas.lab.bench.arrivals import Arrivals, Chains, Floats
from kvatlas.lab.bench.segments import Ints
from kvatlas.sim.engine import Engine
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import EngineConfig

LOOKUP, STORE_ROOT, STORE, REMOVE, CLEAR = range(5)


@dataclass(slots=True)
class Columns:
    """Operations of a plan as columns: see `kvatlas._native.Plan`."""

    times: NDArray[np.uint64]  # ns
    kinds: NDArray[np.uint8]
    workers: NDArray[np.uint32]
    starts: NDArray[np.uint64]
    lengths: NDArray[np.uint32]
    parents: NDArray[np.uint64]
    removed: Hashes
    refused: int = 0  # requests too large for an empty cache
    preemptions: int = 0


class Tape:
    """Receiver of announcements that records operations as columns. The driver of the engine sets `now` (ns)."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.now = 0
        self.times = array("Q")
        self.kinds = array("B")
        self.starts = array("Q")
        self.lengths = array("L" if array("L").itemsize == 4 else "I")
        self.parents = array("Q")
        self.removed = array("Q")
        self.held: set[int] = set()
        self._more: dict[int, int] = {}  # copies beyond the first

    def lookup(self, first: int, blocks: int) -> None:
        """Record a query for `blocks` content hashes, at places from `first` on."""
        self._note(LOOKUP, first, blocks, 0)

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        first = cast("range", content_hashes).start
        held = self.held
        if held.isdisjoint(block_hashes):
            held.update(block_hashes)
            self._store(parent, first, len(block_hashes))
            return
        begin: int | None = None  # of a run of new ones
        for place, name in enumerate(block_hashes):
            if name in held:
                self._more[name] = self._more.get(name, 0) + 1
                if begin is not None:
                    self._store(block_hashes[begin - 1] if begin else parent, first + begin, place - begin)
                    begin = None
            else:
                held.add(name)
                if begin is None:
                    begin = place
        if begin is not None:
            self._store(block_hashes[begin - 1] if begin else parent, first + begin, len(block_hashes) - begin)

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        more = self._more
        if more:
            gone = []
            for name in block_hashes:
                if (left := more.get(name)) is None:
                    gone.append(name)
                elif left > 1:
                    more[name] = left - 1
                else:
                    del more[name]
            block_hashes = gone
        if not block_hashes:
            return
        self.held.difference_update(block_hashes)
        self._note(REMOVE, len(self.removed), len(block_hashes), 0)
        self.removed.extend(block_hashes)

    def clear(self, worker: str) -> None:
        self.held.clear()
        self._more.clear()
        self._note(CLEAR, 0, 0, 0)

    def _store(self, parent: int | None, first: int, blocks: int) -> None:
        self._note(STORE_ROOT if parent is None else STORE, first, blocks, parent or 0)

    def _note(self, kind: int, start: int, length: int, parent: int) -> None:
        self.times.append(self.now)
        self.kinds.append(kind)
        self.starts.append(start)
        self.lengths.append(length)
        self.parents.append(parent)

    def columns(self) -> Columns:
        """Return the recorded operations as columns."""
        return Columns(
            np.array(self.times, dtype=np.uint64),
            np.array(self.kinds, dtype=np.uint8),
            np.full(len(self.times), self.number, dtype=np.uint32),
            np.array(self.starts, dtype=np.uint64),
            np.array(self.lengths, dtype=np.uint32),
            np.array(self.parents, dtype=np.uint64),
            np.array(self.removed, dtype=np.uint64),
        )


def run_worker(number: int, times: Floats, requests: Ints, chains: Chains, config: EngineConfig) -> tuple[Tape, Engine]:
    """Run the requests of one worker in order of time.

    Each request is a lookup, followed by the events that it causes.
    """
    tape = Tape(number)
    engine = Engine(str(number), config, tape)
    for arrival, r in zip(times.tolist(), requests.tolist(), strict=True):
        _run(engine, tape, arrival)
        tape.now = _ns(arrival)
        first, total = int(chains.first[r]), int(chains.total[r])
        tape.lookup(first, int(chains.prompt[r]))
        names = chains.names[first : first + total].tolist()
        places = cast("Hashes", range(first, first + total))
        request = Request(r, int(chains.prompt_tokens[r]), int(chains.output_tokens[r]), places, names)
        engine.submit(request, arrival)
    _run(engine, tape, math.inf)
    return tape, engine


def _run(engine: Engine, tape: Tape, until: float) -> None:
    # One instant at a time, because the sink needs its time.
    while (due := engine.due) is not None and due <= until:
        tape.now = _ns(due)
        engine.run_until(due)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def run_share(arrivals: Arrivals, chains: Chains, config: EngineConfig) -> Columns:
    """Run several workers, one after another, and join their operations."""
    numbers, begins = np.unique(arrivals.workers, return_index=True)
    ends = [*begins[1:].tolist(), len(arrivals.workers)]
    parts: list[Columns] = []
    for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
        tape, engine = run_worker(number, arrivals.times[begin:end], arrivals.requests[begin:end], chains, config)
        columns = tape.columns()
        columns.refused = engine.counters.refused
        columns.preemptions = engine.counters.preemptions
        parts.append(columns)
    return join(parts)


def join(parts: Sequence[Columns]) -> Columns:
    """Concatenate the columns of several workers.

    Removals refer to their block hashes by position; these positions are adjusted.
    """
    base = 0
    starts = []
    for part in parts:
        starts.append(np.where(part.kinds == REMOVE, part.starts + np.uint64(base), part.starts))
        base += len(part.removed)
    return Columns(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.kinds for part in parts]),
        np.concatenate([part.workers for part in parts]),
        np.concatenate(starts),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.parents for part in parts]),
        np.concatenate([part.removed for part in parts]),
        sum(part.refused for part in parts),
        sum(part.preemptions for part in parts),
    )


# For processes: the chains are large, so they are mapped from files, not sent.

_CHAIN_COLUMNS = ("first", "total", "prompt", "prompt_tokens", "output_tokens", "names")


def save_chains(chains: Chains, folder: Path) -> None:
    """Write the arrays of the chains that `run_share` needs to files."""
    for name in _CHAIN_COLUMNS:
        np.save(folder / f"{name}.npy", getattr(chains, name))


def load_chains(folder: Path) -> Chains:
    """Memory-map the files of `save_chains`. `contents` is left empty."""
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _CHAIN_COLUMNS}
    return Chains(contents=np.zeros(0, dtype=np.uint64), **columns)


def run_share_of_files(folder: str, arrivals: Arrivals, config: EngineConfig) -> tuple[Columns, int]:
    """Run `run_share` on the files of `save_chains`, in another process.

    Returns its columns and the number of requests.
    """
    return run_share(arrivals, load_chains(Path(folder)), config), len(arrivals.requests)
