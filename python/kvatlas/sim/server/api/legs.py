"""Legs of a request: one engine computes the prompt (prefill), another one generates the answer (decode).

The requests have the engines' formats. vLLM: the request to the prefill engine has `kv_transfer_params` with
`do_remote_decode`; its answer has the `kv_transfer_params` for the request to the decode engine (`do_remote_prefill`,
and where the blocks are). SGLang: both engines get `bootstrap_host`, `bootstrap_port` and `bootstrap_room` at once;
which half is meant follows from the engine's mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from kvatlas.errors import RequestRefusedError, SimulatedEngineError
from kvatlas.sim.server.addresses import reachable
from kvatlas.sim.server.api.bodies import number, text
from kvatlas.sim.server.core import ServedRequest
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.handover import KEPT

_FAILED = "handover_failed"
_ROOMS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Leg:
    """Leg of a request: the part of the work, prefill or decode, that this engine does.

    Attributes:
        gives: True if this engine computes the prompt for another engine.
        name: Name under which the prompt is fetched; None if this engine chooses it.
        host: Host from which to fetch the prompt, if another engine computes it.
        port: Port of `host`.
    """

    gives: bool
    name: str | None
    host: str = ""
    port: int = 0


class Legs:
    """Parser of the legs (prefill or decode) in an engine's requests, with transfers between engines."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine

    def read(self, body: dict[str, object]) -> Leg | None:
        """Parse the leg (prefill or decode) that a request asks for; None if this engine does the whole request.

        Raises:
            RequestRefusedError: The parameters are invalid, or not for this engine's role.
        """
        leg = self._vllm(body) if self._engine.config.dialect == "vllm" else self._sglang(body)
        role = self._engine.config.role
        if leg is None and role == "decode" and self._engine.config.dialect == "sglang":
            raise RequestRefusedError("bootstrap_room is missing: this engine only decodes", param="bootstrap_room")
        if leg is not None and role != "both" and leg.gives != (role == "prefill"):
            raise RequestRefusedError(f"this engine only does {role}", param="kv_transfer_params")
        return leg

    def _vllm(self, body: dict[str, object]) -> Leg | None:
        params = body.get("kv_transfer_params")
        if params is None:
            return None
        if not isinstance(params, dict):
            raise RequestRefusedError("kv_transfer_params must be an object", param="kv_transfer_params")
        if params.get("do_remote_decode"):
            return Leg(gives=True, name=None)
        if not params.get("do_remote_prefill"):
            return None
        for name in ("remote_engine_id", "remote_host", "remote_port", "remote_request_id"):
            if params.get(name) is None:
                raise RequestRefusedError(f"kv_transfer_params.{name} is missing", param="kv_transfer_params")
        return Leg(
            gives=False,
            name=text(params, "remote_request_id"),
            host=text(params, "remote_host") or "",
            port=number(params, "remote_port", 1, 65_535) or 0,
        )

    def _sglang(self, body: dict[str, object]) -> Leg | None:
        room = number(body, "bootstrap_room", 0, _ROOMS)
        if room is None:
            return None
        host, port = text(body, "bootstrap_host"), number(body, "bootstrap_port", 1, 65_535)
        if not host:
            raise RequestRefusedError("bootstrap_host is missing", param="bootstrap_host")
        return Leg(self._engine.config.role == "prefill", str(room), host, port or 8998)

    @contextmanager
    def giving(self, leg: Leg, live: ServedRequest) -> Iterator[Callable[[], dict[str, object]]]:
        """Context manager in which a prompt is computed for another engine.

        The yielded function returns the parameters of the answer.
        """
        engine = self._engine
        name = engine.handover.begin(live.prompt_tokens, leg.name)
        done = False

        def given() -> dict[str, object]:
            nonlocal done
            done = True
            engine.handover.keep(name)
            if engine.config.dialect == "sglang":
                return {}
            blocks = -(-live.prompt_tokens // engine.config.engine.block_size)
            return {
                "kv_transfer_params": {
                    "do_remote_prefill": True,
                    "do_remote_decode": False,
                    "remote_block_ids": list(range(blocks)),
                    "remote_engine_id": engine.config.name,
                    "remote_request_id": name,
                    "remote_host": reachable(engine.config.host).strip("[]"),
                    "remote_port": engine.http_port,
                    "tp_size": 1,
                }
            }

        try:
            yield given
        finally:
            if not done:
                engine.handover.drop(name)

    async def fetch(self, leg: Leg, tokens: int) -> None:
        """Wait until the engine that computes a prompt has it ready to be fetched.

        Raises:
            SimulatedEngineError: The engine does not have the prompt, or the number of its tokens differs
                ("handover_failed").
        """
        host = f"[{leg.host}]" if ":" in leg.host else leg.host
        url = f"http://{host}:{leg.port}/sim/handover/{leg.name}"
        patience = KEPT if self._engine.config.dialect == "sglang" else 1.0
        try:
            timeout = aiohttp.ClientTimeout(total=patience + 5)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(url, params={"patience": str(patience)}) as answer,
            ):
                said = await answer.json() if answer.status == web.HTTPOk.status_code else {}
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SimulatedEngineError(f"the prompt cannot be fetched from {leg.host}:{leg.port}", _FAILED) from error
        if said.get("tokens") != tokens:
            found = f"it has {said['tokens']} tokens there" if "tokens" in said else "it is not there"
            raise SimulatedEngineError(
                f"a prompt of {tokens} tokens was to be fetched from {leg.host}:{leg.port}: {found}", _FAILED
            )


def routes(engine: ServedEngine) -> list[web.RouteDef]:
    """Routes at which other engines fetch the prompts that this engine has computed."""

    async def fetch(request: web.Request) -> web.Response:
        patience = min(float(request.query.get("patience", "1")), KEPT)
        tokens = await engine.handover.fetch(request.match_info["name"], patience)
        if tokens is None:
            raise web.HTTPNotFound
        return web.json_response({"tokens": tokens})

    return [web.post("/sim/handover/{name}", fetch)]
