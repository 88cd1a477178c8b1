"""`Router` in front of simulated engines: requests go through, where they should, and it says what it does."""

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.waiting import until

from kvatlas.cli.top import top
from kvatlas.errors import ConfigError, PolicyError, ServiceError
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.service import AdoptConfig, Config, DiscoveryConfig, HttpConfig, Service
from kvatlas.sim.server import Fleet, ServerConfig

from .conftest import FAST

PATIENCE = 60.0
Answer = tuple[int, dict[str, str], Any]


def settings(**router: Any) -> RouterConfig:
    return RouterConfig(
        http=RouterHttpConfig(bind="127.0.0.1:0"),
        router=RouterSection(**router),
        discovery=DiscoveryConfig(interval=0.5, request_timeout=60),
    )


def ask(url: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found = answer.read()
            status, sent = answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        found, status, sent = error.read(), error.code, dict(error.headers)
    try:
        return status, sent, json.loads(found)
    except ValueError:
        return status, sent, found.decode()


def chat(url: str, text: str, **more: Any) -> Answer:
    body = {"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 3, **more}
    return ask(url, "/v1/chat/completions", body)


def cached(answer: Answer) -> int:
    return int(answer[2]["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def router(fleet: Fleet, tokenizer: Path) -> Iterator[Router]:
    with Router(engines=fleet.urls, config=settings(tokenizer=str(tokenizer))) as router:
        router.wait_ready(PATIENCE)
        yield router


def test_conversations_stay_where_they_are_cached(router: Router) -> None:
    workers, before = set(), 0
    text = "Tell me about conversation one. " * 20
    for turn in range(4):
        answer = chat(router.url, text)
        assert answer[0] == 200, answer[2]
        workers.add(answer[1]["x-kvatlas-worker"])
        if turn:
            assert cached(answer) >= before - 16
            assert int(answer[1]["x-kvatlas-cached-tokens"]) == cached(answer)
        before = len(text)
        text += f" And then, turn {turn}? " * 4
    assert len(workers) == 1


def test_conversations_are_spread(router: Router) -> None:
    with ThreadPoolExecutor(8) as pool:
        # Long enough for one engine to be busy when the next one comes.
        texts = [f"{number}: another conversation altogether. " * 300 for number in range(16)]
        answers = list(pool.map(lambda text: chat(router.url, text), texts))
    assert {answer[0] for answer in answers} == {200}
    assert len({answer[1]["x-kvatlas-worker"] for answer in answers}) == 2


def test_a_stream(router: Router) -> None:
    status, headers, text = chat(router.url, "stream this", stream=True, stream_options={"include_usage": True})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert text.endswith("data: [DONE]\n\n")
    assert text.count("data: ") >= 4


def test_what_it_says_of_itself(router: Router, fleet: Fleet) -> None:
    chat(router.url, "something to decide about")
    workers = router.state()
    assert {worker["url"] for worker in workers} == set(fleet.urls)
    assert {worker["standing"] for worker in workers} == {"up"}
    last = router.decisions(1)
    assert len(last) == 1
    assert last[0]["worker"] in {worker["name"] for worker in workers}
    assert [stream.state for worker in router.workers() for stream in worker.streams] == ["live", "live"]
    assert all(engine.is_registered for engine in router.engines())
    assert "Router(url='http://127.0.0.1:" in repr(router)
    status, _, models = ask(router.url, "/v1/models")
    assert (status, [card["id"] for card in models["data"]]) == (200, ["sim-model"])
    status, _, metrics = ask(router.url, "/metrics")
    assert status == 200
    assert "kvatlas_router_requests_total" in metrics
    assert 'kvatlas_streams{state="live"} 2' in metrics


def shown_by_top(router: Router, width: int, wanted: str) -> str:
    """The words that `kvatlas top` shows in a terminal of that width; none without the wanted one."""
    done = CliRunner().invoke(top, ["--once", "--url", router.url], env={"COLUMNS": str(width)})
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= width
    words = " ".join(done.output.split())
    return words if wanted in words else ""


def test_top(router: Router) -> None:
    until(lambda: [stream.state for worker in router.workers() for stream in worker.streams] == ["live", "live"])
    chat(router.url, "to be seen " * 30)
    chat(router.url, "to be seen " * 30)
    for width in (160, 80, 40):
        words = until(partial(shown_by_top, router, width, "" if width == 40 else "live"), "live")
        assert "policy kvatlas" in words
        assert "found" in words
    assert "queued tokens" in CliRunner().invoke(top, ["--once", "--url", router.url], env={"COLUMNS": "160"}).output


def test_top_without_a_router(fleet: Fleet) -> None:
    done = CliRunner().invoke(top, ["--once", "--url", "http://127.0.0.1:9"])
    assert (done.exit_code, "cannot be reached" in done.output) == (1, True)
    done = CliRunner().invoke(top, ["--once", "--url", fleet.urls[0]])
    assert (done.exit_code, "is not a kvatlas router" in done.output) == (1, True)
    done = CliRunner().invoke(top, ["--once", "--url", "nonsense"])
    assert done.exit_code == 2


@needs_openssl
def test_top_says_what_to_do_about_what_is_wrong(router: Router, tmp_path: Path) -> None:
    def output(url: str) -> str:
        done = CliRunner().invoke(top, ["--once", "--url", url])
        assert done.exit_code == 1, done.output
        return done.output

    start = "start `kvatlas router` there, or set --url or KVATLAS_ROUTER_URL to its address"
    assert start in output("http://127.0.0.1:9")
    assert start in output("http://no-such-host.invalid:8080")
    # A server that answers in another protocol is running.
    spoken = output(router.url.replace("http:", "https:"))
    assert "is it http:// instead of https://?" in spoken
    assert start not in spoken
    cert, key = make(tmp_path, "router", "/CN=localhost", *SERVER)
    tls = RouterHttpConfig(bind="127.0.0.1:0", tls_cert=cert, tls_key=key)
    with Router(config=replace(settings(), http=tls)) as private:
        untrusted = output(private.url)
        assert "its certificate is not trusted" in untrusted
        assert "name the CA that signed it with --ca" in untrusted
        assert start not in untrusted
        assert start not in output(private.url.replace("https:", "http:"))


def test_a_policy_of_ones_own(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[int, int]] = []

    class SecondPolicy:
        uses_index = False

        def choose(self, request: Any, candidates: Any) -> int:
            seen.append((request.tokens, len(candidates.queued_tokens)))
            if request.tokens > 100:
                raise RuntimeError("too long for me")
            return 1

    with Router(engines=fleet.urls, config=settings(tokenizer="none"), policy=SecondPolicy()) as router:
        router.wait_ready(PATIENCE)
        body = {"model": "sim-model", "prompt": [1, 2, 3], "max_tokens": 1}
        workers = {ask(router.url, "/v1/completions", body)[1]["x-kvatlas-worker"] for _ in range(6)}
        assert len(workers) == 1
        # It does not use the index, so prompts are not read: their length is an estimate.
        assert len(seen) == 6
        assert all(0 < tokens <= 100 and engines == 2 for tokens, engines in seen)
        status, _, _ = ask(router.url, "/v1/completions", {**body, "prompt": [1] * 900})
        assert status == 200  # a policy's fault costs no request
    assert "policy SecondPolicy: RuntimeError: too long for me" in caplog.text
    assert re.search(r'test_router.py", line \d+, in choose\n +raise RuntimeError\("too long for me"\)', caplog.text)


def test_a_record(fleet: Fleet, tokenizer: Path, tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    config = settings(tokenizer=str(tokenizer), record=file, policy="round-robin")
    with Router(engines=fleet.urls, config=config) as router:
        router.wait_ready(PATIENCE)
        text = "not to be written down anywhere " * 10
        for _ in range(3):
            assert chat(router.url, text)[0] == 200
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 3
    assert "written" not in file.read_text()
    first = lines[0]
    assert first["tokens"] == len(text) + 3
    assert len(first["hashes"]) == first["tokens"] // 16
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in first["hashes"])
    assert {line["worker"] for line in lines} == {url.removeprefix("http://") for url in fleet.urls}
    assert lines[2]["cached"] == (first["tokens"] - 1) // 16 * 16
    assert (first["ended"], first["output"], first["block_size"]) == ("finished", 3, 16)
    assert lines == sorted(lines, key=lambda line: float(line["t"]))


def test_a_policy_sees_sessions(fleet: Fleet) -> None:
    seen: list[tuple[int | None, int | None, str | None]] = []

    class First:
        uses_index = False

        def choose(self, request: Any, candidates: Any) -> int:
            seen.append((request.session, request.parent, request.kind))
            return 0

    with Router(engines=fleet.urls, config=settings(tokenizer="none"), policy=First()) as router:
        router.wait_ready(PATIENCE)
        body = {"model": "sim-model", "prompt": [1, 2, 3], "max_tokens": 1}
        for program in ({"session_id": "s"}, {"session_id": "s", "agent_id": "a"}, {"session_id": "s"}):
            assert ask(router.url, "/v1/completions", {**body, "vllm_xargs": {"agentic_context": program}})[0] == 200
    assert [kind for _, _, kind in seen] == ["start", "subagent", "user"]
    main, agent, again = (session for session, _, _ in seen)
    assert main == again
    assert agent != main
    assert [parent for _, parent, _ in seen] == [None, main, None]


def test_an_engines_file_that_changes(tokenizer: Path, tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    with Fleet(2, ServerConfig(engine=FAST), processes=1) as engines:
        entries = [f'[[engine]]\nname = "e{number}"\nurl = "{url}"\n' for number, url in enumerate(engines.urls)]
        file.write_text(entries[0])
        config = settings(tokenizer=str(tokenizer))
        config = RouterConfig(**{**vars(config), "engines_file": file})
        with Router(config=config) as router:
            router.wait_ready(PATIENCE)
            assert [worker["name"] for worker in router.state()] == ["e0"]
            file.write_text("".join(entries))
            until(lambda: [worker["name"] for worker in router.state()] == ["e0", "e1"])
            until(lambda: [worker.worker for worker in router.workers()] == ["e0", "e1"])
            file.write_text(entries[1])
            until(lambda: [worker["name"] for worker in router.state()] == ["e1"])
            until(lambda: chat(router.url, "hello")[1].get("x-kvatlas-worker") == "e1")
            router.remove_engine("e1")
            assert chat(router.url, "hello")[0] == 503
            router.add_engine(f"e2={engines.urls[0]}")
            until(lambda: chat(router.url, "hello")[0] == 200)
            router.drain_engine("e2")
            assert chat(router.url, "hello")[0] == 503
            with pytest.raises(ServiceError, match="e9"):
                router.remove_engine("e9")


def test_without_events(fleet: Fleet, tokenizer: Path) -> None:
    with Router(engines=fleet.urls, config=settings(tokenizer=str(tokenizer), no_events=True)) as router:
        router.wait_ready(PATIENCE)
        assert router.workers() == []
        answers = [chat(router.url, "no events are followed, but what was sent is known. " * 20) for _ in range(3)]
        assert {answer[0] for answer in answers} == {200}
        assert int(answers[2][1]["x-kvatlas-cached-tokens"]) == cached(answers[2]) > 900


def test_what_cannot_be_started(fleet: Fleet, router: Router) -> None:
    with pytest.raises(PolicyError, match="no policy 'nonsense'"):
        Router(engines=fleet.urls, config=settings(policy="nonsense"))
    with pytest.raises(ConfigError, match="has no option"):
        Router(engines=fleet.urls, config=settings(policy="round-robin", policy_options=(("x", 1),)))
    taken = RouterConfig(http=RouterHttpConfig(bind=router.address))
    with pytest.raises(ServiceError):
        Router(engines=fleet.urls, config=taken)
    with pytest.raises(ConfigError, match="must be a list, got a string"):
        Router(engines=fleet.urls[0])


def test_closed_twice_and_async(fleet: Fleet) -> None:
    async def run() -> None:
        async with Router(engines=fleet.urls, config=settings(tokenizer="none")) as router:
            await router.wait_ready_async(PATIENCE)
            answer = await asyncio.to_thread(chat, router.url, "hello")
            assert answer[0] == 200
        router.close()

    asyncio.run(run())


def test_drained(fleet: Fleet) -> None:
    router = Router(engines=fleet.urls, config=settings(tokenizer="none"))
    router.wait_ready(PATIENCE)
    assert chat(router.url, "hello")[0] == 200
    assert router.drain(PATIENCE) is True
    with pytest.raises(urllib.error.URLError):
        chat(router.url, "hello")
    router.close()


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_prefill_and_decode_engines(dialect: Any, tokenizer: Path) -> None:
    served = ServerConfig(engine=FAST, dialect=dialect)
    with (
        Fleet(1, replace(served, role="prefill"), name="p") as first,
        Fleet(1, replace(served, role="decode"), name="d") as second,
        Router(prefill=first.urls, decode=second.urls, config=settings(tokenizer=str(tokenizer))) as router,
    ):
        router.wait_ready(PATIENCE)
        assert {worker["role"] for worker in router.state()} == {"prefill", "decode"}
        answer = chat(router.url, "a prompt that is long enough to be handed over. " * 20)
        assert answer[0] == 200, answer[2]
        assert cached(answer) > 900  # what the prefill engine computed
        assert first[0].state()[0].held > 50


def test_an_index_elsewhere(fleet: Fleet, tokenizer: Path) -> None:
    with Service(engines=fleet.urls, config=Config(http=HttpConfig(bind="127.0.0.1:0"))) as service:
        service.wait_ready(PATIENCE)
        config = settings(tokenizer=str(tokenizer), index=service.url)
        with Router(engines=fleet.urls, config=config) as router:
            router.wait_ready(PATIENCE)
            assert router.workers() == []
            text = "found by asking a service over HTTP. " * 20
            answers = [chat(router.url, text) for _ in range(3)]
            assert {answer[0] for answer in answers} == {200}
            assert len({answer[1]["x-kvatlas-worker"] for answer in answers}) == 1
            assert int(answers[2][1]["x-kvatlas-cached-tokens"]) == cached(answers[2]) > 600


def test_an_index_that_began_late_learns_from_answers(tokenizer: Path) -> None:
    """The engine announced a prompt before the index was there, and cannot replay it."""
    server = ServerConfig(engine=FAST, replay_socket="none", hash_algorithm="sha256")
    with Fleet(1, server) as fleet:
        text = "asked before the index began to listen. " * 20
        assert chat(fleet.urls[0], text)[0] == 200
        asked = {"model": "sim-model", "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        tokens = ask(fleet.urls[0], "/tokenize", asked)[2]["tokens"]
        late = Config(http=HttpConfig(bind="127.0.0.1:0"), adopt=AdoptConfig(share=0.5))
        with Service(engines=fleet.urls, config=late) as service, service.client() as client:
            service.wait_ready(PATIENCE)

            def held() -> int:
                return max(client.query(tokens=tokens, model="sim-model").scores().values(), default=0)

            assert held() == 0
            with Router(engines=fleet.urls, config=settings(tokenizer=str(tokenizer), index=service.url)) as router:
                router.wait_ready(PATIENCE)
                deadline = time.monotonic() + PATIENCE
                while not held():
                    assert time.monotonic() < deadline
                    # Something new, by which the index learns what the engine calls its blocks; then what is old.
                    assert chat(router.url, f"{time.monotonic()} is now. " * 20)[0] == 200
                    time.sleep(1.1)
                    assert chat(router.url, text)[0] == 200
                    time.sleep(0.2)
                assert 'kvatlas_router_index_reports_total{result="used"} 0' not in ask(router.url, "/metrics")[2]
            assert held() >= len(tokens) // 16 - 1
