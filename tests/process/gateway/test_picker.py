"""`kvatlas epp` behind a real Envoy: the modes, subsets and fall-backs of gateways, TLS and health."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import MODEL, Engine
from tests.support.waiting import until

from .envoy import DUPLEX, Envoy, Gateway, Picker, envoy, picking

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Engine()) for _ in range(3)]


def chat(url: str, **more: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=CHAT | more, timeout=60)


@pytest.mark.parametrize(
    "gateway",
    [
        Gateway(),
        Gateway(response="NONE"),
        Gateway(request="BUFFERED", response="STREAMED"),
        Gateway(request="BUFFERED", response="NONE"),
        Gateway(tls=True),
        Gateway(health=True),
    ],
    ids=["duplex", "duplex-none", "buffered-streamed", "buffered-none", "tls", "health"],
)
def test_chats_streams_and_long_bodies_pass(engines: list[Engine], gateway: Gateway) -> None:
    with picking(engines, gateway) as (picker, at):
        if gateway.health:
            until(lambda: at.healthy_pickers() == 1, "the picker's health service says that it serves")
        assert chat(at.url).json()["choices"][0]["message"]["content"] == "ok"
        with httpx.stream("POST", f"{at.url}/v1/chat/completions", json=CHAT | {"stream": True}, timeout=60) as answer:
            events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert events[-1] == "[DONE]"
        texts = [json.loads(each)["choices"][0]["delta"]["content"] for each in events[:4]]
        assert texts == ["t0 ", "t1 ", "t2 ", "t3 "]
        long = {"model": MODEL, "prompt": "a" * 3_000_000, "max_tokens": 1}
        assert httpx.post(f"{at.url}/v1/completions", json=long, timeout=60).status_code == 200
        assert json.loads(max(engines, key=lambda it: it.asked()).last.body)["model"] == MODEL
        assert {len(one.body) for engine in engines for one in engine.received if one.route == "/v1/completions"} == {
            len(json.dumps(long, separators=(",", ":")))
        }
        assert httpx.get(f"{at.url}/v1/models", timeout=60).status_code == 404, "the router answers that itself"
        assert picker.count("kvatlas_router_gateway_requests_total", result="picked") == 3
        # All have ended: none counts at an engine for ever.
        until(lambda: not any(rank["requests"] for it in workers(picker) for rank in it["ranks"]))


def workers(picker: Picker) -> list[dict]:  # type: ignore[type-arg]
    return list(httpx.get(f"{picker.router_url}/workers").json())


def test_the_answer_is_learnt_from_as_in_the_router(engines: list[Engine]) -> None:
    with picking(engines) as (picker, at):
        chat(at.url)
        decision = httpx.get(f"{picker.router_url}/decisions").json()[0]
        until(lambda: httpx.get(f"{picker.router_url}/decisions").json()[0]["ended"] is not None)
        decision = httpx.get(f"{picker.router_url}/decisions").json()[0]
        assert decision["ended"]["how"] == "finished"
        assert decision["ended"]["output_tokens"] == 1


@pytest.mark.parametrize("form", ["{0}", "{0},127.0.0.9:1", "10.0.0.1:80, {0}"])
def test_a_subset_is_kept_to(engines: list[Engine], form: str) -> None:
    wanted = engines[2]
    subset = form.format(f"127.0.0.1:{wanted.port}")
    with picking(engines, Gateway(subset=subset)) as (_, at):
        for _ in range(6):
            assert chat(at.url).status_code == 200
    assert [engine.asked() for engine in engines] == [0, 0, 6]


@pytest.mark.parametrize("subset", ["", "10.0.0.1:80"])
def test_a_subset_without_an_engine_is_refused_at_once(engines: list[Engine], subset: str) -> None:
    # It would wait for two minutes otherwise.
    with picking(engines, Gateway(subset=subset), "--wait-for-engine", "120s") as (_, at):
        refused = chat(at.url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")
        assert refused.headers["retry-after"]


def test_the_gateway_goes_on_to_the_next_endpoint(engines: list[Engine]) -> None:
    with picking(engines, None, "--policy", "round-robin", "--health-interval", "0s") as (_, at):
        engines[0].stop()
        assert [chat(at.url).status_code for _ in range(6)] == [200] * 6
        assert engines[1].asked() + engines[2].asked() == 6


def test_requests_wait_until_an_engine_is_up() -> None:
    with Engine() as engine:
        engine.stop()
        envoy()
        # The second message does not come for longer than the gateway waits for one; the body has gone by then.
        gateway = Gateway(message_timeout="0.5s")
        picker = Picker([engine], "--health-interval", "0.1s")
        try:
            until(lambda: is_listening(picker.port), "the picker listening")
            with Envoy(gateway, [picker.port], [engine.port]) as at:
                answers: list[int] = []
                asking = threading.Thread(target=lambda: answers.append(chat(at.url).status_code))
                asking.start()
                until(lambda: picker.count("kvatlas_router_queue_for_engine") == 1, "it waits")
                threading.Event().wait(1.0)  # longer than the gateway's patience with a message
                engine.start()
                asking.join(60)
                assert answers == [200]
        finally:
            picker.kill()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def served(port: int) -> tuple[bytes, str | None]:
    """The certificate at a port, and the protocol that is agreed on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as speaking:
        return speaking.getpeercert(binary_form=True) or b"", speaking.selected_alpn_protocol()


def test_conformance_tests_choose_engines_and_learn_which_one_answered(engines: list[Engine]) -> None:
    endpoints = [f"127.0.0.1:{engine.port}" for engine in engines]
    headers = {"test-epp-endpoint-selection": f"{endpoints[2]}, {endpoints[1]}"}
    for flags, among in ((["--gateway-conformance"], endpoints[1:]), ([], endpoints)):
        with picking(engines, None, "--policy", "round-robin", *flags) as (_, at):
            answers = [
                httpx.post(f"{at.url}/v1/chat/completions", json=CHAT, headers=headers, timeout=60) for _ in range(12)
            ]
            served = {answer.headers.get("x-conformance-test-served-endpoint") for answer in answers}
            assert served == (set(among) if flags else {None})
        assert {at for at, engine in zip(endpoints, engines, strict=True) if engine.asked()} == set(among)
        for engine in engines:
            engine.received.clear()


def test_paths_below_a_prefix_of_the_gateway_are_picked_for(engines: list[Engine]) -> None:
    with picking(engines, Gateway(prefix="/llm/qwen")) as (picker, at):
        answer = httpx.post(f"{at.url}/llm/qwen/v1/chat/completions", json=CHAT, timeout=60)
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
        until(lambda: httpx.get(f"{picker.router_url}/decisions").json()[0]["ended"] is not None)
        ended = httpx.get(f"{picker.router_url}/decisions").json()[0]["ended"]
        assert ended["output_tokens"] == 1, "the answer is read as a chat's"
        assert sum(engine.times("/v1/chat/completions") for engine in engines) == 1


def test_a_gateway_that_buffers_waits_no_longer_than_it_is_told() -> None:
    envoy()
    with Engine() as engine:
        engine.stop()
        gateway = Gateway(request="BUFFERED", response="NONE", message_timeout="0.5s")
        picker = Picker([engine], "--health-interval", "0.1s")
        try:
            until(lambda: is_listening(picker.port), "the picker listening")
            with Envoy(gateway, [picker.port], [engine.port]) as at:
                assert chat(at.url).status_code == 504
        finally:
            picker.kill()


def test_each_start_makes_a_certificate_of_its_own(engines: list[Engine]) -> None:
    seen = set()
    for _ in range(2):
        with Picker(engines, tls=True) as picker:
            certificate, protocol = served(picker.port)
            assert protocol == "h2"
            seen.add(certificate)
    assert len(seen) == 2
    assert all(seen)


@needs_openssl
def test_a_certificate_that_is_renewed_is_used(engines: list[Engine], tmp_path: Path) -> None:
    folder = tmp_path / "serving"
    folder.mkdir()

    def renew() -> bytes:
        certificate, key = make(tmp_path, "made", "/CN=picker", *SERVER)
        (folder / "tls.key").write_bytes(key.read_bytes())
        (folder / "tls.crt").write_bytes(certificate.read_bytes())
        return ssl.PEM_cert_to_DER_cert((folder / "tls.crt").read_text())

    first = renew()
    with Picker(engines, "--cert-path", folder, tls=True) as picker:
        assert served(picker.port) == (first, "h2")
        second = renew()
        assert first != second
        until(lambda: served(picker.port)[0] == second, "the new certificate")


def test_a_gateway_that_speaks_without_tls_gets_nowhere_and_the_log_says_why(engines: list[Engine]) -> None:
    envoy()
    with Picker(engines, tls=True) as picker, Envoy(Gateway(), [picker.port], [it.port for it in engines]) as at:
        assert chat(at.url).status_code == 500
        until(lambda: any("does not speak TLS as the picker does" in line for line in picker.lines))


def test_flags_without_effect_are_named_in_the_log(engines: list[Engine]) -> None:
    with Picker(engines, "--config-file", "/config/plugins.yaml", "--tracing=false", "--zap-encoder=json") as picker:
        words = [json.loads(line)["message"] for line in picker.lines if line.startswith("{")]
        assert any(line.startswith("--config-file has no effect here: ") for line in words), picker.lines
        assert any(line.startswith("--tracing has no effect here: ") for line in words)
        assert picker.stop() == 0


def test_modes_that_show_the_body_too_late_are_refused_with_the_mode_to_set(engines: list[Engine]) -> None:
    with picking(engines, Gateway(request="STREAMED", response="NONE")) as (picker, at):
        refused = chat(at.url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "body_not_shown")
        assert DUPLEX in refused.json()["error"]["message"]
        assert picker.count("kvatlas_router_gateway_requests_total", result="without_body") == 1
