"""A policy at work, and the loads it goes by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import PolicyError
from kvatlas.routing import Depths, Dispatcher, Load, Prompt

PROMPT = Prompt(100, np.zeros(6, dtype=np.uint64), 16)


class Found:
    def scores(self) -> dict[str, int]:
        return {"b": 2}


class Always:
    uses_index = True
    chosen: Any = 1

    def __init__(self, workers: Sequence[str], seed: int) -> None:
        if not workers:
            raise OSError("no workers")

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        if isinstance(self.chosen, Exception):
            raise self.chosen
        return int(self.chosen)


class Blind(Always):
    uses_index = False


@pytest.mark.parametrize(("make", "queued"), [(Always, 100 - 32), (Blind, 100)])
def test_a_request_is_a_load_until_it_is_over(make: type[Always], queued: int) -> None:
    router = Dispatcher("mine", make, ["a", "b"], 0)
    first, second = router.dispatch(PROMPT, Found()), router.dispatch(PROMPT, Found())
    assert (first.engine, first.queued_tokens) == (1, queued)
    assert router.loads == [Load(), Load(2, 2 * queued)]
    router.first_token(first)
    router.first_token(first)
    assert router.loads[1] == Load(2, queued)
    router.finished(first)
    router.finished(second)  # without a first token: it failed
    assert router.loads == [Load(), Load()]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [(2, "chose 2: engines are numbered 0 to 1"), (KeyError("oh"), "failed at request 0: KeyError: 'oh'")],
)
def test_a_policy_that_fails_is_named_and_leaves_no_load(
    monkeypatch: pytest.MonkeyPatch, chosen: object, message: str
) -> None:
    monkeypatch.setattr(Always, "chosen", chosen)
    router = Dispatcher("mine", Always, ["a", "b"], 0)
    with pytest.raises(PolicyError, match=message) as caught:
        router.dispatch(PROMPT, Found())
    assert caught.value.code == "policy_failed"
    assert router.loads == [Load(), Load()]
    with pytest.raises(PolicyError, match="failed when it was made: OSError: no workers"):
        Dispatcher("mine", Always, [], 0)
