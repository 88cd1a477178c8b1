"""Ranks of deployments that share them among several servers: hybrid and external load balancing."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.engine import Behaviour, Engine, Talk, reply, usual

from kvatlas.router import RouterConfig, RouterSection
from kvatlas.router.check import check
from kvatlas.service import Engine as EngineEntry
from kvatlas.sim.server import Publisher

from .deciding import exact, prompt, stored
from .running import Router, wait_until

LOCAL = {"error": {"message": "data_parallel_rank 5 is out of range [0, 2).", "type": "BadRequestError", "code": 400}}
GLOBAL = {"error": {"message": "engine-core error", "type": "invalid_request_error", "code": 400}}
TEXT = "a prompt of more than one block that one of the ranks holds. " * 8


def answering_to(numbers: Iterable[int], refusal: object) -> Behaviour:
    """An engine that knows its ranks by these numbers in requests."""
    known = {str(number) for number in numbers}

    async def act(talk: Talk) -> None:
        named = talk.request.headers.get("x-data-parallel-rank")
        await (usual if named is None or named in known else reply("400 Bad Request", refusal))(talk)

    return act


def numbered(stack: ExitStack, behaviour: Behaviour, *ranks: int) -> Engine:
    engine = stack.enter_context(Engine(behaviour=behaviour))
    engine.publishers = {rank: stack.enter_context(Publisher()) for rank in ranks}
    return engine


def last(router: Router) -> dict[str, object]:
    decision: dict[str, object] = json.loads(router.get("/decisions?limit=1")[1])[0]
    return decision


# The refusals of vLLM's frontend in Python, of the same before it checked, and of the one in Rust.
WAYS = [((0, 1), LOCAL), ((0, 1), {"detail": "Internal Server Error"}), ((4, 5), GLOBAL)]


@pytest.mark.parametrize(("known", "refusal"), WAYS)
def test_ranks_keep_their_numbers_and_requests_name_them_as_the_engine_does(
    known: tuple[int, int], refusal: object, tokenizer: Path
) -> None:
    with ExitStack() as stack:
        engine = numbered(stack, answering_to(known, refusal), 4, 5)
        router = stack.enter_context(Router(engine, flags=exact(tokenizer)))
        router.wait_followed()
        for at, rank in enumerate((4, 5)):
            text = f"{rank} {TEXT}"
            engine.publishers[rank].publish(stored(text, rank))

            def is_known(text: str = text) -> bool:
                answer = router.ask(prompt(text), path="/explain").json
                return bool(max(each["cached_tokens"] for each in answer["candidates"]))

            wait_until(is_known, "its holder is known")
            answer = router.ask(prompt(text))
            assert answer.status == 200, answer
            assert engine.last.headers["x-data-parallel-rank"] == str(known[at])
            decision = last(router)
            assert (decision["rank"], decision["why"]) == (rank, "policy")
        shown = json.loads(router.get("/workers")[1])[0]["ranks"]
        assert [(row["rank"], row["trusted"]) for row in shown] == [(4, True), (5, True)]


def test_a_server_of_one_rank_beyond_the_first(tokenizer: Path) -> None:
    with ExitStack() as stack:
        engine = numbered(stack, usual, 3)
        other = numbered(stack, usual, 0)
        router = stack.enter_context(Router(engine, other, flags=exact(tokenizer)))
        router.wait_followed()
        engine.publishers[3].publish(stored(TEXT, 3))

        def is_known() -> bool:
            answer = router.ask(prompt(TEXT), path="/explain").json
            return any(each["cached_tokens"] for each in answer["candidates"])

        wait_until(is_known, "its holder is known")
        assert router.ask(prompt(TEXT)).headers["x-kvatlas-worker"] == "e0"
        assert "x-data-parallel-rank" not in engine.last.headers
        assert (last(router)["rank"], last(router)["why"]) == (3, "policy")


@pytest.mark.parametrize(
    ("known", "refusal", "level", "words"),
    [
        (*WAYS[0], "ok", "4, 5; requests name them as 0 to 1 (X-data-parallel-rank)"),
        (*WAYS[2], "ok", "4, 5; requests name them by these numbers (X-data-parallel-rank)"),
        ((7,), GLOBAL, "warning", "its ranks are 4, 5, and it refuses requests that name them so"),
    ],
)
def test_the_check_says_what_requests_call_the_ranks(
    known: tuple[int, ...], refusal: object, level: str, words: str
) -> None:
    with ExitStack() as stack:
        engine = numbered(stack, answering_to(known, refusal), 4, 5)
        config = RouterConfig(
            engines=(EngineEntry.of(engine.url),), block_size=16, router=RouterSection(tokenizer="none")
        )
        [report] = check(config)
        [found] = [finding for finding in report.findings if finding.what == "ranks"]
        assert found.level == level
        assert words in found.words
