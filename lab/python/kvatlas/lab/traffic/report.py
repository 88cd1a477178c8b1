"""Report of a trace's profile, for a terminal."""

from __future__ import annotations

from rich.console import Console

from kvatlas._tables import make_table
from kvatlas._text import count, counted, duration, percent, seconds, share, short
from kvatlas.lab.traffic.profile import Profile

_POINTS = ("p10", "p50", "p90", "p99", "max")


def about(it: Profile) -> list[str]:
    """Describe a trace by its profile, in sentences."""
    stats = it.statistics
    rate = stats.requests / stats.duration if stats.duration else 0.0
    peak = f", {it.peak:.1f} in the busiest minute" if stats.duration > 120 and it.peak else ""
    lines = [
        (
            f"{it.name}: {counted(stats.requests, 'request')} in {duration(stats.duration)} ({rate:.1f} a second"
            f"{peak}), {count(stats.input_tokens)} prompt tokens, {count(stats.output_tokens)} generated, "
            f"{count(stats.distinct_blocks)} distinct blocks of {stats.block}."
        ),
        (
            f"{percent(stats.seen_before)} of the prompt tokens repeat the beginning of an earlier prompt: "
            "no cache can provide more."
        ),
    ]
    if it.sessions is not None:
        sessions = counted(it.sessions.sessions, "session")
        lines.append(
            f"{sessions} of one request each."
            if it.sessions.kept is None
            else f"{sessions}; in {percent(it.sessions.kept)} of their later requests the prompt begins with the whole "
            "blocks of the one before."
        )
    if it.dependent:
        lines.append(f"{percent(it.dependent)} of the requests wait for others: a replay can be a closed loop.")
    if it.curve.share < 1:
        lines.append(f"Hit rates are computed from {percent(it.curve.share)} of the blocks.")
    return lines


def print_profile(it: Profile, console: Console) -> None:
    """Print the profile of a trace: figures and three tables."""
    for line in about(it):
        console.print(line, highlight=False)
    console.print()
    rows = [
        ("prompt tokens", *_row(it.statistics.input_quantiles)),
        ("generated", *_row(it.statistics.output_quantiles)),
    ]
    if it.sessions is not None:
        rows.append(("requests of a session", *_row(it.sessions.turns)))
        for name, values in (
            ("pause after an answer", it.sessions.pauses),
            ("request to request", it.sessions.between),
        ):
            if values is not None:
                rows.append((name, *(seconds(values[point]) for point in _POINTS)))
    console.print(make_table(("", *_POINTS), rows, console.width, title="Sizes and pauses", expendable=(1, 4)))
    if it.working_set:
        sets = [(duration(float(t)), short(mean), short(most)) for t, (mean, most) in it.working_set.items()]
        columns = ("in", "mean", "most")
        console.print(make_table(columns, sets, console.width, title="Distinct prompt tokens used"))
    most = it.curve.most
    rates = [*((short(float(tokens)), rate) for tokens, rate in it.hit_rates.items()), ("no limit", most)]
    sizes = [(name, percent(rate), share(rate, most)) for name, rate in rates]
    console.print(
        make_table(("room, tokens", "hits", "of the possible"), sizes, console.width, title="Hit rate of one cache")
    )


def _row(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(count(values[point]) for point in _POINTS)
