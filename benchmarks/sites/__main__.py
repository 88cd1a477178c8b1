"""Simulate fleets of sites, with digests and with one exact index of all, and print a table.

python -m benchmarks.sites --trace conversation_trace.jsonl --sites 16 64 256 --workers 64 --grain 16 32 64 128
python -m benchmarks.sites --grain 32 --scenarios        # delay, sites cut off, a site that lies
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.sites.load import prompts, trace_of
from benchmarks.sites.run import Policy, Run, Shape
from benchmarks.sites.wire import measure


def main() -> None:
    args = _arguments()
    trace = trace_of(args.trace, args.length, args.seed)
    last = trace.requests[-1].timestamp / 1000
    print(f"{trace.name}: {len(trace.requests):,} requests in {last / 60:.0f} minutes", file=sys.stderr)
    cost = measure(args.block_size)
    rows: list[dict[str, Any]] = []
    for sites, workers in itertools.product(args.sites, args.workers):
        copies = max(1, round(sites * workers * args.per_worker / len(trace.requests)))
        copies = min(copies, max(1, args.most_requests // len(trace.requests)))
        cache = min(args.cache, args.most_blocks // (sites * workers))
        base = Shape(sites, workers, cache, args.block_size, every=args.every, delay=args.delay, more=args.more)
        shapes = [replace(base, grain=grain) for grain in args.grain]
        jobs: list[tuple[Shape, Policy, str]] = [(shape, "digests", "") for shape in shapes]
        if args.scenarios:
            jobs += [(shape, "digests", name) for name, shape in _scenarios(shapes[0])]
        others: tuple[Policy, ...] = ("exact", "blind")
        jobs += [(base, policy, "") for policy in others if policy not in args.without]
        done: list[dict[str, Any]] = []
        for shape, policy, scenario in jobs:
            start = time.monotonic()
            requests = prompts(trace, copies, args.block_size, ragged=args.ragged, seed=args.seed)
            row = Run(shape, policy, cost).run(requests, last / 2).row()
            row.update(copies=copies, ragged=args.ragged, trace=trace.name, scenario=scenario)
            row["seconds"] = time.monotonic() - start
            done.append(row)
            _show(row)
        exact = next((row["hit_rate"] for row in done if row["policy"] == "exact"), None)
        for row in done:
            row["lost_points"] = None if exact is None else 100 * (exact - row["hit_rate"])
        rows += done
        if args.json:
            args.json.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    _table(rows)


def _scenarios(shape: Shape) -> list[tuple[str, Shape]]:
    return [
        ("digests 1 s late", replace(shape, delay=1.0)),
        ("digests 30 s late, every 30 s", replace(shape, delay=30.0, every=30.0, stale_after=120.0)),
        ("a quarter of the sites cut off", replace(shape, lost=max(1, shape.sites // 4))),
        ("a site that claims all", replace(shape, liars=1)),
    ]


def _show(row: dict[str, Any]) -> None:
    text = (
        f"{row['sites']} x {row['workers']} cache {row['cache']} {row['policy']} {row['scenario']} "
        f"grain {row['grain']}: {row['requests']:,} requests, {row['blocks']:,} blocks "
        f"({row['distinct']:,} by site), hit {row['hit_rate']:.4f}"
    )
    if row["policy"] == "digests":
        text += (
            f", asked {row['asked']:.3f}, best {row['best_asked']:.4f}, regret {row['regret']:.5f}, "
            f"wrong {row['wrong']:.4f}, memory {row['memory']:.4f}, traffic {row['traffic']:.4f} "
            f"(compact {row['traffic_compact']:.4f}), liar asked {row['liar_asked']:.4f}"
        )
    print(f"{text}, spread {row['spread']:.2f}, {row['seconds']:.0f} s", file=sys.stderr, flush=True)


def _table(rows: list[dict[str, Any]]) -> None:
    print("| sites x workers | grain | memory | traffic | best asked | asked | hit rate | lost, points | |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        fleet, lost = f"{row['sites']} x {row['workers']:,}", row["lost_points"]
        shown = "" if lost is None else f"{lost:.2f}"
        if row["policy"] == "digests":
            print(
                f"| {fleet} | {row['grain']} | {row['memory']:.2%} | {row['traffic']:.2%} | {row['best_asked']:.2%} "
                f"| {row['asked']:.2f} | {row['hit_rate']:.2%} | {shown} | {row['scenario']} |"
            )
        else:
            print(f"| {fleet} | | | | | | {row['hit_rate']:.2%} | {shown} | {row['policy']} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="a trace in Mooncake's format; a workload is made up if not given")
    parser.add_argument("--length", type=int, default=2_000, help="requests of the trace that are used (2000)")
    parser.add_argument("--sites", type=int, nargs="+", default=[16])
    parser.add_argument("--workers", type=int, nargs="+", default=[64], help="of each site")
    parser.add_argument("--grain", type=int, nargs="+", default=[32], help="blocks between marks")
    parser.add_argument("--cache", type=int, default=8_192, help="blocks of each worker at most (8192)")
    parser.add_argument("--per-worker", type=float, default=20.0, help="requests for each worker (20)")
    parser.add_argument("--most-requests", type=int, default=60_000, help="requests of a run at most (60000)")
    parser.add_argument("--most-blocks", type=int, default=16_000_000, help="blocks of all caches at most (16 million)")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between digests (5)")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds that a digest is on its way (0.1)")
    parser.add_argument("--more", type=int, help="blocks that a further site must be able to have more; see Asking")
    parser.add_argument("--ragged", action="store_true", help="prompts part at random places inside trace blocks")
    parser.add_argument("--scenarios", action="store_true", help="also: delays, sites cut off, a site that lies")
    parser.add_argument("--without", nargs="*", default=[], choices=["exact", "blind"], help="runs to leave out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write all figures, one line for each run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
