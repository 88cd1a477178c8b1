"""The settings as the command line, the documentation and the native service have them."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.service import (
    Config,
    DiscoveryConfig,
    Engine,
    Stream,
    read_config,
)
from kvatlas.service.config import Pool, show_config
from kvatlas.service.config.read import SECRETS, SERVICE

from .samples import KEYS, OTHER, ROOT


def test_keys_are_not_shown(tmp_path: Path) -> None:
    keys = {"KVATLAS_KEY": "s3cret", "KVATLAS_ADMIN_KEY": "adm1n", "KVATLAS_ENGINE_KEY": "3ngine"}
    loaded = read_config({}, keys | {"KVATLAS_RELAY_KEY": "r3lay"})
    for text in (show_config(loaded), repr(loaded), str(loaded.config)):
        assert "s3cret" not in text
        assert "3ngine" not in text
        assert "adm1n" not in text
        assert "r3lay" not in text
    assert "# key is hidden  # KVATLAS_KEY" in show_config(loaded)
    with pytest.raises(ConfigError) as caught:
        read_config({}, {"KVATLAS_KEY": "s3cret s3cret"})
    assert "s3cret" not in str(caught.value)


def test_the_settings_in_force_can_be_read_again(tmp_path: Path) -> None:
    stream, engine = "w=tcp://h:1,topic=a,rank=2", 'q"\\=http://h:8000'
    # These go with no keyed_identity, or not together.
    relay = ("relay.publish", "relay.source", "relay.credentials", "relay.ca", "relay.snapshots")
    left_out = ("_file", "allow_empty", ".dir", "_account", "snapshot.peer", "sites.url", "sites.site", *relay)
    flags: dict[str, Any] = {path: text for path, text in OTHER.items() if not path.endswith(left_out)}
    loaded = read_config(flags | {"engine": [engine], "stream": [stream]}, {"KVATLAS_KEY": "k"})
    text = show_config(loaded)
    assert 'stale_after = "60s"  # --stale-after' in text
    (tmp_path / "again.toml").write_text(text)
    again = read_config({}, {"KVATLAS_KEY": "k"}, tmp_path / "again.toml")

    def plain(settings: Config) -> Config:
        http = dataclasses.replace(settings.http, tls_cert=None, tls_key=None, tls_client_ca=None)
        return dataclasses.replace(settings, http=http)

    assert plain(again.config) == plain(loaded.config)
    assert show_config(read_config({}, {})).count("#") >= 6
    assert tomllib.loads(show_config(read_config({}, {})))["http"]["bind"] == "127.0.0.1:8090"


def test_what_the_native_service_is_told(tmp_path: Path) -> None:
    told = read_config(
        {
            path: text
            for path, text in OTHER.items()
            if not path.endswith(("key_file", "keyed_identity", "relay.source", "relay.snapshots", "sites.role"))
        },
        {},
    ).config.for_native()
    assert told["http"]["tls"] == {"cert": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    assert told["http"]["max_body"] == 1 << 20
    assert told["streams"]["replay_timeout"] == 0.25
    assert json.loads(json.dumps(told)) == told
    default = Config().for_native(holds=("discovery",))
    assert default["holds"] == ["discovery"]
    assert default["http"]["tls"] is None
    # Every setting of these sections is passed on.
    streams = {key.path[8:] for key in KEYS.values() if key.path.startswith("streams.")}
    assert default["streams"].keys() == streams | {"limits", "pools"}
    limits = {key.path[7:] for key in KEYS.values() if key.path.startswith("limits.")}
    assert default["streams"]["limits"].keys() == limits
    own = {key.path[5:] for key in KEYS.values() if key.path.startswith("http.") and ".tls_" not in key.path}
    assert default["http"].keys() == own | {"key", "admin_key", "tls"}


def test_the_documentation_has_every_setting() -> None:
    from tools.docs import configuration  # noqa: PLC0415 - only this test needs it

    text = (ROOT / "docs/reference/configuration.md").read_text() + configuration.page()
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `") and line.count(" | ") in (4, 5):
            cells = line[2:-2].split(" | ")
            rows[cells[0].strip("`")] = cells
    for key in KEYS.values():
        cells = [cell.strip("` ") for cell in rows[key.path]]
        assert cells[1:3] == [key.flag, key.env], key.path
        assert cells[3] == (key.show_default().strip('"') or "none"), key.path
        assert (
            cells[4] == {"value": "changes", "content": "the file is read again", None: "needs a restart"}[key.reread]
        )
    kinds = {"engine": Engine, "stream": Stream, "pool": Pool}
    for name, (flag, variable, _kind) in SERVICE.lists.items():
        assert [cell.strip("` ") for cell in rows[f"[[{name}]]"]][1:3] == [flag, variable]
        for field in dataclasses.fields(kinds[name]):
            assert f"`{field.name}`" in text, field.name
    for variable, _file in SECRETS.values():
        assert f"`{variable}`" in text
    known = KEYS.keys() | {f"[[{name}]]" for name in SERVICE.lists}
    assert rows.keys() == known


def test_no_setting_is_called_like_what_kubernetes_adds() -> None:
    assert not any(key.env.endswith(("SERVICE_HOST", "SERVICE_PORT")) for key in KEYS.values())
    assert DiscoveryConfig().interval == 10
