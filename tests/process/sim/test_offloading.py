"""Engines that offload over real sockets: their announcements, orders of requests, and pulls between engines."""

import json
import random
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from kvatlas import BlockIndex
from kvatlas.errors import ConfigError, SimulatedEngineError
from kvatlas.service import Config, HttpConfig, Service
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.fleet import EngineHandle
from kvatlas.sim.server.transfer import RemoteSource, TransferOrder, read_order
from kvatlas.sim.tiers import TierConfig
from kvatlas.sim.transfers import Transfer
from kvatlas.wire import decode_batch

from .conftest import FAST, number, replay

SIZE = FAST.block_size
QUICK = Transfer(0.001, 1e-6)
TIERS = TierConfig(host_tokens=4_000 * SIZE, pulls=True, host=QUICK, pool=QUICK, pull=QUICK)
PROMPT = list(range(100, 100 + 10 * SIZE + 1))
OTHERS = [list(range(1_000 * n, 1_000 * n + 60 * SIZE)) for n in range(1, 3)]


@pytest.fixture
def pair() -> Iterator[Fleet]:
    with Fleet(2, ServerConfig(engine=FAST, tiers=TIERS, speed=20)) as fleet:
        yield fleet


def settle(*engines: EngineHandle) -> None:
    deadline = time.monotonic() + 60
    while not all(state.quiet for engine in engines for state in engine.state()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def forget_device(engine: EngineHandle) -> None:
    """Fill the device's cache with other prompts."""
    for other in OTHERS:
        engine.complete(other, max_tokens=1)


def by_source(engine: EngineHandle) -> dict[str, float]:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("vllm:prompt_tokens_cached_by_source_total{"):
            labels, _, value = line.rpartition(" ")
            found[labels.partition('source="')[2].partition('"')[0]] = float(value)
    return found


def test_what_the_device_forgot_is_loaded_and_reported_by_source(pair: Fleet) -> None:
    engine = pair[0]
    assert engine.complete(PROMPT, max_tokens=1).cached_tokens == 0
    forget_device(engine)
    settle(engine)
    truth = engine.match(PROMPT)
    assert (truth.held, truth.host, truth.loadable) == (0, 10, 10)
    assert engine.complete(PROMPT, max_tokens=1).cached_tokens == 10 * SIZE
    assert by_source(engine) == {"device": 0, "host": 10 * SIZE, "disk": 0, "p2p": 0}


def test_a_pull_brings_what_the_source_has_in_host_memory(pair: Fleet) -> None:
    source, engine = pair[0], pair[1]
    source.complete(PROMPT, max_tokens=1)
    settle(source)
    assert engine.complete(PROMPT, max_tokens=1, transfer=engine.pull_from(source)).cached_tokens == 10 * SIZE
    assert by_source(engine)["p2p"] == 10 * SIZE
    # It is the consumer's own from then on.
    settle(engine)
    assert engine.match(PROMPT).host == 10
    for first, unreadable in ((7, {"remote_host": "127.0.0.1", "remote_port": 1}), (8, 3)):
        order = {"remote_kv_source": unreadable}
        assert engine.complete([first, *PROMPT], max_tokens=1, transfer=order).cached_tokens == 0


def test_a_source_that_refuses_or_is_silent_lets_the_request_compute(pair: Fleet) -> None:
    source, engine = pair[0], pair[1]
    source.complete(PROMPT, max_tokens=1)
    settle(source)
    nobody = {"remote_kv_source": {"kv_request_id": "a", "remote_host": "127.0.0.1", "remote_port": 1}}
    assert engine.complete(PROMPT[:30], max_tokens=1, transfer=nobody).cached_tokens == 0
    source.faults(pulls="closed")
    assert engine.complete([5, *PROMPT], max_tokens=1, transfer=engine.pull_from(source)).cached_tokens == 0
    source.faults(pulls="on")
    source.pause()
    began = time.monotonic()
    assert engine.complete([6, *PROMPT], max_tokens=1, transfer=engine.pull_from(source)).cached_tokens == 0
    # They had not spoken: 30 seconds of the engine's time, which runs twenty times as fast.
    assert time.monotonic() - began >= 1.5
    source.resume()


def test_an_id_that_two_prompts_share_ends_the_engine(pair: Fleet) -> None:
    source, engine = pair[0], pair[1]
    source.faults(pulls="silent")
    order = engine.pull_from(source)

    def ask(prompt: list[int]) -> None:
        own = EngineHandle(engine.number, engine.config, engine._process)
        try:
            own.complete(prompt, max_tokens=1, transfer=order)
        except SimulatedEngineError:
            pass
        finally:
            own.close()

    first = threading.Thread(target=ask, args=[PROMPT])
    first.start()
    deadline = time.monotonic() + 30
    while engine.state()[0].epoch == 0:
        ask([9, *PROMPT])
        assert time.monotonic() < deadline
    first.join()
    assert engine.state()[0].counts["pull_id_crashes"] >= 1


def test_the_engines_file_says_where_to_pull_from(pair: Fleet, tmp_path: Path) -> None:
    pair.write_engines_file(tmp_path / "engines.toml")
    engines = tomllib.loads((tmp_path / "engines.toml").read_text())["engine"]
    assert [(row["url"], row["pull"]) for row in engines] == [(each.url, each.pull_endpoint()) for each in pair.engines]


def test_a_request_can_forbid_loads(pair: Fleet) -> None:
    source, engine = pair[0], pair[1]
    source.complete(PROMPT, max_tokens=1)
    forget_device(source)
    settle(source)
    limited = source.complete(PROMPT, max_tokens=1, transfer={"max_load_tokens": 3 * SIZE + 1})
    assert limited.cached_tokens == 3 * SIZE
    order = {**engine.pull_from(source), "kv_load_tiers": []}
    assert engine.complete(PROMPT, max_tokens=1, transfer=order).cached_tokens == 0


def test_a_reset_keeps_host_memory_unless_it_is_asked_for(pair: Fleet) -> None:
    engine = pair[0]
    engine.complete(PROMPT, max_tokens=1)
    assert engine.reset()
    assert engine.match(PROMPT).loadable == 10
    assert engine.reset(with_host=True)
    assert engine.match(PROMPT).loadable == 0


def test_orders_are_read_as_the_engine_reads_them() -> None:
    source = {"kv_request_id": "r", "remote_host": "h", "remote_port": 5}
    assert read_order(None) == TransferOrder()
    assert read_order({"remote_kv_source": source}).source == RemoteSource("r", "h", 5)
    assert read_order({"remote_kv_source": source, "kv_load_tiers": []}) == TransferOrder(load_pool=False)
    local = read_order({"remote_kv_source": source, "kv_load_tiers": [{"medium": "STORAGE", "locality": "LOCAL"}]})
    assert local == TransferOrder(RemoteSource("r", "h", 5), load_pool=False)
    assert read_order({"kv_load_tiers": [{"medium": "STORAGE"}]}).load_pool
    assert read_order({"max_load_tokens": 0}).max_load == 0
    assert read_order({"max_load_tokens": -1}).max_load is None


@pytest.mark.parametrize("describes", [True, False], ids=["described", "names only"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_an_index_knows_what_engines_can_load(tmp_path: Path, chunk: int, *, describes: bool) -> None:
    """An index that gets the streams of all engines answers as they do for device, host memory and pool."""
    tiers = TierConfig(host_tokens=100 * SIZE, chunk=chunk, pulls=True, host=QUICK, pool=QUICK, pull=QUICK)
    config = ServerConfig(
        engine=FAST, tiers=tiers, pool_folder=str(tmp_path), describes=describes, loras=("a",), speed=20
    )
    chance = random.Random(chunk)
    systems = [[chance.randrange(500) for _ in range(length)] for length in (SIZE * 4, SIZE * 8, 41)]
    asked: list[tuple[list[int], str | None, str | None]] = []
    with Fleet(2, config) as fleet:
        for _ in range(60):
            engine, other = fleet[chance.randrange(2)], fleet[chance.randrange(2)]
            prompt = [*chance.choice(systems), *(chance.randrange(500) for _ in range(chance.randrange(1, 40)))]
            lora, salt = chance.choice((None, None, "a")), chance.choice((None, None, "s"))
            if asked and chance.random() < 0.5:
                prompt, lora, salt = chance.choice(asked)
            asked.append((prompt, lora, salt))
            pulls = engine is not other and chance.random() < 0.5
            order = engine.pull_from(other) if pulls else None
            engine.complete(prompt, max_tokens=chance.randrange(1, 9), lora=lora, salt=salt, transfer=order)
        settle(*fleet.engines)
        index = BlockIndex(block_size=SIZE)
        index.loading.add_pool("folder", members=[engine.name for engine in fleet.engines], chunk=chunk)
        batches = []
        for engine in fleet.engines:
            index.loading.set_offloading(engine.name, host_chunk=chunk, external_chunk=chunk)
            batches += [(engine.name, number(frames), frames[-1]) for frames in replay(engine.replay_endpoint())]
        for name, _, payload in sorted(batches, key=lambda each: decode_batch(each[2]).timestamp):
            assert index.apply(name, decode_batch(payload)).refused == {}
        deepest = 0
        for prompt, lora, salt in asked:
            found = {it.worker: it for it in index.loading.find(tokens=prompt, lora=lora, salt=salt)}
            for engine in fleet.engines:
                truth, it = engine.match(prompt, lora=lora, salt=salt), found[engine.name]
                assert truth.quiet
                assert (it.device, it.host, it.depth) == (truth.held, truth.host, truth.loadable)
                deepest = max(deepest, truth.loadable - truth.held)
        assert deepest > 0


def test_a_service_reads_from_metrics_how_long_chunks_are() -> None:
    tiers = TierConfig(host_tokens=4_000 * SIZE, chunk=4, host=QUICK)
    config = ServerConfig(engine=FAST, tiers=tiers, describes=False, speed=20)
    with (
        Fleet(1, config) as fleet,
        Service([f"a={fleet[0].url}"], config=Config(http=HttpConfig(bind="127.0.0.1:0"))) as service,
    ):
        service.wait_ready(60)
        engine = fleet[0]
        engine.complete(PROMPT, max_tokens=1)
        forget_device(engine)
        settle(engine)
        truth = engine.match(PROMPT)
        assert (truth.held, truth.host, truth.loadable) == (0, 8, 8)
        asked = json.dumps({"model_name": config.model, "token_ids": PROMPT}).encode()

        def loadable() -> list[dict[str, Any]]:
            request = urllib.request.Request(f"{service.url}/query", asked, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
            return list(found["instances"].get("a", {}).get("loadable", []))

        until(lambda: [(it["to"], it["tier"]) for it in loadable()] == [(8 * SIZE, "cpu")])
        (worker,) = service.client().workers()
        assert [stream.host_chunk for stream in worker.streams] == [4]


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="pool_folder"):
        ServerConfig(tiers=TierConfig(pool_tokens=100))
    with pytest.raises(ConfigError, match="vllm dialect"):
        ServerConfig(dialect="sglang", tiers=TIERS)


def test_sglang_announces_its_host_memory_under_another_name() -> None:
    config = ServerConfig(
        engine=FAST, dialect="sglang", tiers=TierConfig(host_tokens=4_000 * SIZE, host=QUICK), speed=20
    )
    with Fleet(1, config) as fleet:
        engine = fleet[0]
        engine.complete(PROMPT, max_tokens=1)
        forget_device(engine)
        settle(engine)
        index = BlockIndex(block_size=SIZE)
        for frames in replay(engine.replay_endpoint()):
            assert b"CPU_PINNED" in frames[-1] or b"BlockRemoved" in frames[-1] or b"Cleared" in frames[-1]
            index.apply(engine.name, decode_batch(frames[-1]))
        truth, (it,) = engine.match(PROMPT), index.loading.find(tokens=PROMPT)
        assert (it.device, it.host, it.depth) == (truth.held, truth.host, truth.loadable) == (0, 10, 10)
