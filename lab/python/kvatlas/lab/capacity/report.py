"""Report of a capacity plan, for a terminal: bottleneck, hit rate by cache size, and variants."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding

from kvatlas._tables import make_table
from kvatlas._text import count, counted, percent, seconds, share, short
from kvatlas.lab.capacity.plan import NOW, Bottleneck, CapacityPlan, Row
from kvatlas.lab.replay import summary
from kvatlas.lab.replay.report import between, busy, first_token, hits

CACHE = ("cache of each engine", "all together", "one cache finds", "of the possible")
VARIANTS = ("fleet", "cache hits", "TTFT mean", "change", "p99", "for room", "busy", "between p99")
# Left out in this order where the terminal is too narrow.
_EXPENDABLE = (7, 6, 4, 1)
_IDLE = (
    "Compute limits this fleet, and requests hardly wait: the time is that of their own prompts. Faster engines help; "
    "more engines or more cache hardly do."
)
_HARDLY = 0.1  # of the time to first token
_OVERLOAD = 0.9
OVERLOADED = (
    "Prompts keep the engines busy more than 90 % of the time: waiting times mostly reflect the length of the trace."
)
_ENOUGH = 0.95  # of what any cache could find

NOTES = (
    "One cache: as large as all engines' together, under any policy. Variants are simulated, with a cache for "
    "each engine; a host tier holds copies of what was computed, and announces them. TTFT: time to first token; for "
    "room: its part spent waiting for free blocks; busy: share of the time in steps with prompts in them; change: of "
    "the mean TTFT."
)

_MEANING = {
    "room": "Room limits this fleet: prompts wait because running requests fill the caches. More engines or more KV "
    "cache help; a host tier does not by itself.",
    "cache": "The cache limits this fleet: prompts are computed again that were cached once. A larger cache, a host "
    "tier, or a policy that finds more helps.",
    "compute": "Compute limits this fleet: most of the time goes to prompts that no engine had. Faster or more engines "
    "help; more cache hardly does.",
}


def about_bottleneck(bottleneck: Bottleneck, rows: Sequence[Row]) -> list[str]:
    """Describe the bottleneck of a fleet and the variants that help, in sentences.

    `rows`: the fleet as it is, then its variants.
    """
    waits = rows[0].result.waits
    waiting = waits.router + waits.queue + waits.room
    total = bottleneck.room + bottleneck.cache + bottleneck.compute
    # What helps is what the table says, if there is one: the largest part alone can be barely the largest.
    measured = about_variants(rows)
    meaning = f"{bottleneck.largest.capitalize()} limits this fleet most." if measured else None
    share_waiting = waiting / (waiting + waits.compute) if waiting else 0.0
    return [
        (
            f"Of the mean time to first token, {seconds(total)}, requests spend {seconds(bottleneck.room)} waiting for "
            f"room, {seconds(bottleneck.cache)} on computing again what was cached once (their own prompts, and those "
            f"before them in a queue), and {seconds(bottleneck.compute)} on computing the rest."
        ),
        meaning or meaning_of(bottleneck, share_waiting),
        *measured,
    ]


def about_variants(rows: Sequence[Row]) -> list[str]:
    """Describe the variants in sentences: those that help, those that hardly do, and smaller ones that are sufficient.

    Returns an empty list without variants.
    """
    changes = changes_of(rows)
    more = sorted((change, name) for name, change, is_less in changes if not is_less)
    if not more:
        return []
    helps = [f"{name} ({_change(1 + change)})" for change, name in more if change <= -_HARDLY]
    hardly = [f"{name} ({_change(1 + change)})" for change, name in more if change > -_HARDLY]
    spared = [f"{name} ({_change(1 + change)})" for name, change, is_less in changes if is_less and change < _HARDLY]
    lines = [
        f"The first token comes sooner, most of all, with {', '.join(helps)}."
        if helps
        else f"Nothing simulated makes the first token come {percent(_HARDLY)} sooner."
    ]
    if helps and hardly:
        lines.append(f"Less than {percent(_HARDLY)} sooner, or later: {', '.join(hardly)}.")
    if spared:
        lines.append(f"Hardly worse with less: {', '.join(spared)}.")
    return lines


def changes_of(rows: Sequence[Row]) -> list[tuple[str, float, bool]]:
    """Relative change of the mean time to first token of each variant, with True for a variant that is smaller.

    A change of -0.5 is half the time. Smaller means fewer resources than the fleet as it is. The list is empty if the
    fleet as it is was not simulated, or its time is 0.
    """
    base = rows[0] if rows else None
    if base is None or not base.result.ttft.mean:
        return []
    return [
        (
            row.name,
            row.result.ttft.mean / base.result.ttft.mean - 1,
            row.engines < base.engines or row.cache_tokens < base.cache_tokens,
        )
        for row in rows[1:]
    ]


def meaning_of(bottleneck: Bottleneck, waiting: float) -> str:
    """Sentence that names the bottleneck of a fleet.

    `waiting`: share of the time to first token in which other requests are computed.
    """
    if bottleneck.largest == "compute" and waiting < _HARDLY:
        return _IDLE
    return _MEANING[bottleneck.largest]


def about_cache(plan: CapacityPlan) -> list[str]:
    """Describe the hit rates of caches, in sentences."""
    curve, fleet = plan.curve, plan.config.fleet
    if curve.most <= 0:
        return ["No prompt repeats the beginning of an earlier one: no cache helps."]
    enough = curve.tokens_for(_ENOUGH * curve.most) / fleet.engines
    lines = [
        (
            f"{percent(_ENOUGH * curve.most)}, {percent(_ENOUGH)} of the possible, takes {short(enough)} tokens of "
            f"cache on each of {fleet.engines} engines, if they were one cache."
        )
    ]
    if plan.rows and plan.rows[0].result.waits.room > _HARDLY * plan.rows[0].result.ttft.mean:
        lines.append(
            "Requests wait for room here: running contexts fill the caches, which find less than the curve says."
        )
    if plan.host_tokens:
        tokens = fleet.engine.cache_tokens * fleet.engines
        without, behind = curve.rate(tokens), curve.rate(tokens + plan.host_tokens * fleet.engines)
        more = f"raises what one cache finds from {percent(without)} to {percent(behind)}"
        if behind - without < 0.0005:
            more = "finds nothing more than the caches do, if they were one"
        lines.append(f"A host tier of {short(plan.host_tokens)} tokens behind each engine {more}.")
    return lines


def cache_rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    """Rows of a table of the hit rate by cache size; the configured size is included."""
    fleet, most = plan.config.fleet, plan.curve.most
    rows = [
        (
            short(tokens) + (" (now)" if tokens == fleet.engine.cache_tokens else ""),
            short(tokens * fleet.engines),
            percent(rate),
            share(rate, most),
        )
        for tokens, rate in plan.cache_rates()
    ]
    return [*rows, ("no limit", "", percent(most), share(most, most))]


def variant_rows(plan: CapacityPlan) -> list[tuple[str, ...]]:
    """Rows of a table of variants: one for each simulated fleet."""
    base = plan.rows[0].result.ttft.mean if plan.rows else 0.0
    return [
        (
            row.name,
            hits(row.result),
            first_token(row.result, row.result.ttft.mean),
            "" if row.name == NOW or not base else _change(row.result.ttft.mean / base),
            first_token(row.result, row.result.ttft.p99),
            first_token(row.result, row.result.waits.room),
            busy(row.result),
            between(row.result, row.result.between.p99),
        )
        for row in plan.rows
    ]


def _change(ratio: float) -> str:
    return f"{ratio:.0f} x" if ratio >= 3 else f"{100 * (ratio - 1):+.0f} %"


def print_plan(plan: CapacityPlan, console: Console) -> None:
    """Print the report of a capacity plan."""
    if plan.partial:
        console.print("Interrupted: this is what was done so far.", style="bold yellow")
    if plan.base is not None:
        for line in [*summary.about_trace(plan.base), summary.about_fleet(plan.base)]:
            console.print(line, highlight=False)
    else:
        tokens = plan.curve.prompt_tokens
        console.print(f"{plan.trace}: {counted(plan.requests, 'request')}, {count(tokens)} prompt tokens.")
    console.print()
    console.print(make_table(CACHE, cache_rows(plan), console.width, title="Cache", expendable=(1,)))
    for line in about_cache(plan):
        console.print(line, highlight=False)
    if plan.rows:
        console.print()
        styles = ["bold green" if row.name == NOW else None for row in plan.rows]
        rows = variant_rows(plan)
        console.print(
            make_table(VARIANTS, rows, console.width, title="What more is worth", styles=styles, expendable=_EXPENDABLE)
        )
        console.print(Padding(NOTES, (0, 1)), style="dim", highlight=False)
    if (bottleneck := plan.bottleneck) is not None:
        console.print()
        for line in about_bottleneck(bottleneck, plan.rows):
            console.print(line, highlight=False)
        if plan.rows[0].result.utilisation >= _OVERLOAD:
            console.print(OVERLOADED, highlight=False)
