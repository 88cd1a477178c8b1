"""Loads and pulls that a router decides on."""

from typing import Any

import pytest

from kvatlas import BlockIndex
from kvatlas.errors import InvalidArgumentError, InvalidTypeError
from kvatlas.routing import Router

NAMES = ("a", "b", "c")


def make(**settings: float) -> Router:
    router = Router(workers=NAMES, settings={"prefill_rate": 40_000, **settings})
    for name in NAMES:
        router.set_pulls(name, "group", now=0.0)
    return router


def decide(router: Router, loadable: Any, worker: str, blocks: int = 6_000, now: float = 0.5) -> Any:
    return router.choose(
        content_hashes=list(range(blocks)),
        prompt_tokens=blocks * 16 + 1,
        match={},
        loadable=loadable,
        allowed=[worker],
        now=now,
    )


def test_a_prompt_is_pulled_from_who_has_it_in_host_memory() -> None:
    router = make()
    decision = decide(router, {"a": (5_000, 5_000, 5_000)}, "b")
    assert (decision.action, decision.pull_source, decision.pull_tokens) == ("pull", ("a", 0), 80_000)
    assert (decision.cached_tokens, decision.uncached_tokens) == (80_000, 16_001)
    assert (decision.load_tokens, decision.max_load_tokens) == (0, None)
    assert decision.transfer_seconds == pytest.approx(0.0255 + 4.07e-6 * 80_000 + 0.13)
    decision.first_token(now=1.2)
    decision.finish(cached_tokens=80_000, output_tokens=1, now=1.2)
    counts = router.counts()
    assert (counts["pulls"], counts["pulls_brought"], counts["pulls_late"]) == (1, 1, 0)
    (cost,) = router.transfers(now=1.2)
    assert (cost["kind"], cost["worker"], cost["source"], cost["out"]) == ("pull", "b", ("a", 0), 0.0)


def test_what_loading_find_returns_is_taken_as_it_is() -> None:
    index = BlockIndex(block_size=16)
    index.loading.set_offloading("a", host_chunk=4, resets_keep=False)
    names = list(range(1, 6_001))
    index.store("a", block_hashes=names[:6], content_hashes=names[:6])
    index.store("a", block_hashes=names[:10], content_hashes=names[:10], tier="cpu")
    index.store("a", block_hashes=names[10:], content_hashes=names[10:], parent=10, tier="cpu")
    found = index.loading.find(content_hashes=names)
    router = make()
    match = index.find(content_hashes=names)

    def choose(worker: str) -> Any:
        prompt = {"content_hashes": names, "prompt_tokens": 96_001}
        return router.choose(**prompt, match=match, loadable=found, allowed=[worker], now=0.5)  # type: ignore[arg-type]

    loads, pulls = choose("a"), choose("b")
    assert (loads.action, loads.load_tokens, loads.cached_tokens) == ("load", 96_000 - 96, 96_000)
    assert (pulls.action, pulls.pull_tokens) == ("pull", 96_000)


def test_what_is_dearer_to_load_than_to_compute_is_limited() -> None:
    router = make(far_token=1e-3)
    decision = decide(router, {("a", 0): (4_000, 5_000, 0)}, "a")
    assert (decision.action, decision.load_tokens, decision.max_load_tokens) == ("load", 64_000, 64_000)
    decision = decide(router, {"b": (0, 5_000, 0)}, "b")
    assert (decision.action, decision.load_tokens, decision.max_load_tokens) == ("compute", 0, 0)


def test_sources_need_a_group_and_a_sign_of_life() -> None:
    router = make()
    loadable = {"a": (6_000, 6_000, 6_000)}
    assert decide(router, loadable, "b", now=1.1).action is None
    router.heard("a", now=1.1)
    assert decide(router, loadable, "c", now=1.1).action == "pull"
    router.set_pulls("a", None, now=1.1)
    router.report("a", waiting=0, now=1.1)
    assert decide(router, loadable, "b", blocks=7_000, now=1.2).action is None
    with pytest.raises(InvalidArgumentError, match='no worker "z"'):
        router.heard("z")


def test_requests_that_wait_are_looked_up_again_with_what_can_be_loaded() -> None:
    router = make()
    for name in NAMES:
        router.choose(prompt_tokens=400_000, allowed=[name], now=0.5)
    waits = router.choose(content_hashes=list(range(6_000)), prompt_tokens=96_001, match={}, now=0.5)
    assert waits.waits
    router.remove_worker("c", now=0.6)
    router.add_worker("c", now=0.6)
    router.set_pulls("c", "group", now=0.6)
    router.heard("a", now=0.6)
    assert router.bind(find=lambda _: ({}, {"a": (6_000, 6_000, 6_000)}), now=0.6) == [waits]
    assert (waits.worker, waits.action, waits.pull_source) == ("c", "pull", ("a", 0))


def test_the_terms_have_the_transfer() -> None:
    router = make()
    decision = router.choose(
        content_hashes=list(range(6_000)),
        prompt_tokens=96_001,
        match={},
        loadable={"a": (6_000, 6_000, 6_000)},
        explain=True,
        now=0.5,
    )
    terms = decision.terms()
    assert terms is not None
    assert terms["a", 0]["transfer (s)"] == pytest.approx(0.013 + 2.3e-6 * 96_000)
    assert terms["b", 0]["transfer (s)"] == pytest.approx(0.0255 + 4.07e-6 * 96_000 + 0.13)
    assert decision.worker == "a"


@pytest.mark.parametrize("wrong", [3, {"a": 3}, {"a": (1, 2)}, [3], {"a": (1, 2, "x")}, {3: (1, 2, 3)}])
def test_wrong_types_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match="loadable"):
        decide(make(), wrong, "a")


def test_depths_of_another_prompt_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="same prompt"):
        decide(make(), {"a": (1, 2, 6_002)}, "a")
    with pytest.raises(InvalidArgumentError, match="loadable together with match"):
        make().choose(content_hashes=[1], loadable={}, now=0.0)


def test_a_copy_pushes_out_more_than_what_is_computed() -> None:
    """The source keeps its own: what moves on takes the room of two."""
    prompt: dict[str, Any] = {"content_hashes": list(range(6_000)), "prompt_tokens": 96_001, "match": {}, "now": 0.5}
    computed = make().choose(**prompt, explain=True).terms()
    copied = make().choose(**prompt, loadable={"a": (6_000, 6_000, 6_000)}, explain=True).terms()
    assert computed is not None
    assert copied is not None
    token = computed["b", 0]["pushed out (s)"] / 96_001
    assert copied["b", 0]["pushed out (s)"] == pytest.approx(token * (1 + 3 * 96_000))
    assert copied["a", 0]["pushed out (s)"] == pytest.approx(token)
