"""Policies of one's own, and those that have a name."""

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import PolicyError
from kvatlas.routing import Candidates, RoutedRequest, Router, policy_names

from .routers import BLOCKS, Fewest


def test_arrays_say_what_is_so() -> None:
    policy = Fewest()
    router = Router(policy, ["a", "b"])
    router.report("b", waiting=3, running=4, kv_usage=0.5, capacity_blocks=99, now=0.0)
    router.choose(content_hashes=BLOCKS, match={"b": 5}, max_tokens=7, priority=2, session=5, answers=3, now=1.0)
    router.choose(content_hashes=BLOCKS, match={"b": 5}, now=2.0)
    request, first = policy.shown[0]
    assert (request.max_tokens, request.priority, request.session, request.answers) == (7, 2, 5, 3)
    assert first.workers == [("a", 0), ("b", 0)]
    assert len(first) == 2
    assert first.device_blocks.tolist() == [0, 5]
    assert first.reported_waiting[1] == 3.0
    assert np.isnan(first.reported_waiting[0])
    assert first.reported_age[1] == 1.0
    assert first.capacity_blocks[1] == 99.0
    assert first.trusted.tolist() == [True, True]
    _, second = policy.shown[1]
    assert second.requests.tolist() == [1, 0]
    assert second.queued_tokens.tolist() == [4_000.0, 0.0]
    assert second.output_tokens_left[0] == 21.0
    assert second.depth.tolist() == [250, 5]
    with pytest.raises(ValueError, match="read-only"):
        second.queued_tokens[0] = 1.0


@pytest.mark.parametrize(
    ("chosen", "said"),
    [(RuntimeError("no idea"), "RuntimeError: no idea"), (2, "chose 2"), ("b", "chose b"), (-1, "chose -1")],
)
def test_a_policy_that_fails_is_told_and_nothing_is_reserved(chosen: Any, said: str) -> None:
    class WrongPolicy:
        def choose(self, request: RoutedRequest, candidates: Candidates) -> Any:
            if isinstance(chosen, Exception):
                raise chosen
            return chosen

    router = Router(WrongPolicy(), ["a", "b"])
    with pytest.raises(PolicyError, match=said) as raised:
        router.choose(prompt_tokens=5)
    assert raised.value.code == "policy_failed"
    assert router.in_flight == 0


class NotingPolicy(Fewest):
    """Notes what becomes of the requests."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.heard: list[tuple[Any, ...]] = []

    def sent(self, request: RoutedRequest, worker: tuple[str, int], now: float) -> None:
        self.heard.append(("sent", request.number, worker, now))

    def first_token(self, number: int, now: float) -> None:
        self.heard.append(("first token", number, now))

    def ended(self, number: int, output_tokens: float | None, now: float) -> None:
        self.heard.append(("ended", number, output_tokens, now))


def test_a_policy_is_told_what_becomes_of_requests_if_it_asks_for_it() -> None:
    policy = NotingPolicy()
    router = Router(policy, ["a", ("b", 3)])
    one = router.choose(prompt_tokens=5, answers=2, now=1.0)
    two = router.choose(prompt_tokens=5, session="s", now=2.0)
    one.first_token(now=3.0)
    one.finish(output_tokens=14, now=4.0)
    one.finish(now=5.0)
    two.failed(now=6.0)
    three = router.choose(prompt_tokens=5, allowed=["a"], now=7.0)
    router.remove_worker("a", now=8.0)
    assert not three.finish(now=9.0)
    numbers = [request.number for request, _ in policy.shown]
    assert policy.heard == [
        ("sent", numbers[0], ("a", 0), 1.0),
        ("sent", numbers[1], ("b", 3), 2.0),
        ("first token", numbers[0], 3.0),
        ("ended", numbers[0], 7.0, 4.0),
        ("ended", numbers[1], None, 6.0),
        ("sent", numbers[2], ("a", 0), 7.0),
        ("ended", numbers[2], None, 8.0),
    ]


@pytest.mark.parametrize("wrong", ["sent", "first_token", "ended"])
def test_a_policy_that_fails_when_it_is_told_is_told_of_once(wrong: str) -> None:
    policy = NotingPolicy()
    router = Router(policy, ["a"])

    def fails(*_told: object) -> None:
        raise RuntimeError("not listening")

    setattr(policy, wrong, fails)

    def all_of_it() -> None:
        decision = router.choose(prompt_tokens=5)
        decision.first_token()
        decision.finish()

    with pytest.raises(PolicyError, match="RuntimeError: not listening"):
        all_of_it()
    del policy.__dict__[wrong]
    router.expire(now=1e12)
    assert router.in_flight == 0
    all_of_it()
    assert router.in_flight == 0


def test_what_requests_use_is_a_column() -> None:
    policy = NotingPolicy()
    router = Router(policy, ["a", "b"], block_size=16)
    blocks = np.arange(1, 11, dtype=np.uint64)
    others = np.concatenate([blocks[:4], blocks[4:] + 100])
    one = router.choose(content_hashes=blocks, prompt_tokens=165, allowed=["a"])
    router.choose(content_hashes=others, prompt_tokens=160, allowed=["a"])
    router.choose(content_hashes=blocks, prompt_tokens=160)
    candidates = policy.shown[-1][1]
    # Ten full blocks and a part of one, and six more; of the third prompt all are in use there.
    assert (candidates.used_blocks.tolist(), candidates.shared_blocks.tolist()) == ([17.0, 0.0], [10, 0])
    one.finish()
    router.choose(content_hashes=blocks, prompt_tokens=160)
    candidates = policy.shown[-1][1]
    assert (candidates.used_blocks.tolist(), candidates.shared_blocks.tolist()) == ([10.0, 10.0], [4, 10])


def test_a_policy_is_named_by_module_and_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policy.py").write_text(
        "class Last:\n"
        "    uses_index = False\n"
        "    def __init__(self, seed, step=1):\n        self.step = step\n"
        "    def choose(self, request, candidates):\n        return len(candidates) - self.step\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    router = Router("my_policy:Last", list("abc"), options={"step": 2})
    assert (router.policy, router.uses_index) == ("Last", False)
    assert router.choose(prompt_tokens=5).worker == "b"
    del sys.modules["my_policy"]
    with pytest.raises(PolicyError, match="cannot load"):
        Router("my_policy:First")
    with pytest.raises(PolicyError, match=r"needs a choose\(request, candidates\)"):
        Router("json:dumps")


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_by_name_places_everything(name: str) -> None:
    router = Router(name, list("abc"), settings={"queue_limit": 0})
    decisions = []
    for n in range(60):
        prompt = np.concatenate([BLOCKS[:20], np.arange(n % 7 * 1_000, n % 7 * 1_000 + 30, dtype=np.uint64)])
        text = f"{n % 7} " * 300
        decision = router.choose(content_hashes=prompt, match={"a": 20}, text=text, session=n % 5, now=n / 10)
        assert decision.worker in {"a", "b", "c"}
        decisions.append(decision)
        if len(decisions) > 8:
            done = decisions.pop(0)
            done.first_token(now=n / 10)
            done.finish(output_tokens=3, now=n / 10)
    for decision in decisions:
        decision.failed(now=10.0)
    assert router.in_flight == 0
    assert router.candidates(now=10.0).queued_tokens.tolist() == [0.0, 0.0, 0.0]


def test_threads_share_a_router_with_a_policy_in_python() -> None:
    router = Router(Fewest(), list("abcd"))

    def work() -> None:
        for _ in range(100):
            decision = router.choose(prompt_tokens=10)
            decision.first_token()
            decision.finish()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (router.in_flight, router.counts()["finished"]) == (0, 400)
