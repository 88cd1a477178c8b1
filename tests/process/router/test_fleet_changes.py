"""Engines added, removed and drained over HTTP: as if the file listed them, over restarts, and at all peers."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from tests.support.command import in_process
from tests.support.engine import Engine, closed_port

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

from .running import Router, wait_until

MODEL = "sim-model"
QUICK = ServerConfig(speed=100, engine=EngineConfig(block_size=16))
CHECKS = ("--health-interval", "100ms", "--discovery-interval", "100ms")
FLAGS = (*CHECKS, "--policy", "kvatlas", "--tokenizer", "none")


@contextmanager
def started(*flags: str, port: int = 0) -> Iterator[Router]:
    with Router(flags=(*FLAGS, *flags), ready=False, port=port) as router:
        yield router


def end(router: Router) -> None:
    """SIGTERM, and the end of it."""
    router.process.send_signal(signal.SIGTERM)
    assert router.process.wait(60) == 0, router.log


def ask(router: Router, number: int, length: int = 64) -> int:
    """The status of a request with a prompt of its own, in tokens."""
    body = {"model": MODEL, "prompt": [number * 1000 + token for token in range(length)], "max_tokens": 2}
    return router.ask(body, path="/v1/completions").status


def engines(router: Router) -> dict[str, str]:
    """The engines of a router by name, each with its standing."""
    return {row["name"]: row["standing"] for row in router.workers()}


def followed(router: Router) -> dict[str, int]:
    """The engines that are followed, each with its number of blocks; only trusted ones."""
    streams = json.loads(router.get("/streams")[1])
    return {
        row["instance_id"]: sum(stream["blocks"] for stream in row["streams"].values())
        for row in streams
        if all(stream["state"] == "live" for stream in row["streams"].values())
    }


def listed(fleet: Fleet, *numbers: int, **more: Any) -> str:
    """A file of engines."""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in more.items()]
    entry = '[[engine]]\nname = "e{}"\nurl = "{}"\n{}'
    return "".join(entry.format(number, fleet[number].url, "".join(lines)) for number in numbers)


def add(router: Router, fleet: Fleet, number: int, **more: Any) -> Any:
    status, said = router.call("POST", "/engines", {"name": f"e{number}", "url": fleet[number].url, **more})
    assert status == 201, said
    return said


def test_an_added_engine_is_followed_and_a_removed_one_is_forgotten() -> None:
    with Fleet(2, QUICK) as fleet, started() as router:
        add(router, fleet, 0)
        wait_until(lambda: followed(router) == {"e0": 0}, "its events are followed")
        assert ask(router, 1) == 200
        wait_until(lambda: followed(router)["e0"] > 0, "its blocks are known")
        assert router.workers()[0]["condition"] is None
        # Another weight does not cost what is known of it.
        before = followed(router)
        assert add(router, fleet, 0, weight=2)["weight"] == 2
        assert followed(router) == before
        add(router, fleet, 1)
        wait_until(lambda: set(followed(router)) == {"e0", "e1"}, "the second is followed")
        status, row = router.call("DELETE", "/engines/e0")
        assert (status, row["name"]) == (200, "e0")
        # At once: nothing of it is left when the answer is here.
        assert (engines(router), set(followed(router))) == ({"e1": "up"}, {"e1"})
        assert f"engine e0 ({fleet[0].url}) was removed" in router.log
        assert router.call("DELETE", "/engines/e0")[0] == 404
        assert router.call("POST", "/engines/e0/drain")[0] == 404
        assert ask(router, 2) == 200


def test_the_fields_are_those_of_the_file() -> None:
    with Fleet(1, QUICK) as fleet, started() as router:
        wrong = [
            ({"url": fleet[0].url, "wieght": 2}, 'unknown key "wieght": did you mean '),
            ({"name": "e0"}, "url is missing"),
            ({"url": fleet[0].url, "weight": "much"}, "weight must be a number"),
            ({"url": fleet[0].url, "routing_group": "other"}, "routing_group must be that of the router"),
            ([], "an object"),
        ]
        for about, message in wrong:
            status, said = router.call("POST", "/engines", about)
            assert (status, said["error"]["code"]) == (400, "invalid_engine"), said
            assert message in said["error"]["message"], said
        assert router.call("POST", "/engines", {"url": fleet[0].url, "name": "e0", "drain": True})[0] == 201
        assert engines(router) == {"e0": "draining"}
        assert router.call("POST", "/engines/e0/undrain")[0] == 200
        wait_until(lambda: engines(router) == {"e0": "up"}, "it is up")


def test_changes_outlive_a_restart_by_the_state_file(tmp_path: Path) -> None:
    file, state = tmp_path / "engines.toml", tmp_path / "state.json"
    flags = ("--engines-file", str(file), "--state-file", str(state))
    with Fleet(4, QUICK) as fleet:
        file.write_text(listed(fleet, 0, 1, 2))
        with started(*flags) as router:
            wait_until(lambda: len(followed(router)) == 3, "the file's engines are followed")
            add(router, fleet, 3, weight=3)
            add(router, fleet, 2, weight=2)
            assert router.call("DELETE", "/engines/e0")[0] == 200
            assert router.call("POST", "/engines/e1/drain")[0] == 200
            expected = {"e1": "draining", "e2": "up", "e3": "up"}
            wait_until(lambda: engines(router) == expected, "it is as was said")
            end(router)
        assert state.stat().st_mode & 0o777 == 0o600
        with started(*flags) as router:
            wait_until(lambda: engines(router) == expected, "it is as before")
            wait_until(lambda: set(followed(router)) == {"e1", "e2", "e3"}, "they are followed as before")
            assert {row["name"]: row["weight"] for row in router.workers()} == {"e1": 1, "e2": 2, "e3": 3}
            end(router)
        # The entry that has changed since is the later word; a drain is no word about anything else.
        text = listed(fleet, 0, weight=5) + listed(fleet, 1, weight=6) + listed(fleet, 2, weight=7)
        file.write_text(text)
        with started(*flags) as router:
            wait_until(lambda: set(engines(router)) == {"e0", "e1", "e2", "e3"}, "the file's last word counts")
            assert {row["name"]: row["weight"] for row in router.workers()} == {"e0": 5, "e1": 6, "e2": 7, "e3": 3}
            assert engines(router)["e1"] == "draining"
            assert "what was ordered over HTTP is void" in router.log
            # An engine that the file lists is the file's: it goes with its entry.
            file.write_text(text + listed(fleet, 3))
            wait_until(lambda: router.workers()[3]["weight"] == 1, "the file's entry counts")
            file.write_text(text)
            wait_until(lambda: "e3" not in engines(router), "it has gone with its entry")


def test_an_engines_own_key_is_shown_to_it_and_without_a_key_to_no_other(tmp_path: Path) -> None:
    (tmp_path / "engines").write_text("fleet")
    with Engine() as one, started("--engine-key-file", str(tmp_path / "engines")) as router:
        about = {"name": "own", "url": one.url, "key": "0wn", "models": ["m"]}
        assert router.call("POST", "/engines", about)[0] == 201
        wait_until(lambda: one.times("/kv_event_sources") > 0, "discovery asks it")
        wait_until(lambda: one.times("/health") > 0, "the router asks it")
        assert {request.headers.get("authorization") for request in one.received} == {"Bearer 0wn"}
        assert router.call("GET", "/peers/engines") == (200, {"orders": [], "left_out": 1})
        assert "0wn" not in router.log
    (tmp_path / "admin").write_text("adm1n")
    admin = {"authorization": "Bearer adm1n"}
    with Engine() as one, started("--admin-key-file", str(tmp_path / "admin")) as router:
        about = {"name": "own", "url": one.url, "key": "0wn"}
        assert router.ask(about, path="/engines").status in (401, 403)
        assert router.ask(about, path="/engines", headers=admin).status == 201
        assert router.call("GET", "/peers/engines")[0] in (401, 403)
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        connection.request("GET", "/peers/engines", headers=admin)
        said = json.loads(connection.getresponse().read())
        connection.close()
        assert (said["orders"][0]["engine"]["key"], said["left_out"]) == ("0wn", 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "it needs a version and a list of orders"),
        ('{"version": 2, "orders": []}', "it has version 2, and this kvatlas reads 1"),
        ('{"version": 1, "orders": [{"name": "a", "at": 1, "x": 1}]}', "unknown field 'x'"),
        ('{"version": 1, "orders": [{"name": "a", "at": 1, "engine": {"url": "x"}}]}', "the scheme is missing"),
        ("", "it is not JSON"),
    ],
)
def test_a_broken_state_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(content)
    with pytest.raises(AssertionError, match="it ended before it listened") as caught:
        Router(flags=(*FLAGS, "--state-file", str(state)), ready=False)
    assert f"router.state_file: {state} cannot be used" in str(caught.value)
    assert message in str(caught.value)
    assert state.read_text() == content


def test_a_change_that_cannot_be_written_down_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with Fleet(2, QUICK) as fleet, started("--state-file", str(folder / "state.json")) as router:
        add(router, fleet, 0)
        (folder / "state.json").unlink()
        folder.rmdir()
        for method, path, body in (
            ("POST", "/engines", {"url": fleet[1].url}),
            ("DELETE", "/engines/e0", None),
            ("POST", "/engines/e0/drain", None),
        ):
            status, said = router.call(method, path, body)
            assert (status, said["error"]["code"]) == (503, "state_not_written"), said
        assert set(engines(router)) == {"e0"}
        assert engines(router)["e0"] != "draining"


def test_drain_in_the_file_and_its_reload_in_both_directions(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    with Fleet(2, QUICK) as fleet:
        file.write_text(listed(fleet, 0, drain=True) + listed(fleet, 1))
        with started("--engines-file", str(file)) as router:
            wait_until(lambda: engines(router) == {"e0": "draining", "e1": "up"}, "it is drained from the start")
            wait_until(lambda: len(followed(router)) == 2, "both are followed")
            for number in range(8):
                assert ask(router, number) == 200
            blocks = followed(router)
            assert blocks["e0"] == 0 < blocks["e1"]
            file.write_text(listed(fleet, 0) + listed(fleet, 1, drain=True))
            wait_until(lambda: engines(router) == {"e0": "up", "e1": "draining"}, "now the other one is")
            assert followed(router) == blocks, "what is known stays"
            assert ask(router, 1) == 200
            # The last word counts: first one over HTTP, then one in the file.
            assert router.call("POST", "/engines/e1/undrain")[0] == 200
            assert engines(router)["e1"] == "up"
            file.write_text(listed(fleet, 0) + listed(fleet, 1, drain=True, weight=2))
            wait_until(lambda: router.workers()[1]["weight"] == 2, "the file is read again")
            assert engines(router)["e1"] == "up", "its drain has not changed"
            assert router.call("POST", "/engines/e0/drain")[0] == 200
            file.write_text(listed(fleet, 0, drain=True) + listed(fleet, 1))
            wait_until(lambda: router.workers()[1]["weight"] == 1, "the file is read again")
            file.write_text(listed(fleet, 0, 1))
            wait_until(lambda: engines(router) == {"e0": "up", "e1": "up"}, "the file has said so last")


def has_more(router: Router, name: str, than: float) -> bool:
    return router.metric(name) > than


def is_logged(router: Router, words: str, times: int) -> bool:
    return router.log.count(words) == times


def test_an_empty_file_is_no_empty_fleet(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    with Fleet(2, QUICK) as fleet:
        file.write_text(listed(fleet, 0, 1))
        with started("--engines-file", str(file)) as router:
            wait_until(lambda: engines(router) == {"e0": "up", "e1": "up"}, "they are up")
            events = "kvatlas_discovery_source_events_total"
            for content in ("", "# all gone\n"):
                before = router.metric(events), router.log.count("unchanged again")
                file.write_text(content)
                wait_until(lambda: router.metric(events, event="refused_empty_file") >= 1, "it is counted")
                wait_until(partial(has_more, router, events, before[0]), "it is counted")
                assert set(engines(router)) == {"e0", "e1"}
                assert ask(router, 1) == 200
                file.write_text(listed(fleet, 0, 1))
                wait_until(partial(is_logged, router, "unchanged again", before[1] + 1), "it is as before")
            assert "lists nothing any more" in router.log
            assert "--allow-empty" in router.log
            file.write_text(listed(fleet, 0, 1)[:-20])
            wait_until(lambda: router.metric(events, event="refused_invalid_config") == 1, "a torn file is counted")
            assert set(engines(router)) == {"e0", "e1"}
            source = json.loads(router.get("/router")[1])["discovery"][0]
            assert (source["state"], source["code"]) == ("away", "invalid_config")
        file.write_text(listed(fleet, 0, 1))
        with started("--engines-file", str(file), "--allow-empty") as router:
            wait_until(lambda: engines(router) == {"e0": "up", "e1": "up"}, "they are up")
            file.write_text("")
            wait_until(lambda: engines(router) == {}, "it is taken at its word")


# Peers


def has(router: Router, expected: dict[str, str]) -> bool:
    return engines(router) == expected


def follows(router: Router, names: set[str]) -> bool:
    return set(followed(router)) == names


class Load:
    """Clients behind a load balancer: each request goes to a router that says it is ready."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.asked = 0
        self.lost: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(4)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        count = number
        while not self._stop.is_set():
            count += 4
            ready = [port for port in self.ports if _status(port, "GET", "/ready") == 200]
            if not ready:
                time.sleep(0.01)
                continue
            body = {"model": MODEL, "prompt": [count * 100 + token for token in range(48)], "max_tokens": 4}
            status = _status(ready[count % len(ready)], "POST", "/v1/completions", body)
            with self._lock:
                self.asked += 1
                if status != 200:
                    self.lost.append(f"{status}")

    def more(self, count: int = 40) -> None:
        """Wait until that many further requests were answered."""
        until = self.asked + count
        wait_until(lambda: self.asked >= until, "requests are answered")


def _status(port: int, method: str, path: str, body: Any = None) -> int | str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json"} if data else {})
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    else:
        return answer.status
    finally:
        connection.close()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago: each router is told the other's before that one has begun."""
    with ExitStack() as stack:
        return [stack.enter_context(closed_port()) for _ in range(count)]


def test_two_peers_under_load_with_a_restart_in_between() -> None:
    """Added, removed and drained at one router for both; the other one is restarted and asks its peer."""
    with Fleet(4, QUICK) as fleet, ExitStack() as stack:
        ports = free_ports(2)
        given = ("--engine", f"e0={fleet[0].url}", "--engine", f"e1={fleet[1].url}")
        flags = [
            (*given, "--drain-delay", "500ms", "--peer", f"http://127.0.0.1:{ports[1 - number]}") for number in range(2)
        ]
        first = stack.enter_context(started(*flags[0], port=ports[0]))
        second = stack.enter_context(started(*flags[1], port=ports[1]))
        for router in (first, second):
            wait_until(partial(follows, router, {"e0", "e1"}), "the engines are followed")

        with Load(ports) as load:
            load.more()
            command_of(first, "add", f"e2={fleet[2].url}", "--set", "weight=2")
            load.more()
            command_of(first, "drain", "e1")
            command_of(first, "remove", "e0")
            load.more()
            end(second)
            command_of(first, "add", f"e3={fleet[3].url}", expect=(1, "at 1 of 2 routers"))
            load.more()
            second = stack.enter_context(started(*flags[1], port=ports[1]))
            expected = {"e1": "draining", "e2": "up", "e3": "up"}
            for router in (first, second):
                wait_until(partial(has, router, expected), "both have the same fleet")
                wait_until(partial(follows, router, set(expected)), "and follow it")
            load.more()
            end(first)
            load.more()
            first = stack.enter_context(started(*flags[0], port=ports[0]))
            wait_until(lambda: engines(first) == expected, "it has asked its peer")
            command_of(first, "undrain", "e1")
            wait_until(lambda: engines(second)["e1"] == "up", "at both")
            load.more()
        assert load.lost == []
        assert {row["name"]: row["weight"] for row in second.workers()} == {"e1": 1, "e2": 2, "e3": 1}


def command_of(router: Router, *words: str, expect: tuple[int, str] = (0, "at 2 of 2 routers")) -> str:
    """`kvatlas engines WORDS` at a router: its exit status and a part of what it prints are as expected."""
    done = in_process("engines", words[0], "--url", f"http://127.0.0.1:{router.port}", *words[1:])
    assert done.returncode == expect[0], done
    assert expect[1] in done.stdout
    return done.stdout + done.stderr


def test_the_command() -> None:
    with Fleet(2, QUICK) as fleet, closed_port() as away, started("--peer", f"http://127.0.0.1:{away}") as router:
        said = command_of(router, "add", f"e0={fleet[0].url}", "--set", "drain=true", expect=(1, "at 1 of 2 routers"))
        assert f"not at http://127.0.0.1:{away}: it cannot be reached" in said
        command_of(router, "add", f"e1={fleet[1].url}", "--this-router", expect=(0, "at 1 of 1 router"))
        wait_until(lambda: engines(router) == {"e0": "draining", "e1": "up"}, "both are there")
        words = command_of(router, "list", expect=(0, "added, drained")).split()
        assert {"e0", "draining", "e1", "up"} <= set(words)
        assert command_of(router, "remove", "e0", "--this-router", "--json", expect=(0, '"status": 200'))
        assert "there is no engine" in command_of(router, "drain", "e0", "--this-router", expect=(1, ""))
        assert "unknown key" in command_of(router, "add", "http://h:1", "--set", "x=1", expect=(2, ""))
