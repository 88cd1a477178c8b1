"""A real engine as a process: started, asked, restarted, killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from .install import Engine
from .launch import MODEL, Ports, Setup, command, environment

START = 900.0  # seconds: on a machine with much else to do, minutes pass before an engine answers

ANSWER = 600.0  # seconds: kernels are compiled for the first request that needs them
SOURCES = re.compile(r'^vllm:prompt_tokens_cached_by_source_total\{.*source="(\w+)".*\} (\S+)$', re.MULTILINE)


class DidNotStart(RuntimeError):  # noqa: N818 - it reads as what it is
    """An engine ended, or did not answer in time."""


@dataclass(frozen=True)
class EngineAnswer:
    """An engine's account of a request, in tokens."""

    prompt: int  # tokens
    cached: int
    tokens: list[int]  # that it generated, if it says


class Server:
    """An engine on ports of its own, which it keeps over restarts."""

    def __init__(self, name: str, engine: Engine, setup: Setup, logs: Path) -> None:
        self.name = name
        self.engine = engine
        self.setup = setup
        self.ports = Ports(*free_ports(4, apart=8))
        self._log = logs / f"{engine.product.lower()}-{engine.version}-{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        # Engines close a connection that is idle for five seconds, maybe while a request is on its way.
        kept = httpx.Limits(keepalive_expiry=1.0)
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER, trust_env=False, limits=kept)

    @property
    def url(self) -> str:
        """The URL at which the engine answers."""
        return f"http://127.0.0.1:{self.ports.http}"

    def start(self) -> None:
        """Starts the process; `wait` waits until it answers."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command(self.engine, self.setup, self.ports),
                stdout=log,
                stderr=log,
                env=os.environ | environment(self.engine, self.setup),
                start_new_session=True,
            )

    def wait(self) -> None:
        """Waits until it answers."""
        assert self._process is not None
        end = time.monotonic() + START
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if self.http.get("/v1/models").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        self.kill()
        raise DidNotStart(f"{self.engine.name} did not start: {self._last_error()}")

    def _last_error(self) -> str:
        errors = [line for line in self._log.read_text("utf-8", "replace").splitlines() if "Error: " in line]
        return f"{errors[-1][-200:] if errors else ''} (see {self._log.name})"

    def stop(self) -> None:
        """Ends it in an orderly manner."""
        self.signal(signal.SIGTERM)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """Ends it and the processes that it started, at once."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def signal(self, which: signal.Signals) -> None:
        """Sends a signal to it and the processes that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, which)

    def reports_sockets(self) -> bool:
        """True if the engine says where its events are."""
        return self.engine.product == "SGLang" or self.http.get("/kv_event_sources").is_success

    def cached_by_source(self) -> Counter[str]:
        """The prompts' tokens that it has taken from each kind of cache since its start: device, host, disk, p2p."""
        found = SOURCES.findall(self.http.get("/metrics").raise_for_status().text)
        return Counter({source: round(float(count)) for source, count in found})

    def reset(self, *, host: bool) -> None:
        """Empties its prefix cache; that in host memory as well, if asked."""
        self.http.post("/reset_prefix_cache", params={"reset_external": "true"} if host else {}).raise_for_status()

    def complete(
        self,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        adapter: str | None = None,
        stream: bool = False,
        longest: int = 4,
        rank: int | None = None,
        transfer: Mapping[str, Any] | None = None,
    ) -> EngineAnswer:
        """Completes a prompt. `transfer`: the field `kv_transfer_params`, in which a router names a source."""
        model = adapter if self.engine.product == "vLLM" else adapter and f"{MODEL}:{adapter}"
        body: dict[str, Any] = {"model": model or MODEL, "prompt": list(tokens), "max_tokens": longest}
        body |= {"temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
        if salt is not None:
            body["cache_salt"] = salt
        if transfer is not None:
            body["kv_transfer_params"] = dict(transfer)
        return self._ask("/v1/completions", body, stream, rank)

    def chat(self, messages: Sequence[dict[str, Any]], *, stream: bool, longest: int = 8) -> tuple[EngineAnswer, str]:
        """Answers messages, with the text of the answer."""
        body: dict[str, Any] = {"model": MODEL, "messages": list(messages), "max_tokens": longest, "temperature": 0.0}
        text: list[str] = []
        return self._ask("/v1/chat/completions", body, stream, None, text), "".join(text)

    def post(self, path: str, body: dict[str, Any], *, stream: bool) -> EngineAnswer:
        """Answers a request of whichever API, as far as its usage goes."""
        if not stream:
            return _used([self.http.post(path, json=body).raise_for_status().json()])
        more = {"stream_options": {"include_usage": True}} if path == "/v1/chat/completions" else {}
        with self.http.stream("POST", path, json=body | more | {"stream": True}) as response:
            response.raise_for_status()
            return _used([json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")])

    def tokenize(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt that it makes of messages."""
        answer = self.http.post("/tokenize", json={"model": MODEL, "messages": list(messages)})
        tokens: list[int] = answer.raise_for_status().json()["tokens"]
        return tokens

    def _ask(
        self, path: str, body: dict[str, Any], stream: bool, rank: int | None, text: list[str] | None = None
    ) -> EngineAnswer:
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        if not stream:
            answer = self.http.post(path, json=body, headers=headers).raise_for_status().json()
            return _answered([answer], text)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with self.http.stream("POST", path, json=body, headers=headers) as response:
            response.raise_for_status()
            chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        return _answered(chunks, text)


def _used(parts: list[dict[str, Any]]) -> EngineAnswer:
    """The usage in an answer, or in the events of one."""
    usage: dict[str, Any] = {}
    for part in parts:
        for holder in (part, part.get("message") or {}, part.get("response") or {}):
            usage |= {name: value for name, value in (holder.get("usage") or {}).items() if value is not None}
    cached, prompt = usage_of(usage)
    return EngineAnswer(prompt, cached, [])


def usage_of(usage: dict[str, Any]) -> tuple[int, int]:
    """The cached and all tokens of a prompt, as an answer of any of the APIs has them."""
    if "prompt_tokens" in usage:
        return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0, usage["prompt_tokens"]
    if "input_tokens_details" in usage:
        return (usage["input_tokens_details"] or {}).get("cached_tokens") or 0, usage["input_tokens"]
    cached = usage.get("cache_read_input_tokens") or 0
    return cached, usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0)


def _answered(parts: list[dict[str, Any]], text: list[str] | None) -> EngineAnswer:
    usage: dict[str, Any] = {}
    tokens: list[int] = []
    for part in parts:
        usage = part.get("usage") or usage
        for choice in part.get("choices", ()):
            tokens += choice.get("token_ids") or []
            if text is not None:
                text.append((choice.get("message") or choice.get("delta") or {}).get("content") or "")
    cached, prompt = usage_of(usage)
    return EngineAnswer(prompt, cached, tokens)


def free_ports(count: int, apart: int) -> list[int]:
    """Free ports, with as many free ones after each of them.

    They are below the system's ephemeral ports: an engine binds some of them a minute later.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 32_000)
        if all(abs(port - each) > apart for each in found) and _free(port, apart):
            found.append(port)
    return found


def _free(first: int, count: int) -> bool:
    for port in range(first, first + count):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
