"""The router from Python: choosing and reserving, waiting, policies of one's own."""

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas import BlockIndex, content_hashes
from kvatlas.client import Answer
from kvatlas.errors import ConfigError, InvalidArgumentError, InvalidTypeError, PolicyError
from kvatlas.reference import ReferenceIndex
from kvatlas.routing import Candidates, Decision, RoutedRequest, Router, policy_names
from kvatlas.types import Counts

BLOCKS = np.arange(1, 251, dtype=np.uint64)


def index_of(worker: str, blocks: int = BLOCKS.size) -> BlockIndex:
    index = BlockIndex(block_size=16)
    index.store(worker, block_hashes=BLOCKS[:blocks].tolist(), content_hashes=BLOCKS[:blocks])
    return index


class Fewest:
    """The fewest requests; notes what it was shown."""

    def __init__(self, seed: int = 0, *, offset: int = 0) -> None:
        self.offset = offset
        self.shown: list[tuple[RoutedRequest, Candidates]] = []

    def choose(self, request: RoutedRequest, candidates: Candidates) -> int | None:
        self.shown.append((request, candidates))
        return int(np.argmin(candidates.requests)) + self.offset


def test_the_holder_is_chosen_and_the_prediction_is_told() -> None:
    router = Router(workers=["a", "b"])
    found = index_of("b", 200).find(content_hashes=BLOCKS)
    decision = router.choose(content_hashes=BLOCKS, prompt_tokens=4_010, match=found, explain=True, now=0.0)
    assert (decision.worker, decision.rank, decision.why) == ("b", 0, "policy")
    assert (decision.cached_tokens, decision.uncached_tokens) == (3_200, 810)
    terms = decision.terms()
    assert terms is not None
    costs = {worker: row["cost (s)"] for worker, row in terms.items()}
    assert costs["b", 0] < costs["a", 0]
    assert terms["b", 0]["cached_tokens"] == 3_200
    assert decision.finish(cached_tokens=3_100, output_tokens=4, now=1.0)
    assert not decision.finish(now=1.0)
    counts = router.counts()
    assert (counts["expected_cached"], counts["reported_cached"]) == (3_200, 3_100)
    assert router.in_flight == 0


@pytest.mark.parametrize("match", [{"b": 200}, {("b", 0): 200}])
def test_depths_may_be_a_mapping(match: Any) -> None:
    decision = Router(workers=["a", "b"]).choose(content_hashes=BLOCKS, match=match)
    assert (decision.worker, decision.cached_tokens) == ("b", 3_200)


def test_tokens_are_hashed_as_the_index_hashes_them() -> None:
    tokens = list(range(100))
    hashes = content_hashes(tokens, block_size=16, lora="x")
    index = BlockIndex(block_size=16)
    index.store("b", block_hashes=hashes.tolist(), content_hashes=hashes)
    policy = Fewest()
    router = Router(policy, ["a", "b"])
    router.choose(tokens=tokens, lora="x", match=index.find(tokens=tokens, lora="x"))
    request, candidates = policy.shown[0]
    assert request.tokens == 100
    assert request.content_hashes.tolist() == hashes.tolist()
    assert candidates.depth.tolist() == [0, 6]
    assert request.uncached(6) == 4


def test_what_was_just_sent_counts_at_once_and_only_for_a_time() -> None:
    router = Router(workers=["a", "b"], settings={"announced_within": 2.0})
    first = router.choose(content_hashes=BLOCKS, match={}, now=0.0)
    sibling = router.choose(content_hashes=BLOCKS, match={}, now=0.0)
    # One token is always computed: of 250 full blocks 249 can be taken from a cache.
    assert (sibling.worker, sibling.predicted_tokens) == (first.worker, 249 * 16)
    first.first_token(now=0.5)
    sibling.failed(now=0.5)
    first.finish(now=1.0)
    assert router.choose(content_hashes=BLOCKS, match={}, now=2.4).predicted_tokens > 0
    fresh = Router(workers=["a", "b"], settings={"announced_within": 2.0})
    only = fresh.choose(content_hashes=BLOCKS, match={}, now=0.0)
    only.first_token(now=0.5)
    only.finish(now=1.0)
    assert fresh.choose(content_hashes=BLOCKS, match={}, now=2.6).predicted_tokens == 0


def test_cold_requests_are_spread_by_work() -> None:
    router = Router(workers=list("abcd"))
    prompts = [np.arange(n * 1_000, n * 1_000 + 100, dtype=np.uint64) for n in range(40)]
    chosen = []
    for n, prompt in enumerate(prompts):
        decision = router.choose(content_hashes=prompt, match={}, now=float(n))
        decision.first_token(now=n + 0.2)
        decision.finish(now=n + 0.5)
        chosen.append(decision.worker)
    assert {chosen.count(worker) for worker in "abcd"} <= set(range(6, 15)), chosen


def test_it_fails_open() -> None:
    router = Router(workers=["a", "b"], settings={"queue_limit": 0})
    assert router.choose(content_hashes=BLOCKS).why == "no_index"
    assert router.choose(prompt_tokens=50, match={}).why == "no_tokens"
    for worker in "ab":
        router.set_trusted(worker, False)
    untrusted = router.choose(content_hashes=BLOCKS + np.uint64(999), match={"a": 10})
    assert (untrusted.why, untrusted.cached_tokens) == ("no_trust", 0)
    assert router.choose(prompt_tokens=50, allowed=["b"]).why == "only"
    nobody = Router().choose(prompt_tokens=50)
    assert (nobody.worker, nobody.refused) == (None, "no_worker")


def test_requests_wait_when_everybody_is_busy_and_are_bound_when_one_is_not() -> None:
    router = Router(workers=["a", "b"], settings={"queue_limit": 2, "queue_timeout": 10.0})
    prompts = [np.arange(n * 9_000, n * 9_000 + 1_250, dtype=np.uint64) for n in range(5)]
    decisions = [router.choose(content_hashes=prompt, match={}, now=0.0) for prompt in prompts]
    assert [bool(decision.worker) for decision in decisions] == [True, True, False, False, False]
    assert [decision.waits for decision in decisions] == [False, False, True, True, False]
    assert decisions[4].refused == "queue_full"
    assert router.waiting == 2
    assert router.bind(now=0.01) == []
    decisions[0].failed(now=0.5)  # a first token would prove how fast both are, and make room at both
    bound = router.bind(now=0.5)
    assert len(bound) == 1
    assert bound[0] in decisions[2:4]
    assert bound[0].worker == decisions[0].worker
    last = router.bind(now=11.0)
    assert [decision.refused for decision in last] == ["queue_timeout"]
    assert router.waiting == 0


def test_a_prompt_that_waits_is_looked_up_again() -> None:
    router = Router(workers=["a", "b"])
    for n in range(2):
        router.choose(content_hashes=np.arange(n * 9_000, n * 9_000 + 1_250, dtype=np.uint64), match={}, now=0.0)
    waits = router.choose(content_hashes=BLOCKS, match={}, now=0.0)
    asked = []

    def find(hashes: Any) -> dict[str, int]:
        asked.append(hashes.tolist())
        return {"a": 250, "b": 250}

    # Long enough for both to be nearly done, as far as can be told.
    assert router.bind(find, now=2.4) == [waits]
    assert asked == [BLOCKS.tolist()]
    assert waits.cached_tokens == 249 * 16


def test_awaiting_ends_with_a_worker() -> None:
    async def run() -> tuple[str | None, int]:
        router = Router(workers=["a"])
        first = await router.choose_async(prompt_tokens=100_000)
        second = asyncio.create_task(router.choose_async(prompt_tokens=100_000))
        given_up = asyncio.create_task(router.choose_async(prompt_tokens=100_000))
        while router.waiting < 2:
            await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        waiting = router.waiting
        first.finish()
        return (await second).worker, waiting

    assert asyncio.run(run()) == ("a", 1)


def test_sessions_stick_for_a_time() -> None:
    router = Router("round-robin", list("abc"), settings={"session_ttl": 10.0})
    first = router.choose(prompt_tokens=10, session="s", now=0.0)
    again = [router.choose(prompt_tokens=10, session="s", now=float(n)) for n in (1, 5, 14)]
    assert {decision.worker for decision in again} == {first.worker}
    assert [decision.why for decision in again] == ["session"] * 3
    assert router.choose(prompt_tokens=10, session="s", now=30.0).why == "policy"
    other = router.choose(prompt_tokens=10, session="t", now=30.0)
    assert other.worker is not None
    router.remove_worker(other.worker, now=30.0)
    assert router.choose(prompt_tokens=10, session="t", now=30.0).worker != other.worker


def test_workers_come_and_go() -> None:
    router = Router("least-loaded", [("a", 0), ("a", 1)])
    assert router.workers == [("a", 0), ("a", 1)]
    ranks = {router.choose(prompt_tokens=100).rank for _ in range(2)}
    assert ranks == {0, 1}
    router.drain_worker("a", 1)
    assert {router.choose(prompt_tokens=100).rank for _ in range(4)} == {0}
    assert router.remove_worker("a") == 6
    router.add_worker("b")
    assert router.choose(prompt_tokens=100).worker == "b"
    with pytest.raises(InvalidArgumentError, match='no worker "a" with rank 0'):
        router.report("a", waiting=1)


def test_a_new_worker_is_warmed_up() -> None:
    router = Router("least-loaded", list("abc"), settings={"warm_seconds": 10.0, "warm_share": 0.25})
    for n in range(30):
        router.choose(prompt_tokens=1_000, now=n / 100)
    router.add_worker("d", now=1.0)
    early = [router.choose(prompt_tokens=1_000, now=1.0).worker for _ in range(40)]
    # A quarter of its fair share, though it is the least loaded by far.
    assert 1 <= early.count("d") <= 4
    late = [router.choose(prompt_tokens=1_000, now=20.0).worker for _ in range(4)]
    assert late == ["d"] * 4


def test_a_slow_worker_is_found_out() -> None:
    router = Router(workers=["quick", "slow"])
    now = 0.0
    for n in range(40):
        for worker, rate in (("quick", 10_000.0), ("slow", 2_500.0)):
            prompt = np.arange(n * 1_000, n * 1_000 + 100, dtype=np.uint64)
            decision = router.choose(content_hashes=prompt, allowed=[worker], now=now)
            # Once in a while something else is in the way.
            took = decision.uncached_tokens / rate * (50 if n % 13 == 12 else 1)
            decision.first_token(now=now + took)
            decision.finish(now=now + took)
            now += took
    rates = router.candidates(now=now).prefill_rate
    assert rates[0] == pytest.approx(10_000, rel=0.25)
    assert rates[1] == pytest.approx(2_500, rel=0.25)


def test_without_events_it_remembers_what_was_sent() -> None:
    settings = {"no_events": "mock", "announced_within": 0.0}
    router = Router(workers=["a", "b"], settings=settings)
    router.report("a", capacity_blocks=300)
    router.report("b", capacity_blocks=300)
    first = router.choose(content_hashes=BLOCKS, now=0.0)
    first.first_token(now=1.0)
    first.finish(now=2.0)
    again = router.choose(content_hashes=BLOCKS, now=100.0)
    assert (again.worker, again.cached_tokens, again.why) == (first.worker, 249 * 16, "policy")
    again.finish(now=101.0)
    # Another prompt of 250 blocks pushes out all but 50 of them.
    other = router.choose(content_hashes=BLOCKS + np.uint64(5_000), allowed=[str(first.worker)], now=102.0)
    other.finish(now=103.0)
    third = router.choose(content_hashes=BLOCKS, allowed=[str(first.worker)], now=110.0)
    assert third.cached_tokens == 50 * 16


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


def test_explain_says_how_long_it_would_wait_for_room() -> None:
    router = Router(workers=["a", "b"], block_size=16)
    for worker in ("a", "b"):
        router.report(worker, capacity_blocks=100, now=0.0)
    for number in range(2):
        blocks = np.arange(1_000 * number, 1_000 * number + 45, dtype=np.uint64) + 1
        decision = router.choose(content_hashes=blocks, prompt_tokens=720, allowed=["a"], now=number * 1.0)
        decision.first_token(now=number + 0.5)
    prompt = np.arange(5_000, 5_020, dtype=np.uint64)
    decision = router.choose(content_hashes=prompt, prompt_tokens=320, explain=True, now=3.0)
    terms = decision.terms()
    assert terms is not None
    # 90 of 100 blocks are in use at a, and 20 more do not fit: one that runs has to end.
    assert terms["a", 0]["wait for room (s)"] > 1.0
    assert terms["b", 0]["wait for room (s)"] == 0.0
    assert decision.worker == "b"


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


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Router("kvatlsa"), PolicyError, "kvatlas"),
        (lambda: Router(options={"wiat": 1}), PolicyError, "has no option"),
        (lambda: Router(options={"wait": "x"}), PolicyError, "wait must be a number"),
        (lambda: Router(settings={"session_tll": 1}), ConfigError, "session_tll"),
        (lambda: Router(settings={"order": "lifo"}), ConfigError, "least-work, fcfs"),
        (lambda: Router(3), InvalidTypeError, "policy must be a name or an object"),  # type: ignore[arg-type]
        (lambda: Router(workers=["a"]).choose(), InvalidArgumentError, "needs tokens"),
        (
            lambda: Router(workers=["a"]).choose(tokens=[1], content_hashes=[1]),
            InvalidArgumentError,
            "not both",
        ),
        (lambda: Router(workers=["a"]).choose(content_hashes=[1], match=3), InvalidTypeError, "match must be"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_said(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


UNTYPED: Any = Router  # to be called as no type checker allows


def one() -> Any:
    return Router(workers=["a", "b"])


def decided() -> Any:
    """A decision for a prompt of 50 tokens, three full blocks."""
    return one().choose(tokens=list(range(50)))


HUGE = 10**30


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: UNTYPED(workers="gpu-1"), r"workers must be an iterable of names, got the single str: \['gpu-1'\]\?"),
        (lambda: UNTYPED(workers=b"gpu"), "workers must be an iterable of names"),
        (lambda: UNTYPED(workers=3), "workers must be an iterable of names, got int"),
        (lambda: UNTYPED(workers=[3]), "workers must have names, or tuples of a name and a rank, got int"),
        (lambda: UNTYPED(workers=[("a", 0, 1)]), "workers must have names, or tuples"),
        (lambda: UNTYPED(workers=[("a", "0")]), "rank must be an int, got str"),
        (lambda: UNTYPED(workers=[("a", True)]), "rank must be an int, got bool"),
        (lambda: UNTYPED(seed="x"), "seed must be an int"),
        (lambda: UNTYPED(options=[1]), "options must be a dict, got list"),
        (lambda: UNTYPED(options={"wait": {1}}), "options must have numbers, strings and bools only"),
        (lambda: UNTYPED(settings="x"), "settings must be a dict, got str"),
        (lambda: UNTYPED(clock=3), "clock must be callable, got int"),
        (lambda: UNTYPED(Fewest), "policy must be a name or an object, got the class"),
        (lambda: UNTYPED(clock=lambda: "noon").choose(prompt_tokens=1), "what clock returns must be a number, got str"),
        (lambda: one().choose(prompt_tokens=5.0), "prompt_tokens must be an int, got float"),
        (lambda: one().choose(prompt_tokens=True), "prompt_tokens must be an int, got bool"),
        (lambda: one().choose(prompt_tokens=5, max_tokens="7"), "max_tokens must be an int"),
        (lambda: one().choose(prompt_tokens=5, priority=1.5), "priority must be an int"),
        (lambda: one().choose(prompt_tokens=5, answers=None), "answers must be an int"),
        (lambda: one().choose(prompt_tokens=5, explain=1), "explain must be True or False"),
        (lambda: one().choose(prompt_tokens=5, now="0"), "now must be a number, got str"),
        (lambda: one().choose(prompt_tokens=5, session=1.5), "session must be a str or an int, got float"),
        (lambda: one().choose(prompt_tokens=5, allowed="b"), "allowed must be an iterable of names"),
        (lambda: one().choose(prompt_tokens=5, allowed=("a", 0)), "allowed must have names, or tuples"),
        (lambda: one().choose(tokens=[1] * 16, match={"a": 1.0}), "a depth in match must be an int, got float"),
        (lambda: one().choose(tokens=[1] * 16, match={3: 1}), "match must have names, or tuples"),
        (lambda: one().add_worker(3), "worker must be a str, got int"),
        (lambda: one().add_worker("c", rank="0"), "rank must be an int"),
        (lambda: one().add_worker("c", weight="heavy"), "weight must be a number"),
        (lambda: one().remove_worker(3), "worker must be a str"),
        (lambda: one().drain_worker(("a", 0)), "worker must be a str, got tuple"),
        (lambda: one().set_trusted("a", 1), "trusted must be True or False"),
        (lambda: one().report("a", waiting="many"), "waiting must be a number"),
        (lambda: decided().progress(1.5), "tokens must be an int"),
        (lambda: decided().finish(cached_tokens=1.5), "cached_tokens must be an int"),
        (lambda: decided().finish(output_tokens="7"), "output_tokens must be an int"),
    ],
)  # fmt: skip
def test_the_wrong_type_is_said(call: Any, said: str) -> None:
    with pytest.raises(InvalidTypeError, match=said):
        call()


@pytest.mark.parametrize("wrong", [-1, HUGE])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda wrong: UNTYPED(seed=wrong), "seed must be from 0 to 18446744073709551615"),
        (lambda wrong: UNTYPED(workers=[("a", wrong)]), "rank must be from 0 to 4294967295"),
        (lambda wrong: one().choose(prompt_tokens=wrong), "prompt_tokens must be from 0 to 4294967295"),
        (lambda wrong: one().choose(prompt_tokens=5, max_tokens=wrong), "max_tokens must be from 0 to"),
        (lambda wrong: one().choose(prompt_tokens=5, answers=wrong), "answers must be from 1 to"),
        (lambda wrong: one().choose(prompt_tokens=5, session=wrong), "session as a number must be from 0 to"),
        (lambda wrong: one().choose(prompt_tokens=5, allowed=[("a", wrong)]), "rank must be from 0 to"),
        (lambda wrong: one().choose(tokens=[1] * 16, match={"a": wrong}), "a depth in match must be from 0 to"),
        (lambda wrong: one().choose(tokens=[1] * 16, match={("a", wrong): 1}), "rank must be from 0 to"),
        (lambda wrong: one().add_worker("c", rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().remove_worker("a", rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().drain_worker("a", rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().set_trusted("a", True, rank=wrong), "rank must be from 0 to"),
        (lambda wrong: one().report("a", waiting=1, rank=wrong), "rank must be from 0 to"),
        (lambda wrong: decided().progress(wrong), "tokens must be from 0 to"),
        (lambda wrong: decided().finish(cached_tokens=wrong), "cached_tokens must be from 0 to"),
        (lambda wrong: decided().finish(output_tokens=wrong), "output_tokens must be from 0 to"),
    ],
)
def test_a_number_out_of_range_is_said(call: Any, said: str, wrong: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{said}.*, got {wrong}") as raised:
        call(wrong)
    assert raised.value.code == "out_of_range"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.5, 10**400])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda wrong: one().add_worker("c", weight=wrong), "weight must be a finite number above 0"),
        (lambda wrong: one().report("a", waiting=wrong), "waiting must be a finite number of at least 0"),
        (lambda wrong: one().report("a", running=wrong), "running must be a finite number of at least 0"),
        (lambda wrong: one().report("a", kv_usage=wrong), "kv_usage must be a share from 0 to 1"),
        (lambda wrong: one().report("a", capacity_blocks=wrong), "capacity_blocks must be a finite number"),
        (lambda wrong: one().report("a", held_blocks=wrong), "held_blocks must be a finite number"),
    ],
)
def test_an_amount_out_of_range_is_said(call: Any, said: str, wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        call(wrong)


def test_times_are_finite() -> None:
    for wrong in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(InvalidArgumentError, match="now must be a finite number of seconds"):
            one().choose(prompt_tokens=5, now=wrong)
    with pytest.raises(InvalidArgumentError, match="kv_usage must be a share from 0 to 1, got 85"):
        one().report("a", kv_usage=85)


def test_no_more_is_cached_than_the_prompt_has() -> None:
    decision = decided()
    with pytest.raises(
        InvalidArgumentError, match="cached_tokens must be from 0 to 50, the length of this prompt, got 51"
    ):
        decision.finish(cached_tokens=51)
    assert decision.finish(cached_tokens=50), "it went on"
    # Of full blocks, the rest is not known.
    hashed = one().choose(content_hashes=[1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="from 0 to 63"):
        hashed.finish(cached_tokens=64)
    assert hashed.finish(cached_tokens=63)


def test_a_match_is_of_the_same_blocks_and_the_same_prompt() -> None:
    tokens = list(range(1_024))
    coarse = BlockIndex(block_size=128)
    hashes = content_hashes(tokens, block_size=128)
    coarse.store("b", block_hashes=hashes.tolist(), content_hashes=hashes)
    found = coarse.find(tokens=tokens)
    assert found.block_size == found.any_tier.block_size == 128
    same = Router(workers=["a", "b"], block_size=128).choose(tokens=tokens, match=found)
    assert (same.worker, same.cached_tokens) == ("b", 1_024 - 128)
    other = r"match counts blocks of 128 tokens, and this router blocks of 16: both must be the same"
    reference = ReferenceIndex(block_size=128).find(tokens=tokens)
    asked = Answer(workers=(), block_size=128, length=8)
    match: Any
    for match in (found, found.any_tier, reference, asked):
        with pytest.raises(InvalidArgumentError, match=other) as raised:
            one().choose(tokens=tokens, match=match)
        assert raised.value.code == "block_size_mismatch"
    with pytest.raises(InvalidArgumentError, match="match must count blocks, got one that counts characters"):
        one().choose(tokens=tokens, match=Counts({"a": 1}, 10, "characters"))
    long = index_of("b").find(content_hashes=BLOCKS)
    for match in (long, {"b": 250}, Counts({"b": 250}, 250)):
        with pytest.raises(InvalidArgumentError, match="match has 250 blocks of a prompt that has 64"):
            one().choose(tokens=tokens, match=match)
    router = one()
    busy = [router.choose(prompt_tokens=100_000, match={}) for _ in range(2)]
    assert router.choose(tokens=tokens, match={}).waits
    assert busy[0].failed()
    with pytest.raises(InvalidArgumentError, match=other):
        router.bind(lambda _hashes: found)


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


def test_a_decision_reads_well() -> None:
    router = Router(workers=["a"])
    assert repr(router) == 'Router(policy="kvatlas", workers=1)'
    decision: Decision = router.choose(prompt_tokens=50)
    assert repr(decision) == 'Decision(worker="a", rank=0, cached_tokens=0)'
    assert repr(Router().choose(prompt_tokens=5)) == 'Decision(refused="no_worker")'


def test_what_a_router_has_sent_counts_for_those_it_tells() -> None:
    one, two = Router(workers=["a", "b"]), Router(workers=["b", "c", "a"])
    sent = one.choose(content_hashes=BLOCKS, now=0.0)
    before = two.choose(content_hashes=BLOCKS, allowed=["c"], now=0.1)
    before.failed(now=0.1)
    one.tell(two, now=0.1)
    candidates = two.candidates(now=0.1)
    rows = dict(zip(candidates.workers, candidates.requests.tolist(), strict=True))
    assert rows == {("a", 0): int(sent.worker == "a"), ("b", 0): int(sent.worker == "b"), ("c", 0): 0}
    # What is on its way there is not computed anywhere else.
    follows = two.choose(content_hashes=BLOCKS, now=0.2)
    assert (follows.worker, follows.cached_tokens) == (sent.worker, 249 * 16)
    follows.finish(now=0.3)
    sent.finish(now=0.3)
    one.tell(two, now=0.3)
    assert two.candidates(now=0.3).requests.tolist() == [0, 0, 0]
    with pytest.raises(InvalidArgumentError, match="cannot tell itself") as refused:
        one.tell(one)
    assert refused.value.code == "conflicting_arguments"
    with pytest.raises(InvalidArgumentError, match="seconds must be"):
        one.tell(two, seconds=0.0)
    # One that falls silent is forgotten.
    one.choose(content_hashes=BLOCKS, now=0.4)
    one.tell(two, seconds=2.0, now=0.4)
    assert two.candidates(now=0.5).requests.sum() == 1
    two.expire(now=2.5)
    assert two.candidates(now=2.5).requests.sum() == 0
