"""The page as the service serves it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Publisher, stored
from tests.support.waiting import until

from kvatlas._native import Service

from .dialect.tools import DEADLINE, ask, running
from .http_tools import register

ASSETS = Path(__file__).resolve().parents[3] / "crates/ui/assets"
TOKENS = list(range(16))


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


@pytest.fixture
def engine(service: Service) -> Iterator[Publisher]:
    with Publisher() as publisher:
        assert register(service, "w", publisher.endpoint).status == 201
        publisher.wait_for_reader()
        yield publisher


class PageClient:
    """A client of `/ui/events`."""

    def __init__(self, service: Service, key: str | None = None) -> None:
        host, port = service.address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), DEADLINE)
        head = "GET /ui/events HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        self.socket.sendall(f"{head}\r\n".encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = dict(line.decode().strip().split(": ", 1) for line in iter(self.file.readline, b"\r\n"))
        self.state: Any = None
        self.lists: dict[str, list[Any]] = {}
        self.events: list[str] = []

    def chunks(self) -> Iterator[bytes]:
        while size := int(self.file.readline() or b"0", 16):
            chunk = self.file.read(size)
            self.file.readline()
            yield chunk

    def read(self, done: Any) -> Any:
        """Reads events until `done()` gives something, or they end."""
        rest = b""
        for chunk in self.chunks():
            rest += chunk
            while b"\n\n" in rest:
                one, rest = rest.split(b"\n\n", 1)
                name, data = (part.split(": ", 1)[1] for part in one.decode().split("\n"))
                self.events.append(name)
                said = json.loads(data)
                if name == "whole":
                    self.state, self.lists = said["state"], said["lists"]
                elif name == "state":
                    self.state = said
                else:
                    self.lists.setdefault(said["list"], []).extend(said["items"])
            if self.state is not None and (given := done()):
                return given
        return None

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_files_come_as_they_are_with_a_strict_policy(service: Service) -> None:
    for path, kind in (("/ui", "text/html"), ("/ui/page.js", "text/javascript"), ("/ui/page.css", "text/css")):
        answer = ask(service.address, "GET", path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        head = ask(service.address, "HEAD", path)
        assert (head.status, head.headers["content-length"], head.body) == (200, str(len(answer.body)), b"")
    for path in ("/ui/", "/ui/nothing.js", "/ui/../workers", "/ui/Page.js"):
        assert ask(service.address, "GET", path).status == 404
    assert ask(service.address, "POST", "/ui", {}).status == 405
    for file in ASSETS.iterdir():
        path = "/ui" if file.name == "page.html" else f"/ui/{file.name}"
        assert ask(service.address, "GET", path).body == file.read_bytes(), file.name


def test_what_happens_is_told(service: Service, engine: Publisher) -> None:
    watching = PageClient(service)
    assert watching.headers["content-type"] == "text/event-stream"

    def is_live() -> bool:
        row = watching.state["engines"].get("w/0", {})
        return [row.get(name) for name in ("state", "blocks", "model")] == ["live", 0, "m"]

    assert watching.read(is_live)
    engine.publish(stored([1], TOKENS[:4]), stored([2], TOKENS[4:8], parent=1))

    def is_shown() -> bool:
        blocks = watching.state["engines"]["w/0"]["blocks"]
        return (blocks, watching.state["indexes"].get("m/default", {}).get("prefixes")) == (2, 2)

    assert watching.read(is_shown)
    assert "state" in watching.events
    assert watching.events.count("whole") == 1
    watching.read(lambda: any(point.get("blocks") == 2 for point in watching.lists["history"]))
    assert ask(service.address, "POST", "/unregister", {"instance_id": "w"}).status == 200
    watching.read(lambda: watching.state["engines"] == {})
    # The state sent piece by piece equals the state sent to another client at once.
    other = PageClient(service)
    other.read(lambda: True)
    watching.read(lambda: watching.state == other.state | {"connections": watching.state["connections"]})
    watching.close()
    other.close()


def test_events_need_the_key_and_files_do_not() -> None:
    with running(key="right") as service:
        assert ask(service.address, "GET", "/ui").status == 200
        for key in (None, "wrong"):
            watching = PageClient(service, key)
            assert watching.status == 401
            watching.close()
        watching = PageClient(service, "right")
        assert watching.read(lambda: watching.state["kind"] == "service")
        watching.close()


def test_so_many_pages_and_no_more(service: Service) -> None:
    open_pages = [PageClient(service) for _ in range(64)]
    refused = ask(service.address, "GET", "/ui/events")
    assert (refused.status, refused.code) == (429, "too_many_viewers")
    for page in open_pages:
        page.close()

    def room() -> bool:
        page = PageClient(service)
        page.close()
        return page.status == 200

    until(room)


def test_open_pages_do_not_hold_back_the_end(service: Service) -> None:
    watching = PageClient(service)
    watching.read(lambda: True)
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(service.drain(DEADLINE)))
    thread.start()
    assert watching.read(lambda: False) is None, "its events came to their end"
    thread.join()
    assert ended == [True]
    watching.close()


def test_who_does_not_read_costs_the_others_nothing(service: Service, engine: Publisher) -> None:
    idle, quick = PageClient(service), PageClient(service)
    end = time.monotonic() + 3
    number = 0
    while time.monotonic() < end:
        number += 1
        engine.publish(stored([number], TOKENS[:4]))
        quick.read(lambda: True)
    quick.read(lambda: quick.state["engines"]["w/0"]["counts"].get("events") == number)
    assert quick.events.count("whole") == 1
    idle.read(lambda: idle.state["engines"]["w/0"]["counts"].get("events") == number)
    idle.close()
    quick.close()
