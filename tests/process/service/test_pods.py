"""Engines in the pods of a cluster, as an API server of our own tells of them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.certificates import SERVER, make, needs_openssl
from tests.support.engine import Engine, vllm
from tests.support.kubernetes import FakeApi, pod
from tests.support.waiting import until

from kvatlas.errors import ConfigError
from kvatlas.service import Config, DiscoveryConfig, HttpConfig, Service
from kvatlas.service.discovery.sources import watched

from .fake_native import FakeNative, Starter, started

SOURCE = "k8s:llm/app=vllm"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as api:
        yield api


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Two engines, whose pods are `one` and `two`."""
    with ExitStack() as stack:
        yield [stack.enter_context(Engine(vllm())) for _ in range(2)]


@contextmanager
def following(api: FakeApi, *sources: str, account: Path | None = None, **more: Any) -> Iterator[FakeNative]:
    settings: dict[str, Any] = {"interval": 0.05, "timeout": 60, "request_timeout": 30, "linger": 60} | more
    if account is not None:
        settings["kubernetes_account"] = account
    discovery = DiscoveryConfig(sources=sources or (SOURCE,), kubernetes_url=api.url, **settings)
    start = Starter()
    with started(start, config=Config(discovery=discovery)):
        yield start.native


def of(engine: Engine, name: str, **more: Any) -> dict[str, Any]:
    return pod(name, "127.0.0.1", ports={"http": engine.port}, **more)


def workers(native: FakeNative) -> set[str]:
    return {name for name, _rank in native.endpoints()}


def code(native: FakeNative, worker: str) -> str | None:
    told: str | None = (native.reports.get((worker, None)) or {"code": "not reported"})["code"]
    return told


def about(native: FakeNative) -> dict[str, Any]:
    """The last report on the source."""
    return native.sources.get(SOURCE) or {"state": "", "code": None, "members": {}, "counts": {}}


def members(native: FakeNative) -> dict[str, int]:
    return {state: count for state, count in about(native)["members"].items() if count}


def test_pods_are_followed_through_their_life(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"} and not native.holds)
        assert native.registered["one", 0]["source"] == f"engine {engines[0].url}"
        # Nothing before it has an address.
        api.put(of(engines[1], "two", ready=False) | {"status": {"phase": "Pending"}})
        until(lambda: members(native) == {"ready": 1, "no_address": 1})
        assert ("two", None) not in native.reports
        # Not ready: its events are followed.
        api.put(of(engines[1], "two", ready=False))
        until(lambda: workers(native) == {"one", "two"} and code(native, "two") == "not_ready")
        api.set_ready("two", True)
        until(lambda: code(native, "two") is None and members(native) == {"ready": 2})
        api.set_ready("two", False)
        until(lambda: code(native, "two") == "not_ready")
        # Terminating: followed until it is gone.
        api.delete("two")
        until(lambda: code(native, "two") == "terminating" and members(native) == {"ready": 1, "terminating": 1})
        assert native.log == [("register", "one", 0), ("register", "two", 0)], "no block was forgotten"
        api.gone("two")
        until(lambda: workers(native) == {"one"} and ("two", None) not in native.reports)
        assert about(native)["state"] == "following"


def test_another_pod_of_the_same_name_is_another_life(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        api.put(of(engines[0], "one", uid="another"))
        until(lambda: len(native.log) == 3)
        assert native.log == [("register", "one", 0), ("unregister", "one", 0), ("register", "one", 0)]
        assert about(native)["counts"]["replaced"] == 1
        # A container that was started again is the same pod: its stream tells by itself.
        asked = engines[0].times("/v1/models")
        api.put(of(engines[0], "one", uid="another", restarts=1))
        until(lambda: about(native)["counts"].get("restarted") == 1)
        until(lambda: engines[0].times("/kv_event_sources") > asked)
        assert len(native.log) == 3


def test_a_label_that_comes_back_in_time_costs_nothing(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        unlabelled = api.unlabel("one")
        until(lambda: code(native, "one") == "unlisted")
        assert members(native) == {"unlisted": 1}
        api.put(unlabelled)
        until(lambda: code(native, "one") is None and members(native) == {"ready": 1})
        assert native.log == [("register", "one", 0)]


def test_a_label_that_stays_away_ends_the_engine(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api, linger=0.05) as native:
        until(lambda: workers(native) == {"one"})
        api.unlabel("one")
        until(lambda: not workers(native))
        assert members(native) == {}


def test_what_is_known_stays_while_the_server_is_away(api: FakeApi, engines: list[Engine]) -> None:
    for engine, name in zip(engines, ("one", "two"), strict=True):
        api.put(of(engine, name))
    with following(api, linger=0.05) as native:
        until(lambda: workers(native) == {"one", "two"})
        api.stop()
        # The watch may break off in the middle of an answer first.
        until(lambda: about(native)["state"] == "away" and "cannot be reached" in about(native)["reason"])
        assert about(native)["code"] == "unreachable"
        assert workers(native) == {"one", "two"}
        # Meanwhile one ends, and what happened can no longer be asked for.
        api.gone("two")
        api.forget_changes()
        api.start()
        until(lambda: workers(native) == {"one"} and about(native)["state"] == "following")
        assert about(native)["counts"]["gone"] == 1
        assert native.log.count(("register", "one", 0)) == 1


def test_changes_while_a_watch_begins_again_are_not_missed(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        api.cut()
        api.put(of(engines[1], "two"))
        until(lambda: workers(native) == {"one", "two"})
        assert api.queries(sendInitialEvents="true") == 1, "the watch went on where it was"
        api.bookmark()
        api.cut()
        api.set_ready("one", False)
        until(lambda: code(native, "one") == "not_ready")
        assert about(native)["state"] == "following"


def test_410_as_a_status_lists_again(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        api.refusals.append((410, "too old", {}))
        api.cut()
        until(lambda: api.queries(sendInitialEvents="true") == 2)
        api.put(of(engines[1], "two"))
        until(lambda: workers(native) == {"one", "two"})


def test_a_server_without_watch_lists_is_asked_for_pages(api: FakeApi, engines: list[Engine]) -> None:
    api.has_watch_list = False
    for name in ("a", "b", "c", "d", "e"):
        api.put(of(engines[0], name))
    with following(api) as native:
        until(lambda: workers(native) == {"a", "b", "c", "d", "e"})
        assert api.queries(sendInitialEvents="true") == 1
        assert api.queries(limit=str(250)) == 3, "in pages of two, as the server has them"
        api.gone("a")
        until(lambda: workers(native) == {"b", "c", "d", "e"})


def test_a_server_that_does_not_know_watch_lists_is_asked_for_pages(api: FakeApi, engines: list[Engine]) -> None:
    api.ignores_wishes = True
    api.put(of(engines[0], "one"))
    with following(api, request_timeout=0.5) as native:
        until(lambda: about(native)["counts"].get("no_watch_list") == 1)
        until(lambda: about(native)["state"] == "following" and workers(native) == {"one"})


def test_403_of_a_server_that_is_starting_is_no_end(
    api: FakeApi, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    api.refusals += [(403, 'pods is forbidden: User "kvatlas" cannot list resource "pods"', {})] * 3
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: about(native)["code"] == "http_403")
        assert about(native)["state"] == "asking", "nothing is known yet, and that is said"
        until(lambda: workers(native) == {"one"})
        until(lambda: about(native)["state"] == "following")
        assert about(native)["counts"]["http_403"] == 3
    words = [record.getMessage() for record in caplog.records if "its Role must allow" in record.getMessage()]
    assert len(words) == 1, "the same problem is logged once"
    assert words[0].endswith("its Role must allow get, list and watch of pods there")


def test_a_server_that_asks_to_be_left_alone_is(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        api.refusals.append((429, "too many requests", {"Retry-After": "3600"}))
        api.cut()
        until(lambda: about(native)["code"] == "http_429")
        asked = len(api.seen)
        api.put(of(engines[1], "two"))
        until(lambda: engines[0].times("/kv_event_sources") > 20)
        assert len(api.seen) == asked
        assert workers(native) == {"one"}


def test_a_silent_server_is_noticed(api: FakeApi, engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_SILENCE", 0.2)
    api.put(of(engines[0], "one"))
    with following(api, request_timeout=0.5) as native:
        until(lambda: workers(native) == {"one"})
        # A quiet one that answers is not away.
        until(lambda: about(native)["counts"].get("silence", 0) > 2)
        assert about(native)["state"] == "following"
        api.is_silent = True
        until(lambda: about(native)["state"] == "away")
        assert about(native)["code"] == "timeout"
        assert workers(native) == {"one"}
        api.put(of(engines[1], "two"))
        api.is_silent = False
        until(lambda: workers(native) == {"one", "two"} and about(native)["state"] == "following")


def test_the_namespace_is_that_of_the_account_and_without_tls_no_token_is_shown(
    api: FakeApi, engines: list[Engine], tmp_path: Path
) -> None:
    (tmp_path / "namespace").write_text("mine\n")
    api.put(of(engines[0], "one"))
    with following(api, "k8s:/app=vllm", account=tmp_path) as native:
        until(lambda: workers(native) == {"one"})
        assert api.seen[0]["path"] == "/api/v1/namespaces/mine/pods"
        assert api.seen[0]["labelSelector"] == "app=vllm"


@needs_openssl
def test_the_token_is_read_anew(api: FakeApi, engines: list[Engine], tmp_path: Path) -> None:
    cert, key = make(tmp_path, "server", "/CN=kubernetes", *SERVER)
    cert.rename(tmp_path / "ca.crt")
    api.stop()
    api.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    api.tls.load_cert_chain(tmp_path / "ca.crt", key)
    api.start()
    api.token = "first"
    api.put(of(engines[0], "one"))
    with following(api, account=tmp_path) as native:
        until(lambda: about(native)["code"] == "no_token")
        assert "automountServiceAccountToken: true" in about(native)["reason"]
        (tmp_path / "token").write_text("first\n")
        until(lambda: workers(native) == {"one"})
        # The account was made anew: the old token is refused until the kubelet has written another one.
        api.token = "second"
        api.cut()
        until(lambda: about(native)["code"] == "http_401")
        assert workers(native) == {"one"}
        (tmp_path / "token").write_text("second\n")
        api.put(of(engines[1], "two"))
        until(lambda: workers(native) == {"one", "two"} and about(native)["state"] == "following")


def test_ports_ranks_ipv6_and_leaders(api: FakeApi, engines: list[Engine]) -> None:
    leader = "leaderworkerset.sigs.k8s.io/worker-index"
    one, two = (engine.port for engine in engines)
    api.put(pod("both", "127.0.0.1", ports={"http-0": one, "http-1": two, "kv-events": 5557}))
    api.put(of(engines[0], "leader", labels={leader: "0"}))
    api.put(of(engines[0], "worker", labels={leader: "1"}))
    api.put(of(engines[0], "done", phase="Succeeded"))
    api.put(pod("six", "fd00::5"))
    with following(api) as native:
        until(lambda: workers(native) == {f"both:{one}", f"both:{two}", "leader"})
        assert members(native) == {"ready": 4, "not_leader": 1, "ended": 1}
        until(lambda: native.reports.get(("six", None)))
        assert native.reports["six", None]["url"] == "http://[fd00::5]:8000"


def test_annotations_override_what_engines_say(
    api: FakeApi, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engines[1].answers = vllm(model="other")
    own = {"kvatlas.dev/model": "mine", "kvatlas.dev/port": str(engines[0].port), "kvatlas.dev/weight": "2"}
    api.put(pod("one", "127.0.0.1", ports={"web": 80}, annotations=own | {"example.com/else": "x"}))
    api.put(of(engines[1], "two"))
    api.put(of(engines[1], "three", annotations={"kvatlas.dev/modle": "m"}))
    api.put(of(engines[1], "four", annotations={"kvatlas.dev/block-size": "many"}))
    with following(api) as native:
        until(lambda: workers(native) == {"one", "two"})
        models = {name: about["model_name"] for (name, _rank), about in native.registered.items()}
        assert models == {"one": "mine", "two": "other"}, "two models under one selector"
        assert members(native) == {"ready": 2, "bad_annotation": 2}
        assert 'annotation "kvatlas.dev/modle" is unknown' in caplog.text
        assert 'kvatlas.dev/block-size must be an integer from 1 to 1048576, got "many"' in caplog.text


def test_several_sources_together(
    api: FakeApi, engines: list[Engine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(f'engine = ["one={engines[1].url}"]\n')
    api.put(of(engines[0], "one"))
    api.put(of(engines[0], "two"))
    discovery = DiscoveryConfig(sources=(SOURCE,), kubernetes_url=api.url, interval=0.05, timeout=60)
    start = Starter()
    with started(start, config=Config(discovery=discovery, engines_file=file)):
        until(lambda: workers(start.native) == {"one", "two"})
        # The first source has the name.
        assert start.native.registered["one", 0]["source"] == f"engine {engines[1].url}"
    words = f"{SOURCE}: ignored engine one, which another source has already"
    assert len([record for record in caplog.records if words in record.getMessage()]) == 1


def test_names_have_the_namespace_where_there_are_several(api: FakeApi, engines: list[Engine]) -> None:
    api.put(of(engines[0], "one"))
    with following(api, SOURCE, "k8s:other/app=vllm") as native:
        until(lambda: workers(native) == {"one.llm"})


def test_strange_answers_are_problems_of_the_source(
    api: FakeApi, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    odd = {"name": "odd", "labels": {"app": "vllm"}}
    api.put({"metadata": odd, "spec": [], "status": {"podIP": 7, "conditions": ["Ready", {}]}})
    api.put(of(engines[0], "one"))
    with following(api) as native:
        until(lambda: workers(native) == {"one"})
        assert members(native) == {"ready": 1, "no_address": 1}
    assert "odd is left out: it has no address yet" in caplog.text


def test_outside_of_a_cluster_that_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="set discovery"):
        Service(config=Config(discovery=DiscoveryConfig(sources=(SOURCE,))))


@pytest.mark.parametrize("port", ["tcp://10.0.0.1:443", "0", "65536"])
def test_a_port_of_the_cluster_that_is_none_is_an_error(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    words = "KUBERNETES_SERVICE_PORT must be an integer from 1 to 65535, got"
    with pytest.raises(ConfigError, match=words):
        Service(config=Config(discovery=DiscoveryConfig(sources=(SOURCE,))))


def test_the_service_tells_what_it_knows_of_sources(api: FakeApi, engines: list[Engine]) -> None:
    """With the native part: in /health and /metrics."""
    api.put(of(engines[0], "one"))
    discovery = DiscoveryConfig(sources=(SOURCE,), kubernetes_url=api.url, interval=0.05)
    config = Config(discovery=discovery, http=HttpConfig(bind="127.0.0.1:0"))
    with Service(config=config) as service, service.client() as client:

        def health() -> Any:
            said = httpx.get(f"{service.url}/health").json()
            return said.get("discovery", [{"state": ""}])[0]

        until(lambda: health()["state"] == "following" and health()["members"]["ready"] == 1)
        assert health()["source"] == SOURCE
        metrics = client.metrics()
        assert f'kvatlas_discovery_source_known{{source="{SOURCE}"}} 1' in metrics
        assert f'kvatlas_discovery_members{{source="{SOURCE}",state="ready"}} 1' in metrics
        api.stop()
        until(lambda: health()["state"] == "away")
        assert health()["code"] == "unreachable"
        assert health()["members"]["ready"] == 1
