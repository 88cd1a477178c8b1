"""Tests of how designs grow: the shapes are what they say, and every design gives the right answers on them."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from kvatlas.errors import ConfigError, MeasurementError
from kvatlas.lab.bench.designs import choose_designs
from kvatlas.lab.bench.grow import Growth, Series, Shape, grow, shape_columns
from kvatlas.lab.bench.journal import Journal
from kvatlas.lab.bench.probe import probe_python, run
from kvatlas.lab.bench.programs import Result, run_child
from kvatlas.reference import ReferenceIndex

from .designs_of_mine import Right, WrongDesign
from .fake import MACHINE

OPTIONS = {"seed": 1, "build_seconds": 20.0, "lookup_seconds": 0.2, "memory": 0, "options": {}}


@pytest.mark.parametrize(
    "shape",
    [
        Shape(depth=8, workers=5, holders=2, blocks=200),
        Shape(depth=64, workers=3, holders=3, blocks=640),
        Shape(depth=1, workers=4, holders=1, blocks=3),
        Shape(depth=16, workers=1, holders=1, blocks=64),
    ],
)
def test_a_shape_is_what_it_says(shape: Shape) -> None:
    columns = shape_columns(shape, seed=1, lookups=30)
    held: dict[int, set[int]] = {}
    parents: dict[int, set[int]] = {}
    for worker, first, length, parent in columns.stores():
        mine = held.setdefault(worker, set())
        assert parent is None or parent in mine
        names = columns.names[first : first + length].tolist()
        assert not mine & set(names)
        mine.update(names)
        parents.setdefault(worker, set())
    every = set().union(*held.values())
    # One block is everybody's.
    assert len(every) == shape.chains * (shape.depth - 1) + 1
    assert all(int(columns.names[0]) in mine for mine in held.values())
    pairs = sum(map(len, held.values())) - len(held)
    assert pairs == shape.chains * shape.holders * (shape.depth - 1)
    asked = list(columns.lookups())
    assert len(asked) == 30
    for worker, first, length in asked:
        assert length == shape.depth
        assert set(columns.names[first + 1 : first + length].tolist()) <= held[worker]
    again = shape_columns(shape, seed=1, lookups=30).plan()
    assert columns.plan().digest == again.digest != shape_columns(shape, seed=2, lookups=30).plan().digest
    assert columns.plan().facts()["lookup_blocks"] == 30 * shape.depth


@pytest.mark.parametrize("name", [design.name for design in choose_designs(["all"])])
def test_every_design_answers_right_and_is_timed(name: str) -> None:
    shape = Shape(depth=16, workers=9, holders=3, blocks=640)
    found = json.loads(run([json.dumps(asdict(shape)), name, json.dumps(OPTIONS)]))
    assert found["built"]
    assert found["wrong"] == 0
    assert found["lookups"] == found["service"]["count"] > 10
    assert 0 < found["service"]["p50"] <= found["service"]["p99"]


def test_wrong_answers_and_slow_building_are_said() -> None:
    columns = shape_columns(Shape(depth=4, workers=4, holders=2, blocks=400), seed=0)
    found = probe_python(columns, WrongDesign(), 20.0, 0.05)
    assert found["wrong"] > 0
    assert "depth 5, should be 4" in found["example"]
    assert probe_python(columns, Right(), 20.0, 0.05)["wrong"] == 0
    found = probe_python(columns, Right(), 0.0, 0.05)
    assert not found["built"]
    assert "service" not in found
    slow = {**OPTIONS, "build_seconds": 0.0}
    found = json.loads(run([json.dumps(asdict(Shape(blocks=200_000))), "dict", json.dumps(slow)]))
    assert not found["built"]
    assert found["service"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's here")
def test_too_much_memory_is_said() -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "kvatlas.lab.bench.probe",
        json.dumps(asdict(Shape(blocks=300_000))),
    ]
    with pytest.raises(MeasurementError):
        run_child([*command, "dict", json.dumps({**OPTIONS, "memory": 60_000_000})], "dict", 60)


def test_growth_can_be_resumed(tmp_path: Path) -> None:
    every = [Series("depth", "d", tuple((n, Shape(depth=n)) for n in (8, 16, 32)))]
    calls: list[tuple[int, str]] = []

    def probe(shape: Shape, index: str) -> Result:
        calls.append((shape.depth, index))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {"built": True, "build_ns": 1, "wrong": 0, "lookups": 1, "blocks": 1, "service": {"p50": 5, "p99": 9}}

    def go() -> Growth:
        growth = Growth([], every, MACHINE, 0)
        grow(["a", "b"], every, probe, growth, config={}, journal=Journal(tmp_path / "points.jsonl"))
        return growth

    with pytest.raises(KeyboardInterrupt):
        go()
    growth = go()
    assert growth.complete
    assert [(p.size, p.index, p.p50) for p in growth.points] == [(n, i, 5) for n in (8, 16, 32) for i in "ab"]
    assert calls == [(8, "a"), (8, "b"), (16, "a"), (16, "b"), (16, "b"), (32, "a"), (32, "b")]


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 holders need as many workers, there are 4"):
        shape_columns(Shape(workers=4, holders=5))


def test_names_are_not_mixed_up() -> None:
    # The reference agrees that only its holders hold a chain beyond the shared block.
    columns = shape_columns(Shape(depth=4, workers=4, holders=2, blocks=40), seed=3, lookups=10)
    reference = ReferenceIndex(block_size=16)
    for worker, first, length, parent in columns.stores():
        names, contents = columns.names[first : first + length], columns.contents[first : first + length]
        reference.store(str(worker), block_hashes=names.tolist(), content_hashes=contents.tolist(), parent=parent)
    for _, first, length in columns.lookups():
        depths = np.array(
            sorted(reference.find(content_hashes=columns.contents[first : first + length].tolist()).scores().values())
        )
        assert depths[-2:].tolist() == [4, 4]
        assert set(depths[:-2].tolist()) <= {1}


def test_usage_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kvatlas.lab.bench.probe"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stderr.startswith("Error: usage: ")
