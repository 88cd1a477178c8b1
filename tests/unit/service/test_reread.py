"""Tests of settings that change while a service or router runs, and of the words for the others."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import ConfigError, ServiceError
from kvatlas.router.config import ROUTER, RouterConfig
from kvatlas.service import Config, Engine, LogConfig
from kvatlas.service.config import HttpConfig
from kvatlas.service.config.kinds import Choice, Duration, File, Integer, Number, Origins, Pairs, Size, Switch, Texts
from kvatlas.service.config.read import SERVICE, Schema, read_config
from kvatlas.service.config.section import Key
from kvatlas.service.reread import SettingsReader, compare, merge

SCHEMAS: dict[str, Schema[Any]] = {"serve": SERVICE, "router": ROUTER}
EVERY = [(command, key) for command, schema in SCHEMAS.items() for key in schema.keys.values()]
# Settings that SIGHUP changes, and those that name a file which it reads again.
VALUES = {"drain_timeout", "drain_delay", "http.hosts", "http.access_log", "log.level"}
CONTENTS = {
    "engines_file",
    "http.key_file",
    "http.admin_key_file",
    "http.tls_cert",
    "http.tls_key",
    "http.tls_client_ca",
}


def other(key: Key, value: Any) -> Any:
    """A value of the kind of a setting that is not its own."""
    match key.kind:
        case Switch():
            return not value
        case Choice():
            return next(choice for choice in key.kind.choices if choice != value)
        case Integer() | Size() | Duration() | Number():
            return (value or 0) + 1
        case File():
            return Path("other")
        case Pairs():
            return (("other", 1.5),)
        case Origins():
            return ("https://other",)
        case Texts():
            return ("other",)
        case _:
            return "other"


def with_other(config: Config, key: Key) -> Config:
    """A configuration with another value of one setting, whatever goes together."""
    made: Config = copy.copy(config)
    section, _, name = key.path.rpartition(".")
    part = made
    if section:
        part = copy.copy(getattr(config, section))
        object.__setattr__(made, section, part)
    object.__setattr__(part, name, other(key, getattr(part, name)))
    return made


@pytest.mark.parametrize(("command", "key"), EVERY, ids=lambda it: it.path if isinstance(it, Key) else it)
def test_each_setting_changes_or_is_said_to_need_a_restart(command: str, key: Key) -> None:
    running = SCHEMAS[command].whole()
    now = with_other(running, key)
    (change,) = compare(SCHEMAS[command], running, now)
    assert change.name == key.path
    assert change.before != change.now
    assert change.needs_restart is (key.reread != "value")
    merged = merge(SCHEMAS[command], running, now)
    assert merged == (running if change.needs_restart else now)
    assert list(compare(SCHEMAS[command], running, running)) == []


def test_these_settings_change_without_a_restart() -> None:
    for command, schema in SCHEMAS.items():
        of = {
            what: {key.path for key in schema.keys.values() if key.reread == what}
            for what in ("value", "content", None)
        }
        assert of["value"] == (VALUES | {"http.origins"} if command == "router" else VALUES)
        assert of["content"] == CONTENTS
        assert sum(map(len, of.values())) == len(schema.keys)


class FakeServer:
    """A running service that notes what it is told."""

    def __init__(self, config: Config, follows: bool = True) -> None:
        self.config, self.follows = config, follows
        self.changes: list[Config] = []
        self.entries: list[Config] = []
        self.reloads = 0

    def reload(self) -> None:
        self.reloads += 1

    def change(self, config: Config) -> None:
        self.changes.append(config)
        self.config = config

    def replace_entries(self, config: Config) -> bool:
        self.entries.append(config)
        return self.follows


def reread(running: FakeServer, now: Config, schema: Schema[Any] = SERVICE) -> None:
    reader = SettingsReader(schema, lambda: now)
    reader.begin(running.config)
    reader.reread(running)


def test_one_line_for_each_setting(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvatlas")
    running = FakeServer(Config())
    now = Config(
        model="other",
        drain_delay=5.0,
        http=HttpConfig(bind="0.0.0.0:80", access_log="on"),
        log=LogConfig(level="debug"),
    )
    reread(running, now)
    lines = {record.getMessage(): record.levelname for record in caplog.records}
    assert lines == {
        'http.bind: "127.0.0.1:8090" → "0.0.0.0:80" needs a restart': "WARNING",
        'model: not set → "other" needs a restart': "WARNING",
        'drain_delay: "0s" → "5s" from now on': "INFO",
        'http.access_log: "off" → "on" from now on': "INFO",
        'log.level: "info" → "debug" from now on': "INFO",
        "the settings were read again": "INFO",
    }
    (changed,) = running.changes
    assert (changed.model, changed.http.bind) == (None, "127.0.0.1:8090")
    assert (changed.drain_delay, changed.http.access_log, changed.log.level) == (5.0, "on", "debug")
    assert running.reloads == 1
    caplog.clear()
    reread(running, now)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2, "what needs a restart is said again, as it still does"
    assert len(running.changes) == 1


def test_passwords_and_keys_are_not_shown(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "kvatlas")
    key, own = tmp_path / "relay-key", tmp_path / "own-key"
    for path in (key, own):
        path.write_text("s3cret-one\n")
        path.chmod(0o600)
    flags = {"relay.key_file": str(key), "http.key_file": str(own)}
    before = read_config(flags | {"relay.publish": "nats://nats:4222"}, {}).config
    now = copy.copy(before)
    object.__setattr__(now, "relay", copy.copy(before.relay))
    object.__setattr__(now.relay, "publish", "nats://user:s3cret-two@nats:4222")
    running = FakeServer(before)
    reader = SettingsReader(SERVICE, lambda: now)
    reader.begin(before)
    for path in (key, own):
        path.write_text("s3cret-three\n")
    reader.reread(running)
    assert "s3cret" not in caplog.text
    assert 'relay.publish: "nats://nats:4222" → "nats://***@nats:4222" needs a restart' in caplog.text
    assert "relay.key_file: what is in the file (hidden) has changed, and needs a restart" in caplog.text
    assert "http.key_file" not in caplog.text, "it is read again"


def test_engines_of_the_configuration(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvatlas")
    before = RouterConfig(engines=(Engine.of("a=http://a:1"), Engine.of("b=http://b:1")))
    now = RouterConfig(engines=(Engine.of("b=http://b:2"), Engine.of("c=http://c:1")))
    running = FakeServer(before)
    reread(running, now, ROUTER)
    assert running.entries == [now]
    assert "engines of the configuration: added: c; removed: a; changed: b" in caplog.text
    caplog.clear()
    running = FakeServer(RouterConfig(), follows=False)
    reread(running, now, ROUTER)
    assert "added: b, c: needs a restart" in caplog.text
    assert caplog.records[0].levelname == "WARNING"


def test_settings_that_cannot_be_read_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class ServerWithoutKey(FakeServer):
        def reload(self) -> None:
            raise ServiceError("a key cannot be read", "not_started")

    def broken() -> Config:
        raise ConfigError("kvatlas.toml, line 3: unknown key drain_dely: did you mean drain_delay?")

    running = ServerWithoutKey(Config())
    reader = SettingsReader(SERVICE, broken)
    reader.begin(running.config)
    reader.reread(running)
    assert running.changes == []
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "so all of them stay as they are: kvatlas.toml, line 3: unknown key drain_dely" in record.getMessage()
