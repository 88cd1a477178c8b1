"""The real service in this process, real clients, and simulated engines over real sockets."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import create_server

import pytest
from tests.support.waiting import until

from kvatlas import content_hashes
from kvatlas.client import AsyncClient, Client, Query
from kvatlas.errors import ClientError, ServiceError, UnreachableError
from kvatlas.service import Config, HttpConfig, Service
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import EngineHandle, Fleet, Publisher, ServerConfig
from kvatlas.wire import Stored, encode_batch

BLOCK = 4
FREE = "127.0.0.1:0"
PROMPT = list(range(100, 140))
BLOCKS = len(PROMPT) // BLOCK
CONFIG = Config(http=HttpConfig(bind=FREE))


@pytest.fixture(scope="module")
def engines() -> Iterator[list[EngineHandle]]:
    """A vLLM with two ranks, and an SGLang."""
    config = EngineConfig(block_size=BLOCK, blocks=512, prefill_rate=1e6, decode_rate=1e4)
    with (
        Fleet(1, ServerConfig(engine=config, ranks=2, loras=("tuned",), speed=20.0), name="vllm") as vllm,
        Fleet(1, ServerConfig(dialect="sglang", engine=config, speed=20.0), name="sglang") as sglang,
    ):
        yield [vllm[0], sglang[0]]


@pytest.fixture(scope="module")
def service(engines: list[EngineHandle]) -> Iterator[Service]:
    with Service([f"{engine.name}={engine.url}" for engine in engines], config=CONFIG) as service:
        service.wait_ready(60)
        yield service


def depths(client: Client, prompt: list[int], salt: str | None = None) -> dict[tuple[str, int], int]:
    answer = client.query(tokens=prompt, model="sim-model", salt=salt)
    return {(depth.worker, rank): tokens for depth in answer.workers for rank, tokens in depth.ranks.items()}


def test_engines_are_found_and_their_blocks_too(service: Service, engines: list[EngineHandle]) -> None:
    vllm, sglang = engines
    client = service.client()
    assert client.health()
    assert client.ready()
    assert [(w.worker, w.model, w.block_size, len(w.streams)) for w in client.workers()] == [
        ("sglang-0", "sim-model", BLOCK, 1),
        ("vllm-0", "sim-model", BLOCK, 2),
    ]
    vllm.complete(PROMPT, 4, rank=0)
    vllm.complete(PROMPT[:20], 4, rank=1)
    sglang.complete(PROMPT[:30], 4)
    vllm.complete(PROMPT, 4, rank=1, salt="s")
    for engine in engines:
        engine.wait_quiet()

    def truth(salt: str | None = None) -> dict[tuple[str, int], int]:
        asked = [(engine, rank) for engine in engines for rank in range(engine.config.ranks)]
        held = {(engine.name, rank): engine.match(PROMPT, rank=rank, salt=salt).held for engine, rank in asked}
        return {name: BLOCK * blocks for name, blocks in held.items() if blocks}

    assert truth()[vllm.name, 0] == len(PROMPT)
    assert truth("s") == {(vllm.name, 1): len(PROMPT)}
    until(lambda: depths(client, PROMPT) == truth())
    until(lambda: depths(client, PROMPT, "s") == truth("s"))

    answer = client.query(tokens=PROMPT, model="sim-model", age=True)
    first = answer.workers[0]
    assert (first.worker, first.tokens, first.state) == (vllm.name, len(PROMPT), "live")
    assert (answer.depth, answer.length, answer.tokens, answer.unit) == (BLOCKS, BLOCKS, len(PROMPT), "blocks")
    assert answer.levels()[0] == (BLOCKS, [vllm.name])
    assert answer.best() == [(vllm.name, BLOCKS)]
    assert answer.token_scores() == {vllm.name: len(PROMPT), sglang.name: truth()[sglang.name, 0]}
    assert answer.untrusted == ()
    among = client.query(tokens=PROMPT, model="sim-model", among=[sglang.name])
    assert [depth.worker for depth in among.workers] == ["sglang-0"]
    assert len(client.query(tokens=PROMPT, model="sim-model", top_k=1).workers) == 1
    hashes = content_hashes(PROMPT, BLOCK)
    assert client.query(content_hashes=hashes, model="sim-model").scores() == answer.scores()
    batch = client.query_batch(
        [PROMPT, Query(tokens=PROMPT, salt="s"), Query(content_hashes=hashes), []], model="sim-model"
    )
    assert batch.block_size == BLOCK
    assert {(rank.worker, rank.rank): rank.tokens for rank in batch.answers[0].ranks} == truth()
    assert {(rank.worker, rank.rank): rank.tokens for rank in batch.answers[1].ranks} == truth("s")
    by_hash = {(rank.worker, rank.rank): rank.tokens for rank in batch.answers[2].ranks}
    assert by_hash == truth()
    assert {rank.usable for rank in batch.answers[2].ranks} == {None}, "nobody said how long the prompt is"
    for rank in batch.answers[0].ranks:
        engine = vllm if rank.worker == vllm.name else sglang
        assert rank.usable == BLOCK * engine.match(PROMPT, rank=rank.rank).usable
    assert batch.answers[0].scores() == answer.scores()
    assert (batch.answers[3].ranks, batch.answers[3].length) == ((), 0)

    async def the_same() -> None:
        async with AsyncClient(service.url) as other:
            assert await other.query(tokens=PROMPT, model="sim-model") == client.query(tokens=PROMPT, model="sim-model")
            assert await other.query(content_hashes=hashes, model="sim-model") == client.query(
                content_hashes=hashes, model="sim-model"
            )
            assert await other.query_batch([PROMPT], model="sim-model") == client.query_batch(
                [PROMPT], model="sim-model"
            )
            assert [worker.worker for worker in await other.workers()] == ["sglang-0", "vllm-0"]
            assert await other.health()
            await other.wait_ready(10)

    asyncio.run(the_same())
    streams = {(worker.worker, stream.rank): stream for worker in service.workers() for stream in worker.streams}
    stream = streams[vllm.name, 0]
    assert (stream.state, stream.trusted, stream.partial, stream.unlinked) == ("live", True, False, 0)
    assert stream.blocks >= len(PROMPT) // BLOCK
    assert stream.seq == vllm.state()[0].seq
    (dump,) = client.dump()
    assert (dump.model, dump.block_size) == ("sim-model", BLOCK)
    held = {(stored.worker, stored.rank): 0 for stored in dump.stored}
    for stored in dump.stored:
        held[stored.worker, stored.rank] += len(stored.block_hashes)
    assert held == {name: stream.blocks for name, stream in streams.items()}
    assert "kvatlas_" in client.metrics()


def test_registering_over_http(service: Service, engines: list[EngineHandle]) -> None:
    vllm = engines[0]
    client = service.client()
    replay = vllm.replay_endpoint(0)
    for new in (True, False):
        done = client.register(
            "7", vllm.endpoint(0), model="again", block_size=BLOCK, routing_group="g", replay_endpoint=replay
        )
        assert done is new
    until(lambda: client.ready())
    assert [worker.worker for worker in client.workers(model="again")] == ["7"]
    assert client.workers(model="again", routing_group="default") == []
    with pytest.raises(ClientError) as caught:
        client.register("7", vllm.endpoint(1), model="again", block_size=BLOCK, routing_group="g")
    assert (caught.value.code, caught.value.status) == ("already_registered", 409)
    with pytest.raises(ServiceError) as refused:
        service.register("7", vllm.endpoint(1), model="again", block_size=BLOCK, routing_group="g")
    assert refused.value.code == "already_registered"
    client.unregister("7", rank=0)
    with pytest.raises(ClientError) as caught:
        client.unregister("7")
    assert (caught.value.code, caught.value.status) == ("unknown_worker", 404)
    assert client.query(tokens=PROMPT, model="again", routing_group="g").workers == ()
    with pytest.raises(ClientError) as caught:
        client.query(tokens=PROMPT, model="nobody")
    assert (caught.value.code, caught.value.status) == ("unknown_keyspace", 404)


def test_a_key_is_asked_for() -> None:
    settings = Config(http=HttpConfig(bind=FREE, key="k"))
    with Service(config=settings) as service, Client(service.url, key="wrong") as stranger:
        assert service.client().workers() == []
        assert stranger.health()
        with pytest.raises(ClientError) as caught:
            stranger.workers()
        assert (caught.value.code, caught.value.status) == ("unauthorized", 401)


def test_a_port_that_is_taken() -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServiceError, match=address) as caught:
            Service(config=Config(http=HttpConfig(bind=address)))
    assert caught.value.code == "not_started"
    assert "\n" not in str(caught.value)


def test_nothing_answers_after_the_end() -> None:
    with Service(config=CONFIG) as service, Client(service.url) as client:
        assert client.health()
        assert service.drain()
        with pytest.raises(UnreachableError):
            client.health()


def test_several_services_in_one_process() -> None:
    with Service(config=CONFIG) as one, Service(config=CONFIG) as two:
        assert one.url != two.url
        one.register("a", "tcp://127.0.0.1:9", model="m", block_size=16)
        assert [len(service.client().workers()) for service in (one, two)] == [1, 0]


# TLS


@contextmanager
def certificate(directory: Path) -> Iterator[tuple[Path, Path]]:
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "7", "-subj", "/CN=kvatlas"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    yield cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls(tmp_path: Path) -> None:
    with certificate(tmp_path) as (cert, key):
        with Service(config=Config(http=HttpConfig(bind=FREE, tls_cert=cert, tls_key=key))) as service:
            assert service.url.startswith("https://")
            assert service.client().workers() == []
            with Client(service.url, ssl_context=ssl.create_default_context(cafile=str(cert))) as client:
                assert client.health()
            with (
                Client(service.url) as stranger,
                pytest.raises(UnreachableError, match="its certificate is not trusted"),
            ):
                stranger.health()
        (tmp_path / "bad.pem").write_text("no certificate")
        for cert_file, key_file in (
            (tmp_path / "bad.pem", key),
            (cert, tmp_path / "bad.pem"),
            (tmp_path / "none", key),
        ):
            http = HttpConfig(bind=FREE, tls_cert=cert_file, tls_key=key_file)
            with pytest.raises(ServiceError) as caught:
                Service(config=Config(http=http))
            assert str(tmp_path) in str(caught.value)
            assert "\n" not in str(caught.value)


def test_names_of_adapters_are_found_and_can_be_asked_for(service: Service, engines: list[EngineHandle]) -> None:
    vllm, _sglang = engines
    client = service.client()
    assert {worker.worker: worker.adapters for worker in client.workers()}[vllm.name] == ("tuned",)
    prompt = list(range(500, 540))
    vllm.complete(prompt, 1, rank=0, lora="tuned")
    vllm.wait_quiet()
    until(lambda: client.query(tokens=prompt, model="tuned").token_scores() == {vllm.name: 40})
    assert client.query(tokens=prompt, model="sim-model", lora="tuned").token_scores() == {vllm.name: 40}
    assert client.query(tokens=prompt, model="sim-model").token_scores() == {}
    with pytest.raises(ClientError, match='known there: "sim-model", "tuned"') as caught:
        client.query(tokens=prompt, model="tunde")
    assert caught.value.code == "unknown_keyspace"


def test_prompts_that_begin_below_a_block_named_0_mark_the_stream() -> None:
    """LMCache/LMCache#2441: 0 as the parent where there is none."""
    with Publisher() as publisher, Service(config=CONFIG) as service:
        client = service.client()
        client.register(
            "w", endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint, model="m", block_size=BLOCK
        )
        service.wait_ready(60)
        for name, parent in ((71, None), (72, 71), (81, 0)):
            stored = Stored([name], parent, PROMPT[:BLOCK], BLOCK)
            publisher.publish(encode_batch([stored], timestamp=time.time()))
        until(lambda: client.query(tokens=PROMPT, model="m").partial == (("w", 0),))
        [stream] = client.workers()[0].streams
        assert stream.counters["zero_parents"] == 1
        assert stream.partial
        assert stream.last_error is not None
        assert "a block named 0" in stream.last_error
