"""Faults of routers that were reported or found, tried on a router in front of real engines: what is right, what came.

What needs another model (images, audio), a connector (pairs of prefill and decode engines) or a fault that real engines
do not have on demand is tried with simulated engines, in the tests of the router.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from .engine import Server, usage_of
from .launch import MODEL
from .routed import SETTLE, Front

OTHER = "other"  # the name of the second engine's model
PATIENCE = 60.0  # seconds
TRIES = 5  # two engines serve the model
TEXT = "The quick brown fox jumps over the lazy dog, and then does it again. "
LONG = TEXT * 12
CHAT = [{"role": "user", "content": LONG}]


@dataclass(frozen=True)
class Row:
    """One fault that was tried: what is right, and what happened."""

    tried: str
    right: str
    happened: str

    @property
    def is_right(self) -> bool:
        """True if what is right happened."""
        return self.right == self.happened


class Complaints:
    """Tries all of them, with two engines that serve one model, then with one that serves another."""

    def __init__(self, servers: Sequence[Server], home: Path, log: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._servers = servers
        self._logs = home / "logs"
        self._log = log
        self._unique = 0

    def all(self) -> list[Row]:
        """Tries all; the engines are running afterwards as before."""
        with self._router() as front:
            for part in (self._caches, self._salts, self._skips, self._dialects, self._streams, self._names):
                part(front)
            self._commands(front)
            self._stopped(front)
            self._asked_kind(front)
        self._wrong_block_size()
        self._all_down()
        return self.rows

    # What is tried

    def _caches(self, front: Front) -> None:
        for kind, (path, body) in self._kinds().items():
            self._compare(front, f"a repeated prompt, {kind}", path, body)

    def _kinds(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """The same prompt in each form that clients have, anew each time."""
        text = self._text()
        chat = [{"role": "user", "content": text}]
        return {
            "chat": ("/v1/chat/completions", {"messages": chat, "max_tokens": 4}),
            "completion": ("/v1/completions", {"prompt": text, "max_tokens": 4}),
            "completion, a list of one text": ("/v1/completions", {"prompt": [text], "max_tokens": 4}),
            "responses": ("/v1/responses", {"input": text, "max_output_tokens": 4}),
            "messages": ("/v1/messages", {"messages": chat, "max_tokens": 4}),
        }

    def _salts(self, front: Front) -> None:
        body = {"prompt": self._text(), "max_tokens": 4}
        for salt in ("one", "another"):
            self._compare(front, f"cache_salt {salt!r}", "/v1/completions", {**body, "cache_salt": salt})

    def _skips(self, front: Front) -> None:
        text = self._text()
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        plain = {"prompt": text, "max_tokens": 1}
        asked: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
            "prompt_logprobs of a chat": ("/v1/chat/completions", chat, {"prompt_logprobs": 0}),
            "prompt_logprobs": ("/v1/completions", plain, {"prompt_logprobs": 2}),
            "echo with logprobs": ("/v1/completions", plain, {"echo": True, "logprobs": 0}),
            "echo alone": ("/v1/completions", plain, {"echo": True}),
            "logprobs alone": ("/v1/completions", plain, {"logprobs": 2}),
            "fields of another engine": ("/v1/completions", plain, {"return_logprob": True, "logprob_start_len": 0}),
        }
        for name, (path, body, more) in asked.items():
            self._ask(front, path, body)
            answer = self._ask(front, path, {**body, **more})
            cached, _ = usage_of(answer.json()["usage"])
            self._add(f"{name}: cached tokens expected", str(cached), answer.headers["x-kvatlas-cached-tokens"])

    def _dialects(self, front: Front) -> None:
        """Counts of tokens agree, from all sources."""
        before = front.metrics("kvatlas_router_engine_cached_tokens_total"), self._prompted(front)
        said = [0, 0]
        for path, body in self._kinds().values():
            for _ in range(2):
                cached, prompt = usage_of(self._ask(front, path, body).json()["usage"])
                said[0], said[1] = said[0] + cached, said[1] + prompt
        counted = (
            front.metrics("kvatlas_router_engine_cached_tokens_total") - before[0],
            self._prompted(front) - before[1],
        )
        self._add(
            "cached and prompt tokens of all kinds of answers, counted by the router",
            f"{said[0]} of {said[1]}",
            f"{counted[0]:.0f} of {counted[1]:.0f}",
        )

    def _prompted(self, front: Front) -> float:
        return front.metrics("kvatlas_router_engine_prompt_tokens_total")

    def _streams(self, front: Front) -> None:
        body = {"model": MODEL, "messages": CHAT, "max_tokens": 8, "stream": True}
        before, tokens = self._prompted(front), front.metrics("kvatlas_router_first_token_seconds_count")
        with front.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
        counted = self._prompted(front) > before
        shown = any(chunk.get("usage") for chunk in chunks)
        self._add(
            "a stream whose client does not ask for usage",
            "counted, not shown to the client",
            f"{'counted' if counted else 'not counted'}, {'shown' if shown else 'not shown'} to the client",
        )
        count = front.metrics("kvatlas_router_first_token_seconds_count") - tokens
        self._add("first tokens that were timed, of one stream", "1", f"{count:.0f}")

    def _names(self, front: Front) -> None:
        text = self._text()
        chat = [{"role": "user", "content": text}]
        bodies: dict[str, dict[str, Any]] = {
            "/v1/messages/count_tokens": {"messages": chat},
            "/v1/chat/completions/render": {"messages": chat},
            "/v1/completions/render": {"prompt": text},
            "/tokenize": {"prompt": text},
            "/detokenize": {"tokens": [70, 71]},
            "/v1/messages": {"messages": chat, "max_tokens": 2},
            "/v1/responses": {"input": text, "max_output_tokens": 2},
            "/inference/v1/generate": {"token_ids": [70, 71], "sampling_params": {"max_tokens": 1}},
        }
        own = {server.name: server.setup.name for server in self._servers}
        for path, body in bodies.items():
            got = []
            for model in (MODEL, OTHER):
                answer = front.http.post(path, json={"model": model, **body})
                got.append(own.get(answer.headers.get("x-kvatlas-worker", ""), "nobody"))
            # Whether the engine has the route is its affair.
            self._add(f"whose engine got it, on {path}", f"{MODEL}, {OTHER}", ", ".join(got))
        answer = front.http.post("/v1/messages/count_tokens", json={"model": "nobody's", "messages": chat})
        self._add("a name that nobody serves, on /v1/messages/count_tokens", "404", str(answer.status_code))
        packed = gzip.compress(json.dumps({"model": OTHER, "prompt": text, "max_tokens": 1}).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        answer = front.http.post("/v1/completions", content=packed, headers=headers)
        chosen = own.get(answer.headers.get("x-kvatlas-worker", ""), "nobody")
        self._add("the engine of a body in gzip", OTHER, chosen)

    def _commands(self, front: Front) -> None:
        done = _kvatlas("workers", "--url", front.url, "--json")
        workers = {each["worker"] for each in json.loads(done.stdout)} if done.returncode == 0 else {done.stderr}
        self._add("`kvatlas workers` at the router", _listed(self._servers), ", ".join(sorted(workers)))
        answer = self._ask(
            front, "/v1/completions", {"prompt": self._text(), "max_tokens": 1, "return_token_ids": True}
        )
        tokens = answer.json()["choices"][0].get("prompt_token_ids") or []
        worker = answer.headers["x-kvatlas-worker"]
        numbers = ",".join(map(str, tokens))
        done = _kvatlas("query", "--url", front.url, "--model", MODEL, "--tokens", numbers, "--json")
        held = (
            {each["worker"]: each["tokens"] for each in json.loads(done.stdout)["workers"]}
            if not done.returncode
            else {}
        )
        block = self._servers[0].engine.block_size
        self._add(
            "`kvatlas query` at the router, for the prompt sent last",
            str(len(tokens) // block * block),
            str(held.get(worker, done.stderr.strip())),
        )
        before = front.metrics("kvatlas_router_requests_total")
        for path in ("/metrics", "/workers", "/ui"):
            front.http.get(path)
        self._add("own pages among the requests", "0", f"{front.metrics('kvatlas_router_requests_total') - before:.0f}")

    def _stopped(self, front: Front) -> None:
        """An engine that is stopped in the middle of its work, not dead: SIGSTOP."""
        first = next(server for server in self._servers if server.setup.name == MODEL)
        first.signal(signal.SIGSTOP)
        statuses: list[int] = []
        try:
            threads = []
            for number in range(8):
                body = {"model": MODEL, "prompt": f"{number} {LONG}", "max_tokens": 2}

                def ask(body: dict[str, Any] = body) -> None:
                    statuses.append(front.http.post("/v1/completions", json=body).status_code)

                threads.append(threading.Thread(target=ask))
                threads[-1].start()
            self._wait(lambda: _condition(front, first) == "down", "it is down")
            for thread in threads:
                thread.join(PATIENCE)
        finally:
            first.signal(signal.SIGCONT)
        self._add(
            "SIGSTOP of an engine with requests in flight",
            "8 answered with 200",
            f"{statuses.count(200)} answered with 200",
        )
        self._wait(lambda: _condition(front, first) == "well", "it is back")
        self._add("the same engine after SIGCONT", "well", _condition(front, first))

    def _asked_kind(self, front: Front) -> None:
        """An engine that is added over HTTP is asked like one of the configuration."""
        server = self._servers[0]
        added = front.http.post("/engines", json={"name": "added", "url": server.url, "role": "decode"})
        alone = front.http.post("/engines", json={"name": "first", "url": server.url, "role": "prefill"})
        split = self._ask(front, "/v1/completions", {"prompt": self._text(), "max_tokens": 2})
        self._add(
            "engines added by POST /engines, for prefill and decode",
            "201, 201, 200",
            f"{added.status_code}, {alone.status_code}, {split.status_code}",
        )
        for name in ("added", "first"):
            front.http.delete(f"/engines/{name}")

    def _wrong_block_size(self) -> None:
        block = self._servers[0].engine.block_size
        wrong = str(block + 1)
        with self._router("--block-size", wrong) as front:
            for _ in range(3):
                self._ask(front, "/v1/completions", {"prompt": self._text(), "max_tokens": 1})
            servers = [server for server in self._servers if server.setup.name == MODEL]
            self._wait(
                lambda: "misconfigured" in {_condition(front, each) for each in servers}, "it is noticed", fails=False
            )
            found = {_condition(front, server) for server in servers} - {"well"}
            self._add(
                f"--block-size {wrong} for blocks of {block}", "misconfigured", ", ".join(sorted(found)) or "well"
            )
        flags = [part for server in self._servers for part in ("--engine", f"{server.name}={server.url}")]
        done = _kvatlas("router", "--check", "--block-size", wrong, *flags)
        words = f"another size than the {wrong} tokens set here"
        said = words if words in done.stdout else done.stdout[-300:] + done.stderr
        self._add(f"--check with --block-size {wrong}", f"status 4: {words}", f"status {done.returncode}: {said}")

    def _all_down(self) -> None:
        with self._router("--health-interval", "500ms") as front:
            for server in self._servers:
                server.signal(signal.SIGSTOP)
            try:
                self._wait(lambda: all(_condition(front, each) == "down" for each in self._servers), "all are down")
                shown = _kvatlas("top", "--url", front.url, "--once").stdout
            finally:
                for server in self._servers:
                    server.signal(signal.SIGCONT)
            said = "EVERY ENGINE IS DOWN" if "EVERY ENGINE IS DOWN" in shown else shown[:80]
            self._add("`kvatlas top` when every engine is down", "EVERY ENGINE IS DOWN", said)
            self._wait(lambda: all(_condition(front, each) == "well" for each in self._servers), "all are back")

    # How

    def _compare(self, front: Front, tried: str, path: str, body: dict[str, Any]) -> None:
        """Sends a prompt until it is cached where it goes, and compares what the router and the engine say of it."""
        self._ask(front, path, body)
        for _ in range(TRIES):
            answer = self._ask(front, path, body)
            if usage_of(answer.json()["usage"])[0] > 0:
                break
        expected = int(answer.headers["x-kvatlas-cached-tokens"])
        cached, prompt = usage_of(answer.json()["usage"])
        counted = front.http.get("/decisions", params={"limit": 1}).json()[0]["tokens"]
        self._add(
            f"{tried}: cached tokens expected, of a prompt of",
            f"{cached} of {prompt}",
            f"{expected} of {counted}",
        )

    def _ask(self, front: Front, path: str, body: dict[str, Any]) -> httpx.Response:
        answer = front.http.post(path, json={"model": MODEL, "temperature": 0.0, **body})
        if not answer.is_success:
            raise RuntimeError(f"{path} was answered with {answer.status_code}: {answer.text[:200]}")
        time.sleep(SETTLE)
        return answer

    def _text(self) -> str:
        """A prompt that no engine has seen."""
        self._unique += 1
        return f"Story number {self._unique}. {LONG}"

    def _router(self, *flags: str) -> Front:
        return Front(self._servers, self._logs, flags=flags)

    def _wait(self, true: Callable[[], bool], what: str, *, fails: bool = True) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                if fails:
                    raise RuntimeError(f"not within {PATIENCE:.0f} s: {what}")
                return
            time.sleep(0.2)

    def _add(self, tried: str, right: str, happened: str) -> None:
        row = Row(tried, right, happened)
        self.rows.append(row)
        self._log(
            f"  {'right' if row.is_right else 'WRONG'}: {tried}: {happened}{'' if row.is_right else f', not {right}'}"
        )


def _condition(front: Front, server: Server) -> str:
    """The name of an engine's condition; "well" without one."""
    rows = front.http.get("/workers").json()
    condition = next(row["condition"] for row in rows if row["name"] == server.name)
    return "well" if condition is None else str(condition["name"])


def _listed(servers: Sequence[Server]) -> str:
    return ", ".join(sorted(server.name for server in servers))


def _kvatlas(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "kvatlas.cli", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVATLAS_")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment | {"COLUMNS": "300"}
    )
