"""The simulation of many sites: small, and what must hold at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.sites.load import prompts, trace_of
from benchmarks.sites.run import Policy, Run, Shape
from benchmarks.sites.wire import measure

SHAPE = Shape(sites=4, workers=3, cache=2_000, grain=32, every=2.0)
COST = measure(16)


def simulate(shape: Shape, policy: Policy, *, ragged: bool = False) -> dict[str, Any]:
    trace = trace_of(None, 80, 1)
    half = trace.requests[-1].timestamp / 2000
    return Run(shape, policy, COST).run(prompts(trace, 2, 16, ragged=ragged), half).row()


def test_digests_come_near_an_exact_index_of_all_sites() -> None:
    rows = {policy: simulate(SHAPE, policy) for policy in ("digests", "exact", "blind")}
    digests, exact, blind = rows["digests"], rows["exact"], rows["blind"]
    assert digests["hit_rate"] > exact["hit_rate"] - 0.05
    assert blind["hit_rate"] < digests["hit_rate"]
    assert digests["best_asked"] > 0.9
    assert 1 <= digests["asked"] < 1.5
    assert 0 < digests["memory"] < 0.2
    assert 0 < digests["traffic"] < 0.05
    assert digests["requests"] == exact["requests"] == 160
    assert (exact["digest_bytes"], exact["marks"]) == (0, 0)


def test_the_same_seed_gives_the_same_figures() -> None:
    shape = replace(SHAPE, sites=3)
    rows = [simulate(shape, "digests", ragged=True) for _ in range(2)]
    for row in rows:
        # Where things are in tables is random, and so how large these are.
        for name in ("publisher_bytes", "top_bytes", "memory"):
            del row[name]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    "shape", [replace(SHAPE, lost=1, stale_after=4.0), replace(SHAPE, liars=1)], ids=["lost", "liar"]
)
def test_what_goes_wrong_with_one_site_costs_little(shape: Shape) -> None:
    row = simulate(shape, "digests")
    assert row["hit_rate"] > simulate(SHAPE, "blind")["hit_rate"]
    assert row["asked"] < 2


def test_ragged_prompts_share_parts_of_blocks() -> None:
    trace = trace_of(None, 40, 1)
    plain, ragged = ([p.names for p in prompts(trace, 1, 16, ragged=it)] for it in (False, True))
    assert [len(names) for names in plain] == [len(names) for names in ragged]
    # More distinct beginnings are shared, and never fewer.
    distinct = [len(set(np.concatenate(all_).tolist())) for all_ in (plain, ragged)]
    assert distinct[1] < distinct[0]
