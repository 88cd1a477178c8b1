"""An API server of Kubernetes with pods, InferencePools and -Objectives, over a real socket, with faults on order."""

from __future__ import annotations

import contextlib
import copy
import json
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from kvatlas.sim.server.ports import free_block

Object = dict[str, Any]
POOL, OBJECTIVE = "InferencePool", "InferenceObjective"
_RESOURCES = {"pods": "Pod", "inferencepools": POOL, "inferenceobjectives": OBJECTIVE}


def pod(name: str, ip: str | None, *, ready: bool = True, uid: str = "", namespace: str = "llm", **more: Any) -> Object:
    """A pod as the API server has it. `more`: labels, annotations, ports (by name), phase, restarts."""
    ports = more.get("ports", {"http": 8000})
    status: Object = {"phase": more.get("phase", "Running"), "conditions": [_condition(ready)]}
    status["containerStatuses"] = [{"name": "engine", "restartCount": more.get("restarts", 0)}]
    if ip is not None:
        status["podIP"] = ip
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "labels": {"app": "vllm", **more.get("labels", {})},
            "annotations": more.get("annotations", {}),
        },
        "spec": {
            "containers": [{"name": "engine", "ports": [{"name": n, "containerPort": p} for n, p in ports.items()]}]
        },
        "status": status,
    }


def _condition(ready: bool) -> Object:
    return {"type": "Ready", "status": "True" if ready else "False"}


def pool(name: str, labels: dict[str, str], *ports: int, namespace: str = "llm") -> Object:
    """An InferencePool as the API server has it."""
    spec = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": port} for port in ports]}
    return {"kind": POOL, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def objective(name: str, pool: str, priority: object = None, *, namespace: str = "llm") -> Object:
    """An InferenceObjective as the API server has it."""
    spec: Object = {"poolRef": {"name": pool}} | ({} if priority is None else {"priority": priority})
    return {"kind": OBJECTIVE, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


class FakeApi:
    """Serves pods, InferencePools and InferenceObjectives. All that it does may be changed at any time.

    Attributes:
        refusals: The answers to the next requests, each a status, a message and the headers.
        has_watch_list: Whether watches may begin with what is there; otherwise that wish gets status 422.
        ignores_wishes: Whether it does not know that wish, and sends all pods without saying that these are all.
        is_silent: Whether it takes requests and says nothing.
        token: What clients must show; None for nothing.
        has_pools: Whether it knows InferencePools.
        is_unpatchable: Whether pods may not be patched.
        seen: The queries so far.
    """

    def __init__(self) -> None:
        self.refusals: list[tuple[int, str, dict[str, str]]] = []
        self.has_watch_list = True
        self.ignores_wishes = False
        self.is_silent = False
        self.token: str | None = None
        self.has_pools = True
        self.tls: ssl.SSLContext | None = None  # at the next start
        self.page = 2  # pods of one answer, at most
        self.seen: list[dict[str, str]] = []
        self.pods: dict[str, Object] = {}
        self.pools: dict[str, Object] = {}
        self.objectives: dict[str, Object] = {}
        self.is_unpatchable = False
        self.patches: list[tuple[str, Object]] = []  # of pods
        self.port = free_block("127.0.0.1")
        self._version = 100
        self._oldest = 100
        self._log: list[tuple[int, str, Object]] = []
        self._changed = threading.Condition()
        self._server: _Server | None = None
        self._closing = threading.Event()
        self._cut = 0
        self.start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, at the port that it had."""
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", self.port), _handler(self, self._closing))
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End as if killed: connections are cut."""
        if self._server is not None:
            self._closing.set()
            self.cut()
            self._server.shutdown()
            self._server.cut()
            self._server.server_close()
            self._server = None

    # Changes

    def put(self, about: Object) -> None:
        """Add a pod or pool, or replace the one of its name."""
        self._note("MODIFIED" if about["metadata"]["name"] in self._of(about) else "ADDED", about)

    def change(self, name: str, change: Callable[[Object], None]) -> None:
        about = copy.deepcopy(self.pods[name])
        change(about)
        self._note("MODIFIED", about)

    def set_ready(self, name: str, ready: bool) -> None:
        self.change(name, lambda it: it["status"].update(conditions=[_condition(ready)]))

    def delete(self, name: str) -> None:
        """Begin to end a pod: it still runs."""
        self.change(name, lambda it: it["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))

    def gone(self, name: str) -> None:
        """End a pod, as the kubelet does in the end."""
        about = copy.deepcopy(self.pods[name])
        about["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        self._note("DELETED", about)

    def remove_pool(self, name: str) -> None:
        self._note("DELETED", copy.deepcopy(self.pools[name]))

    def remove_objective(self, name: str) -> None:
        self._note("DELETED", copy.deepcopy(self.objectives[name]))

    def unlabel(self, name: str) -> Object:
        """Take the label away; returns the pod, for `put`."""
        about = self.pods[name]
        self._note("DELETED", copy.deepcopy(about))
        return about

    def forget_changes(self) -> None:
        """Compact: clients with an older version must list again."""
        with self._changed:
            self._version += 1
            self._oldest = self._version

    def cut(self) -> None:
        """End all watches, as a server does after some minutes."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def bookmark(self) -> None:
        """Send all watches a version without a change."""
        with self._changed:
            self._version += 1
            self._log.append((self._version, "BOOKMARK", {"metadata": {}}))
            self._changed.notify_all()

    def queries(self, **wanted: str) -> int:
        """Number of queries with these parameters so far."""
        return sum(all(query.get(name) == value for name, value in wanted.items()) for query in list(self.seen))

    def _note(self, kind: str, about: Object) -> None:
        with self._changed:
            self._version += 1
            about["metadata"]["resourceVersion"] = str(self._version)
            if kind == "DELETED":
                self._of(about).pop(about["metadata"]["name"], None)
            else:
                self._of(about)[about["metadata"]["name"]] = about
            self._log.append((self._version, kind, about))
            self._changed.notify_all()

    def _of(self, about: Object) -> dict[str, Object]:
        return {POOL: self.pools, OBJECTIVE: self.objectives}.get(str(about.get("kind")), self.pods)

    # Requests

    def answer(self, handler: _Handler, closing: threading.Event) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(handler.path).query).items()}
        query["path"] = urlsplit(handler.path).path
        self.seen.append(query)
        while self.is_silent and not closing.is_set():
            closing.wait(0.01)
        if self.refusals:
            status, message, headers = self.refusals.pop(0)
            return handler.refuse(status, message, headers)
        if self.token is not None and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return handler.refuse(401, "Unauthorized", {})
        if not self.has_pools and query["path"].endswith("/inferencepools"):
            return handler.refuse(404, "the server could not find the requested resource", {})
        if query.get("watch") == "1":
            return self._watch(handler, query, closing)
        return self._list(handler, query)

    def _list(self, handler: _Handler, query: dict[str, str]) -> None:
        with self._changed:
            found = {it["metadata"]["name"]: it for it in self._all(query) if _is_selected(it, query)}
            names, version = sorted(found), self._version
            begin = int(query.get("continue", 0))
            end = begin + min(self.page, int(query["limit"]))
            meta = {"resourceVersion": str(version)} | ({"continue": str(end)} if end < len(names) else {})
            items = [found[name] for name in names[begin:end]]
        handler.whole({"kind": "PodList", "metadata": meta, "items": items})

    def _all(self, query: dict[str, str]) -> list[Object]:
        return list(self._of({"kind": _kind_at(query["path"])}).values())

    def patch(self, handler: _Handler, change: Object) -> None:
        """Set annotations of a pod, as a merge patch wants them."""
        name = urlsplit(handler.path).path.rpartition("/")[2]
        if self.refusals:
            status, message, headers = self.refusals.pop(0)
            return handler.refuse(status, message, headers)
        if self.is_unpatchable:
            return handler.refuse(403, f'pods "{name}" is forbidden: cannot patch resource "pods"', {})
        if name not in self.pods:
            return handler.refuse(404, f'pods "{name}" not found', {})
        self.patches.append((name, change))
        self.change(name, lambda it: it["metadata"]["annotations"].update(change["metadata"]["annotations"]))
        return handler.whole(self.pods[name])

    def _watch(self, handler: _Handler, query: dict[str, str], closing: threading.Event) -> None:
        initial = "sendInitialEvents" in query
        if initial and not self.has_watch_list:
            handler.refuse(422, "sendInitialEvents is forbidden for watch", {})
            return
        with self._changed:
            cut, version = self._cut, self._version if initial else int(query["resourceVersion"])
            there = [it for it in self._all(query) if _is_selected(it, query)] if initial else []
            is_gone = not initial and version < self._oldest
        handler.begin()
        if is_gone:
            status = {"code": 410, "reason": "Expired", "message": f"too old resource version: {version}"}
            handler.event("ERROR", status)
            handler.end()
            return
        for about in there:
            handler.event("ADDED", about)
        if initial and not self.ignores_wishes:
            annotations = {"k8s.io/initial-events-end": "true"}
            handler.event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})
        while not closing.is_set():
            with self._changed:
                news = [it for it in self._log if it[0] > version and _is_for(it, query)]
                if not news and self._cut == cut:
                    self._changed.wait(0.2)
                if self._cut != cut:
                    break
            for number, kind, about in news:
                while self.is_silent and not closing.is_set():
                    closing.wait(0.01)
                if kind == "BOOKMARK":
                    about = {"metadata": {"resourceVersion": str(number)}}
                handler.event(kind, about)
                version = number
        handler.end()


def _kind_at(path: str) -> str:
    return _RESOURCES[path.rpartition("/")[2]]


def _is_for(change: tuple[int, str, Object], query: dict[str, str]) -> bool:
    _version, kind, about = change
    is_of_kind = about.get("kind", "Pod") == _kind_at(query["path"])
    return kind == "BOOKMARK" or (is_of_kind and _is_selected(about, query))


def _is_selected(about: Object, query: dict[str, str]) -> bool:
    """True if an object has the labels or the name that a query asks for; selectors other than KEY=VALUE fit all."""
    meta = about["metadata"]
    if (field := query.get("fieldSelector")) is not None:
        return field == f"metadata.name={meta['name']}"
    wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",")]
    if any(len(part) < 2 or not part[0].isidentifier() for part in wanted):
        return True
    return all(meta.get("labels", {}).get(key) == value for key, value in wanted)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def cut(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: Any) -> None:
        """Clients go away at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def whole(self, value: Object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, said in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, message: str, headers: dict[str, str]) -> None:
        self.whole({"kind": "Status", "code": status, "message": message}, status, headers)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, kind: str, about: Object) -> None:
        line = json.dumps({"type": kind, "object": about}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Silent."""


def _handler(api: FakeApi, closing: threading.Event) -> type[_Handler]:
    class Handler(_Handler):
        def do_GET(self) -> None:
            api.answer(self, closing)

        def do_PATCH(self) -> None:
            api.patch(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    return Handler
