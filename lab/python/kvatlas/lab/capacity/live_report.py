"""Report of a running fleet's capacity, for a terminal."""

from __future__ import annotations

from rich.console import Console

from kvatlas._tables import make_table
from kvatlas._text import count, counted, percent, seconds, share, short
from kvatlas.lab.capacity.live import LivePlan
from kvatlas.lab.capacity.report import meaning_of

CACHE = ("one cache of", "would find", "of the possible")


def print_live(plan: LivePlan, router: str, console: Console) -> None:
    """Print the capacity report of a running fleet."""
    console.print(
        f"{router}: {counted(plan.requests, 'request')} and {count(plan.prompt_tokens)} prompt tokens; older ones "
        "count less, by half for each hour.",
        highlight=False,
    )
    for line in about_hits(plan):
        console.print(line, highlight=False)
    if plan.unlimited:
        console.print()
        console.print(make_table(CACHE, cache_rows(plan), console.width, title="Cache"))
    console.print()
    for line in about_limit(plan):
        console.print(line, highlight=False)


def about_hits(plan: LivePlan) -> list[str]:
    """Describe the hit rates of a running fleet, in sentences."""
    if plan.unlimited is None:
        return ["No request has ended yet whose tokens are known: nothing can be said of its cache."]
    if plan.unlimited <= 0:
        return ["No prompt repeats the beginning of an earlier one: no cache helps."]
    real = "Engines have not said what they found in their caches."
    if plan.hit_rate is not None:
        real = f"Engines found {percent(plan.hit_rate)} of the prompt tokens in their caches."
    could = f"A cache without limit could have found {percent(plan.unlimited)}"
    if plan.fleet_tokens:
        could += f", and one as large as all engines' together {percent(plan.rate(plan.fleet_tokens))}"
    return [f"{real} {could}."]


def about_limit(plan: LivePlan) -> list[str]:
    """Describe the reasons for which requests wait, in sentences."""
    parts = plan.bottleneck
    if parts is None:
        return [
            (
                "What requests wait for is not known: no decision was made while it was watched (--watch SECONDS), or "
                "the router's policy does not foresee it (kvatlas does)."
            )
        ]
    total = parts.room + parts.cache + parts.compute
    return [
        (
            f"{counted(plan.decisions, 'decision')} expected a first token after {seconds(total)} on average: "
            f"{seconds(parts.room)} of waiting for room, {seconds(parts.cache)} of computing again what was cached "
            f"once, {seconds(parts.compute)} of computing the rest."
        ),
        meaning_of(parts, plan.waiting / total if total else 0.0),
    ]


def cache_rows(plan: LivePlan) -> list[tuple[str, ...]]:
    """Rows of a table of the hit rate by cache size."""
    most = plan.unlimited or 0.0
    rows = [
        (
            f"{short(tokens)} tokens" + (" (the engines')" if tokens == plan.fleet_tokens else ""),
            percent(rate),
            share(min(rate, most), most),
        )
        for tokens, rate in plan.cache_rates()
    ]
    return [*rows, ("no limit", percent(most), share(most, most))]
