"""Tables and sentences about the results of a run or a sweep. Figures of invalid runs are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from kvatlas import _text
from kvatlas._tables import make_table
from kvatlas.lab.bench.sweep import wrong_of
from kvatlas.lab.bench.verdict import Verdict

if TYPE_CHECKING:
    from kvatlas.lab.bench.sweep import Sweep

COLUMNS = ("index", "threshold", "logical", "spread", "p99 at half", "service at half", "wrong", "bound by")
_WIDE = 116  # characters in which a threshold and its spread have room on one line
_KINDS = {
    "": "nothing that was tried",
    "invalid": "the generator",
    "behind": "keeping up",
    "slow": "p99",
    "wrong": "wrong answers",
    "error": "an error",
}


def about_plan(plan: Mapping[str, Any]) -> str:
    """Describe a plan in one sentence."""
    facts = plan["facts"]
    trace = (plan.get("meta") or {}).get("trace", "a plan")
    blocks = facts["lookup_blocks"] + facts["stored_blocks"] + facts["removed_blocks"]
    return (
        f"{trace} on {facts['workers']:,} workers, blocks of {facts.get('block_size', '?')} tokens: "
        f"{_text.count(facts['lookups'])} lookups, {_text.count(facts['stores'])} stores and "
        f"{_text.count(facts['removes'] + facts['clears'])} removals, {_text.count(blocks)} block operations."
    )


def speed(value: float | None) -> str:
    """Format a rate per second; a dash for None."""
    return "-" if value is None else _text.short(value)


def ns(value: float | None) -> str:
    """Format a time given in ns; a dash for None."""
    return "-" if value is None else _text.nanoseconds(value)


def wrong_words(wrong: int | None, compared: int | None) -> str:
    """Format the number of wrong answers among those compared; a dash if none were compared."""
    if wrong is None or not compared:
        return "-"
    return f"{wrong:,} of {_text.count(compared)}"


def run_rows(result: Mapping[str, Any], verdict: Verdict) -> list[tuple[str, str]]:
    """Rows of facts about one run. For an invalid run, rates and times are left out."""
    rows = [("index", str(result.get("index", "?"))), ("version", str(result.get("version", "?")))]
    if verdict.kind in ("invalid", "error"):
        rows.append(("verdict", f"{'INVALID' if verdict.kind == 'invalid' else 'FAILED'}: {verdict.reason}"))
        return rows
    verdicts = {
        "pass": "valid, kept up, agrees with the reference",
        "behind": f"DID NOT KEEP UP: {verdict.reason}",
        "slow": f"TOO SLOW: {verdict.reason}",
        "wrong": f"WRONG: {verdict.reason}",
    }
    offered, achieved = result["offered"], result["achieved"]
    queued = result["queued_at_close"]
    wrong, compared = wrong_of(result)
    text = verdicts[verdict.kind]
    if verdict.passed and wrong:
        text = "valid, kept up; its known wrong answers were found"
    counts = result.get("counts") or {}
    rows += [
        ("verdict", text),
        ("offered", f"{speed(offered['block_ops_per_s'])} block ops/s, {speed(offered['ops_per_s'])} ops/s"),
        ("achieved", f"{speed(achieved['block_ops_per_s'])} block ops/s, {speed(achieved['ops_per_s'])} ops/s"),
        ("window", f"{_text.nanoseconds(result['window_ns'])}, drained in {ns(result.get('drain_ns'))} more"),
        (
            "queued at close",
            (
                f"{queued['events']:,} events ({_text.percent(queued['events_share'])}), "
                f"{queued['lookups']:,} lookups ({_text.percent(queued['lookups_share'])})"
            ),
        ),
        ("generator's lag", _times(result.get("lag"))),
        ("from deadline", _times(result.get("from_deadline"))),
        ("in service", _times(result.get("service"))),
        ("wrong", wrong_words(wrong, compared)),
    ]
    refused = [
        f"{counts[name]:,} {what}"
        for name, what in (("refused_stores", "stores"), ("unknown_removals", "removals of what was unknown"))
        if counts.get(name)
    ]
    if refused:
        rows.append(("refused", ", ".join(refused)))
    return rows


def _times(times: Mapping[str, Any] | None) -> str:
    if times is None:
        return "nothing to measure"
    return ", ".join(f"{name} {_text.nanoseconds(times[name])}" for name in ("p50", "p99", "p999", "max"))


def examples(result: Mapping[str, Any]) -> list[str]:
    """Format the examples of wrong answers in a result, one line for each."""
    comparison = result.get("comparison") or {}
    return [str(example) for example in comparison.get("examples") or ()]


def sweep_rows(sweep: Sweep) -> list[tuple[str, ...]]:
    """Rows of the table of a sweep, one for each design."""
    rows: list[tuple[str, ...]] = []
    for one in sweep.indexes:
        half = next((p for p in one.curve if p.fraction == 0.5 and p.passed), None)
        bound = one.note if one.threshold is None else f"{_KINDS[one.bound_by]}{'; ' + one.note if one.note else ''}"
        more = "≥ " if one.threshold is not None and one.bound_by in ("", "invalid") else ""
        rows.append(
            (
                one.index + (" *" if one.deviates else ""),
                more + speed(one.threshold),
                speed(one.logical),
                f"{speed(min(one.searches))} to {speed(max(one.searches))}" if len(one.searches) > 1 else "-",
                ns(half.deadline_p99 if half else None),
                ns(half.service_p99 if half else None),
                wrong_words(one.wrong, one.compared) if one.threshold is not None else "-",
                bound,
            )
        )
    return rows


def curve_rows(sweep: Sweep) -> tuple[list[tuple[str, ...]], list[str]]:
    """Rows of the table of curves, one for each point, and the kinds of the rows.

    The kind is "bad" for a point that did not keep up with its rate.
    """
    rows: list[tuple[str, ...]] = []
    kinds: list[str] = []
    for one in sweep.indexes:
        for p in one.curve:
            rows.append(
                (
                    one.index,
                    f"{p.fraction:g}",
                    speed(p.rate),
                    speed(p.achieved),
                    ns(p.deadline_p50),
                    ns(p.deadline_p99),
                    ns(p.service_p50),
                    ns(p.service_p99),
                    str(p.runs),
                    p.reason,
                )
            )
            kinds.append("" if p.passed else "bad")
    return rows, kinds


def print_run(rows: list[tuple[str, str]], out: Console) -> None:
    """Print the facts about one run."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in rows:
        made.add_row(name, text)
    out.print(made)


def print_sweep(sweep: Sweep, out: Console) -> None:
    """Print the thresholds of a sweep, followed by remarks."""
    rows = []
    for one, row in zip(sweep.indexes, sweep_rows(sweep), strict=True):
        bound = "-" if one.threshold is None else _KINDS[one.bound_by]
        cells = row if out.width >= _WIDE else tuple(cell.replace(" to ", " to\n") for cell in row)
        rows.append((*cells[:-1], bound))
    wrong, bound_by = len(COLUMNS) - 2, len(COLUMNS) - 1
    if not sweep.complete:
        out.print("Interrupted: this is what was done so far.")
    out.print(make_table(COLUMNS, rows, out.width, left=(0, bound_by), wrap=(wrong, bound_by)))
    out.print(
        "threshold: block operations per second (query, stored and removed blocks), the highest offered rate that is "
        f"valid, keeps up, is right and has {sweep.config.limit}; logical: the same in lookups and events. "
        "at half: at half of each design's own threshold, p99 from the deadline and in service."
        + (" * answers that are known to be wrong do not count." if any(o.deviates for o in sweep.indexes) else ""),
        style="dim",
        highlight=False,
    )
    for one in sweep.indexes:
        if one.note:
            out.print(f"{one.index}: {one.note}", highlight=False, markup=False)
