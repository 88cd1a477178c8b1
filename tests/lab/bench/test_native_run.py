"""The native plan and run, from Python: what is refused, what comes back, and indexes written in Python."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas._native import Plan, run_plan
from kvatlas.errors import InvalidArgumentError, InvalidTypeError

REQUESTS = 200
WORKERS = 4
DEPTH = 8


def columns(requests: int = REQUESTS) -> dict[str, Any]:
    """Prompts of DEPTH blocks on WORKERS workers, each stored after it was asked for; every tenth is evicted again."""
    random = np.random.default_rng(5)
    ops: list[tuple[int, int, int, int, int, int]] = []
    contents: list[int] = []
    names: list[int] = []
    removed: list[int] = []
    stored: set[tuple[int, int]] = set()
    for request in range(requests):
        time_ns, worker, prompt = request * 1_000, int(random.integers(WORKERS)), int(random.integers(40))
        start = len(contents)
        contents += [prompt << 32 | at for at in range(DEPTH)]
        names += [(prompt << 32 | at) + 2**63 for at in range(DEPTH)]
        ops.append((time_ns, 0, worker, start, DEPTH, 0))
        if (worker, prompt) not in stored:
            ops.append((time_ns, 1, worker, start, DEPTH // 2, 0))
            ops.append((time_ns, 2, worker, start + DEPTH // 2, DEPTH // 2, names[start + DEPTH // 2 - 1]))
            stored.add((worker, prompt))
        if request % 10 == 9:
            ops.append((time_ns, 3, worker, len(removed), 2, 0))
            removed += names[-2:]
            stored.discard((worker, prompt))
        if request == requests // 2:
            ops.append((time_ns, 4, worker, 0, 0, 0))
            stored = {held for held in stored if held[0] != worker}
    dtypes = {"times": "u8", "kinds": "u1", "workers": "u4", "starts": "u8", "lengths": "u4", "parents": "u8"}
    made: dict[str, Any] = {
        name: np.array([op[at] for op in ops], dtype) for at, (name, dtype) in enumerate(dtypes.items())
    }
    pools = {"contents": contents, "names": names, "removed": removed}
    made |= {name: np.array(pool, np.uint64) for name, pool in pools.items()}
    return made | {"worker_count": WORKERS, "block_size": 16, "meta": '{"made": "for a test"}'}


def options(**changed: Any) -> str:
    return json.dumps({"window_ns": 100_000_000, "lag_limit_ns": 60_000_000_000} | changed)


def run(index: object, **changed: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run_plan(Plan(**columns()), index, options(**changed)))
    return result


class Literal:
    """Every worker's blocks with what they continue and contain; a lookup walks them one by one."""

    def __init__(self) -> None:
        self.held: dict[int, dict[int, tuple[int | None, int]]] = {}

    def store(self, worker: int, parent: int | None, block_hashes: list[int], content_hashes: list[int]) -> None:
        for name, content in zip(block_hashes, content_hashes, strict=True):
            self.held.setdefault(worker, {})[name] = (parent, content)
            parent = name

    def remove(self, worker: int, block_hashes: list[int]) -> None:
        for name in block_hashes:
            self.held.get(worker, {}).pop(name, None)

    def clear(self, worker: int) -> None:
        self.held[worker] = {}

    def find(self, content_hashes: list[int]) -> dict[int, int]:
        depths = {}
        for worker, held in self.held.copy().items():
            children = {step: name for name, step in held.copy().items()}
            name, depth = None, 0
            while depth < len(content_hashes) and (name, content_hashes[depth]) in children:
                name = children[name, content_hashes[depth]]
                depth += 1
            depths[worker] = depth
        return depths

    def holdings(self) -> Iterator[tuple[int, int]]:
        return ((worker, name) for worker, held in self.held.items() for name in held)


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    plan = Plan(**columns())
    plan.save(tmp_path / "plan")
    loaded = Plan.load(str(tmp_path / "plan"))
    assert loaded.digest == plan.digest == Plan(**columns()).digest
    assert loaded.facts() == plan.facts()
    assert loaded.meta == '{"made": "for a test"}'
    facts = plan.facts()
    assert facts["ops"] == len(plan) == facts["lookups"] + facts["stores"] + facts["removes"] + facts["clears"]
    assert facts["lookup_blocks"] == REQUESTS * DEPTH
    assert facts["clears"] == 1
    assert repr(plan).startswith(f"Plan(lookups={REQUESTS:,}, events=")
    other = columns()
    other["times"][-1] += 1
    assert Plan(**other).digest != plan.digest


def test_what_is_wrong_with_a_plan_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match=r"times must be a uint64 array, got .*int64"):
        Plan(**columns() | {"times": np.zeros(3, np.int64)})
    with pytest.raises(InvalidTypeError, match="kinds must be a uint8 array"):
        Plan(**columns() | {"kinds": [0, 1]})
    with pytest.raises(InvalidArgumentError, match="lengths must be contiguous"):
        Plan(**columns() | {"lengths": columns()["lengths"].repeat(2)[::2]})
    wrong = columns()
    wrong["workers"][3] = 9
    with pytest.raises(InvalidArgumentError, match="operation 3: workers must be less than worker_count, 4, got 9"):
        Plan(**wrong)
    with pytest.raises(InvalidArgumentError, match="worker_count"):
        Plan(**columns() | {"worker_count": -1})
    with pytest.raises(FileNotFoundError, match="absent"):
        Plan.load(tmp_path / "absent")
    (tmp_path / "plan").write_bytes(b"no plan at all" * 10)
    with pytest.raises(InvalidArgumentError, match="is not a plan") as caught:
        Plan.load(tmp_path / "plan")
    assert caught.value.code == "plan_file"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "window_ns or rate"),
        ({"window_ns": 1, "rate": 1.0}, "not both"),
        ({"windows": 1}, "unknown field `windows`"),
        ({"window_ns": 1000, "warm_up": 1.0}, "warm_up"),
        ({"window_ns": 1000, "query_threads": 0}, "query_threads"),
        ({"rate": 1e-9}, "at most an hour"),
    ],
)
def test_impossible_options_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        run_plan(Plan(**columns()), "block-index", json.dumps(given))


def test_what_is_no_index_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing-like-it"):
        run("nothing-like-it")
    with pytest.raises(InvalidTypeError, match="has no store"):
        run(7)
    with pytest.raises(InvalidTypeError, match="plan must be a Plan"):
        run_plan(7, "block-index", options())  # type: ignore[arg-type]


@pytest.mark.parametrize("index", ["block-index", "block-index-scores"])
def test_a_rung_is_run(index: str) -> None:
    result = run(index, warm_up=0.25, rate=1e6, window_ns=None)
    facts = Plan(**columns()).facts()
    events = facts["stores"] + facts["removes"] + facts["clears"]
    assert (result["index"], result["schema"]) == (index, 1)
    assert result["agrees"] is True, result["why"]
    assert result["issued"] == {"lookups": facts["lookups"], "events": events}
    assert (result["applied"], result["answered"]) == (events, facts["lookups"])
    measured = result["measured"]
    blocks = measured["lookup_blocks"] + measured["stored_blocks"] + measured["removed_blocks"]
    assert result["window_ns"] == pytest.approx(blocks * 1_000, abs=1)
    assert result["offered"]["block_ops_per_s"] == pytest.approx(1e6, rel=1e-3)
    assert result["service"]["count"] == measured["lookups"] < facts["lookups"]
    comparison = result["comparison"]
    assert comparison["holdings"]["compared"] == result["counts"]["blocks"] > 0
    assert comparison["depths"]["nonzero"] > 0
    assert comparison["reference"]["nonzero"] > 0
    assert result["plan"]["meta"] == {"made": "for a test"}
    assert result["ok"] == (result["valid"] and result["kept_up"])


def test_an_index_in_python_is_run() -> None:
    # Half a second, as it is slow: whether it keeps up is the machine's affair, whether it is right is not.
    result = run(Literal(), window_ns=500_000_000)
    assert result["agrees"] is True, result["why"]
    assert result["counts"]["errors"] == 0
    assert result["comparison"]["holdings"]["compared"] > 0
    assert result["index"].endswith("Literal")


def test_an_index_that_is_wrong_is_found_out() -> None:
    class Boastful(Literal):
        def find(self, content_hashes: list[int]) -> dict[int, int]:
            return {worker: depth + 1 for worker, depth in super().find(content_hashes).items()}

    class Forgetful(Literal):
        def remove(self, worker: int, block_hashes: list[int]) -> None:
            pass

    for index in (Boastful(), Forgetful()):
        result = run(index)
        assert (result["agrees"], result["ok"]) == (False, False)
        assert result["comparison"]["wrong"] > 0
        assert any(why.startswith("wrong:") for why in result["why"])
        assert result["comparison"]["examples"]


def test_an_index_that_is_slow_does_not_keep_up() -> None:
    class Slow(Literal):
        def store(self, worker: int, parent: int | None, block_hashes: list[int], content_hashes: list[int]) -> None:
            time.sleep(0.01)
            super().store(worker, parent, block_hashes, content_hashes)

    result = run(Slow())
    assert (result["kept_up"], result["ok"]) == (False, False)
    assert any("did not keep up" in why for why in result["why"])


def test_what_an_index_raises_is_told() -> None:
    class FailingSubject(Literal):
        def clear(self, worker: int) -> None:
            raise RuntimeError(f"cannot clear {worker}")

    result = run(FailingSubject())
    assert result["ok"] is False
    assert result["counts"]["errors"] == 1
    assert "RuntimeError('cannot clear" in result["counts"]["first_error"]
    assert any("cannot clear" in why for why in result["why"])


def test_ctrl_c_ends_a_long_run() -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, pressed)
    threads = threading.active_count()
    started = time.monotonic()
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(Literal(), window_ns=600_000_000_000)
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < 60
    assert threading.active_count() == threads
