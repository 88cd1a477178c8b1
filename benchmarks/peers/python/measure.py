"""The measuring half of run.py: runs inside the virtual environment, on a stream written by the Rust benchmark.

Every query is a uint64 array made before the clock starts. Both indexes take the same events in the same order and are
asked the same queries, in turn, in trace order; an answer is freed before the clock stops. Dynamo is given what it
takes fastest, the array or a list of the same numbers: both are measured, and the better one counts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

# Both are imported by name: neither need be there when this file is only checked.
dynamo = importlib.import_module("dynamo._core")
kvatlas: Any = None
try:
    kvatlas = importlib.import_module("kvatlas")
except ImportError as error:
    print(f"kvatlas cannot be imported ({error}): only Dynamo is measured", file=sys.stderr)

TOKENS, BLOCK = 32_768, 16
clock = time.perf_counter_ns


def percentile(values: Iterable[int], share: float) -> float:
    return float(np.quantile(np.fromiter(values, np.int64), share, method="inverted_cdf"))


def overhead() -> float:
    """ns between two readings of the clock with nothing between them (median); deducted from everything."""
    times = []
    for _ in range(100_000):
        start = clock()
        times.append(clock() - start)
    return percentile(times, 0.5)


class Subject(ABC):
    """An index and how its users talk to it."""

    name: ClassVar[str]
    find: Callable[[Any], Any]

    @abstractmethod
    def event(self, line: dict[str, Any]) -> Callable[[], None]:
        """An event, ready to be applied."""

    @abstractmethod
    def scores(self, query: Any) -> dict[int, int]:
        """The depth of every engine that has any."""

    @staticmethod
    def query(contents: list[int]) -> Any:
        return np.array(contents, np.uint64)


class Ours(Subject):
    name = "kvatlas, array"

    def __init__(self) -> None:
        self.index = kvatlas.BlockIndex(block_size=512)
        self.find = lambda query: self.index.find(content_hashes=query)

    def event(self, line: dict[str, Any]) -> Callable[[], None]:
        names = np.array(line["names"], np.uint64)
        if "remove" in line:
            return lambda: self.index.remove(str(line["remove"]), block_hashes=names)
        worker, contents, parent = str(line["store"]), np.array(line["contents"], np.uint64), line["parent"]
        return lambda: self.index.store(worker, block_hashes=names, content_hashes=contents, parent=parent)

    def scores(self, query: Any) -> dict[int, int]:
        return {int(worker): depth for worker, depth in self.index.find(content_hashes=query).scores().items()}


class OursExpanded(Ours):
    name = "kvatlas, array, scores()"

    def __init__(self) -> None:
        super().__init__()
        self.find = lambda query: self.index.find(content_hashes=query).scores()


class DynamoArray(Subject):
    name = "dynamo, array"

    def __init__(self) -> None:
        self.index = dynamo.RadixTree()
        self.find = self.index.find_matches

    def event(self, line: dict[str, Any]) -> Callable[[], None]:
        if "remove" in line:
            worker, data = line["remove"], {"removed": {"block_hashes": line["names"]}}
        else:
            blocks = [{"block_hash": n, "tokens_hash": c} for n, c in zip(line["names"], line["contents"], strict=True)]
            worker, data = line["store"], {"stored": {"parent_hash": line["parent"], "blocks": blocks}}
        payload = json.dumps({"event_id": 0, "data": data}).encode()
        return lambda: self.index.apply_event(worker, payload)

    def scores(self, query: Any) -> dict[int, int]:
        return {worker: depth for (worker, _), depth in self.find(query).scores.items()}


class DynamoList(DynamoArray):
    name = "dynamo, list"

    @staticmethod
    def query(contents: list[int]) -> Any:
        return contents


Answers = list[dict[int, int]]


def one_round(kind: type[Subject], stream: list[dict[str, Any]], cost: float) -> tuple[dict[str, float], Answers]:
    """Latencies in trace order, and the answers to every 25th query."""
    subject = kind()
    find, times, answers = subject.find, [], []
    for line in stream:
        if "find" in line:
            query = subject.query(line["find"])
            start = clock()
            find(query)
            times.append(clock() - start)
            if len(times) % 25 == 0:
                answers.append(subject.scores(query))
        else:
            subject.event(line)()
    return {"p50": percentile(times, 0.5) - cost, "p99": percentile(times, 0.99) - cost}, answers


def hashing(cost: float, repeats: int = 200) -> tuple[dict[str, float], bool | None]:
    """ns to hash the tokens of one prompt (median), by each; and whether the hashes are equal."""
    array = np.random.default_rng(1).integers(0, 128_000, TOKENS, dtype=np.uint32)
    tokens = array.tolist()
    ways: dict[str, Callable[[], Any]] = {
        "dynamo, array": lambda: dynamo.compute_block_hash_for_seq(array, BLOCK),
        "dynamo, list": lambda: dynamo.compute_block_hash_for_seq(tokens, BLOCK),
    }
    equal = None
    if kvatlas:
        ways = {"kvatlas, array": lambda: kvatlas.content_hashes(array, BLOCK), **ways}
        equal = kvatlas.content_hashes(array, BLOCK).tolist() == dynamo.compute_block_hash_for_seq(tokens, BLOCK)
    result = {}
    for name, way in ways.items():
        times = []
        for _ in range(repeats):
            start = clock()
            way()
            times.append(clock() - start)
        result[name] = percentile(times, 0.5) - cost
    return result, equal


def verdict(value: float, bar: float, unit: str = "") -> str:
    return f"{value:.3g}{unit} <= {bar:g}{unit} {'ok' if value <= bar else 'MISS'}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with Path(arguments.stream).open(encoding="utf-8") as file:
        stream = [json.loads(line) for line in file]
    cost = overhead()

    kinds: list[type[Subject]] = [*([Ours, OursExpanded] if kvatlas else []), DynamoArray, DynamoList]
    finds: dict[str, list[dict[str, float]]] = {kind.name: [] for kind in kinds}
    hashes: dict[str, list[float]] = {}
    same_hashes, differences, compared = None, 0, 0
    for number in range(arguments.rounds):
        answers = []
        for turn in range(len(kinds)):
            kind = kinds[(turn + number) % len(kinds)]
            round_, said = one_round(kind, stream, cost)
            finds[kind.name].append(round_)
            answers.append(said)
        compared += len(answers[0])
        differences += sum(any(a != other[0] for a in other) for other in zip(*answers, strict=True))
        times, same_hashes = hashing(cost)
        for name, value in times.items():
            hashes.setdefault(name, []).append(value)

    median = {
        name: {key: statistics.median(r[key] for r in rounds) for key in ("p50", "p99")}
        for name, rounds in finds.items()
    }
    hashing_median = {name: statistics.median(values) for name, values in hashes.items()}
    print(
        f"From Python {platform.python_version()}: W1 in trace order; reading the clock costs {cost:.0f} ns (deducted)"
    )
    for name, found in median.items():
        print(f"  {name:<26} find p50 {found['p50']:>8.0f} ns   p99 {found['p99']:>8.0f} ns")
    for name, spent in hashing_median.items():
        print(f"  {name:<26} content hashes of {TOKENS:,} tokens, block {BLOCK}: {spent / 1e3:>8.1f} us")
    print(f"  answers that differ: {differences} of {compared}; hashes equal: {same_hashes}")
    bars = {}
    if kvatlas:
        peer = min(found["p50"] for name, found in median.items() if name.startswith("dynamo"))
        ours = median[Ours.name]["p50"]
        ours_hashing = hashing_median["kvatlas, array"]
        peer_hashing = min(spent for name, spent in hashing_median.items() if name.startswith("dynamo"))
        bars = {
            "find p50": verdict(ours / 1e3, 1.0, " us"),
            "find p50 / dynamo": verdict(ours / peer, 0.1),
            "hashing / dynamo": verdict(ours_hashing / peer_hashing, 0.1),
            "hashing / dynamo, both from the array": verdict(ours_hashing / hashing_median["dynamo, array"], 0.1),
        }
        for name, text in bars.items():
            print(f"  {name}: {text}")
    if arguments.json:
        versions = {package: importlib.metadata.version(package) for package in ("numpy", "ai-dynamo-runtime")}
        if kvatlas:
            versions["kvatlas"] = kvatlas.__version__
        result = {
            "python": sys.version,
            "machine": platform.platform(),
            "processor": platform.processor(),
            "versions": versions,
            "command": sys.argv,
            "clock_ns": cost,
            "find": finds,
            "hashing_ns": hashes,
            "answers": {"compared": compared, "different": differences},
            "hashes_equal": same_hashes,
            "bars": bars,
        }
        Path(arguments.json).write_text(json.dumps(result, indent=2), encoding="utf-8")
    return 1 if differences or same_hashes is False else 0


if __name__ == "__main__":
    sys.exit(main())
