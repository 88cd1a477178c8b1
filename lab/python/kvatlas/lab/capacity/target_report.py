"""Report of the number of engines that each policy needs for a target, for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding

from kvatlas._tables import make_table
from kvatlas._text import NOTHING, counted
from kvatlas.lab.capacity.target import HOURS_A_MONTH, Need, TargetPlan
from kvatlas.lab.replay import summary
from kvatlas.lab.replay.report import busy, hits

_NOTES = (
    "engines: the fewest that meet the target; one engine fewer does not. The other columns are of the fleet with so "
    "many engines. Each engine has the cache that it has now."
)
# Left out in this order where the terminal is too narrow.
_EXPENDABLE = (4, 3)


def print_target(plan: TargetPlan, console: Console) -> None:
    """Print the report of the engines needed for a target."""
    if plan.partial:
        console.print("Interrupted: this is what was done so far.", style="bold yellow")
    if plan.base is not None:
        for line in summary.about_trace(plan.base):
            console.print(line, highlight=False)
    if not plan.needs:
        return
    console.print()
    title = f"Engines for {plan.target}"
    head = ["policy", "engines", plan.target.column, "cache hits", "busy"]
    if plan.price is not None:
        head += ["price an hour", "a month"]
    console.print(make_table(tuple(head), need_rows(plan), console.width, title=title, expendable=_EXPENDABLE))
    console.print(Padding(_NOTES, (0, 1)), style="dim", highlight=False)
    console.print()
    for line in about_needs(plan):
        console.print(line, highlight=False)


def need_rows(plan: TargetPlan) -> list[tuple[str, ...]]:
    """Rows of the table of engines needed: one for each policy."""
    return [
        (
            need.policy,
            f"{need.engines:,}" if need.engines is not None else f"more than {plan.most:,}",
            plan.target.show(plan.target.value(need.result)),
            hits(need.result),
            busy(need.result),
            *(_prices(plan, need) if plan.price is not None else ()),
        )
        for need in plan.needs
    ]


def about_needs(plan: TargetPlan) -> list[str]:
    """Describe the differences between the first policy and the others, in sentences."""
    first, *others = plan.needs
    if first.engines is None:
        lines = [f"{first.policy} does not meet {plan.target} with {counted(plan.most, 'engine')}, the most tried."]
    else:
        lines = [f"{first.policy} needs {counted(first.engines, 'engine')} for {plan.target}."]
    lines += [_difference(plan, first, other) for other in others]
    if plan.price is not None:
        lines.append(
            f"Prices are for {plan.price:g} an hour for each engine, in the currency that it is given in; a month has "
            f"{HOURS_A_MONTH} hours."
        )
    return lines


def _difference(plan: TargetPlan, first: Need, other: Need) -> str:
    if other.engines is None:
        return f"{other.policy} does not meet it with {counted(plan.most, 'engine')}, the most tried."
    needs = f"{other.policy} needs {counted(other.engines, 'engine')}"
    if first.engines is None:
        return f"{needs}."
    more = other.engines - first.engines
    if not more:
        return f"{needs}: as many."
    text = f"{needs}: {abs(more):,} {'more' if more > 0 else 'fewer'}"
    if plan.price is not None:
        change = abs(more) * plan.price
        text += f", {change:,.2f} an hour and {change * HOURS_A_MONTH:,.0f} a month {'more' if more > 0 else 'less'}"
    return f"{text}."


def _prices(plan: TargetPlan, need: Need) -> tuple[str, str]:
    if need.engines is None or plan.price is None:
        return NOTHING, NOTHING
    price = need.engines * plan.price
    return f"{price:,.2f}", f"{price * HOURS_A_MONTH:,.0f}"
