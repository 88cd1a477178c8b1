"""A snapshot of another service, to begin with.

It comes in parts, each by a request of its own, so that a lost connection costs one part. All parts are of one
snapshot: if the other service does not have it any more, the client begins anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import httpx

from kvatlas._http import failure, options
from kvatlas.errors import ServiceError
from kvatlas.service import native
from kvatlas.service.config.schema import SnapshotConfig

logger = logging.getLogger("kvatlas.service")

_PART = 8 << 20  # bytes of a request
_PAUSE = 0.2  # seconds before a request that failed is made again
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)
_PATIENT = (408, 429, 502, 503, 504)  # answers after which the same request may succeed


class Fetching:
    """Fetches the snapshot in a thread, and hands it to the native service, whose streams wait for it."""

    def __init__(self, config: SnapshotConfig, to: native.Native) -> None:
        self._config = config
        self._native = to
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvatlas-peer-snapshot", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        peer = self._config.peer or ""
        try:
            with tempfile.TemporaryDirectory(prefix="kvatlas-", dir=self._config.dir) as directory:
                file = Path(directory) / "peer.snapshot"
                with file.open("wb") as out:
                    fetch(peer, self._config.peer_bearer(), self._config.peer_timeout, out, self._stop)
                with contextlib.suppress(ServiceError):  # the native part has logged it, and goes on without
                    self._native.load_snapshot(str(file), peer)
        except ServiceError as error:
            self._native.no_snapshot(None if self._stop.is_set() else str(error))
        except Exception as error:
            logger.exception("the snapshot of %s cannot be fetched", peer)
            self._native.no_snapshot(str(error))

    def stop(self) -> None:
        """Give up, if it is not done."""
        self._stop.set()
        self._thread.join()


def fetch(
    url: str,
    key: str | None,
    timeout: float,
    out: IO[bytes],
    stop: threading.Event | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> int:
    """Write the snapshot of the service at `url` to a file. Returns its size in bytes.

    Args:
        url: The service.
        key: The key that it needs for this.
        timeout: Seconds that all of it may take.
        out: The file, empty.
        stop: Gives up when it is set.
        ssl_context: Which certificates are trusted; the system's if not given.

    Raises:
        ServiceError: It is not to be had, or not in time (code "snapshot_failed").
    """
    deadline = time.monotonic() + timeout
    stop = stop or threading.Event()
    etag: str | None = None
    done, total = 0, None
    first = True
    problem = "nothing was tried"
    with httpx.Client(**options(url, key, timeout, ssl_context)) as client:
        while total is None or done < total:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _failed(
                    f"{url} has not sent its snapshot within {timeout:g} s (snapshot.peer_timeout): {problem}"
                )
            if stop.is_set():
                raise _failed("it was given up")
            headers = {"Range": f"bytes={done}-{done + _PART - 1}"}
            if etag is not None:
                headers["If-Range"] = etag
            elif first:
                headers["Cache-Control"] = "no-cache"  # only once: what is being made then is new enough
            first = False
            try:
                answer = client.get("/snapshot", headers=headers, timeout=min(left, 30.0))
            except httpx.HTTPError as error:
                problem = failure(error)[1]
                stop.wait(_PAUSE)
                continue
            if answer.status_code in _PATIENT:
                problem = _said(answer)
                stop.wait(_PAUSE)
                continue
            part = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status_code == httpx.codes.PARTIAL_CONTENT and part is not None:
                start, end, size = map(int, part.groups())
                if start == done and end + 1 - start == len(answer.content) and answer.headers.get("ETag"):
                    etag, total = answer.headers["ETag"], size
                    out.write(answer.content)
                    done = end + 1
                    continue
            if answer.status_code == httpx.codes.OK:
                # The other service has made a new one, and sends all of it.
                out.seek(0)
                out.truncate()
                out.write(answer.content)
                return len(answer.content)
            raise _failed(f"{url} does not give its snapshot: {_said(answer)}")
    return done


def _failed(message: str) -> ServiceError:
    return ServiceError(message, "snapshot_failed")


def _said(answer: httpx.Response) -> str:
    """What an answer that is no snapshot says."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return f"status {answer.status_code}, {json.loads(answer.content)['error']}"
    return f"status {answer.status_code}"
