"""Screen of `kvatlas top`: a line about the router, a table of engines, and the latest decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvatlas._text import counted, milliseconds, nanoseconds, percent, seconds, short
from kvatlas.cli.conditions import condition_words

_STANDINGS = {
    "up": "green",
    "busy": "yellow",
    "asleep": "yellow",
    "draining": "yellow",
    **dict.fromkeys(("refusing", "other_tokens", "denying", "slow", "overdue", "partial"), "yellow"),
}
_STREAMS = {"live": "green", "replaying": "yellow", "gap": "yellow", "connecting": "yellow", "asking": "yellow"}
_ROWS = 64  # engines shown
_ADVISED = 8  # engines shown with advice
_MOST_TRANSFERS = 16  # costs of loads and pulls shown
_MODELS = 2  # names of models shown of an engine
_LONGEST = 28  # characters of a model's name


@dataclass(frozen=True, slots=True)
class Look:
    """The answers of a router's routes at one moment."""

    url: str
    at: float  # seconds
    router: dict[str, Any]
    workers: list[dict[str, Any]]
    decisions: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: title, function for a cell's content, and priority of leaving the column out.

    Columns of higher priority are left out first.
    """

    title: str
    cell: Callable[[Any], Text]
    gives_way: int = 0
    left: bool = False


@dataclass(slots=True)
class View:
    """Renderer of the screen. Rates cover the time since the previous answers of the router."""

    decisions: int
    _first: Look | None = field(default=None)
    _before: Look | None = field(default=None)

    def show(self, look: Look, out: Console) -> RenderableType:
        """Draw the screen for one set of the router's answers."""
        first, before = self._first or look, self._before or look
        self._first, self._before = first, look
        parts: list[RenderableType] = [_summary(look, first, before)]
        rows = [_Engine(worker, look, first, before) for worker in look.workers]
        rows.sort(key=lambda row: (row.rank_of_condition, row.is_followed, row.name))  # what needs a look comes first
        if rows and all(row.standing == "down" for row in rows):
            why = next((row.condition["reason"] for row in rows if row.condition), "none of them answers")
            parts.insert(0, Text(f" EVERY ENGINE IS DOWN: {why} ", "bold white on red"))
        if unread := look.router.get("unread_prompts"):
            parts.append(_unread(unread))
        if refused := _refused(look, before):
            parts.append(refused)
        parts += _troubles(look.router)
        if changing := look.router.get("changing_prompts"):
            parts.append(_changing(changing))
        if rows:
            shown = rows[:_ROWS]
            parts.append(_table(_with_models(_ENGINES, shown, lambda row: row.models), shown, out))
            if len(rows) > _ROWS:
                parts.append(Text(f"and {len(rows) - _ROWS} more", "dim"))
            parts += [_advice(row) for row in rows[:_ADVISED] if row.condition]
            if transfers := [
                (row, rank, it) for row in shown for rank in row.ranks for it in rank.get("transfers") or ()
            ]:
                transfers.sort(key=lambda each: not each[2]["out"])  # what is out comes first
                parts += [Text(), _table(_TRANSFERS, transfers[:_MOST_TRANSFERS], out)]
                if len(transfers) > _MOST_TRANSFERS:
                    parts.append(Text(f"and {len(transfers) - _MOST_TRANSFERS} more", "dim"))
        else:
            parts.append(Text("There are no engines yet.", "yellow"))
        if self.decisions:
            parts.append(Text())
            if look.decisions:
                columns = _with_models(_DECISIONS, look.decisions, _model_of_decision)
                parts.append(_table(columns, look.decisions, out))
            else:
                parts.append(Text("No decisions yet.", "dim"))
        return Group(*parts)


def _summary(look: Look, first: Look, before: Look) -> Text:
    now, router = look.router, look.router
    words = [f"{look.url}", f"policy {now['policy']}", f"{counted(int(now['in_flight']), 'request')} in flight"]
    if (span := look.at - before.at) > 0:
        words.insert(2, f"{(now['requests'] - before.router['requests']) / span:,.1f} requests/s")
    else:
        words.insert(2, counted(int(now["requests"]), "request"))
    if router["queued"]:
        words.append(f"{router['queued']:,} waiting here")
    if router["retries"]:
        words.append("1 retry" if router["retries"] == 1 else f"{router['retries']:,} retries")
    hits = _hits(look, first)
    if hits is not None:
        possible = router.get("possible_hit_rate") or {}
        most = possible.get("fleet") or possible.get("unlimited")
        # A bound below the hits is none: this router has not seen the prompts that caches are full of.
        is_bound = most is not None and most >= hits
        words.append(f"hits {percent(hits)}" + (f", possible {percent(float(most or 0))}" if is_bound else ""))
    expected = _since(look, first, "expected_cached_tokens")
    reported = _since(look, first, "reported_cached_tokens")
    if expected:
        words.append(f"{percent(reported / expected)} of what was expected")
    return Text("; ".join(words), "bold")


def _advice(row: _Engine) -> Text:
    """The line about an engine's problem and its remedy."""
    return Text(f"{row.name}: {condition_words(row.condition)}", "yellow")


def _refused(look: Look, before: Look) -> Text | None:
    """The line about the numbers of refused requests, by reason; None if the router refused none."""
    counts, past = look.router.get("refused") or {}, before.router.get("refused") or {}
    if not counts:
        return None
    by_count = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    words = ", ".join(
        f"{count:,} {code}" + (f" (+{more:,})" if (more := count - past.get(code, 0)) and before is not look else "")
        for code, count in by_count
    )
    return Text(f"Refused since the router started: {words}", "yellow")


def _troubles(router: dict[str, Any]) -> list[Text]:
    """The lines about problems of the router itself: a policy that fails, a record that cannot be written."""
    found = []
    if failed := int(router.get("policy_failed") or 0):
        found.append(
            f"The policy failed at {counted(failed, 'decision')} since the router started: the engine with the least "
            "to compute took the request; the log has the error"
        )
    record = router.get("record") or {}
    if lost := int(record.get("failed") or 0):
        found.append(
            f"The record of decisions lost {counted(lost, 'line')}: its file cannot be written; the log says why"
        )
    if dropped := int(record.get("dropped") or 0):
        found.append(f"The record of decisions lost {counted(dropped, 'line')}: its disk is too slow")
    return [Text(words, "yellow") for words in found]


def _unread(about: dict[str, Any]) -> Text:
    """The line about prompts that are routed without knowing how much of them is cached."""
    share, kinds = percent(about["share"]), ", ".join(about["endpoints"])
    words = f"{share} of the last prompts ({kinds}) cannot be read: {about['reason']}; {about['advice']}"
    return Text(f"{words}: {about['runbook']}", "yellow")


def _changing(about: dict[str, Any]) -> Text:
    """The line about sessions whose prompts change too early to be cached."""
    who = (
        "The prompts of 1 session begin"
        if about["sessions"] == 1
        else f"The prompts of {about['sessions']:,} sessions begin"
    )
    where = f"the last one from token {about['differs_at_token']:,} of {about['tokens']:,} on"
    return Text(f"{who} differently turn after turn, {where}: no cache is of use to them", "yellow")


def _since(look: Look, first: Look, name: str) -> float:
    """The growth of a count since the first answers; the whole count at the first answers."""
    return float(look.router[name] - (first.router[name] if look is not first else 0))


def _hits(look: Look, first: Look) -> float | None:
    """The share of prompt tokens found in caches, 0 to 1; None without prompts."""
    engines = [_Engine(worker, look, first, first) for worker in look.workers]
    prompt = sum(engine.prompt_tokens for engine in engines)
    return sum(engine.cached_tokens for engine in engines) / prompt if prompt else None


class _Engine:
    """The row of an engine."""

    def __init__(self, worker: dict[str, Any], look: Look, first: Look, before: Look) -> None:
        self.worker = worker
        self.name = str(worker["name"])
        self.standing = str(worker["standing"])
        condition = worker.get("condition")
        self.condition: dict[str, Any] = condition if isinstance(condition, dict) else {}
        ranks = worker.get("ranks")
        self.ranks: list[dict[str, Any]] = ranks if isinstance(ranks, list) else []
        events = worker.get("events")
        self.events: dict[str, Any] = events if isinstance(events, dict) else {}
        self.models = [str(model) for model in worker.get("models") or ()]
        self._now, self._first = worker, _named(first, self.name) if first is not look else None
        past = _named(before, self.name) if before is not look else None
        span = look.at - before.at
        self.rate = (worker["answers"] - past["answers"]) / span if past and span > 0 else None
        self.made = (worker["output_tokens"] - past["output_tokens"]) / span if past and span > 0 else None

    @property
    def word(self) -> str:
        """The engine's state as a word: its worst known condition."""
        return str(self.condition.get("name", self.standing))

    @property
    def rank_of_condition(self) -> int:
        """Sort key for the engine's condition; the worst sorts first."""
        if self.condition:
            return -int(self.condition.get("severity", 1))
        return int(self.standing == "up")

    @property
    def is_followed(self) -> bool:
        return all(rank.get("trusted", True) for rank in self.ranks)

    @property
    def prompt_tokens(self) -> float:
        return self._since("prompt_tokens")

    @property
    def cached_tokens(self) -> float:
        return self._since("cached_tokens")

    def sum(self, name: str) -> float | None:
        """The sum of a figure over all ranks; None if no rank reports it."""
        known = [float(rank[name]) for rank in self.ranks if _is_number(rank.get(name))]
        return sum(known) if known else None

    def most(self, name: str) -> float | None:
        known = [float(rank[name]) for rank in self.ranks if _is_number(rank.get(name))]
        return max(known) if known else None

    def _since(self, name: str) -> float:
        return float(self._now[name] - (self._first[name] if self._first else 0))


def _named(look: Look, name: str) -> dict[str, Any] | None:
    return next((worker for worker in look.workers if worker["name"] == name), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: float | None) -> Text:
    return Text("") if value is None else Text(short(value))


def _stream(engine: _Engine) -> Text:
    state = engine.events.get("state")
    if state is None:
        return Text("" if engine.is_followed else "untrusted", "yellow")
    return Text(str(state), _STREAMS.get(str(state), "red"))


def _lag(engine: _Engine) -> Text:
    lag = engine.events.get("lag_ms")
    return Text(milliseconds(float(lag or 0))) if _is_number(lag) else Text("")


def _kv(engine: _Engine) -> Text:
    used = engine.most("reported_kv_usage")
    if used is None:
        return Text("")
    return Text(f"{used * 100:.0f} %", "red" if used > 0.95 else "yellow" if used > 0.85 else "")


def _work(engine: _Engine) -> Text:
    waiting, running = engine.sum("waiting") or 0, engine.sum("requests") or 0
    return Text(f"{waiting:,.0f} / {running - waiting:,.0f}")


def _share(engine: _Engine) -> Text:
    return Text(percent(engine.cached_tokens / engine.prompt_tokens)) if engine.prompt_tokens else Text("")


_ENGINES = (
    Column("engine", lambda engine: Text(engine.name), left=True),
    Column("", lambda engine: Text(engine.word, _STANDINGS.get(engine.word, "red")), left=True),
    Column("stream", _stream, 1, left=True),
    Column("lag", _lag, 4),
    Column("waits / runs", _work),
    Column("queued tokens", lambda engine: _number(engine.sum("queued_tokens")), 2),
    Column("kv", _kv, 3),
    Column("hits", _share, 1),
    Column("blocks", lambda engine: _number(engine.sum("held_blocks")), 6),
    Column("requests/s", lambda engine: Text("" if engine.rate is None else f"{engine.rate:,.1f}"), 5),
    Column("tokens/s", lambda engine: _number(engine.made), 7),
    Column("faults", lambda engine: Text(f"{engine.worker['faults']:,}", "red" if engine.worker["faults"] else ""), 8),
)


_Transfer = tuple[_Engine, dict[str, Any], dict[str, Any]]
"""An engine, one of its ranks, and the learnt costs of one kind of transfer (load or pull) of that rank."""


def _transfer_from(each: _Transfer) -> Text:
    kind, source = str(each[2]["kind"]), each[2].get("source")
    if source is None:
        return Text({"host": "its host memory", "far": "its disks and pools"}.get(kind, kind))
    return Text(_place(source))


def _again(each: _Transfer) -> Text:
    out = float(each[2]["out"])
    return Text(f"out for {seconds(out)}: pulls failed", "red") if out > 0 else Text("")


_TRANSFERS: tuple[Column, ...] = (
    Column("engine", lambda each: Text(_place({"worker": each[0].name, "rank": each[1].get("rank")})), left=True),
    Column("loads or pulls from", _transfer_from, left=True),
    Column("floor", lambda each: Text(milliseconds(each[2]["floor"] * 1e3))),
    Column("per 1,000 tokens", lambda each: Text(milliseconds(each[2]["seconds_per_token"] * 1e6))),
    Column("samples", lambda each: Text(f"{each[2]['samples']:,}"), 2),
    Column("", _again, 1, left=True),
)


def _time(record: dict[str, Any]) -> Text:
    return Text(datetime.fromtimestamp(record["at"]).astimezone().strftime("%H:%M:%S"), "dim")


def _ended(record: dict[str, Any], name: str) -> Any:
    return (record.get("ended") or {}).get(name)


def _found(record: dict[str, Any]) -> Text:
    expected, found = int(record["cached_tokens"]), _ended(record, "cached_tokens")
    if found is None:
        how = _ended(record, "how")
        return Text("…" if how is None else "" if how == "finished" else how, "" if how == "finished" else "dim")
    return Text(f"{found:,}", "yellow" if found < expected else "")


def _first_token(record: dict[str, Any]) -> Text:
    took = _ended(record, "first_token")
    return Text("") if took is None else Text(milliseconds(took * 1e3) if took < 1 else seconds(took))


_DECISIONS = (
    Column("time", _time, 4, left=True),
    Column("engine", lambda record: Text(_place(record)), left=True),
    Column("tokens", lambda record: Text(f"{record['tokens']:,}")),
    Column("expected", lambda record: Text(f"{record['cached_tokens']:,}")),
    Column("found", _found),
    Column("why", lambda record: Text(str(record["why"])), 2, left=True),
    Column("decided in", lambda record: Text(nanoseconds(record["decision_us"] * 1e3)), 3),
    Column("first token", _first_token, 1),
)


def _place(record: dict[str, Any]) -> str:
    return f"{record['worker']}" + (f" rank {record['rank']}" if record.get("rank") else "")


def _model_of_decision(record: dict[str, Any]) -> list[str]:
    return [str(record["model"])] if record.get("model") else []


def _with_models(
    columns: Sequence[Column], rows: Sequence[Any], models_of: Callable[[Any], Sequence[str]]
) -> Sequence[Column]:
    """The columns, with a column of models after the engine's if any models are known.

    It is the first to be left out if all rows have the same models.
    """
    known = {model for row in rows for model in models_of(row)}
    if not known:
        return columns
    after = next(place for place, column in enumerate(columns, 1) if column.title == "engine")
    gives_way = 1 if len(known) > 1 else max(column.gives_way for column in columns) + 1
    model = Column("model", lambda row: Text(_model_names(models_of(row))), gives_way, left=True)
    return (*columns[:after], model, *columns[after:])


def _model_names(models: Sequence[str]) -> str:
    """The first names of models, cut to a length that leaves space for other columns, and the number of the others."""
    names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in models[:_MODELS]]
    return ", ".join(names) + (f" +{len(models) - _MODELS}" if len(models) > _MODELS else "")


def _table(columns: Sequence[Column], rows: Sequence[Any], out: Console) -> Table:
    """The table of engines or decisions, with as many columns as fit the terminal."""
    order = sorted({column.gives_way for column in columns}, reverse=True)
    made = _made(columns, rows)
    for most in order:
        if out.measure(made, options=out.options.update(max_width=1_000)).maximum <= out.width or most == 0:
            break
        made = _made([column for column in columns if column.gives_way < most], rows)
    return made


def _made(columns: Sequence[Column], rows: Sequence[Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        folds = column.title == "engine"  # long names take more lines
        table.add_column(column.title, justify="left" if column.left else "right", no_wrap=not folds, overflow="fold")
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table
