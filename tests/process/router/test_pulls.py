"""Engines are told from which other engine to pull a part of a prompt, and how much they may load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, Talk, die, hang, reply, whole

from kvatlas.service import Config, HttpConfig, Service
from kvatlas.sim.server import Publisher

from .deciding import BLOCK, expected, stored, tokens_of
from .running import Router, wait_until

LENGTH = 3_000 * BLOCK
FIELD = "kv_transfer_params"
PULLS = "kvatlas_router_pulls_total"
METRICS = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
OTHERS = ("b", "c")


def text(name: str) -> str:
    """A prompt whose tokens take some seconds to compute."""
    return (name + " ").ljust(LENGTH, "x")


class Fleet:
    """A router in front of vLLM engines. `a` is drained and has prompts in host memory."""

    def __init__(
        self,
        stack: ExitStack,
        tokenizer: Path,
        *flags: str,
        version: str = "0.33.0",
        roles: dict[str, str] | None = None,
        service: Service | None = None,
        **more: Any,
    ) -> None:
        """Start it. `service`: follows the events in place of the router."""
        if service is not None:
            flags = (*flags, "--index", service.url)
        self.engines: dict[str, Engine] = {}
        self.publishers: dict[str, Publisher] = {}
        self.flags = ("--tokenizer", str(tokenizer), "--model", MODEL, "--block-size", str(BLOCK), *flags)
        self.router = stack.enter_context(
            Router(flags=(*self.flags, "--health-interval", "100ms", "--source-heard", "30s"), ready=False)
        )
        for number, name in enumerate(("a", *OTHERS)):
            engine = stack.enter_context(Engine())
            publisher = stack.enter_context(Publisher())
            if service is None:
                engine.publishers = {0: publisher}
            else:
                service.client().register(name, publisher.endpoint, model=MODEL, block_size=BLOCK)
                publisher.wait_for_reader()
            engine.answers |= {"/version": {"version": version}, "/metrics": METRICS}
            engine.behaviour = whole(prompt=LENGTH, cached=LENGTH - BLOCK)
            self.engines[name], self.publishers[name] = engine, publisher
            told = {"pull": f"10.0.0.{number + 1}:5710"} | more
            if roles is not None:
                told["role"] = roles[name]
            status, said = self.router.call(
                "POST",
                "/engines",
                {"url": engine.url, "name": name, **{key: value for key, value in told.items() if value is not None}},
            )
            assert status == 201, said
        self.router.wait_ready()
        if service is None:
            wait_until(lambda: all(row["ranks"][0]["trusted"] for row in self.router.workers()), "events are followed")
        assert self.router.call("POST", "/engines/a/drain")[0] == 200

    def hold(self, name: str) -> str:
        """A new prompt, which `a` has in host memory."""
        prompt = text(name)
        self.publishers["a"].publish(stored(prompt, medium="CPU"))
        return prompt

    def explained(self, prompt: str) -> dict[str, Any]:
        answer = self.router.ask(chat(prompt), path="/explain")
        assert answer.status == 200, answer
        return {row["worker"]: row.get("transfer") or {} for row in answer.json["candidates"]}

    def wait_pullable(self, prompt: str) -> None:
        def is_pullable() -> bool:
            return all(transfer.get("action") == "pull" for transfer in self.explained(prompt).values())

        wait_until(is_pullable, "it can be pulled")

    def ask(self, prompt: str, **more: Any) -> dict[str, Any]:
        """The body that an engine got for a prompt."""
        before = {name: engine.asked() for name, engine in self.engines.items()}
        answer = self.router.ask(chat(prompt, **more))
        assert answer.status == 200, answer
        (asked,) = [engine for name, engine in self.engines.items() if engine.asked() > before[name]]
        return dict(asked.last.json)


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, **more}


@pytest.fixture
def fleet(tokenizer: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, tokenizer)


ROUTES: dict[str, Any] = {
    "/v1/chat/completions": chat,
    "/v1/completions": lambda prompt: {"model": MODEL, "prompt": prompt, "max_tokens": 1},
    "/v1/responses": lambda prompt: {"model": MODEL, "input": prompt},
    "/v1/messages": chat,
    "/inference/v1/generate": lambda prompt: {
        "model": MODEL,
        "token_ids": tokens_of(prompt),
        "sampling_params": {"max_tokens": 1},
    },
}


def test_each_request_to_an_engine_names_the_source_with_an_id_of_its_own(fleet: Fleet) -> None:
    names = set()
    for number, (path, make) in enumerate(ROUTES.items()):
        prompt = fleet.hold(str(number))
        fleet.wait_pullable(prompt)
        before = {name: fleet.engines[name].asked() for name in OTHERS}
        body = make(prompt)
        assert fleet.router.ask(body, path=path).status == 200, path
        (engine,) = [fleet.engines[name] for name in OTHERS if fleet.engines[name].asked() > before[name]]
        asked = dict(engine.last.json)
        source = asked.pop(FIELD)["remote_kv_source"]
        names.add(source.pop("kv_request_id"))
        assert source == {"remote_host": "10.0.0.1", "remote_port": 5710}
        assert asked == body, path
    assert len(names) == len(ROUTES)
    # An answer of `/v1/responses` of this engine does not say what was cached of it.
    wait_until(lambda: fleet.router.metric(PULLS, result="brought") >= len(ROUTES) - 1, "they are counted")
    assert fleet.router.metric(PULLS, result="nothing") == 0


def test_a_retry_has_an_id_of_its_own(fleet: Fleet) -> None:
    prompt = fleet.hold("again")
    fleet.wait_pullable(prompt)
    died: list[str] = []

    async def one_dies(talk: Talk) -> None:
        if not died:
            died.append(talk.engine.url)
            await die(talk)
        await whole(prompt=LENGTH, cached=LENGTH - BLOCK)(talk)

    for name in OTHERS:
        fleet.engines[name].behaviour = one_dies
    assert fleet.router.ask(chat(prompt)).status == 200
    bodies = [each.json for name in OTHERS for each in fleet.engines[name].received if each.method == "POST"]
    assert len(bodies) == 2
    sources = [body[FIELD]["remote_kv_source"] for body in bodies]
    assert sources[0]["kv_request_id"] != sources[1]["kv_request_id"]
    assert sources[0]["remote_host"] == sources[1]["remote_host"] == "10.0.0.1"


def test_there_is_no_field_where_nobody_has_more(fleet: Fleet) -> None:
    prompt = fleet.hold("someone")
    fleet.wait_pullable(prompt)
    # What was pulled is there now, and is not pulled again.
    first = fleet.ask(prompt)
    assert FIELD in first
    assert FIELD not in fleet.ask(prompt)
    # Last, as these engines seem to compute it in no time: then nothing is worth a pull.
    assert FIELD not in fleet.ask(text("nobody has it"))


@pytest.mark.parametrize(
    "more", [{"version": "0.27.1"}, {"pull": None}], ids=["a version that cannot pull", "no address to pull from"]
)
def test_engines_that_cannot_pull_are_told_nothing(tokenizer: Path, more: dict[str, Any]) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, tokenizer, **more)
        prompt = fleet.hold("x")
        time.sleep(1.5)  # until it was followed, and engines were asked for their version
        assert all(not transfer for transfer in fleet.explained(prompt).values())
        assert FIELD not in fleet.ask(prompt)


def test_what_one_engine_puts_into_a_pool_all_of_them_load(tokenizer: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, tokenizer, "--pool", "folder,members=a|b|c,chunk=1", pull=None)
        prompt = text("pooled")
        fleet.publishers["a"].publish(stored(prompt, medium="EXTERNAL"))

        def is_loadable() -> bool:
            found = fleet.explained(prompt)
            return len(found) == len(OTHERS) and all(way.get("action") == "load" for way in found.values())

        wait_until(is_loadable, "the others would load it")


def test_a_source_that_is_gone_is_not_named(fleet: Fleet) -> None:
    prompt = fleet.hold("gone")
    fleet.wait_pullable(prompt)
    fleet.engines["a"].stop()
    died = time.monotonic()
    wait_until(
        lambda: all(transfer.get("action") != "pull" for transfer in fleet.explained(prompt).values()),
        "nobody would pull from it",
    )
    assert time.monotonic() - died < 30
    assert FIELD not in fleet.ask(prompt)


def test_a_source_that_does_not_answer_is_out_while_the_first_still_waits(fleet: Fleet) -> None:
    first, second = fleet.hold("first"), fleet.hold("second")
    fleet.wait_pullable(first)
    fleet.wait_pullable(second)
    # It says that it is well, but what waits for its blocks has no first token.
    for name in OTHERS:
        fleet.engines[name].behaviour = hang
    fleet.router.send(chat(first, stream=True))
    wait_until(lambda: sum(fleet.engines[name].asked() for name in OTHERS) == 1, "it is sent")
    wait_until(
        lambda: all(transfer.get("action") != "pull" for transfer in fleet.explained(second).values()), "it is out"
    )
    for name in OTHERS:
        fleet.engines[name].behaviour = whole(prompt=LENGTH, cached=0)
    assert FIELD not in fleet.ask(second)
    rows = {row["name"]: row["ranks"][0]["transfers"] for row in fleet.router.workers()}
    (cost,) = [cost for name in OTHERS for cost in rows[name]]
    assert (cost["kind"], cost["source"]) == ("pull", {"worker": "a", "rank": 0})
    assert cost["out"] > 200
    # The same record elsewhere.
    consumer = next(name for name in OTHERS if rows[name])
    labels = {"engine": consumer, "kind": "pull", "source": "a"}
    assert 200 < fleet.router.metric("kvatlas_router_transfer_out_seconds", **labels) <= cost["out"]
    assert fleet.router.metric("kvatlas_router_transfer_floor_seconds", **labels) == cost["floor"]
    assert fleet.router.metric("kvatlas_router_transfer_seconds_per_token", **labels) == cost["seconds_per_token"]
    candidates = fleet.router.ask(chat(second), path="/explain").json["candidates"]
    shown = {row["worker"]: row["transfers"] for row in candidates if "transfers" in row}
    assert {name: [it["source"] for it in its] for name, its in shown.items()} == {consumer: [cost["source"]]}


def test_who_may_write_the_field_writes_all_of_it(tokenizer: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, tokenizer, "--engine-fields", "all")
        prompt = fleet.hold("own")
        fleet.wait_pullable(prompt)
        own = {"remote_kv_source": {"kv_request_id": "x", "remote_host": "h", "remote_port": 1}}
        assert fleet.ask(prompt, **{FIELD: own})[FIELD] == own


def test_what_is_pulled_is_expected_and_explained(fleet: Fleet) -> None:
    prompt = fleet.hold("explained")
    fleet.wait_pullable(prompt)
    transfer = fleet.explained(prompt)["b"]
    assert transfer["source"] == {"worker": "a", "rank": 0}
    assert transfer["pull_tokens"] == LENGTH - BLOCK, "the last block is computed whatever is cached"
    assert 0 < transfer["seconds"] < 1
    assert expected(fleet.router, prompt)["b"] == LENGTH - BLOCK
    fleet.ask(prompt)
    (decision, *_) = fleet.router.call("GET", "/decisions?limit=1")[1]
    assert decision["transfer"]["action"] == "pull"
    assert decision["cached_tokens"] == LENGTH - BLOCK


def test_an_index_elsewhere_says_what_can_be_pulled(tokenizer: Path) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"))))
        fleet = Fleet(stack, tokenizer, service=service)
        prompt = fleet.hold("elsewhere")
        fleet.wait_pullable(prompt)
        assert fleet.explained(prompt)["b"]["pull_tokens"] == LENGTH - BLOCK
        source = fleet.ask(prompt)[FIELD]["remote_kv_source"]
        assert (source["remote_host"], source["remote_port"]) == ("10.0.0.1", 5710)


def test_a_prefill_engine_pulls_and_hands_over(tokenizer: Path) -> None:
    handed = {"remote_block_ids": [1], "do_remote_prefill": True}
    answer = {
        "choices": [{"text": "x", "finish_reason": "length"}],
        "kv_transfer_params": handed,
        "usage": {
            "prompt_tokens": LENGTH,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": LENGTH - BLOCK},
        },
    }
    with ExitStack() as stack:
        fleet = Fleet(stack, tokenizer, roles={"a": "prefill", "b": "prefill", "c": "decode"})
        fleet.engines["b"].behaviour = reply("200 OK", answer)
        numbers = iter(range(100))

        def asked() -> dict[str, Any]:
            """The fields that the prefill engine and the decode engine got for a new prompt."""
            prompt = fleet.hold(f"{next(numbers)}")
            time.sleep(0.1)  # for the event; if that is not enough, the next one may be there
            assert fleet.router.ask(chat(prompt)).status == 200
            assert fleet.engines["c"].last.json[FIELD] == handed, "the decode engine takes over, and pulls nothing"
            return dict(fleet.engines["b"].last.json[FIELD])

        found: list[dict[str, Any]] = []

        def pulls() -> bool:
            found.append(asked())
            return "remote_kv_source" in found[-1]

        wait_until(pulls, "the prefill engine pulls")
        source = found[-1].pop("remote_kv_source")
        assert (source["remote_host"], source["remote_port"]) == ("10.0.0.1", 5710)
        assert found[-1]["do_remote_decode"] is True
        wait_until(lambda: fleet.router.metric(PULLS, result="brought") >= 1, "it is counted")


def test_the_next_turn_of_a_session_is_pulled_from_the_engine_that_is_drained(fleet: Fleet) -> None:
    """The first turn was at `a`, which takes no requests any more."""
    assert fleet.router.call("POST", "/engines/a/undrain")[0] == 200
    for name in OTHERS:
        assert fleet.router.call("POST", f"/engines/{name}/drain")[0] == 200

    async def compute(talk: Talk) -> None:
        await asyncio.sleep(2)  # as long as it takes to compute
        await whole(prompt=LENGTH, cached=0)(talk)

    fleet.engines["a"].behaviour = compute
    prompt = text("first turn")
    fleet.router.ask(chat(prompt), headers={"x-dynamo-session-id": "one"})
    assert fleet.engines["a"].asked() == 1
    fleet.publishers["a"].publish(stored(prompt, medium="CPU"))
    for name in OTHERS:
        assert fleet.router.call("POST", f"/engines/{name}/undrain")[0] == 200
    assert fleet.router.call("POST", "/engines/a/drain")[0] == 200
    fleet.wait_pullable(prompt)
    answer = fleet.router.ask(chat(prompt + " and more"), headers={"x-dynamo-session-id": "one"})
    (asked,) = [fleet.engines[name] for name in OTHERS if fleet.engines[name].asked()]
    assert answer.status == 200
    assert asked.last.json[FIELD]["remote_kv_source"]["remote_host"] == "10.0.0.1"
