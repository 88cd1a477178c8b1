"""A server of the page whose state the test makes up: what a router with any number of engines would send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

CRATE = Path(__file__).resolve().parents[3] / "crates/ui"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
TERMS = ["wait (s)", "prefill (s)", "pushed out (s)", "cost (s)"]


def policy() -> str:
    """The content security policy, as the crate has it."""
    source = (CRATE / "src/assets.rs").read_text()
    found = re.search(r'CONTENT_SECURITY_POLICY: &str = "(.*?)";', source, re.DOTALL)
    assert found
    return re.sub(r"\\\n\s*", "", found[1])


def event(name: str, data: Any) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Feeder:
    """Serves the page and sends what its state is, ten times a second."""

    def __init__(self, engines: int = 0, key: str | None = None, kind: str = "router", past: int = 0) -> None:
        self.key = key
        self.random = random.Random(7)
        self.number = 0
        self.state: dict[str, Any] = {
            "kind": kind,
            "version": "0.1.0",
            "ready": True,
            "engines": {},
            "indexes": {},
            "queries": 0,
            "queries_matched": 0,
        }
        if kind == "router":
            self.state |= {"policy": "kvatlas", "requests": 0, "in_flight": 0, "errors": 0, "retries": 0}
        for at in range(engines):
            self.add(f"10.0.{at // 10}.{10 + at % 10}:8000")
        self.lists: dict[str, list[Any]] = {"history": [], "engines": [], "decisions": []}
        for ago in range(past, 0, -1):
            self.point(time.time() - ago)
        self.wholes = 0
        self.every = 0.1
        self.port = 0
        self.runner: web.AppRunner | None = None
        self.is_silent = False

    def add(self, name: str) -> None:
        """An engine more."""
        state = {"worker": name, "rank": 0, "model": "Qwen/Qwen3-32B", "block_size": 16, "routing_group": "default"}
        streams = {"state": "live", "trusted": True, "settled": True, "seq": 0, "lag_ms": 0.4, "lag_max_ms": 3.1}
        cache = {"blocks": 20_000, "offloaded": 0, "unlinked": 0, "capacity": 24_576, "counts": {"events": 0}}
        work = {"up": "up", "in_flight": 4, "waiting": 1, "queued_tokens": 900, "requests": 0, "ttft_ms": 210.0}
        rates = {"hit_predicted": 0.71, "hit_real": 0.7, "prefill_rate": 8200.0, "step_ms": 14.0}
        host = name.partition(":")[0]
        row = state | streams | cache | {"endpoint": f"tcp://{host}:5557", "url": f"http://{name}"}
        self.state["engines"][f"{name}/0"] = row | work | rates if self.state["kind"] == "router" else row

    def step(self) -> None:
        """Lets a tenth of a second pass."""
        draw = self.random
        for row in self.state["engines"].values():
            row["counts"]["events"] += draw.randrange(30)
            row["lag_ms"] = round(draw.uniform(0.2, 2.0), 1)
            row["seq"] += 1
            row["blocks"] = max(0, min(24_576, row["blocks"] + draw.randrange(-40, 41)))
            if "in_flight" in row:
                row["in_flight"] = max(0, row["in_flight"] + draw.choice((-1, 0, 1)))
                row["queued_tokens"] = max(0, row["queued_tokens"] + draw.randrange(-400, 401))
        if self.state["kind"] == "router":
            self.state["requests"] += draw.randrange(9)
            self.state["in_flight"] = sum(row["in_flight"] for row in self.state["engines"].values())

    def point(self, at: float) -> tuple[Any, Any]:
        """A second is over: what is added to the lists."""
        draw, slow = self.random, math.sin(at / 60)
        point: dict[str, Any] = {"t": int(at * 1000), "events": 900 + 150 * slow + draw.random() * 80}
        point |= {"lag": 1 + draw.random() * 2, "blocks": 1, "requests": 42 + 8 * slow + draw.random() * 4}
        real = 0.62 + 0.1 * slow + draw.random() * 0.02
        point |= {"hit_real": real, "hit_predicted": real + 0.015, "ttft": 180 + 30 * slow, "ttft_p99": 640 + 90 * slow}
        point |= {"in_flight": 180 + 20 * slow, "waiting_here": max(0, 9 * slow), "decision": 0.31}
        point |= {"queries": 42 + 8 * slow, "matched": real}
        engines = {name: [round(draw.random() * 30, 1), row["blocks"]] for name, row in self.state["engines"].items()}
        self.lists["history"] = [*self.lists["history"], point][-600:]
        self.lists["engines"] = [*self.lists["engines"], engines][-60:]
        return point, engines

    def decide(self) -> dict[str, Any]:
        """A decision more."""
        self.number += 1
        rows = list(self.state["engines"].values())
        row, tokens = self.random.choice(rows), self.random.randrange(300, 14_000)
        predicted = self.random.randrange(tokens // 16) * 16
        decision = {"number": self.number, "t": int(time.time() * 1000), "worker": row["worker"], "rank": 0}
        decision |= {"tokens": tokens, "predicted": predicted, "why": "policy", "state": "finished", "decide_us": 310}
        decision |= {"cached": max(0, predicted - 16 * self.random.choice((0, 0, 0, 4))), "ttft_ms": 120.0}
        decision |= {"model": row["model"], "output": 128}
        self.lists["decisions"] = [*self.lists["decisions"], decision][-100:]
        return decision

    def explained(self, decision: dict[str, Any]) -> dict[str, Any]:
        """A decision with every candidate."""
        draw = random.Random(decision["number"])
        candidates = []
        for row in self.state["engines"].values():
            cached = decision["predicted"] if row["worker"] == decision["worker"] else draw.choice((0, 0, 256))
            ttft = (decision["tokens"] - cached) / 8200 + draw.random() * 0.1
            terms = [ttft, draw.random() * 0.2, draw.random() * 0.05]
            if row["worker"] == decision["worker"]:
                terms = [term / 20 for term in terms]
            known = {"worker": row["worker"], "rank": 0, "cached": cached}
            candidates.append(known | {"terms": [*terms, sum(terms)]})
        return decision | {"policy": "kvatlas", "terms": TERMS, "candidates": candidates}

    # What is served.

    def _refuses(self, request: web.Request) -> web.Response | None:
        if self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        return web.json_response({"error": "send the key", "code": "unauthorized"}, status=401)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "page.html")
        file = CRATE / "assets" / name
        if not file.is_file():
            raise web.HTTPNotFound
        headers = {"Content-Security-Policy": policy(), "Cache-Control": "no-cache"}
        return web.Response(body=file.read_bytes(), content_type=TYPES[name.rsplit(".")[-1]], headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refuses(request):
            return refusal
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.wholes += 1
        await response.write(event("whole", {"state": self.state, "lists": self.lists}))
        beat = 0
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(self.every)
                if self.is_silent:
                    continue
                beat += 1
                self.step()
                await response.write(event("state", self.state))
                if beat % 10 == 0:
                    for name, item in zip(("history", "engines"), self.point(time.time()), strict=True):
                        await response.write(event("more", {"list": name, "items": [item]}))
                if self.state["kind"] == "router" and self.state["engines"] and beat % 3 == 0:
                    await response.write(event("more", {"list": "decisions", "items": [self.decide()]}))
        return response

    async def _decision(self, request: web.Request) -> web.Response:
        number = int(request.query["number"])
        found = [decision for decision in self.lists["decisions"] if decision["number"] == number]
        return web.json_response(self.explained(found[0]))

    async def _explain(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if not asked["prompt"]:
            return web.json_response({"error": {"message": "the prompt is empty"}}, status=400)
        decision = self.explained(self.decide())
        for candidate in decision["candidates"]:
            candidate["cached_tokens"] = candidate.pop("cached")
            candidate["terms"] = dict(zip(TERMS, candidate["terms"], strict=True))
        known = {"policy": "kvatlas", "model": asked["model"], "tokens": decision["tokens"], "block_size": 16}
        return web.json_response(known | {"terms": TERMS, "candidates": decision["candidates"]})

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """Serves at the address that it gives."""
        app = web.Application()
        app.router.add_get("/ui", self._file)
        app.router.add_get("/ui/events", self._events)
        app.router.add_get("/ui/{name}", self._file)
        app.router.add_get("/ui/decision", self._decision)
        app.router.add_post("/explain", self._explain)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", port)
        await site.start()
        host, self.port, *_ = self.runner.addresses[0]
        try:
            yield f"http://{host}:{self.port}/ui"
        finally:
            await self.runner.cleanup()
