"""The units for systemd: what they name is there, and their times fit the settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvatlas.router.config import ROUTER, RouterConfig
from kvatlas.service import Config
from kvatlas.service.config.read import CONFIG_ENV, SERVICE, Schema
from kvatlas.service.serve import AFTER_DRAIN

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "deploy/systemd"
SERVICES: dict[str, tuple[str, Schema[Any], Config]] = {
    "kvatlas.service": ("serve", SERVICE, Config()),
    "kvatlas-relay.service": ("relay", SERVICE, Config()),
    "kvatlas-router@.service": ("router", ROUTER, RouterConfig()),
}
SOCKET = "kvatlas-router.socket"
HARDENED = {
    "DynamicUser": "yes",
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateDevices": "yes",
    "PrivateTmp": "yes",
    "ProtectKernelTunables": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
}


def options(name: str) -> dict[str, list[str]]:
    """The options of a unit, each with its values."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if not line.startswith("#") and "=" in line:
            option, _, value = line.partition("=")
            found.setdefault(option, []).append(value)
    return found


def test_there_are_no_other_units() -> None:
    assert {path.name for path in UNITS.iterdir()} == {*SERVICES, SOCKET}


@pytest.mark.parametrize("name", SERVICES)
def test_settings_are_those_that_there_are(name: str) -> None:
    command, schema, _config = SERVICES[name]
    (started,) = options(name)["ExecStart"]
    assert re.match(rf"/opt/kvatlas(/%i)?/bin/kvatlas {command} --", started)
    flags = {key.flag for key in schema.keys.values()} | {flag for flag, _, _ in schema.lists.values()}
    variables = {key.env for key in schema.keys.values()} | {variable for variable, _ in schema.secrets.values()}
    text = (UNITS / name).read_text()
    for flag in re.findall(r"--[a-z-]+", started):
        assert flag in flags | {"--config"}, flag
    for variable in re.findall(r"KVATLAS_[A-Z_]+", text):
        assert variable in variables | {CONFIG_ENV}, variable


@pytest.mark.parametrize("name", SERVICES)
def test_stop_times_fit_the_drains(name: str) -> None:
    _command, _schema, config = SERVICES[name]
    (stop,) = options(name)["TimeoutStopSec"]
    seconds = float(stop.removesuffix("s"))
    assert seconds >= config.drain_delay + config.drain_timeout + AFTER_DRAIN


def test_the_time_after_a_drain_fits_what_is_done_then() -> None:
    """The last snapshot, and the ends of threads: constants of the router."""
    code = (ROOT / "crates/router/src/router.rs").read_text()
    times = {
        name: int(found) for name, found in re.findall(r"const (\w+): Duration = Duration::from_secs\((\d+)\)", code)
    }
    # The snapshot, the streams, and the threads of gateways, the server, the follower and the router.
    assert 2 * times["LAST_SNAPSHOT"] + 4 * times["END"] <= AFTER_DRAIN


@pytest.mark.parametrize("name", SERVICES)
def test_units_are_hardened_and_wait_for_what_kvatlas_sends(name: str) -> None:
    its = options(name)
    for option, value in HARDENED.items():
        assert its.get(option) == [value], option
    assert its["Type"] == ["notify"]
    assert its["TimeoutStartSec"] == ["infinity"], "it is ready only once an engine is"
    assert its["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_both_instances_accept_from_the_socket_of_the_router() -> None:
    assert options("kvatlas-router@.service")["Sockets"] == [SOCKET]
    its = options(SOCKET)
    assert its["Service"] == ["kvatlas-router@a.service"]
    assert its["ListenStream"] == [RouterConfig().http.bind]
    assert "Accept" not in its


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("name", [*SERVICES, SOCKET])
def test_systemd_understands_the_units(name: str, tmp_path: Path) -> None:
    # Only what is wrong with the files themselves: the program is not installed here.
    for path in UNITS.iterdir():
        text = re.sub(r"/opt/kvatlas(/%i)?/bin/kvatlas", "/bin/true", path.read_text())
        for copy in (path.name, path.name.replace("@", "@a")):
            (tmp_path / copy).write_text(text)
    unit = tmp_path / name.replace("@", "@a")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "kvatlas" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
