"""A service that starts late, without a replay, learns what was announced before: never too much."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.engine import Publisher, removed, stored
from tests.support.waiting import until

from kvatlas import content_hashes
from kvatlas._native import Service
from kvatlas.client import Client
from kvatlas.service import AdoptConfig, Config, HttpConfig
from kvatlas.service import Service as PythonService
from kvatlas.service.config import SnapshotConfig
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.names import SglangNames, VllmNames

from .dialect.tools import DEADLINE, MODEL, ask
from .http_tools import register

RECORDINGS = ["vllm-0.33.0", "vllm-0.33.0-bytes", "sglang-0.5.23", "sglang-0.5.23-unified"]
SHARE = 0.5
BLOCK = 4


@contextmanager
def adopting(share: float = SHARE, *seeds: str) -> Iterator[Service]:
    adopt = {"share": share, "hash_seeds": list(seeds)}
    settings = {"http": {"bind": "127.0.0.1:0"}, "adopt": adopt, "log": {"level": "off"}}
    service = Service(json.dumps(settings))
    try:
        yield service
    finally:
        service.close()


def stream_of(service: Service, instance: str = "w") -> dict[str, Any]:
    workers = {worker["instance_id"]: worker for worker in ask(service.address, "GET", "/workers").json}
    stream: dict[str, Any] = workers[instance]["streams"]["0"]
    return stream


def depth(service: Service, tokens: list[int], instance: str = "w", **more: Any) -> int:
    """Tokens of a prompt that an instance holds."""
    answer = ask(service.address, "POST", "/query", {"model_name": MODEL, "token_ids": tokens} | more)
    assert answer.status == 200, answer
    scores: dict[str, dict[str, int]] = answer.json["scores"]
    return scores.get(instance, {}).get("0", 0)


def observed(service: Service, tokens: list[int], cached: int, instance: str = "w", **more: Any) -> Any:
    body = {"instance_id": instance, "model_name": MODEL, "token_ids": tokens, "cached_tokens": cached, "age": 0.0}
    return ask(service.address, "POST", "/observed", body | more)


class LateService:
    """An engine that has published before anybody listened."""

    def __init__(self, publisher: Publisher, service: Service, instance: str = "w", block_size: int = BLOCK) -> None:
        self.publisher, self.service, self.instance = publisher, service, instance
        publisher.restart(100)
        assert register(service, instance, publisher.endpoint, block_size=block_size).status == 201
        publisher.wait_for_reader()

    def publish(self, *events: dict[str, Any]) -> None:
        self.publisher.publish(*events)
        self.settle()

    def settle(self) -> None:
        last = self.publisher.next_seq - 1
        until(lambda: stream_of(self.service, self.instance)["seq"] == last)


@pytest.fixture
def service() -> Iterator[Service]:
    with adopting(SHARE, "0") as service:
        yield service


@pytest.fixture
def late(service: Service, publishers: Callable[[], Publisher]) -> LateService:
    return LateService(publishers(), service)


NAMES = {
    "sha256": VllmNames(algorithm="sha256"),
    "sha256_cbor": VllmNames(),
    "sha256_cbor with a seed": VllmNames("0"),
    "whole digests": VllmNames(as_bytes=True, algorithm="sha256"),
    "sglang": SglangNames(),
}
PROMPT = list(range(1000, 1040))


def wire(names: Any, tokens: list[int], salt: str | None = None) -> list[Any]:
    return [names.wire(name) for name in names.chain(tokens, BLOCK, None, salt)]


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_a_query_tells_what_a_store_has_proved(late: LateService, service: Service, names: Any) -> None:
    chain = wire(names, PROMPT)
    late.publish(stored(chain[6:7], PROMPT[24:28], parent=chain[5]))
    more = [*PROMPT[:28], 7]
    until(lambda: depth(service, more) == 28)
    assert depth(service, [*PROMPT, 7]) == 28, "of the rest nothing was proved"
    until(lambda: stream_of(service)["adoption"]["blocks"] == 6)
    adoption = stream_of(service)["adoption"]
    assert (adoption["unknown_parents"], adoption["cannot"]) == (0, None)
    assert adoption["dialect"] is not None
    # One removal removes.
    late.publish(removed(chain[2:3]))
    assert depth(service, more) == 8
    # What is announced below a hole proves that there was another copy, and what it is, is known.
    late.publish(stored(chain[7:8], PROMPT[28:32], parent=chain[6]))
    until(lambda: depth(service, [*PROMPT, 7]) == 32)


def test_content_hashes_teach_nothing_and_it_is_said(late: LateService, service: Service) -> None:
    chain, hashes = wire(NAMES["sha256"], PROMPT), content_hashes(PROMPT, BLOCK).tolist()

    def by_hashes(*, batch: bool = False) -> Any:
        prompt = {"content_hashes": hashes}
        path, asked = ("/query_batch", {"queries": [prompt]}) if batch else ("/query_by_hash", prompt)
        return ask(service.address, "POST", path, {"model_name": MODEL, **asked}).json

    assert "wants_tokens" not in by_hashes(), "nothing waits for tokens"
    late.publish(stored(chain[6:7], PROMPT[24:28], parent=chain[5]))
    until(lambda: by_hashes().get("wants_tokens") is True)
    assert by_hashes(batch=True)["wants_tokens"] is True
    adoption = stream_of(service)["adoption"]
    assert (adoption["unknown_parents"], adoption["blocks"], adoption["cannot"]) == (1, 0, None)
    assert "send token_ids" in adoption["hint"]
    metrics = ask(service.address, "GET", "/metrics").body.decode()
    assert "kvatlas_adopt_prompts_hashed_total 0" not in metrics
    # The client sends hashes by itself, and now tokens, once.
    with Client(f"http://{service.address}") as client:
        client.workers()
        until(lambda: client.query(tokens=PROMPT, model=MODEL).scores() == {"w": 7})
    until(lambda: stream_of(service)["adoption"]["hint"] is None)
    until(lambda: "wants_tokens" not in by_hashes())


def test_names_of_nobody_want_no_tokens(late: LateService, service: Service) -> None:
    for first in range(64):
        late.publish(stored([100 + first], [first] * BLOCK))
    late.publish(stored([99], PROMPT[:BLOCK], parent=98))
    until(lambda: stream_of(service)["adoption"]["cannot"] is not None)
    time.sleep(0.3)  # the worker looks ten times a second
    answer = ask(service.address, "POST", "/query_by_hash", {"model_name": MODEL, "content_hashes": [1]}).json
    assert "wants_tokens" not in answer
    assert stream_of(service)["adoption"]["hint"] is None


def test_what_was_removed_since_is_a_hole(late: LateService, service: Service) -> None:
    chain = wire(NAMES["sha256"], PROMPT)
    late.publish(
        removed(chain[1:2]), stored(chain[6:7], PROMPT[24:28], parent=chain[5]), removed(chain[3:4]), removed([1, 2])
    )
    until(lambda: depth(service, [*PROMPT, 7]) == 12)
    until(lambda: stream_of(service)["unlinked"] == 3)


def test_another_stream_tells_what_a_store_has_proved(
    service: Service, late: LateService, publishers: Callable[[], Publisher]
) -> None:
    chain, system = wire(NAMES["sha256"], PROMPT), PROMPT[:24]
    late.publish(stored(chain[6:7], PROMPT[24:28], parent=chain[5]))
    other = LateService(publishers(), service, "other")
    other.publish(stored(chain[:6], system))
    # Each has shown by one beginning of a prompt that its names are computed as the other's are.
    for engine in (late, other):
        engine.publish(stored(wire(NAMES["sha256"], [9, 9, 9, 9]), [9, 9, 9, 9]))
    # The prompt is not queried before it is known.
    until(lambda: stream_of(service)["adoption"]["blocks"] == 6)
    until(lambda: depth(service, [*PROMPT, 7]) == 28)


def test_names_of_nobody_are_not_believed_to_be_alike(
    service: Service, late: LateService, publishers: Callable[[], Publisher]
) -> None:
    late.publish(stored([7], PROMPT[24:28], parent=6))
    other = LateService(publishers(), service, "other")
    other.publish(stored([1, 2, 3, 4, 5, 6], PROMPT[:24]))
    # Both number their blocks; the same number is not the same block.
    late.publish(stored([50], [5, 5, 5, 5]))
    time.sleep(1.5)  # a sweep
    assert stream_of(service)["adoption"]["blocks"] == 0
    assert depth(service, [*PROMPT, 7]) == 0


def test_an_answer_tells_what_was_cached(late: LateService, service: Service) -> None:
    chain = wire(NAMES["sglang"], PROMPT)
    late.publish(stored(wire(NAMES["sglang"], [9, 9, 9, 9]), [9, 9, 9, 9]), removed(chain[8:9]))
    assert observed(service, PROMPT, 24, age=60.0).json == {"status": "ok", "wanted": True}
    time.sleep(1.2)  # what was sent before the stream was heard proves nothing
    assert depth(service, [*PROMPT, 7]) == 0
    assert observed(service, PROMPT, 27).json == {"status": "ok", "wanted": True}
    until(lambda: depth(service, [*PROMPT, 7]) == 24)
    late.publish(removed(chain[5:6]))
    assert depth(service, [*PROMPT, 7]) == 20
    # The store that came after the answer announces the same copy.
    late.publish(stored(chain[4:5], PROMPT[16:20], parent=chain[3]))
    late.publish(removed(chain[4:5]))
    assert depth(service, [*PROMPT, 7]) == 16


def test_reports_that_are_refused(late: LateService, service: Service) -> None:
    late.publish(stored([1], [1, 2, 3, 4]))
    for more, status, what in (
        ({"age": -1.0}, 422, "age"),
        ({"cached_tokens": 41}, 422, "cached_tokens"),
        ({"instance_id": "nobody"}, 404, "nobody"),
        ({"dp_rank": 3}, 404, "rank 3"),
        ({"model_name": "nothing"}, 404, "nothing"),
        ({"extra": 1}, 422, "extra"),
    ):
        answer = observed(service, PROMPT, 24, **more)
        assert (answer.status, what in answer.json["error"]) == (status, True), (more, answer)


def test_nothing_is_kept_where_it_is_turned_off(publishers: Callable[[], Publisher]) -> None:
    with adopting(0.0) as service:
        late = LateService(publishers(), service)
        chain = wire(NAMES["sha256"], PROMPT)
        late.publish(stored(chain[6:7], PROMPT[24:28], parent=chain[5]))
        assert depth(service, [*PROMPT, 7]) == 0
        assert observed(service, PROMPT, 24).json == {"status": "ok", "wanted": False}
        assert "adoption" not in stream_of(service)


def recorded(engine_streams: Path, recording: str) -> list[dict[str, Any]]:
    with gzip.open(engine_streams / f"{recording}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [record for record in map(json.loads, lines) if record["type"] in ("frames", "truth")]


def clears(record: dict[str, Any]) -> bool:
    batch = msgspec.msgpack.decode(base64.b64decode(record["frames"][2]))
    return any(event["type"] == "AllBlocksCleared" for event in batch[1])


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_engines_from_the_middle(
    engine_streams: Path,
    recording: str,
    publishers: Callable[[], Publisher],
    record_property: Callable[[str, object], None],
) -> None:
    records = recorded(engine_streams, recording)
    batches = [i for i, record in enumerate(records) if record["type"] == "frames"]
    cleared = [i for i in batches if clears(records[i])] + [len(records)]
    shares = {"engine": 0, "plain": 0, "stores": 0, "answers": 0}
    for begin, end in zip([0, *cleared], cleared, strict=False):
        if end - begin < 50:
            continue
        for part in (3, 7):
            middle = next(i for i in batches if i >= begin + (end - begin) * part // 10)
            play(records[middle:end], publishers, shares)
    record_property("shares", shares)
    print(recording, shares)
    assert 0 < shares["plain"] < min(shares["stores"], shares["answers"])
    assert max(shares.values()) <= shares["engine"]


def play(records: list[dict[str, Any]], publishers: Callable[[], Publisher], shares: dict[str, int]) -> None:
    """From the middle to the next reset: plain listening, what stores prove, and what answers say besides."""
    with adopting(0.0) as plain, adopting(1.0, "0") as stores, adopting(1.0, "0") as answers:
        engines = [LateService(publishers(), service, block_size=16) for service in (plain, stores, answers)]
        for record in records:
            if record["type"] == "frames":
                frames = [base64.b64decode(frame) for frame in record["frames"]]
                for engine in engines:
                    engine.publisher.restart(int.from_bytes(frames[1]))
                    engine.publisher.publish(frames[2])
                continue
            for engine in engines:
                engine.settle()
            tokens, hit = record["token_ids"], 16 * record["hit_blocks"]
            names = {"lora_name": record["lora_name"], "cache_salt": record["cache_salt"]}
            found = [depth(engine.service, tokens, **names) for engine in engines]
            # Asked for, and looked at.
            for i in (1, 2):
                for _ in range(8):
                    if found[i] == hit:
                        break
                    time.sleep(0.005)
                    found[i] = depth(engines[i].service, tokens, **names)
            assert max(found) <= hit, (found, hit)
            # As it would report it: it always computes the last token.
            if reported := 16 * record["hit_blocks_capped"]:
                observed(answers, tokens, reported, **names)
            shares["engine"] += hit // 16
            for name, tokens_found in zip(("plain", "stores", "answers"), found, strict=True):
                shares[name] += tokens_found // 16


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_simulated_engines_that_ran_before(dialect: Any) -> None:
    config = EngineConfig(block_size=BLOCK, blocks=512, prefill_rate=1e6, decode_rate=1e4)
    server = ServerConfig(
        dialect=dialect, engine=config, speed=20.0, replay_socket="none", hash_algorithm="sha256", model=MODEL
    )
    with Fleet(1, server, name="e") as fleet:
        engine = fleet[0]
        engine.complete(PROMPT, 4)
        engine.wait_quiet()
        settings = Config(http=HttpConfig(bind="127.0.0.1:0"), adopt=AdoptConfig(share=SHARE))
        with closing(PythonService([f"e-0={engine.url}"], config=settings)) as service:
            service.wait_ready(DEADLINE)
            address = service.url.removeprefix("http://")

            def held() -> int:
                # As tokens: content hashes do not tell what engines call the blocks.
                answer = ask(address, "POST", "/query", {"model_name": MODEL, "token_ids": [*PROMPT, 7]})
                scores: dict[str, dict[str, int]] = answer.json["scores"]
                return scores.get("e-0", {}).get("0", 0)

            assert held() == 0
            engine.complete([*PROMPT, *range(2000, 2020)], 4)
            engine.wait_quiet()
            until(lambda: held() == len(PROMPT))
            assert engine.match([*PROMPT, 7]).held * BLOCK == len(PROMPT)


def test_what_was_proved_before_a_restart_is_learnt_after_it(tmp_path: Path) -> None:
    """Nothing is stored below the unknown blocks any more: only the snapshot knows that the engine has proved them."""
    config = EngineConfig(block_size=BLOCK, blocks=512, prefill_rate=1e6, decode_rate=1e4)
    server = ServerConfig(engine=config, speed=20.0, buffer_steps=1, hash_algorithm="sha256", model=MODEL)
    settings = Config(
        http=HttpConfig(bind="127.0.0.1:0"), adopt=AdoptConfig(share=SHARE), snapshot=SnapshotConfig(dir=tmp_path)
    )

    def held(address: str) -> int:
        answer = ask(address, "POST", "/query", {"model_name": MODEL, "token_ids": [*PROMPT, 7]})
        return int(answer.json["scores"].get("e-0", {}).get("0", 0))

    def stream(address: str) -> dict[str, Any]:
        listed = ask(address, "GET", "/workers").json
        return dict(listed[0]["streams"]["0"]) if listed else {}

    with Fleet(1, server, name="e") as fleet:
        engine = fleet[0]
        engine.complete(PROMPT, 4)
        engine.wait_quiet()
        engine.complete([1] * 40, 1)  # the replay buffer has nothing else now
        engine.wait_quiet()
        urls = [f"e-0={engine.url}"]
        with closing(PythonService(urls, config=settings)) as service:
            service.wait_ready(DEADLINE)
            engine.complete([*PROMPT, *range(2000, 2020)], 4)
            engine.wait_quiet()
            until(lambda: stream(service.address).get("adoption", {}).get("unknown_parents") == 1)
            seq = stream(service.address)["seq"]
            assert service.drain(DEADLINE)
        with closing(PythonService(urls, config=settings)) as service:
            service.wait_ready(DEADLINE)
            until(lambda: stream(service.address)["trusted"])
            again = stream(service.address)
            assert (again["snapshot"]["outcome"], again["seq"], again["partial"]) == ("kept", seq, True)
            assert again["adoption"]["unknown_parents"] == 1
            until(lambda: held(service.address) == len(PROMPT))
            assert engine.match([*PROMPT, 7]).held * BLOCK == len(PROMPT)
            until(lambda: stream(service.address)["adoption"]["unknown_parents"] == 0)


@pytest.mark.parametrize(("replay", "why"), [("current", "turned_over"), ("none", "no_replay")])
def test_a_snapshot_that_proves_nothing_still_tells_what_blocks_are(replay: Any, why: str, tmp_path: Path) -> None:
    """The holders of blocks may have changed, but not what blocks contain: no prompt has to be asked for as tokens."""
    config = EngineConfig(block_size=BLOCK, blocks=512, prefill_rate=1e6, decode_rate=1e4)
    server = ServerConfig(
        engine=config, speed=20.0, buffer_steps=8, replay_socket=replay, hash_algorithm="sha256", model=MODEL
    )
    settings = Config(
        http=HttpConfig(bind="127.0.0.1:0"), adopt=AdoptConfig(share=SHARE), snapshot=SnapshotConfig(dir=tmp_path)
    )
    hashes = content_hashes(PROMPT, BLOCK).tolist()

    def held(address: str) -> int:
        answer = ask(address, "POST", "/query_by_hash", {"model_name": MODEL, "content_hashes": hashes})
        return int(answer.json["scores"].get("e-0", {}).get("0", 0))

    def stream(address: str) -> dict[str, Any]:
        listed = ask(address, "GET", "/workers").json
        return dict(listed[0]["streams"]["0"]) if listed else {}

    with Fleet(1, server, name="e") as fleet:
        engine = fleet[0]
        urls = [f"e-0={engine.url}"]
        with closing(PythonService(urls, config=settings)) as service:
            service.wait_ready(DEADLINE)
            engine.complete(PROMPT, 1)
            engine.wait_quiet()
            until(lambda: held(service.address) == len(PROMPT))
            assert service.drain(DEADLINE)
        for first in range(20):
            engine.complete([first] * 8, 1)
        engine.wait_quiet()
        with closing(PythonService(urls, config=settings)) as service:
            service.wait_ready(DEADLINE)
            until(lambda: stream(service.address)["trusted"])
            counted = f'kvatlas_snapshot_streams_total{{outcome="{why}"}} 1\n'
            until(lambda: counted in ask(service.address, "GET", "/metrics").body.decode())
            assert held(service.address) == 0, "nothing proves that it is held"
            engine.complete([77] * 8, 1)  # the beginning of a prompt shows how the engine computes its hashes
            engine.complete([*PROMPT, *range(2000, 2020)], 1)
            engine.wait_quiet()
            until(lambda: held(service.address) == len(PROMPT))
            assert engine.match([*PROMPT, 7]).held * BLOCK == len(PROMPT)
            until(lambda: stream(service.address)["adoption"]["blocks"] == len(PROMPT) // BLOCK)
