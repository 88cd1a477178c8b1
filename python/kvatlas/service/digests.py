"""Sender of a site's digests (sparse summaries of its index) to the service above many sites.

Every few seconds the native part makes a digest of the changes in each keyspace, and a thread sends it. If the other
service has missed a digest, or has restarted, it requests a whole digest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

import httpx

from kvatlas._http import failure, options
from kvatlas.errors import ServiceError
from kvatlas.service.config.sharing import SitesConfig

logger = logging.getLogger("kvatlas.service")

Name = tuple[str, str]  # model and routing group


class Source(Protocol):
    """Interface of a source of digests: the native service."""

    def site_digests(self, site: str, whole: Iterable[Name] = ..., /) -> list[tuple[str, str, int, bytes]]: ...


class DigestPusher:
    """Thread that sends the digests of a service until it is stopped."""

    def __init__(self, config: SitesConfig, of: Source) -> None:
        self._config = config
        self._of = of
        self._stop = threading.Event()
        self._whole: set[Name] = set()
        self._was: str | None = None
        self._thread = threading.Thread(target=self._run, name="kvatlas-digests", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        config = self._config
        limits = options(config.url or "", config.bearer(), max(config.every, 1.0), None)
        with httpx.Client(**limits) as client:
            while not self._stop.wait(config.every):
                try:
                    problem = self._push(client)
                except Exception:
                    logger.exception("digests cannot be made; they are tried again")
                    continue
                if problem != self._was:
                    if problem is None:
                        logger.info("%s takes in the digests of this site again", config.url)
                    else:
                        logger.warning("%s does not take in the digests of this site: %s", config.url, problem)
                    self._was = problem

    def _push(self, client: httpx.Client) -> str | None:
        """Send digests of the latest changes. Returns the error message; None if there was no error."""
        site = self._config.site or ""
        problem = None
        try:
            digests = self._of.site_digests(site, sorted(self._whole))
        except ServiceError as error:
            return str(error)
        for model, routing_group, block_size, digest in digests:
            name = (model, routing_group)
            about: dict[str, str | int] = {
                "model_name": model,
                "routing_group": routing_group,
                "block_size": block_size,
            }
            try:
                answer = client.post(
                    "/digest", params=about, content=digest, headers={"Content-Type": "application/octet-stream"}
                )
            except httpx.HTTPError as error:
                # The digest may have arrived or not; if not, the answer to the next one asks for a whole digest.
                problem = failure(error)[1]
                continue
            self._whole.discard(name)
            if answer.status_code == httpx.codes.OK:
                continue
            code, words = _said(answer)
            if code == "whole_wanted":
                self._whole.add(name)
                continue
            problem = words
        return problem

    def stop(self) -> None:
        """Stop sending."""
        self._stop.set()
        self._thread.join()


def _said(answer: httpx.Response) -> tuple[str, str]:
    try:
        said = answer.json()
        return str(said["code"]), f"status {answer.status_code}, {said['error']}"
    except (ValueError, KeyError, TypeError):
        return "", f"status {answer.status_code}"
