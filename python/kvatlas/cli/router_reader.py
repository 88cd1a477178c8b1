"""Client of a running router's own routes, for commands that show its state."""

from __future__ import annotations

import ssl
import time
from typing import Any, Self

import httpx

from kvatlas._http import authorization, checked_url, failure
from kvatlas.cli.top_view import Look
from kvatlas.errors import ClientError, InvalidArgumentError, UnreachableError

ROUTER_URL = "http://127.0.0.1:8080"
"""Address of a router that was started without options."""

_TIMEOUT = 5.0  # seconds


class RouterReader:
    """Client that reads a running router's state; a context manager.

    Each method raises `UnreachableError` if the router does not respond, and `ClientError` if it refuses or is not a
    router.
    """

    def __init__(self, url: str, key: str | None, context: ssl.SSLContext | None, *, timeout: float = _TIMEOUT) -> None:
        try:
            self._url = checked_url(url)
        except ValueError as error:
            raise InvalidArgumentError(f"--url must be http://HOST:PORT, but {error}", "invalid_url") from None
        self._http = httpx.Client(
            base_url=self._url, timeout=timeout, headers=authorization(key), trust_env=False, verify=context or True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_about: object) -> None:
        self._http.close()

    def look(self, decisions: int) -> Look:
        """Fetch the router's state at this moment, with its last `decisions` decisions."""
        router = self._get("/router")
        if not isinstance(router, dict) or "policy" not in router:
            raise ClientError(f"{self._url} is not a kvatlas router: for a service, use `kvatlas workers --watch`")
        last = self.decisions(decisions) if decisions else []
        return Look(self._url, time.monotonic(), router, self._get("/workers"), last)

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The latest decisions, newest first.

        For the next ten seconds the router then keeps the values that its policy compares for new decisions.
        """
        found: list[dict[str, Any]] = self._get(f"/decisions?limit={limit}")
        return found

    def streams(self) -> list[dict[str, Any]]:
        """The event streams of the engines whose events the router receives, a row for each engine."""
        found: list[dict[str, Any]] = self._get("/streams")
        return found

    def reuse(self) -> dict[str, Any]:
        """The share of the last hour's prompts that a single cache could have held, by the cache's size."""
        found: dict[str, Any] = self._get("/reuse")
        return found

    def orders(self) -> list[dict[str, Any]]:
        """The changes of the fleet that were made over HTTP, an object for each engine."""
        found: list[dict[str, Any]] = self._get("/peers/engines")["orders"]
        return found

    def change(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Request a change of the fleet, and return the answer."""
        answer = self._send(method, path, body)
        try:
            said = answer.json()
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise ClientError(f"{self._url} is not a kvatlas router: {method} {path} did not return a JSON object")
        if not answer.is_success:
            about = said.get("error")
            about = about if isinstance(about, dict) else {}
            words = about.get("message") or f"status {answer.status_code}"
            raise ClientError(
                f"the router at {self._url}: {words}", str(about.get("code") or "refused"), status=answer.status_code
            )
        return said

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except (httpx.HTTPError, OSError) as error:
            code, words = failure(error)
            raise UnreachableError(f"the router at {self._url} {words}", code) from error

    def _get(self, path: str) -> Any:
        answer = self._send("GET", path)
        if answer.status_code != httpx.codes.OK:
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise ClientError(f"{self._url} is not a kvatlas router: it has no {path.partition('?')[0]}")
            raise ClientError(f"GET {path} returned status {answer.status_code}", status=answer.status_code)
        try:
            return answer.json()
        except ValueError:
            raise ClientError(f"{self._url} is not a kvatlas router: GET {path} did not return JSON") from None
