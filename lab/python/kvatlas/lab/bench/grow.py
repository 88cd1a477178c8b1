"""Growth of the time of one lookup with the depth of a query, workers, holders of a block, and stored blocks.

An index is built from a plan made for the purpose, then one thread runs lookups and measures the duration of each.
There is no other load, so the time is the cost of a lookup, not a user's wait. Each of four series varies one size; the
others keep their values in `_SERIES`.

All prompts begin with the same block, as prompts with one system prompt do, so every worker with blocks holds this
block. The rest of each prompt is unique. Each queried prompt is held to its last block, and queries are in random
order.

A design whose build takes too long or too much memory is left out from that size on, and listed as skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvatlas import prefix_hashes
from kvatlas._hashes import Hashes, mix
from kvatlas._native import Plan
from kvatlas.errors import ConfigError, MeasurementError
from kvatlas.lab.bench.engines import LOOKUP, STORE, STORE_ROOT
from kvatlas.lab.bench.journal import Journal
from kvatlas.lab.bench.programs import Result
from kvatlas.lab.bench.segments import Ints


@dataclass(frozen=True, slots=True)
class Shape:
    """Contents of an index whose lookups are measured.

    Attributes:
        depth: Number of blocks in each chain; all chains share the first block.
        workers: Number of workers.
        holders: Number of workers that hold each chain.
        blocks: Approximate number of distinct blocks.
    """

    depth: int = 64
    workers: int = 32
    holders: int = 4
    blocks: int = 131_072

    @property
    def chains(self) -> int:
        return max(1, self.blocks // self.depth)

    @property
    def held(self) -> int:
        """Approximate number of pairs of a worker and a block held by the worker."""
        return self.chains * self.depth * self.holders


@dataclass(frozen=True, slots=True)
class Series:
    """Series of index contents (shapes) in which one size varies."""

    name: str
    label: str
    shapes: tuple[tuple[int, Shape], ...]


def series(*, short: bool = False) -> tuple[Series, ...]:
    """The four series; with `short`, at small sizes that take only seconds."""
    less = 16 if short else 1
    step = slice(None, None, 2) if short else slice(None)
    blocks = 131_072 // less

    def made(name: str, label: str, sizes: Sequence[int], shape: Callable[[int], Shape]) -> Series:
        return Series(name, label, tuple((size, shape(size)) for size in sizes[step]))

    most = 10_000 // less
    return (
        made(
            "depth",
            "blocks of a query, all held",
            (8, 32, 128, 512, 2_048, 8_192),
            lambda n: Shape(depth=n, blocks=blocks),
        ),
        made(
            "workers",
            "workers, 8 holders for each prompt",
            [n for n in (1, 10, 100, 1_000, 10_000) if n <= most],
            lambda n: Shape(workers=n, holders=min(n, 8), blocks=blocks),
        ),
        made(
            "holders",
            f"holders of each prompt, of {1_024 // less:,} workers",
            [n for n in (1, 4, 16, 64, 256, 1_024) if n <= 1_024 // less],
            lambda n: Shape(workers=1_024 // less, holders=n, blocks=4_096),
        ),
        made(
            "blocks",
            "distinct blocks stored, each once",
            [n // less for n in (10_000, 100_000, 1_000_000, 10_000_000)],
            lambda n: Shape(holders=1, blocks=n),
        ),
    )


@dataclass(slots=True)
class ShapeColumns:
    """Operations that build an index of a shape: stores of each chain on all of its holders, then lookups."""

    shape: Shape
    seed: int
    contents: Hashes
    names: Hashes
    chain: Ints  # of each store
    who: Ints
    root: NDArray[np.bool_]  # whether it begins with the shared block
    asked: Ints  # chain of each lookup
    holder: Ints  # a worker that holds it

    def stores(self) -> Iterator[tuple[int, int, int, int | None]]:
        """Iterate over the stores: worker, place of the first block, number of blocks, and parent."""
        depth, shared = self.shape.depth, int(self.names[0])
        for chain, who, root in zip(self.chain.tolist(), self.who.tolist(), self.root.tolist(), strict=True):
            yield (who, chain * depth, depth, None) if root else (who, chain * depth + 1, depth - 1, shared)

    def lookups(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over the lookups: a holder of the chain, place of the first block, and number of blocks."""
        depth = self.shape.depth
        for chain, holder in zip(self.asked.tolist(), self.holder.tolist(), strict=True):
            yield holder, chain * depth, depth

    def plan(self) -> Plan:
        """Convert the operations to a plan. Each lookup is assigned to a worker that holds all blocks of the query."""
        depth = self.shape.depth
        count = len(self.chain) + len(self.asked)

        def both(of_stores: Any, of_lookups: Any, kind: Any) -> NDArray[Any]:
            stores, lookups = np.broadcast_to(of_stores, len(self.chain)), np.broadcast_to(of_lookups, len(self.asked))
            return np.concatenate([stores, lookups]).astype(kind)

        return Plan(
            times=np.arange(count, dtype=np.uint64) * np.uint64(1_000),
            kinds=both(np.where(self.root, STORE_ROOT, STORE), LOOKUP, np.uint8),
            workers=both(self.who, self.holder, np.uint32),
            starts=both(self.chain * depth + ~self.root, self.asked * depth, np.uint64),
            lengths=both(np.where(self.root, depth, depth - 1), depth, np.uint32),
            parents=both(np.where(self.root, np.uint64(0), self.names[0]), np.uint64(0), np.uint64),
            contents=self.contents,
            names=self.names,
            removed=np.zeros(0, dtype=np.uint64),
            worker_count=self.shape.workers,
            block_size=16,
            meta=json.dumps({"trace": "shape", "shape": asdict(self.shape), "seed": self.seed}, sort_keys=True),
        )


def shape_columns(shape: Shape, seed: int = 0, lookups: int = 4_000) -> ShapeColumns:
    """Create operations that store a shape's chains on random holders, followed by lookups of random chains."""
    rng = np.random.default_rng([seed, 2])
    depth, chains, workers, holders = shape.depth, shape.chains, shape.workers, shape.holders
    if not 1 <= holders <= workers:
        raise ConfigError(f"{holders} holders need as many workers, there are {workers}")
    contents = mix(np.arange(chains * depth, dtype=np.uint64) + np.uint64(seed << 40) + np.uint64(1))
    contents[::depth] = contents[0]
    names = np.concatenate([prefix_hashes(contents[i * depth : (i + 1) * depth]) for i in range(chains)])
    if holders == workers:
        who = np.tile(np.arange(workers), chains)
    elif holders == 1:
        who = rng.permutation(np.arange(chains) % workers)
    else:
        who = np.concatenate([rng.choice(workers, holders, replace=False, shuffle=False) for _ in range(chains)])
    asked = np.concatenate([rng.permutation(chains) for _ in range(-(-lookups // chains))])[:lookups]
    holder = who[asked * holders]
    chain = np.repeat(np.arange(chains), holders)
    # A worker announces the shared block with its first chain, and hangs the others on it.
    root = np.zeros(len(who), dtype=bool)
    root[np.unique(who, return_index=True)[1]] = True
    told = root | (depth > 1)
    return ShapeColumns(shape, seed, contents, names, chain[told], who[told], root[told], asked, holder)


@dataclass(slots=True)
class GrowthPoint:
    """Result of one design at one size: p50 and p99 of a lookup in ns, or the reason why the point was skipped."""

    series: str
    size: int
    index: str
    p50: float | None = None
    p99: float | None = None
    build_s: float | None = None
    blocks: int | None = None
    skipped: str = ""


@dataclass(slots=True)
class Growth:
    """Growth of lookup times: the results of all series and designs."""

    points: list[GrowthPoint]
    series: list[Series]
    machine: dict[str, str | int]
    seed: int
    complete: bool = True
    config: dict[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Convert the results to plain data, for files."""
        return asdict(self)


Probe = Callable[[Shape, str], Result]
"""Function (shape, index) that measures a design in a process and returns the result. Raises `MeasurementError`."""


def grow(
    indexes: Sequence[str],
    every: Sequence[Series],
    probe: Probe,
    growth: Growth,
    *,
    config: dict[str, object],
    journal: Journal | None = None,
    progress: Callable[[str, str, int, float], None] = lambda *_: None,
) -> Growth:
    """Measure all series, with results in `growth`, which stay there after KeyboardInterrupt.

    Designs take turns at each size.
    """
    journal = Journal(None) if journal is None else journal
    growth.complete = False
    growth.config = config
    total = sum(len(one.shapes) for one in every) * len(indexes)
    over: dict[tuple[str, str], str] = {}
    for one in every:
        for size, shape in one.shapes:
            for index in indexes:
                progress(one.name, index, size, len(growth.points) / total)
                point = GrowthPoint(one.name, size, index)
                growth.points.append(point)
                if (why := over.get((one.name, index))) is not None:
                    point.skipped = why
                    continue
                key: dict[str, object] = {
                    "shape": asdict(shape),
                    "index": index,
                    "seed": growth.seed,
                    "config": config,
                    "machine": growth.machine,
                }
                result = journal.find(key)
                if result is None:
                    try:
                        result = probe(shape, index)
                    except MeasurementError as error:
                        result = {"failed": str(error)}
                    journal.add(key, result)
                why = _read(point, result)
                if why:
                    point.skipped = why
                    over[one.name, index] = f"not tried: at {size:,} {why}"
    growth.complete = True
    return growth


def _read(point: GrowthPoint, result: Result) -> str:
    if "failed" in result:
        return str(result["failed"])
    point.build_s = result["build_ns"] / 1e9
    if not result["built"]:
        return f"not built within {point.build_s:.0f} s"
    if result["wrong"]:
        return f"{result['wrong']} of {result['lookups']} answers were wrong: {result.get('example')}"
    point.blocks = result["blocks"]
    point.p50, point.p99 = result["service"]["p50"], result["service"]["p99"]
    return ""
