"""The pods of the manifests as processes: their arguments work together, with keys, snapshots and each other."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.process.service.named import know
from tests.support.forked import ForkedCommand
from tests.support.kubernetes import FakeApi, pod
from tests.support.waiting import until

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.ports import free_block

from .manifests import RENDERED, Document, container, documents, of_kind

DEADLINE = 60.0
KEYS = {"key": "query", "admin-key": "admin", "router-key": "client"}


class Pods:
    """Starts containers as processes: each has an address of 127.0.0.0/8, as pods have their own."""

    def __init__(self, directory: Path, made: list[Document], api: FakeApi) -> None:
        self.directory, self.api = directory, api
        self.sets = of_kind("StatefulSet", made)
        self.ports = {name: free_block("127.0.0.1") for name in ("serve", "router", "admin")}
        names = ("kvatlas-serve-0", "kvatlas-serve-1", "kvatlas-router-0", "kvatlas-router-1")
        self.addresses = {name: f"127.0.0.{number}" for number, name in enumerate(names, 2)}
        self.zone = directory / "zone"
        self.zone.write_text("")

    def start(self, name: str) -> ForkedCommand:
        """Start a pod of a StatefulSet: `kvatlas-serve-0`."""
        home = self.directory / name
        home.mkdir()
        arguments = container(self.sets[name.rpartition("-")[0]])["args"]
        command = [self.here(each, name, home) for argument in arguments for each in self.resolved(argument)]
        command += ["--kubernetes-url", self.api.url, "--kubernetes-account", str(self.directory / "account")]
        before = partial(know, "kvatlas-serve-peers", self.zone)
        return ForkedCommand(*command, logs=False, env={"TMPDIR": str(home)}, before=before)

    def resolved(self, argument: str) -> list[str]:
        """An argument for each address of the routers' name: routers look names up without Python."""
        name = "kvatlas-router-peers"
        if f"dns:{name}:" not in argument:
            return [argument]
        return [argument.replace(name, at) for pod, at in self.addresses.items() if "-router-" in pod]

    def here(self, argument: str, name: str, home: Path) -> str:
        """An argument, with addresses, ports and paths that there are here."""
        if argument.startswith("--drain-delay="):
            return "--drain-delay=0s"
        argument = argument.replace("0.0.0.0", self.addresses[name])
        for port, part in ((8090, "serve"), (8080, "router"), (9090, "admin")):
            argument = argument.replace(f":{port}", f":{self.ports[part]}")
        return argument.replace("/etc/kvatlas", str(self.directory)).replace("/var/lib/kvatlas", str(home))

    def get(self, name: str, path: str, key: str | None = None, port: str = "admin") -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"http://{self.addresses[name]}:{self.ports[port]}{path}", headers=headers, timeout=DEADLINE)

    def is_ready(self, name: str) -> bool:
        try:
            return self.get(name, "/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def knows_all(self, name: str) -> bool:
        return bool(self.get(name, "/ready").json()["index_ready"])


@pytest.mark.slow
def test_the_pods_work_together(tmp_path: Path) -> None:
    for folder in ("keys", "engines", "account"):
        (tmp_path / folder).mkdir()
    (tmp_path / "engines/engines.toml").write_text("")
    (tmp_path / "account/namespace").write_text("llm")
    for item, key in KEYS.items():
        (tmp_path / "keys" / item).write_text(key)
    engine = EngineConfig(block_size=4, blocks=500, prefill_rate=1e6, decode_rate=100)
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(2, ServerConfig(engine=engine)))
        api = stack.enter_context(FakeApi())
        pods = Pods(tmp_path, documents(RENDERED.read_text()), api)
        for each in fleet.engines:
            api.put(pod(each.name, "127.0.0.1", ports={"http": each.config.http_port}))

        def start(*names: str) -> None:
            for name in names:
                process = pods.start(name)
                stack.callback(process.wait)
                stack.callback(process.kill)
            for name in names:
                until(lambda name=name: pods.is_ready(name), f"{name} ready")

        start("kvatlas-serve-0")
        for each in fleet.engines:
            each.complete(list(range(100)), 4)
        pods.zone.write_text(pods.addresses["kvatlas-serve-0"])  # it is ready, so the headless Service has it
        start("kvatlas-serve-1", "kvatlas-router-0", "kvatlas-router-1")

        # What the later ones begin with is the first one's snapshot, which needs the admin key.
        workers = pods.get("kvatlas-serve-1", "/workers", KEYS["key"], "serve").json()
        assert [worker["streams"]["0"]["snapshot"]["from"] for worker in workers] == ["peer", "peer"]
        assert pods.get("kvatlas-serve-1", "/workers", None, "serve").status_code == 401
        assert (tmp_path / "kvatlas-serve-1/snapshots").is_dir()

        # Clients need the routers' key.
        body = {"model": fleet[0].config.model, "prompt": list(range(100)), "max_tokens": 60}

        def complete(name: str, key: str) -> httpx.Response:
            url = f"http://{pods.addresses[name]}:{pods.ports['router']}/v1/completions"
            return httpx.post(url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=DEADLINE)

        routers = ("kvatlas-router-0", "kvatlas-router-1")
        assert complete(routers[0], KEYS["key"]).status_code == 401
        for name in routers:
            # It takes requests before it knows what the engines hold.
            until(partial(pods.knows_all, name), f"index of {name} whole")

            def is_cached(name: str) -> bool:
                answer = complete(name, KEYS["router-key"])
                assert answer.status_code == 200, answer.text
                return int(answer.headers["x-kvatlas-cached-tokens"]) >= 96

            until(partial(is_cached, name), f"{name} finds what is cached")

        # While a request is answered, one router tells the other about it.
        def is_heard(by: str, other: str) -> bool:
            complete(other, KEYS["router-key"])
            metrics = pods.get(by, "/metrics").text
            (heard,) = re.findall(r'kvatlas_router_peer_reports_total\{result="heard"\} (\d+)', metrics)
            return int(heard) > 0

        until(lambda: is_heard(*routers), "heard by the first")
        until(lambda: is_heard(*reversed(routers)), "heard by the second")
