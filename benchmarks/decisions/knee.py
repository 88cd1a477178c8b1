"""The knee: the highest load of the conversation trace that a policy holds.

It holds a load if the mean time to first token is at most 4 s and the 99th percentile of the times between tokens at
most 100 ms. Searched by halving between speeds of the trace's clock; finer than 2 %.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.decisions import plan
from benchmarks.decisions.cells import Cell, kept, run_and_keep

TTFT = 4.0
BETWEEN = 0.1
SEARCHED = (
    plan.OURS,
    "dynamo-kv",
    "vllm-router-kv-aware",
    "llm-d-scorers",
    "llm-d-token-load",
    "dynamo-agentic",
    "smg-spill",
    plan.BASE,
    "shared-cache",
)
"""The policies that held most at fixed speeds, and the newest ones of their projects; the others hold less."""

_LOW, _HIGH, _FINE = 1.5, 4.0, 0.05


def holds(found: dict[str, Any]) -> bool:
    """True if both limits were kept."""
    return bool(found["ttft"]["mean"] <= TTFT and found["between"]["p99"] <= BETWEEN)


def search(folder: Path, requests: int | None, policy: str, *, only_kept: bool = False) -> dict[str, Any] | None:
    """The result at the highest load that was held; None if none was found."""
    low, high, best = _LOW, _HIGH, None
    while high - low > _FINE:
        middle = round((low + high) / 2, 4)
        cell = Cell("conversation", policy, requests=requests, speedup=middle)
        found = kept(folder, cell) if only_kept else run_and_keep(folder, cell)
        if found is None:
            return None
        if holds(found):
            low, best = middle, found
        else:
            high = middle
    return best


def find_knees(
    folder: Path, requests: int | None, policies: tuple[str, ...], processes: int, *, only_kept: bool
) -> dict[str, dict[str, Any]]:
    """The knee of each policy that is searched."""
    wanted = [policy for policy in SEARCHED if not policies or policy in policies]
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(partial(search, folder, requests, only_kept=only_kept), wanted))
    return {policy: one for policy, one in zip(wanted, found, strict=True) if one is not None}
