"""Tests of what is counted about a trace, and of the caches it is compared with."""

import random

import pytest

from kvatlas.sim import (
    BlockPool,
    Engine,
    EngineConfig,
    NullSink,
    Trace,
    TraceRequest,
    infinite_cache,
    make_request,
    trace_statistics,
)


def random_trace(seed: int, count: int = 120) -> list[TraceRequest]:
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        length = rng.randint(1, 3000)
        family = rng.randrange(4)
        blocks = -(-length // 512)
        ids = [family * 100 + i for i in range(blocks)]
        if rng.random() < 0.5:
            cut = rng.randint(0, blocks)
            ids[cut:] = [10_000 + 100 * number + i for i in range(blocks - cut)]
        requests.append(TraceRequest(number * 1000, length, rng.randint(0, 40), tuple(ids)))
    return requests


@pytest.mark.parametrize("size", [16, 128, 512])
@pytest.mark.parametrize("seed", range(4))
def test_the_infinite_cache_is_an_engine_without_limits(size: int, seed: int) -> None:
    requests = random_trace(seed)
    engine = Engine("w", EngineConfig(block_size=size, blocks=200_000), NullSink())
    hits = []
    for number, row in enumerate(requests):
        request = make_request(row, number, size)
        engine.submit(request, number * 1000.0)
        hits.append(request.hit_tokens)
    assert infinite_cache(requests, size) == hits


def test_statistics() -> None:
    rows = [
        TraceRequest(1000, 1024, 10, (1, 2)),
        TraceRequest(2000, 1024, 20, (1, 2)),
        TraceRequest(5000, 100, 30, (3,)),
    ]
    stats = trace_statistics(Trace(rows), 512)
    assert (stats.requests, stats.duration, stats.input_tokens, stats.output_tokens) == (3, 4.0, 2148, 60)
    assert stats.distinct_blocks == 3
    # The second prompt is wholly known, but its last block is always computed.
    assert stats.seen_before == 512 / 2148
    assert stats.input_quantiles["p50"] == 1024
    assert stats.output_quantiles["max"] == 30


def test_a_pool_knows_its_size() -> None:
    assert BlockPool(7).size == 7
