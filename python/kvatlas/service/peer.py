"""Fetcher of another service's snapshot, so that a service starts with the other's state.

The snapshot comes in parts, each by a separate request, so that a lost connection costs one part. All parts belong to
one snapshot: if the other service has dropped it, the client starts over.

If a name has several replicas, the first one that is ready is asked, and the next one if that fails. A replica that is
not ready is not asked, since it has no more state than the client.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import socket
import ssl
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import httpx

from kvatlas._http import failure, options, tls_context
from kvatlas.errors import ServiceError
from kvatlas.service import native, replicas
from kvatlas.service.config.sharing import SnapshotConfig

logger = logging.getLogger("kvatlas.service")

_DIRECTORY = "kvatlas-peer-"  # how the name of the directory begins that it is fetched into
_PART = 8 << 20  # bytes of a request
_PIECE = 64 << 10  # bytes of an answer that are read at once
_PAUSE = 0.2  # seconds before a request that failed is made again
_LOOK = 2.0  # seconds within which one of several replicas must say whether it is ready
_FAILURES = 3  # requests in a row that may fail before the next replica is asked
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)
_PATIENT = (408, 429, 502, 503, 504)  # answers after which the same request may succeed


class SnapshotFetcher:
    """Thread that fetches a snapshot, and passes it to the native service, whose streams wait for it."""

    def __init__(
        self, config: SnapshotConfig, to: native.Native, own: str, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Start to fetch the snapshot.

        Args:
            config: Settings with the source of the snapshot.
            to: The native service that gets the snapshot.
            own: The IP address and port of this service, which is left out.
            ssl_context: The TLS context; one that trusts the system's certificates if not given.
        """
        self._ssl_context = ssl_context
        self._config = config
        self._native = to
        self._own = own
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvatlas-peer-snapshot", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        peer = self._config.peer or ""
        try:
            if self._config.dir is not None:
                # A killed process leaves its directory behind; no other service uses this folder.
                for old in Path(self._config.dir).glob(f"{_DIRECTORY}*"):
                    shutil.rmtree(old, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=_DIRECTORY, dir=self._config.dir) as directory:
                file = Path(directory) / "peer.snapshot"
                with file.open("wb") as out:
                    given_by = self._fetch(peer, out)
                if given_by is None:
                    self._native.no_snapshot(None)
                    return
                with contextlib.suppress(ServiceError):  # the native part has logged it, and goes on without
                    self._native.load_snapshot(str(file), given_by)
        except ServiceError as error:
            self._native.no_snapshot(None if self._stop.is_set() else str(error))
        except Exception as error:
            logger.exception("the snapshot of %s cannot be fetched", peer)
            self._native.no_snapshot(str(error))

    def _fetch(self, peer: str, out: IO[bytes]) -> str | None:
        """Write the snapshot to a file. Returns the peer's URL; None if there is no peer to ask."""
        key, timeout, most = self._config.peer_bearer(), self._config.peer_timeout, self._config.max_bytes
        if not replicas.is_name(peer):
            fetch(peer, key, timeout, out, self._stop, self._ssl_context, max_bytes=most)
            return peer
        given_by = fetch_from_any(peer, self._own, key, timeout, out, self._stop, most, self._ssl_context)
        if given_by is None:
            logger.info("%s: no other replica is ready; beginning without a snapshot of one", peer)
        else:
            logger.info("%s: beginning with the snapshot of %s", peer, given_by)
        return given_by

    def stop(self) -> None:
        """Stop fetching, if the snapshot is not complete yet."""
        self._stop.set()
        self._thread.join()


def fetch_from_any(
    peer: str,
    own: str,
    key: str | None,
    timeout: float,
    out: IO[bytes],
    stop: threading.Event | None = None,
    max_bytes: int = SnapshotConfig.max_bytes,
    ssl_context: ssl.SSLContext | None = None,
) -> str | None:
    """Write the snapshot of one of several replicas to a file: the first that is ready and sends it.

    Args:
        peer: `dns:NAME:PORT` or `dns+https:NAME:PORT`.
        own: The IP address and port of the calling service, which is left out.
        key: The key for reading the replicas' snapshots.
        timeout: Time limit for the whole call, in seconds.
        out: An empty file for the snapshot.
        stop: The call gives up when this is set.
        max_bytes: The largest size of a snapshot.
        ssl_context: The TLS context; None for one that trusts the system's certificates.

    Returns:
        The URL of the replica that sent it; None if there is no other replica, or none is ready.

    Raises:
        ServiceError: A replica is ready, but none sends its snapshot in time; or the name server does not answer (code
            "snapshot_failed").
    """
    name, port, is_https = replicas.checked_name(peer)
    if is_https and ssl_context is None:
        ssl_context = tls_context()
    scheme, certified = ("https", name) if is_https else ("http", None)
    deadline = time.monotonic() + timeout
    stop = stop or threading.Event()
    problems: list[str] = []
    for url in replicas.others(_resolved(name, port, deadline, stop), port, own, scheme):
        left = deadline - time.monotonic()
        if left <= 0 or stop.is_set():
            break
        if not _is_ready(url, min(left, _LOOK), ssl_context, certified):
            continue
        try:
            out.seek(0)
            out.truncate()
            left = max(deadline - time.monotonic(), 0.001)
            fetch(url, key, left, out, stop, ssl_context, _FAILURES, max_bytes, certified)
        except ServiceError as error:
            logger.warning("%s: %s", peer, error)
            problems.append(str(error))
        else:
            return url
    if stop.is_set():
        raise _failed("it was given up")
    if problems:
        raise _failed(f"no replica behind {peer} gives its snapshot: {'; '.join(problems)}")
    return None


def _resolved(name: str, port: int, deadline: float, stop: threading.Event) -> list[str]:
    while True:
        try:
            return replicas.resolve(name, port)
        except socket.gaierror as error:
            if stop.wait(_PAUSE):
                raise _failed("it was given up") from error
            if time.monotonic() > deadline:
                raise _failed(f"{name} cannot be resolved: {error.strerror}") from error


def _is_ready(
    url: str, timeout: float, ssl_context: ssl.SSLContext | None = None, certified: str | None = None
) -> bool:
    client = httpx.Client(**options(url, None, timeout, ssl_context))
    headers = {"Accept-Encoding": "identity"}
    try:
        with client, client.stream("GET", "/ready", headers=headers, extensions=_naming(certified)) as answer:
            if answer.status_code != httpx.codes.OK:
                return False
            said = _beginning(answer)
    except httpx.HTTPError as error:
        # The replica is gone, but the name server still has its address.
        logger.info("%s %s: another replica is asked", url, failure(error)[1])
        return False
    # A router is ready for requests before its index is complete.
    with contextlib.suppress(ValueError, AttributeError):
        return json.loads(said).get("index_ready", True) is True
    return True


def fetch(
    url: str,
    key: str | None,
    timeout: float,
    out: IO[bytes],
    stop: threading.Event | None = None,
    ssl_context: ssl.SSLContext | None = None,
    failures: int | None = None,
    max_bytes: int = SnapshotConfig.max_bytes,
    certified: str | None = None,
) -> int:
    """Write the snapshot of the service at `url` to a file. Returns its size in bytes.

    Args:
        url: The service.
        key: The key for reading the service's snapshot.
        timeout: Time limit for the whole call, in seconds.
        out: An empty file for the snapshot.
        stop: The call gives up when this is set.
        ssl_context: The TLS context; None for one that trusts the system's certificates.
        failures: Maximum number of consecutive requests that fail to reach the service; None for no limit within
            `timeout`.
        max_bytes: The largest size of a snapshot.
        certified: The host name that the service's certificate must have; None for the URL's host.

    Raises:
        ServiceError: The snapshot cannot be fetched, not in time, or is too large (code "snapshot_failed").
    """
    deadline = time.monotonic() + timeout
    stop = stop or threading.Event()
    etag: str | None = None
    done, total = 0, None
    first = True
    failed = 0
    problem = "nothing was tried"
    with httpx.Client(**options(url, key, timeout, ssl_context)) as client:
        while total is None or done < total:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _late(url, timeout, problem)
            if stop.is_set():
                raise _failed("it was given up")
            # As it is: what an encoding becomes has no bound.
            headers = {"Range": f"bytes={done}-{done + _PART - 1}", "Accept-Encoding": "identity"}
            if etag is not None:
                headers["If-Range"] = etag
            elif first:
                headers["Cache-Control"] = "no-cache"  # only once: the snapshot being made then is new enough
            first = False
            try:
                extensions = _naming(certified)
                left = min(left, 30.0)
                with client.stream("GET", "/snapshot", headers=headers, timeout=left, extensions=extensions) as answer:
                    failed = 0
                    part = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                    if answer.status_code == httpx.codes.PARTIAL_CONTENT and part is not None:
                        start, end, size = map(int, part.groups())
                        if size > max_bytes:
                            raise _too_large(url, max_bytes)
                        if start == done and start <= end < size and answer.headers.get("ETag"):
                            wanted = end + 1 - start
                            if _write(answer, out, start, wanted, deadline, stop) == wanted:
                                etag, total = answer.headers["ETag"], size
                                done = end + 1
                                continue
                            problem = "a part of it has another size than it says"
                            stop.wait(_PAUSE)
                            continue
                    if answer.status_code == httpx.codes.OK:
                        # The other service has made a new one, and sends all of it.
                        if int(answer.headers.get("Content-Length", "0")) > max_bytes:
                            raise _too_large(url, max_bytes)
                        size = _write(answer, out, 0, max_bytes, deadline, stop)
                        if size > max_bytes:
                            raise _too_large(url, max_bytes)
                        return size
                    said = _said(answer)
            except TimeoutError as error:
                raise _late(url, timeout, "it is still being sent") from error
            except httpx.HTTPError as error:
                problem = failure(error)[1]
                failed += 1
                if failures is not None and failed >= failures:
                    raise _failed(f"{url} {problem}") from error
                stop.wait(_PAUSE)
                continue
            if answer.status_code not in _PATIENT:
                raise _failed(f"{url} does not give its snapshot: {said}")
            problem = said
            stop.wait(_PAUSE)
    return done


def _naming(certified: str | None) -> dict[str, str]:
    """Extensions of a request to a server whose certificate must have a given name."""
    return {} if certified is None else {"sni_hostname": certified}


def _write(answer: httpx.Response, out: IO[bytes], at: int, most: int, deadline: float, stop: threading.Event) -> int:
    """Write an answer's body to a position in a file, and cut the file after it.

    Returns the number of bytes. Reading stops as soon as they exceed `most`.

    Raises:
        TimeoutError: The time limit is reached.
    """
    out.seek(at)
    out.truncate()
    size = 0
    for piece in answer.iter_raw(_PIECE):
        size += len(piece)
        if size > most:
            break
        out.write(piece)
        if stop.is_set():
            raise _failed("it was given up")
        if time.monotonic() > deadline:
            raise TimeoutError
    return size


def _failed(message: str) -> ServiceError:
    return ServiceError(message, "snapshot_failed")


def _late(url: str, timeout: float, problem: str) -> ServiceError:
    return _failed(f"{url} has not sent its snapshot within {timeout:g} s (snapshot.peer_timeout): {problem}")


def _too_large(url: str, most: int) -> ServiceError:
    return _failed(f"the snapshot of {url} has more than {most} bytes: raise snapshot.max_bytes if that is right")


def _beginning(answer: httpx.Response) -> bytes:
    """First part of an answer's body, long enough for an error message."""
    read = b""
    for piece in answer.iter_raw(_PIECE):
        read += piece
        if len(read) >= _PIECE:
            break
    return read


def _said(answer: httpx.Response) -> str:
    """The error message in an answer that is not a snapshot."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(_beginning(answer))["error"]
        # A router says it in the form in which engines do.
        return f"status {answer.status_code}, {error['message'] if isinstance(error, dict) else error}"
    return f"status {answer.status_code}"
