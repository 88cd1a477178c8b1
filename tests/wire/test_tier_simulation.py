"""Recorded streams of engines that offload: a simulated engine with the same blocks must find what those found."""

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.tier_records import records

from kvatlas.sim import NullSink, Request
from kvatlas.sim.chunks import ChunkStore, leading_blocks
from kvatlas.sim.offload import Offload
from kvatlas.sim.tiers import SharedPool, TierConfig
from kvatlas.sim.transfers import Transfer
from kvatlas.wire import Cleared, Removed, Stored, decode_batch

BLOCK = 16
FREE = Transfer()


class RecordedEngine:
    """Simulated tiers with the content that an engine announced. Names of blocks are the engine's."""

    def __init__(self, worker: str, chunk: int, pool: SharedPool | None) -> None:
        self.chunk = chunk
        self.device: Counter[int] = Counter()
        config = TierConfig(host_tokens=1 << 30, chunk=chunk, host=FREE, pull=FREE, prompt_only=False)
        self.tiers = Offload(worker, BLOCK, config, NullSink(), pool)
        assert self.tiers.host is not None
        self.host: ChunkStore = self.tiers.host

    def apply(self, payload: bytes) -> None:
        for event in decode_batch(payload).events:
            match event:
                case Stored(tier="gpu"):
                    self.device.update(ints(event.block_hashes))
                case Stored(tier="cpu"):
                    self.host.add(ints(event.block_hashes))
                case Stored(tier="external"):
                    assert self.tiers.pool is not None
                    self.tiers.pool.take(ints(event.block_hashes))
                case Removed(tier="gpu"):
                    self.device.subtract(ints(event.block_hashes))
                case Removed(tier="cpu"):
                    for name in ints(event.block_hashes):
                        self.host.discard(name)
                case Cleared():
                    self.device.clear()
                case _:
                    raise AssertionError(event)

    def on_device(self, names: list[int]) -> int:
        return next((at for at, name in enumerate(names) if self.device[name] <= 0), len(names))

    def request(self, names: list[int], tokens: int) -> Request:
        asked = Request(0, tokens, 1, np.zeros(len(names), dtype=np.uint64), names)
        asked.target = tokens
        return asked

    def cached(self, names: list[int], tokens: int, source: "RecordedEngine") -> int:
        """Tokens that a simulated request finds or pulls, by the load that it would begin."""
        asked = self.request(names, tokens)
        asked.pull = source.tiers
        at = min(self.on_device(names), (tokens - 1) // BLOCK)
        load = self.tiers.load(asked, at, 0.0)
        if load is None:
            return at * BLOCK
        self.tiers.abandon(asked, load)
        return load.end * BLOCK


def ints(names: Any) -> list[int]:
    return [int(name) for name in names]


def differences(folder: Path, engines: tuple[str, ...], chunk: int, *, shared: bool = True) -> tuple[Counter[str], int]:
    """The recorded answers that the simulation contradicts, by kind, and how many there are."""
    pool = SharedPool(FREE)
    simulated = {name: RecordedEngine(name, chunk, pool if shared else SharedPool(FREE)) for name in engines}
    wrong: Counter[str] = Counter()
    answers, deleted, pulled = 0, False, 0
    for engine, record in records(folder, engines):
        one = simulated[engine]
        match record["type"]:
            case "frames":
                one.apply(base64.b64decode(record["frames"][2]))
            case "reset" if record["connector"]:
                one.tiers.clear()
            case "deleted_files":
                deleted = True
            case "truth":
                answers += 1
                names = record["block_hashes"]
                late = " after a deletion" if deleted else ""
                device = one.on_device(names)
                wrong["device"] += device != record["device_blocks"]
                wrong["host"] += leading_blocks(names, 0, chunk, [one.host]) != record["host_blocks"]
                wrong["device and host"] += (
                    leading_blocks(names, device, chunk, [one.host]) != record["device_host_blocks"]
                )
                assert one.tiers.pool is not None
                storage = leading_blocks(names, 0, chunk, [one.tiers.pool.chunks])
                wrong["storage" + late] += storage != record["storage_blocks"]
                places = [one.host, one.tiers.pool.chunks]
                loadable = leading_blocks(names, device, chunk, places)
                wrong["loadable" + late] += loadable != record["loadable_blocks"]
                used = loadable if loadable - device >= chunk else device
                assert one.tiers.outlook(names, device)[0] == used
                if record["kind"] == "consumer, before a pull":
                    pulled = one.cached(names, len(record["token_ids"]), simulated[engines[0]])
            case "pulled":
                answers += 1
                wrong["pulled"] += pulled != record["cached_tokens"]
    return +wrong, answers


@pytest.mark.parametrize(
    ("engines", "chunk", "answers"),
    [(("cpu-placeholders",), 1, 80), (("fs-a", "fs-b"), 4, 320), (("p2p-a", "p2p-b"), 1, 302 + 31)],
)
def test_a_simulated_engine_finds_what_a_real_one_found(
    tier_streams: Path, engines: tuple[str, ...], chunk: int, answers: int
) -> None:
    """Only what was deleted behind the engines' backs differs: the simulation was not told either."""
    deleted = {"storage after a deletion": 10, "loadable after a deletion": 5} if "fs-a" in engines else {}
    assert differences(tier_streams, engines, chunk) == (deleted, answers)


def test_rules_that_are_wrong_would_be_noticed(tier_streams: Path) -> None:
    assert differences(tier_streams, ("fs-a", "fs-b"), 1)[0]["host"] > 0
    assert differences(tier_streams, ("fs-a", "fs-b"), 4, shared=False)[0]["loadable"] > 0
