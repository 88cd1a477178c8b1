"""The sockets that a router listens on: those that its configuration names, and no other."""

import http.client
import json
import socket
import sys
from pathlib import Path

import pytest
from tests.support.engine import Engine

from kvatlas import _native
from kvatlas.router import RouterConfig, RouterHttpConfig

from .running import PLAIN, Router

LISTENING = "0A"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="/proc tells which sockets are listened on"
)


def listening(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    ours = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            ours.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in ours:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
        return port


@pytest.mark.parametrize("follows", ["follows", "follows and binds", "no events", "asks an index"])
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("admin", [False, True])
def test_a_router_listens_where_it_was_told_to_and_nowhere_else(
    engine: Engine, tmp_path: Path, follows: str, keys: bool, admin: bool
) -> None:
    flags: tuple[str, ...] = ("--tokenizer", "none")
    wanted = set()
    if follows == "no events":
        flags = PLAIN
    elif follows == "asks an index":
        flags += ("--index", f"http://127.0.0.1:{free_port()}")
    elif follows == "follows and binds":
        wanted.add(bound := free_port())
        flags += ("--streams-bind", f"127.0.0.1:{bound}")
    if admin:
        wanted.add(port := free_port())
        flags += ("--admin-bind", f"127.0.0.1:{port}")
    if keys:
        for name in ("key", "admin-key"):
            (tmp_path / name).write_text(name, encoding="ascii")
            flags += (f"--{name}-file", str(tmp_path / name))
    with Router(engine, flags=flags, ready=False) as router:
        router.wait_ready()
        assert listening(router.process.pid) == wanted | {router.port}


@pytest.mark.parametrize("keys", [{}, {"key": "k"}, {"admin_key": "a"}, {"key": "k", "admin_key": "a"}])
def test_where_engines_may_announce_streams_depends_on_the_keys_of_the_router(keys: dict[str, str]) -> None:
    http = RouterHttpConfig(bind="127.0.0.1:0", key=keys.get("key"), admin_key=keys.get("admin_key"))
    config = RouterConfig(http=http)
    router = _native.RouterServer(json.dumps(config.router_for_native(None, {})))
    try:
        if keys:
            router.check_allowed("tcp://10.1.2.3:5557", "10.9.9.9")
        else:
            with pytest.raises(Exception, match=r"not on loopback, and there is no key"):
                router.check_allowed("tcp://10.1.2.3:5557", "10.9.9.9")
    finally:
        router.close()


def test_the_listener_for_probes_answers_nobody_who_names_another_machine(engine: Engine) -> None:
    flags = (*PLAIN, "--admin-bind", f"127.0.0.1:{(port := free_port())}")
    with Router(engine, flags=flags):
        for host, status in (("127.0.0.1", 200), ("localhost", 200), ("attacker.example", 421)):
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            made.request("GET", "/health", headers={"host": host})
            assert made.getresponse().status == status, host
            made.close()
