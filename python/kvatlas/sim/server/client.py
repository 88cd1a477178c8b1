"""A connection to ask one engine: plain, blocking, one question at a time."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.errors import SimulatedEngineError

_TIMEOUT = 60.0


class ControlClient:
    """Asks an engine over HTTP. May be used from several threads."""

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=_TIMEOUT)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        ok: Sequence[int] = (200,),
    ) -> dict[str, Any]:
        """One question.

        Raises:
            SimulatedEngineError: The answer's status is none of `ok`.
            OSError: Nobody answers.
        """
        data = None if body is None else json.dumps(body).encode()
        sent = {**(headers or {}), **({} if data is None else {"Content-Type": "application/json"})}
        with self._lock:
            status, answer = self._exchange(method, path, data, sent)
        if status not in ok:
            raise SimulatedEngineError(_reason(answer) or f"{method} {path} returned status {status}", f"http_{status}")
        found = json.loads(answer)
        if not isinstance(found, dict):
            raise SimulatedEngineError(f"{method} {path} did not return a JSON object", "bad_answer")
        return found

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            self._connection.close()

    def _exchange(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        reused = self._connection.sock is not None
        try:
            return self._once(method, path, data, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            if not reused:
                raise
            # The engine had closed an idle connection.
            return self._once(method, path, data, headers)

    def _once(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, data, dict(headers))
            with self._connection.getresponse() as response:
                return response.status, response.read()
        except (http.client.HTTPException, OSError):
            self._connection.close()
            raise


def _reason(answer: bytes) -> str | None:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
