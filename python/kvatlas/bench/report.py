"""The tables at the end of a replay, for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from kvatlas.bench import words
from kvatlas.bench.results import ReplayResult

ROUTING = ("policy", "cache hits", "saved", "busy", "peak", "CV", "TTFT mean", "p50", "p99")
INDEX = ("policy", "finds /s", "find p50", "p99", "events /s", "store ns", "remove ns", "held", "bytes /block")


def routing_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """One row for each policy, then what one cache would do."""
    rows: list[tuple[str, ...]] = [
        (
            p.policy + (" (partial)" if p.partial else ""),
            words.percent(p.hit_rate),
            words.count(p.hit_tokens),
            f"{100 * p.utilisation:.0f} %",
            f"{p.spread.max_over_mean:.2f}",
            f"{p.spread.variation:.2f}",
            words.seconds(p.ttft.mean),
            words.seconds(p.ttft.p50),
            words.seconds(p.ttft.p99),
        )
        for p in result.policies
    ]
    total = result.statistics.input_tokens
    for name, rate in (("one shared cache", result.shared_rate), ("one infinite cache", result.bound_rate)):
        rows.append((name, words.percent(rate), words.count(rate * total), "", "", "", "", "", ""))
    return rows


def index_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """One row for each policy."""
    return [
        (
            p.policy,
            words.rate(p.index.lookups_per_second),
            words.nanoseconds(p.index.find_p50_ns),
            words.nanoseconds(p.index.find_p99_ns),
            words.rate(p.index.events_per_second),
            f"{p.index.store_ns_per_block:.0f}",
            f"{p.index.remove_ns_per_block:.0f}",
            words.rate(p.index.held_blocks),
            f"{p.index.bytes_per_block:.1f}",
        )
        for p in result.policies
    ]


def print_report(result: ReplayResult, console: Console) -> None:
    """Print everything a newcomer wants to know."""
    console.print()
    if result.partial:
        console.print("Interrupted: this is what was done so far.", style="bold yellow")
        console.print()
    for line in words.about_trace(result):
        console.print(line, highlight=False)
    console.print(words.about_fleet(result), highlight=False)
    if not result.policies:
        return
    console.print()
    routing = _table("What routing is worth", ROUTING)
    for row in routing_rows(result):
        bound = row[0].startswith("one ")
        routing.add_row(*row, style="dim" if bound else "bold green" if row[0] == "exact" else None)
    console.print(routing)
    console.print(Padding(words.LEGEND, (0, 1)), style="dim", highlight=False)
    console.print()
    index = _table("The index meanwhile", INDEX)
    for row in index_rows(result):
        index.add_row(*row)
    console.print(index)
    console.print(Padding(words.about_index(result), (0, 1)), style="dim", highlight=False)
    console.print()
    for line in words.conclusion(result):
        console.print(line, highlight=False)
    console.print(words.about_check(result), style="bold red" if result.disagreements else None, highlight=False)
    for policy in result.policies:
        for d in policy.agreement.examples:
            console.print(
                f"  {d.policy}, request {d.request} ({d.blocks} blocks), {d.worker}: "
                f"the {d.oracle} says {d.expected}, the index says {d.got}",
                highlight=False,
            )


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    return table
