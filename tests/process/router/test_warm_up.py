"""Engines that are empty are brought prompts by pulls, made of requests as they pass."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Behaviour, die, hang, reply, whole

from .deciding import BLOCK, stored
from .running import wait_until
from .test_pulls import FIELD, LENGTH, OTHERS, Fleet, chat

WARM_UPS = "kvatlas_router_warm_ups_total"
TOKENS = "kvatlas_router_warm_up_tokens_total"
ON = ("--warm-up", str(10 * LENGTH))


def fleet_of(stack: ExitStack, tokenizer: Path, *flags: str) -> Fleet:
    """A router in front of `a`, which has everything, and two empty engines."""
    fleet = Fleet(stack, tokenizer, *flags)
    assert fleet.router.call("POST", "/engines/a/undrain")[0] == 200
    return fleet


def hold(fleet: Fleet, name: str) -> str:
    """A new prompt, which `a` has on its device and in host memory, so that requests go there."""
    prompt = fleet.hold(name)
    fleet.publishers["a"].publish(stored(prompt))

    def is_known() -> bool:
        found = fleet.explained(prompt)
        return all(found[other].get("action") == "pull" for other in OTHERS) and not found["a"]

    wait_until(is_known, "it is followed")
    return prompt


def stages(fleet: Fleet) -> dict[str, dict[str, Any]]:
    return {row["name"]: row["ranks"][0]["warm_up"] for row in fleet.router.workers()}


def warmed(fleet: Fleet, result: str) -> float:
    return fleet.router.metric(WARM_UPS, result=result)


def has_counted(fleet: Fleet, result: str, count: int) -> bool:
    return warmed(fleet, result) == count


def test_an_empty_engine_pulls_what_is_asked_for(tokenizer: Path) -> None:
    with ExitStack() as stack:
        fleet = fleet_of(stack, tokenizer, *ON)
        prompt = hold(fleet, "system")
        sent = chat(prompt, stream=True, max_tokens=100, n=1)
        assert fleet.router.ask(sent).status == 200
        assert fleet.engines["a"].last.json["max_tokens"] == 100
        wait_until(lambda: warmed(fleet, "brought") == 1, "one engine was brought it")
        (name,) = [name for name in OTHERS if fleet.engines[name].asked()]
        asked = dict(fleet.engines[name].last.json)
        assert asked["messages"] == sent["messages"]
        assert (asked["max_tokens"], asked["stream"]) == (1, False)
        assert asked[FIELD]["remote_kv_source"]["remote_host"] == "10.0.0.1"
        assert fleet.engines["a"].asked() == 1
        assert fleet.router.metric(TOKENS) == LENGTH - BLOCK
        assert stages(fleet)[name] == {"stage": "open", "requests": 1, "tokens": LENGTH - BLOCK}
        # What it holds now, and announces, is not brought again; the next one is the other engine's turn.
        fleet.publishers[name].publish(stored(prompt))
        wait_until(lambda: not fleet.explained(prompt)[name], "it is followed")
        assert fleet.router.ask(sent).status == 200
        wait_until(lambda: warmed(fleet, "brought") == 2, "the other engine was brought it")
        (other,) = [each for each in OTHERS if each != name]
        assert stages(fleet)[other]["requests"] == 1


def test_what_one_session_alone_has_said_is_not_brought(tokenizer: Path) -> None:
    """The prompt has a beginning that two engines hold, and a long rest that only one does."""
    with ExitStack() as stack:
        fleet = fleet_of(stack, tokenizer, *ON)
        prompt = hold(fleet, "own")
        fleet.publishers["b"].publish(stored(prompt[: LENGTH // 2]))
        wait_until(lambda: stages(fleet)["b"]["stage"] in ("open", "over"), "it is followed")
        wait_until(lambda: fleet.explained(prompt)["b"].get("pull_tokens", 0) < LENGTH // 2 + BLOCK, "it is followed")
        assert fleet.router.ask(chat(prompt)).status == 200
        time.sleep(1)
        assert fleet.engines["c"].asked() == 0
        assert warmed(fleet, "brought") == 0


FAULTS: list[tuple[str, Behaviour]] = [
    ("nothing", whole(prompt=LENGTH, cached=0)),
    ("refused", reply("400 Bad Request", {"error": {"message": "no", "code": 400}})),
    ("failed", die),
    ("late", hang),
]


@pytest.mark.parametrize(("result", "behaviour"), FAULTS, ids=[result for result, _ in FAULTS])
def test_an_engine_that_does_not_do_it_is_left_alone(tokenizer: Path, result: str, behaviour: Behaviour) -> None:
    with ExitStack() as stack:
        fleet = fleet_of(stack, tokenizer, *ON)
        prompt = hold(fleet, "fault")
        for name in OTHERS:
            fleet.engines[name].behaviour = behaviour
        for done in (1, 2):  # one engine, then the other, unless a late pull was the source's fault
            answer = fleet.router.ask(chat(prompt))
            assert (answer.status, fleet.engines["a"].asked()) == (200, done)
            wait_until(partial(has_counted, fleet, result, 1 if result == "late" else done), "it is counted")
        asked = {name: fleet.engines[name].asked() for name in OTHERS}
        for _ in range(3):
            assert fleet.router.ask(chat(prompt)).status == 200
        time.sleep(1)
        assert asked == {name: fleet.engines[name].asked() for name in OTHERS}, "nothing is tried again"
        assert {stages(fleet)[name]["stage"] for name in OTHERS if asked[name]} == {"failed"}
        assert fleet.router.metric(TOKENS) == 0


def test_it_is_off_unless_it_is_set(tokenizer: Path) -> None:
    with ExitStack() as stack:
        fleet = fleet_of(stack, tokenizer)
        prompt = hold(fleet, "off")
        assert fleet.router.ask(chat(prompt)).status == 200
        time.sleep(1)
        assert {name: fleet.engines[name].asked() for name in OTHERS} == dict.fromkeys(OTHERS, 0)
        assert stages(fleet) == dict.fromkeys(("a", *OTHERS))
