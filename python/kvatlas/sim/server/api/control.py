"""Routes below `/sim/`: the true state of an engine, and its faults. Answered even while the engine hangs."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from kvatlas.errors import RequestRefusedError
from kvatlas.sim.server.api.bodies import flag, number, only, read_object, seconds, text, token_ids
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.truth import Truth

_QUERY = ("token_ids", "lora_name", "cache_salt", "rank")


def routes(engine: ServedEngine) -> list[web.RouteDef]:
    """Routes below `/sim/` that query and control the simulation of `engine`."""
    control = _Control(engine)
    return [
        web.get("/sim/state", control.state),
        web.post("/sim/match", control.match),
        web.get("/sim/faults", control.faults),
        web.post("/sim/faults", control.set_faults),
        web.post("/sim/restart", control.restart),
        web.post("/sim/pause", control.pause),
        web.post("/sim/resume", control.resume),
        web.post("/sim/reset", control.reset),
        web.post("/sim/model", control.model),
    ]


class _Control:
    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine

    async def state(self, _request: web.Request) -> web.Response:
        engine = self.engine
        ranks = [asdict(state) for state in engine.state()]
        return web.json_response(
            {
                "name": engine.config.name,
                "epoch": engine.epoch,
                "down": engine.down,
                "paused": engine.clock.stopped,
                "quiet": all(state["quiet"] for state in ranks),
                "ranks": ranks,
            }
        )

    async def match(self, request: web.Request) -> web.Response:
        """Return the number of blocks of a prompt that a rank holds.

        With several `queries`, all are answered at one moment.
        """
        body = await read_object(request)
        if "queries" not in body:
            return web.json_response(asdict(self._match(body)))
        only(body, ("queries",))
        queries = body["queries"]
        if not isinstance(queries, list) or not all(isinstance(query, dict) for query in queries):
            raise RequestRefusedError("queries must be a list of objects", param="queries")
        return web.json_response({"answers": [asdict(self._match(query)) for query in queries]})

    def _match(self, body: dict[str, object]) -> Truth:
        only(body, _QUERY)
        if "token_ids" not in body:
            raise RequestRefusedError("token_ids is missing", param="token_ids")
        prompt = token_ids(body["token_ids"], "token_ids")
        rank = number(body, "rank", 0, len(self.engine.ranks) - 1) or 0
        return self.engine.match(prompt, lora=text(body, "lora_name"), salt=text(body, "cache_salt"), rank=rank)

    async def faults(self, _request: web.Request) -> web.Response:
        return web.json_response(asdict(self.engine.faults))

    async def set_faults(self, request: web.Request) -> web.Response:
        """Change the faults named in the request's body; other faults stay as they are."""
        self.engine.set_faults(self.engine.faults.changed(await read_object(request)))
        return web.json_response(asdict(self.engine.faults))

    async def restart(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        only(body, ("down",))
        await self.engine.begin_restart(seconds(body, "down") or 0.0)
        return web.json_response({"epoch": self.engine.epoch})

    async def pause(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        only(body, ("seconds",))
        self.engine.pause(seconds(body, "seconds"))
        return web.json_response({"paused": self.engine.clock.stopped})

    async def resume(self, _request: web.Request) -> web.Response:
        self.engine.resume()
        return web.json_response({"paused": self.engine.clock.stopped})

    async def reset(self, request: web.Request) -> web.Response:
        """Clear the cache of the engine, at a client's request.

        Field `with_next` of the body: announce the reset only together with the next events. `with_host`: clear host
        memory too, which is not announced.
        """
        body = await read_object(request)
        only(body, ("with_next", "with_host"))
        done = self.engine.reset(with_next=flag(body, "with_next"), with_host=flag(body, "with_host"))
        return web.json_response({"reset": done}, status=200 if done else 409)

    async def model(self, request: web.Request) -> web.Response:
        """Change the name of the served model, and restart with an empty cache."""
        body = await read_object(request)
        only(body, ("model",))
        name = text(body, "model")
        if not name or name in self.engine.config.loras:
            raise RequestRefusedError("model must be a name, and not an adapter's", param="model")
        self.engine.model = name
        await self.engine.begin_restart(0.0)
        return web.json_response({"model": name, "epoch": self.engine.epoch})
