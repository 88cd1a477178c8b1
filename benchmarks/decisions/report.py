"""The tables: figures by workload, the bars as ratios, the share of the way to the bound, ablations, knees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.decisions import plan
from benchmarks.decisions.cells import workload_name

Result = Mapping[str, Any]


def tables(results: Sequence[Result], knees: Mapping[str, Result]) -> str:
    """Everything, as Markdown."""
    by = {(workload_name(r["cell"]), r["cell"]["label"] or r["cell"]["policy"]): r for r in results}
    there = dict.fromkeys(workload for workload, _ in by)
    names = [w for w in plan.WORKLOADS if w in there] + [w for w in there if w not in plan.WORKLOADS]
    parts = [plan.CHOSEN_ON, bars(by, names), events(by), trouble(by), knee_table(knees), ablation(by)]
    parts += [one(by, name) for name in names]
    return "\n\n".join(part for part in parts if part)


def rivals(by: Mapping[tuple[str, str], Result], workload: str) -> list[tuple[str, Result]]:
    """The results of other owners' policies on a workload, by name."""
    found = []
    for name in (plan.BASE, *plan.OTHERS):
        # Who does not listen to events does not miss them.
        deaf = workload in plan.EVENTS and name not in plan.LISTENERS
        where = (plan.EVENTS[workload] if deaf else workload, name)
        if where in by:
            found.append((name, by[where]))
    return found


def bars(by: Mapping[tuple[str, str], Result], names: Iterable[str]) -> str:
    """Ours beside the best other one, for each workload."""
    rows = []
    for name in names:
        ours, others = by.get((name, plan.OURS)), rivals(by, name)
        if ours is None or not others:
            continue
        row = [name]
        for part in ("mean", "p99"):
            best, its = min(others, key=lambda other: other[1]["ttft"][part])
            mine, theirs = ours["ttft"][part], its["ttft"][part]
            row += [f"{mine:.2f}", f"{theirs:.2f} ({best})", f"**{mine / theirs:.2f}**"]
        best, its = max(others, key=lambda other: other[1]["good"])
        row.append(f"{100 * ours['good']:.1f} / {100 * its['good']:.1f}")
        bound, base = by.get((name, "shared-cache")), by.get((name, plan.BASE))
        row.append(_way(base, ours, bound))
        rows.append(row)
    head = [
        "workload",
        "TTFT mean, kvatlas (s)",
        "best other",
        "ratio",
        "p99, kvatlas (s)",
        "best other",
        "ratio",
        "within limits, kvatlas / best other (%)",
        "share of the gap from least-loaded to `shared-cache` closed (mean)",
    ]
    return _table("kvatlas and the best policy of other projects, by workload", head, rows)


def _way(base: Result | None, ours: Result, bound: Result | None) -> str:
    if base is None or bound is None:
        return ""
    whole = base["ttft"]["mean"] - bound["ttft"]["mean"]
    return f"{100 * (base['ttft']['mean'] - ours['ttft']['mean']) / whole:.0f} %" if whole > 0 else ""


def events(by: Mapping[tuple[str, str], Result]) -> str:
    """A table of what late, lost and no events leave of the gain over least-loaded on the same requests."""
    rows = []
    for name, same in plan.EVENTS.items():
        base, best = by.get((same, plan.BASE)), by.get((same, plan.OURS))
        if base is None or best is None:
            continue
        gain = base["ttft"]["mean"] - best["ttft"]["mean"]
        for label in (plan.OURS, plan.BY_TTL):
            found = by.get((name, label))
            if found is not None and gain > 0:
                kept = (base["ttft"]["mean"] - found["ttft"]["mean"]) / gain
                rows.append(
                    [
                        name if label == plan.OURS else f"{name} (ttl)",
                        f"{base['ttft']['mean']:.2f}",
                        f"{best['ttft']['mean']:.2f}",
                        f"{found['ttft']['mean']:.2f}",
                        f"{100 * best['hit_rate']:.1f}",
                        f"{100 * found['hit_rate']:.1f}",
                        f"**{100 * kept:.1f} %**",
                    ]
                )
    head = [
        "workload",
        "TTFT mean, least-loaded (s)",
        "kvatlas with all events at once",
        "kvatlas here",
        "hits with all events at once (%)",
        "hits here (%)",
        "share of the gain kept",
    ]
    return _table("What late, lost and no events cost", head, rows)


def trouble(by: Mapping[tuple[str, str], Result]) -> str:
    """A table of what engines that misbehave leave of the gain over the best other policy."""
    rows = []
    for name in plan.TROUBLED:
        with_, without = (
            {label: by[there, label] for label in (plan.OURS, plan.BASE, *plan.OTHERS) if (there, label) in by}
            for there in (f"{name}-trouble", name)
        )
        if len(with_) < 2 or len(without) < 2 or plan.OURS not in with_ or plan.OURS not in without:
            continue
        (ours, best, other), (ours_, best_, _) = _beside_best(with_), _beside_best(without)
        gains = 1 - ours["ttft"]["mean"] / best, 1 - ours_["ttft"]["mean"] / best_
        rows.append(
            [
                name,
                f"{ours_['ttft']['mean']:.2f}",
                f"{best_:.2f}",
                f"{ours['ttft']['mean']:.2f}",
                f"{best:.2f} ({other})",
                f"**{gains[0] / gains[1]:.2f}**" if gains[1] > 0 else "",
                f"{ours['longest_wait']:.1f}",
                f"{ours['refused']}",
                f"{min(r['refused'] for r in with_.values())}",
            ]
        )
    head = [
        "workload",
        "TTFT mean, kvatlas (s)",
        "best other",
        "with trouble",
        "best other",
        "share of the gain kept",
        "longest wait in the router (s)",
        "refused",
        "fewest refused",
    ]
    return _table("What engines that misbehave cost", head, rows)


def _beside_best(by: Mapping[str, Result]) -> tuple[Result, float, str]:
    """Our result, the best mean time to the first token of all others, and whose it is."""
    best, name = min((r["ttft"]["mean"], name) for name, r in by.items() if name != plan.OURS)
    return by[plan.OURS], best, name


def knee_table(knees: Mapping[str, Result]) -> str:
    """The highest load that each holds."""
    if not knees:
        return ""
    others = [r["rate"] for name, r in knees.items() if name in (plan.BASE, *plan.OTHERS)]
    rows = [
        [
            name,
            f"{r['cell']['speedup']:.2f}",
            f"{r['rate']:.2f}",
            f"{r['rate'] / max(others):.2f}" if others else "",
            f"{r['ttft']['mean']:.2f}",
            f"{1000 * r['between']['p99']:.0f}",
            f"{100 * r['hit_rate']:.1f}",
        ]
        for name, r in sorted(knees.items(), key=lambda item: -item[1]["rate"])
    ]
    head = [
        "policy",
        "speed of the trace",
        "requests/s",
        "relative to the best other",
        "TTFT mean (s)",
        "between tokens p99 (ms)",
        "hits (%)",
    ]
    return _table(
        "The highest load with a TTFT mean of at most 4 s and a p99 between tokens of at most 100 ms",
        head,
        rows,
    )


def ablation(by: Mapping[tuple[str, str], Result]) -> str:
    """TTFT mean and p99 without each term of the cost and without waiting in the router, relative to the whole."""
    rows = []
    where = [w for w in plan.ABLATED_ON if (w, plan.OURS) in by]
    for name in (plan.OURS, *(a.name for a in plan.ABLATIONS)):
        row = [name]
        for workload in where:
            found, whole = by.get((workload, name)), by[workload, plan.OURS]
            row.append(
                ""
                if found is None
                else f"{found['ttft']['mean']:.2f} / {found['ttft']['p99']:.1f} s"
                + ("" if found is whole else f" ({found['ttft']['mean'] / whole['ttft']['mean']:.2f}x)")
            )
        rows.append(row)
    return (
        _table("What each part of the cost contributes: TTFT mean / p99 without it", ["", *where], rows)
        if where
        else ""
    )


def one(by: Mapping[tuple[str, str], Result], workload: str) -> str:
    """One workload: a row a policy, then the bounds."""
    rows = []
    for name in (plan.OURS, plan.BASE, *plan.OTHERS, *plan.BOUNDS):
        r = by.get((workload, name))
        if r is not None:
            # Cells of earlier runs do not have the last two.
            slowdown, waits = r.get("slowdown"), r.get("waits")
            rows.append(
                [
                    name,
                    f"{100 * r['hit_rate']:.1f}",
                    f"{r['ttft']['mean']:.2f}",
                    f"{r['ttft']['p50']:.2f}",
                    f"{r['ttft']['p99']:.2f}",
                    f"{1000 * r['between']['mean']:.0f}",
                    f"{1000 * r['between']['p99']:.0f}",
                    f"{r['goodput']:.2f}",
                    f"{100 * r['good']:.1f}",
                    f"{r['spread']:.2f}",
                    f"{100 * r['busy']:.0f}",
                    f"{waits['room']:.2f}" if waits else "",
                    f"{slowdown['mean']:.2f} / {slowdown['p95']:.2f}" if slowdown else "",
                ]
            )
    head = [
        "policy",
        "hits (%)",
        "TTFT mean (s)",
        "p50",
        "p99",
        "between tokens mean (ms)",
        "p99",
        "goodput (requests/s)",
        "within limits (%)",
        "spread",
        "busy (%)",
        "TTFT spent waiting for room (s)",
        "session slowdown mean / p95",
    ]
    return _table(f"`{workload}`", head, rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
