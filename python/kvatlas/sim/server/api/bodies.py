"""Readers of request bodies, and error answers in OpenAI's format."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web

from kvatlas.errors import KvatlasError, RequestRefusedError
from kvatlas.sim.server.tokens import MAX_TOKEN

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error_response(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
    """Error answer in the format that OpenAI's clients expect."""
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}, status=status
    )


async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer `request` by `handler`, with exceptions turned into error answers."""
    try:
        return await handler(request)
    except RequestRefusedError as error:
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        return error_response(error.status, str(error), kind, error.param)
    except KvatlasError as error:
        status = {"down": 503, "handover_failed": 500}.get(error.code, 400)
        kind = {503: "service_unavailable", 500: "InternalServerError"}.get(status, "BadRequestError")
        return error_response(status, str(error), kind)
    except ConnectionResetError:
        return web.Response()  # the client is gone; the answer is not read
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(error.status, f"{request.method} {request.path}: {error.reason}", type(error).__name__)


async def read_object(request: web.Request) -> dict[str, object]:
    """Read the body of a request, which must be a JSON object; an empty object if there is no body."""
    data = await request.read()
    if not data.strip():
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestRefusedError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestRefusedError("the body must be a JSON object")
    return body


def only(body: dict[str, object], known: Collection[str]) -> None:
    """Refuse a body with fields that are not in `known`."""
    for name in body:
        if name not in known:
            raise RequestRefusedError(f"unknown field {name!r}: it must be one of {', '.join(known)}", param=name)


def text(body: dict[str, object], name: str) -> str | None:
    """String in the field `name` of a body; None if the field is absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestRefusedError(f"{name} must be a string", param=name)
    if value is not None and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestRefusedError(
                f"{name} contains a lone surrogate, which is not valid text", param=name
            ) from None
    return value


def number(body: dict[str, object], name: str, low: int, high: int) -> int | None:
    """Whole number from `low` to `high` in the field `name` of a body; None if the field is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestRefusedError(f"{name} must be a whole number from {low} to {high}", param=name)
    return value


def seconds(body: dict[str, object], name: str) -> float | None:
    """Time in seconds, from 0 to 3,600, in the field `name` of a body; None if the field is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        raise RequestRefusedError(f"{name} must be a number of seconds from 0 to 3600", param=name)
    return float(value)


def flag(body: dict[str, object], name: str) -> bool:
    """Boolean in the field `name` of a body; False if the field is absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestRefusedError(f"{name} must be true or false", param=name)
    return bool(value)


def token_ids(value: object, name: str) -> list[int]:
    """Check that a value is a list of token ids, and return the list. `name`: the field, for errors."""
    if not isinstance(value, list):
        raise RequestRefusedError(f"{name} must be a list of token ids", param=name)
    for token in value:
        if type(token) is not int or not 0 <= token <= MAX_TOKEN:
            raise RequestRefusedError(f"{name} must hold token ids, whole numbers from 0 to {MAX_TOKEN}", param=name)
    return value
