"""Tables at the end of a replay, for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding

from kvatlas import _text
from kvatlas._tables import make_table
from kvatlas.lab.replay import summary
from kvatlas.lab.replay.results import PolicyResult, ReplayResult

ROUTING = ("policy", "cache hits", "busy", "peak", "TTFT mean", "p50", "p99", "between", "p99", "good")
WAITS = ("policy", "TTFT mean", "in the router", "in the queue", "for room", "loading", "computing")
LOADED = ("policy", "from host", "pool", "peers", "pulls", "failed", "short", "dropped")
INDEX = ("policy", "finds /s", "find p50", "p99", "events /s", "store ns", "remove ns", "held", "bytes /block")
# Left out in this order where the terminal is too narrow.
_EXPENDABLE_ROUTING = (3, 8, 5, 7, 2)
_EXPENDABLE_INDEX = (7, 4, 3, 1)


def routing_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Rows of the routing table: one for each policy, then one for a single shared cache."""
    rows: list[tuple[str, ...]] = [
        (
            p.policy + (" (partial)" if p.partial else ""),
            hits(p),
            busy(p),
            f"{p.spread.max_over_mean:.2f}" if p.prefill_tokens else _text.NOTHING,
            *(first_token(p, value) for value in (p.ttft.mean, p.ttft.p50, p.ttft.p99)),
            between(p, p.between.mean),
            between(p, p.between.p99),
            _text.percent(p.good) if p.requests else _text.NOTHING,
        )
        for p in result.policies
    ]
    for name, rate in (("one shared cache", result.shared_rate), ("one infinite cache", result.bound_rate)):
        rows.append((name, _text.percent(rate), *[""] * (len(ROUTING) - 2)))
    return rows


def hits(p: PolicyResult) -> str:
    """Format the hit rate of a policy's result."""
    return _text.share(p.hit_tokens, p.prompt_tokens)


def busy(p: PolicyResult) -> str:
    """Format the share of time spent on prompts.

    The result is a dash if all requests arrived at once, so that there is no duration.
    """
    return f"{100 * p.utilisation:.0f} %" if p.utilisation or not p.prefill_tokens else _text.NOTHING


def first_token(p: PolicyResult, value: float) -> str:
    """Format a time to first token, or a part of it, in seconds."""
    return _text.seconds(value) if p.first_tokens else _text.NOTHING


def between(p: PolicyResult, value: float) -> str:
    """Format the seconds between tokens; a dash if no request had two tokens."""
    return _text.seconds(value) if p.between.mean else _text.NOTHING


def wait_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Rows of the table of waiting times: one for each policy, by cause."""
    return [
        (
            p.policy,
            *(
                first_token(p, value)
                for value in (p.ttft.mean, p.waits.router, p.waits.queue, p.waits.room, p.waits.load, p.waits.compute)
            ),
        )
        for p in result.policies
    ]


def load_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Rows of the table of loads: one for each policy whose engines have tiers behind their caches."""
    return [
        (
            p.policy,
            *(_text.short(value) for value in (p.loaded.host_tokens, p.loaded.pool_tokens, p.loaded.pulled_tokens)),
            *(_text.count(value) for value in (p.loaded.pulls, p.loaded.pulls_failed)),
            _text.short(p.loaded.short_tokens),
            _text.count(p.loaded.dropped_chunks),
        )
        for p in result.policies
        if p.loaded is not None
    ]


def index_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Rows of the index table: one for each policy."""
    return [
        (
            p.policy,
            _text.short(p.index.lookups_per_second),
            _text.nanoseconds(p.index.find_p50_ns),
            _text.nanoseconds(p.index.find_p99_ns),
            _text.short(p.index.events_per_second),
            f"{p.index.store_ns_per_block:.0f}",
            f"{p.index.remove_ns_per_block:.0f}",
            _text.short(p.index.held_blocks),
            f"{p.index.bytes_per_block:.1f}",
        )
        for p in result.policies
    ]


def print_report(result: ReplayResult, console: Console) -> None:
    """Print the trace, the tables and the conclusions."""
    console.print()
    if result.partial:
        console.print("Interrupted: this is what was done so far.", style="bold yellow")
        console.print()
    for line in summary.about_trace(result):
        console.print(line, highlight=False)
    console.print(summary.about_fleet(result), highlight=False)
    if not result.policies:
        return
    console.print()
    rows = routing_rows(result)
    styles = ["dim" if row[0].startswith("one ") else "bold green" if row[0] == "kvatlas" else None for row in rows]
    console.print(
        make_table(ROUTING, rows, console.width, title="Routing", styles=styles, expendable=_EXPENDABLE_ROUTING)
    )
    console.print(Padding(summary.LEGEND, (0, 1)), style="dim", highlight=False)
    console.print()
    console.print(make_table(WAITS, wait_rows(result), console.width, title="Waiting"))
    console.print(Padding(summary.WAITING, (0, 1)), style="dim", highlight=False)
    console.print()
    if rows := load_rows(result):
        console.print(make_table(LOADED, rows, console.width, title="Loading"))
        console.print(Padding(summary.LOADING, (0, 1)), style="dim", highlight=False)
        console.print()
    console.print(make_table(INDEX, index_rows(result), console.width, title="Index", expendable=_EXPENDABLE_INDEX))
    console.print(Padding(summary.about_index(result), (0, 1)), style="dim", highlight=False)
    console.print()
    for line in summary.conclusion(result):
        console.print(line, highlight=False)
    for line in [*summary.about_missed(result), *summary.about_sessions(result), *summary.about_trouble(result)]:
        console.print(line, highlight=False)
    console.print(summary.about_check(result), style="bold red" if result.disagreements else None, highlight=False)
    for policy in result.policies:
        for d in policy.agreement.examples:
            console.print(
                f"  {d.policy}, request {d.request} ({d.blocks} blocks), {d.worker}: "
                f"the {d.oracle} says {d.expected}, the index says {d.got}",
                highlight=False,
            )
