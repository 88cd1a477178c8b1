"""Orders about engines over HTTP: which word counts, what is merged, and what is forgotten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvatlas.router.fleet import Order, Orders, StateFile
from kvatlas.router.fleet.orders import listed_as
from kvatlas.service import Engine
from kvatlas.service.discovery.sources.base import Member, Name

PLAIN = Member(Engine("http://a:1", name="a"))
HEAVY = replace(PLAIN, entry=Engine("http://a:1", name="a", weight=2.0))
DRAINED = replace(PLAIN, drained=True)
AS_PLAIN = listed_as(PLAIN)
REMOVED = Order("a", 1.0, removed=True, listed=AS_PLAIN)
CHANGED = Order("a", 1.0, engine=Engine("http://a:1", name="a", weight=5.0), listed=AS_PLAIN)
ADDED = Order("a", 1.0, engine=Engine("http://a:1", name="a", weight=5.0))
DRAIN = Order("a", 1.0, drained=True)
UNDRAIN = Order("a", 1.0, drained=False, listed_drain=True)


def applied(order: Order, member: Member | None) -> Member | None:
    listed: dict[Name, Member] = {} if member is None else {("a", None): member}
    return Orders([order]).apply(listed).get(("a", None))


@pytest.mark.parametrize(
    ("order", "member", "weight", "drained"),
    [
        (REMOVED, PLAIN, None, None),
        (REMOVED, HEAVY, 2.0, None),
        (REMOVED, None, None, None),
        (CHANGED, PLAIN, 5.0, None),
        (CHANGED, HEAVY, 2.0, None),
        (CHANGED, None, None, None),
        (ADDED, None, 5.0, None),
        (ADDED, PLAIN, 1.0, None),
        (DRAIN, PLAIN, 1.0, True),
        (DRAIN, HEAVY, 2.0, True),
        (DRAIN, None, None, None),
        (replace(DRAIN, listed_drain=True), PLAIN, 1.0, None),
        (UNDRAIN, DRAINED, 1.0, False),
        (UNDRAIN, PLAIN, 1.0, None),
        (replace(CHANGED, drained=True), HEAVY, 2.0, True),
        (replace(CHANGED, drained=True), DRAINED, 5.0, True),
        (replace(ADDED, drained=True), None, 5.0, True),
    ],
)
def test_the_last_word_counts(order: Order, member: Member | None, weight: float | None, drained: bool | None) -> None:
    found = applied(order, member)
    if weight is None:
        assert found is None
    else:
        assert found is not None
        assert isinstance(found.entry, Engine)
        assert ((found.entry.weight or 1.0), found.drained) == (weight, drained)


def test_a_void_order_does_not_come_back() -> None:
    written: list[list[Order]] = []
    orders = Orders([REMOVED], save=written.append)
    assert orders.apply({("a", None): HEAVY})
    assert written == [[Order("a", 1.0)]]
    assert orders.apply({("a", None): PLAIN})


def test_an_engine_goes_with_its_entry_once_that_was_seen() -> None:
    orders = Orders([REMOVED])
    assert not orders.apply({})
    assert not orders.apply({("a", None): PLAIN}), "its source was not known yet"
    assert not orders.apply({})
    assert orders.apply({("a", None): PLAIN}), "it is listed anew"


def test_of_two_routers_orders_the_newer_counts() -> None:
    orders = Orders([replace(DRAIN, at=5.0), replace(ADDED, name="b", at=5.0)])
    assert orders.merge([replace(REMOVED, at=4.0), Order("b", 6.0, removed=True), replace(ADDED, name="c")]) == [
        "b",
        "c",
    ]
    assert [(order.name, order.drained, order.removed) for order in orders.all()] == [
        ("a", True, False),
        ("b", None, True),
        ("c", None, False),
    ]


def test_orders_without_effect_are_forgotten_after_a_day() -> None:
    kept = [DRAIN, replace(ADDED, name="added")]
    orders = Orders([*kept, Order("gone", 1.0, removed=True), Order("young", 90_000.0, removed=True)])
    orders.prune({("a", None): PLAIN}, 90_001.0)
    assert [order.name for order in orders.all()] == ["a", "added", "young"]


def test_a_change_that_cannot_be_saved_is_not_made() -> None:
    def save(_orders: list[Order]) -> None:
        raise OSError(28, "No space left on device")

    orders = Orders([DRAIN], save=save)
    with pytest.raises(OSError, match="No space"):
        orders.set(replace(DRAIN, drained=False))
    assert orders.all() == [DRAIN]


def test_the_file_has_all_of_an_order(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"ranks": (0, 2), "aliases": ("x",), "key": "k3y", "weight": 2.0, "use_key": False}
    order = Order("b", 2.5, engine=Engine("http://b:1", name="b", **entry), drained=True, listed_drain=True)
    file = StateFile(tmp_path / "state.json")
    assert file.read() == []
    file.write([order, REMOVED])
    assert file.read() == [order, REMOVED]
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"], "nothing is left behind"
    assert "k3y" not in repr(order)
    assert "k3y" not in json.dumps(listed_as(Member(order.engine or Engine("http://b:1"))))
