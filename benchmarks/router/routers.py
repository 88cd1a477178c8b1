"""The start of each router, in front of the same engines.

Each as its owners ship it, except what it takes to run here: no retries that hide errors, no logs of each request.
`PEERS` says what is installed into `target/router-peers`; what is not there is left out, and the table says so.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.service.servers import free_port

import kvatlas as kvatlas_package

from .fleet import Engines, Process, post, wait

KEY = "sk-benchmark"


@dataclass(frozen=True)
class Place:
    """The surroundings that a router is started with."""

    engines: Engines
    port: int
    peers: Path  # virtual environments, one a peer
    logs: Path
    model: Path  # tokenizer and template

    def python(self, peer: str) -> str:
        """The Python of a peer."""
        return str(self.peers / peer / "bin" / "python")


@dataclass(frozen=True)
class Setup:
    """A router with its policy. `command` gives the processes to start, in order; the last one is the router."""

    name: str
    command: Callable[[Place], Sequence[Sequence[str]]]
    peer: str = ""  # the virtual environment that has to be there
    program: str = ""  # or the program
    model: str = "model"
    header: str = ""
    tokens: str = ""  # whose tokens its engines announce: "engine" or "tokenizer"; "": they announce nothing
    own_engines: bool = False  # its backends are its own: not like for like
    startup: float = 60.0
    env: dict[str, str] = field(default_factory=dict)

    def missing(self, peers: Path) -> str:
        """The reason why the router cannot be started here; "" if it can."""
        if self.peer and not (peers / self.peer / "ready").exists():
            reason = peers / self.peer / "missing"
            return (
                reason.read_text(encoding="utf-8").strip()
                if reason.exists()
                else f"not installed: no {self.peer} in {peers}"
            )
        if self.program and shutil.which(self.program) is None:
            return f"{self.program} is not installed"
        return ""


def vllm_router(policy: str, *more: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    """The router of the vLLM project with a policy, and further flags."""

    def command(place: Place) -> Sequence[Sequence[str]]:
        line = [str(place.peers / "vllm-router/bin/vllm-router"), "--host", "127.0.0.1", "--port", str(place.port)]
        line += ["--worker-urls", *place.engines.urls, "--policy", policy, "--log-level", "error"]
        line += ["--max-concurrent-requests", "20000", "--prometheus-port", str(free_port()), *more]
        if policy == "kv_aware":
            line += ["--kv-event-model", "model", "--kv-event-block-size", "16"]
            for url, publisher in zip(place.engines.urls, place.engines.publishers, strict=True):
                line += ["--kv-event-source", f"{url}={publisher.endpoint}"]
        return [line]

    return command


def _sglang(policy: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    def command(place: Place) -> Sequence[Sequence[str]]:
        line = [place.python("sglang-router"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
        line += [
            "--port",
            str(place.port),
            "--worker-urls",
            *place.engines.urls,
            "--policy",
            policy,
            "--log-level",
            "error",
        ]
        return [[*line, "--max-concurrent-requests", "20000", "--prometheus-port", str(free_port())]]

    return command


def smg(policy: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    """SMG with a policy."""

    def command(place: Place) -> Sequence[Sequence[str]]:
        line = [str(place.peers / "smg/bin/smg"), "launch", "--host", "127.0.0.1", "--port", str(place.port)]
        line += ["--worker-urls", *place.engines.urls, "--policy", policy, "--log-level", "error"]
        return [[*line, "--max-concurrent-requests", "20000", "--prometheus-port", str(free_port())]]

    return command


def _haproxy(place: Place) -> Sequence[Sequence[str]]:
    servers = "\n".join(f"  server e{n} 127.0.0.1:{port}" for n, port in enumerate(place.engines.ports))
    config = place.logs / "haproxy.cfg"  # as many connections as it may have files
    config.write_text(
        f"""defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-keep-alive
  option http-no-delay
  http-reuse always
frontend in
  bind 127.0.0.1:{place.port}
  default_backend engines
backend engines
  balance roundrobin
{servers}
""",
        encoding="utf-8",
    )
    return [["haproxy", "-db", "-q", "-f", str(config)]]


def _litellm(place: Place, urls: Sequence[str] | None = None, **settings: Any) -> Sequence[Sequence[str]]:
    models = [
        {"model_name": "model", "litellm_params": {"model": "openai/model", "api_base": f"{url}/v1", "api_key": "none"}}
        for url in urls or place.engines.urls
    ]
    config = place.logs / "litellm.yaml"  # JSON is YAML
    whole = {"model_list": models, "general_settings": {"master_key": KEY}, "litellm_settings": settings}
    config.write_text(json.dumps(whole), encoding="utf-8")
    line = [place.python("litellm"), "-m", "litellm.proxy.proxy_cli", "--config", str(config), "--host", "127.0.0.1"]
    return [[*line, "--port", str(place.port), "--telemetry", "False", "--keepalive_timeout", "75"]]


def _litellm_picker(*, at_router: bool) -> Callable[[Place], Sequence[Sequence[str]]]:
    """LiteLLM's proxy with `kvatlas.litellm.Picker`, which asks a service of its own, or a router."""

    def command(place: Place) -> Sequence[Sequence[str]]:
        port = free_port()
        first = kvatlas("kvatlas")(replace(place, port=port))
        if not at_router:
            serve = [sys.executable, "-m", "kvatlas.cli", "serve", "--bind", f"127.0.0.1:{port}"]
            for number, url in enumerate(place.engines.urls):
                serve += ["--engine", f"e{number}={url}"]
            first = [serve]
        tokenizers = {} if at_router else {"model": str(place.model)}
        lines = f"picker = Picker('http://127.0.0.1:{port}', tokenizers={tokenizers!r}, timeout=5, wait=60)\n"
        (place.logs / "picking.py").write_text(f"from kvatlas.litellm import Picker\n\n{lines}", encoding="utf-8")
        return [*first, *_litellm(place, callbacks=["picking.picker"])]

    return command


def _litellm_before_kvatlas(place: Place) -> Sequence[Sequence[str]]:
    """LiteLLM's proxy with a kvatlas router as its one deployment."""
    port = free_port()
    return [*kvatlas("kvatlas")(replace(place, port=port)), *_litellm(place, [f"http://127.0.0.1:{port}"])]


def in_litellm(name: str, command: Callable[[Place], Sequence[Sequence[str]]]) -> Setup:
    """A router inside or behind LiteLLM's proxy, which finds kvatlas in this checkout."""
    env = {"PYTHONPATH": str(Path(kvatlas_package.__file__).parents[1])}
    return Setup(name, command, peer="litellm", header=f"authorization: Bearer {KEY}", startup=120, env=env)


def _dynamo(mode: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    def command(place: Place) -> Sequence[Sequence[str]]:
        python = place.python("dynamo")
        mocker = [python, "-m", "dynamo.mocker", "--model-path", str(place.model), "--model-name", "model"]
        mocker += ["--num-workers", "2", "--speedup-ratio", "1000000", "--discovery-backend", "file"]
        frontend = [python, "-m", "dynamo.frontend", "--http-port", str(place.port), "--router-mode", mode]
        return [mocker, [*frontend, "--discovery-backend", "file"]]

    return command


def kvatlas(policy: str, *more: str) -> Callable[[Place], Sequence[Sequence[str]]]:
    """kvatlas with a policy, and further flags."""

    def command(place: Place) -> Sequence[Sequence[str]]:
        line = [sys.executable, "-m", "kvatlas.cli", "router", "--bind", f"127.0.0.1:{place.port}", "--policy", policy]
        for number, url in enumerate(place.engines.urls):
            line += ["--engine", f"e{number}={url}"]
        if policy == "kvatlas":
            line += ["--tokenizer", str(place.model), "--model", "model", "--block-size", "16"]
        else:
            line += ["--tokenizer", "none", "--no-events"]
        return [[*line, *more]]

    return command


def _nothing(_: Place) -> Sequence[Sequence[str]]:
    return []


ALONE = Setup("engine alone", _nothing)
IN_LITELLM = (
    in_litellm("LiteLLM, picks by a service", _litellm_picker(at_router=False)),
    in_litellm("LiteLLM, picks by a router", _litellm_picker(at_router=True)),
    in_litellm("LiteLLM before a router", _litellm_before_kvatlas),
    in_litellm("LiteLLM, its own choice", _litellm),
)
SETUPS = (
    ALONE,
    Setup("HAProxy round robin", _haproxy, program="haproxy"),
    Setup("kvatlas round-robin", kvatlas("round-robin")),
    Setup("kvatlas exact", kvatlas("kvatlas"), tokens="tokenizer"),
    Setup("vllm-router round robin", vllm_router("round_robin"), peer="vllm-router"),
    Setup("vllm-router consistent hash", vllm_router("consistent_hash"), peer="vllm-router"),
    Setup("vllm-router cache_aware", vllm_router("cache_aware"), peer="vllm-router"),
    Setup("vllm-router kv_aware", vllm_router("kv_aware"), peer="vllm-router", tokens="engine"),
    Setup("sglang-router round robin", _sglang("round_robin"), peer="sglang-router"),
    Setup("sglang-router cache_aware", _sglang("cache_aware"), peer="sglang-router"),
    Setup("smg round robin", smg("round_robin"), peer="smg"),
    Setup("smg prefix_hash", smg("prefix_hash"), peer="smg"),
    Setup("smg cache_aware", smg("cache_aware"), peer="smg"),
    Setup("production-stack", _nothing, peer="production-stack"),
    Setup("dynamo round robin", _dynamo("round-robin"), peer="dynamo", own_engines=True, startup=90),
    Setup("dynamo kv", _dynamo("kv"), peer="dynamo", own_engines=True, startup=90),
    Setup("litellm", _litellm, peer="litellm", header=f"authorization: Bearer {KEY}", startup=120),
)


class Router:
    """A router that answers. Use as a context manager. `process` is None for the engine alone."""

    def __init__(self, setup: Setup, engines: Engines, peers: Path, logs: Path, model: Path) -> None:
        self.setup = setup
        self._stack = ExitStack()
        if setup is ALONE:
            self.port = engines.ports[0]
            self.process: Process | None = None
            return
        self.port = free_port()
        place = Place(engines, self.port, peers, logs, model)
        env = {
            "DYN_LOG": "error",
            "DYN_FILE_KV": str(logs / f"dynamo-{self.port}"),
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            **setup.env,
        }
        name = setup.name.replace(" ", "-")
        try:
            for number, line in enumerate(setup.command(place)):
                self.process = self._stack.enter_context(Process(line, logs / f"{name}-{number}.log", env))
            headers = dict([setup.header.split(": ", 1)]) if setup.header else {}
            body = {"model": setup.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
            assert self.process is not None
            wait(
                lambda: bool(post(self.port, "/v1/chat/completions", body, headers)["choices"]),
                self.process,
                setup.startup,
            )
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cpu_seconds(self) -> float:
        """CPU time of the router so far; 0 for the engine alone."""
        return self.process.cpu_seconds() if self.process else 0.0

    def memory(self) -> int:
        """Resident bytes of the router; 0 for the engine alone."""
        return self.process.memory() if self.process else 0

    def metrics(self) -> str:
        """The router's metrics, as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
