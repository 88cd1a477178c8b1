"""HTTP routes of a simulated engine: OpenAI's, discovery, and `/sim/` to control the simulation."""

from __future__ import annotations

from aiohttp import web

from kvatlas.sim.server.api import control, discovery, legs, openai
from kvatlas.sim.server.api.bodies import Handler, error_response, guard
from kvatlas.sim.server.api.mishaps import Mishaps, concerns
from kvatlas.sim.server.engine import ServedEngine

_LARGEST = 64 << 20  # bytes of a body; a prompt of a million tokens is 8 MB of JSON

__all__ = ["make_app"]


def make_app(engine: ServedEngine) -> web.Application:
    """Create the web application with all HTTP routes of `engine`."""
    mishaps = Mishaps(engine)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/sim/"):
            await engine.going.wait()  # a paused engine answers when it goes on
            if engine.down:
                return error_response(503, "the engine is starting", "service_unavailable")
        if concerns(request):
            return await mishaps.answer(request, lambda asked: guard(asked, handler))
        return await guard(request, handler)

    app = web.Application(client_max_size=_LARGEST, middlewares=[middleware])
    app.add_routes([*openai.routes(engine), *discovery.routes(engine), *control.routes(engine), *legs.routes(engine)])
    return app
