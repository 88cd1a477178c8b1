"""Blocking client of one simulated engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from kvatlas import _http
from kvatlas.errors import SimulatedEngineError

_TIMEOUT = 60.0


class ControlClient:
    """Blocking HTTP client of one simulated engine, for use from several threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.Client(**_http.options(url, None, _TIMEOUT))

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        ok: Sequence[int] = (200,),
    ) -> dict[str, Any]:
        """Send one HTTP request, and return the JSON object of the answer.

        Raises:
            SimulatedEngineError: The engine does not answer ("unreachable", "timeout"), or the status of the answer is
                not in `ok`.
        """
        try:
            answer = self._http.request(method, path, json=body, headers=headers)
        except httpx.TransportError as error:
            code, words = _http.failure(error)
            raise SimulatedEngineError(f"the engine at {self._url} {words}", code) from error
        if (status := answer.status_code) not in ok:
            raise SimulatedEngineError(
                _reason(answer.content) or f"{method} {path} returned status {status}", f"http_{status}"
            )
        found = answer.json()
        if not isinstance(found, dict):
            raise SimulatedEngineError(f"{method} {path} did not return a JSON object", "bad_answer")
        return found

    def close(self) -> None:
        """Close the connections to the engine. The client cannot be used afterwards."""
        self._http.close()


def _reason(answer: bytes) -> str | None:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
