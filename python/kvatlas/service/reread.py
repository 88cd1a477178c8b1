"""Settings that can be read again while a service or a router runs (SIGHUP), and changes that need a restart."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from kvatlas.errors import ConfigError, KvatlasError
from kvatlas.service.config import Config, Engine, Stream
from kvatlas.service.config.read import Schema
from kvatlas.service.config.section import Key

logger = logging.getLogger("kvatlas.service")

_PASSWORD = re.compile(r"//[^/@\s\"]*@")
# Files of keys, certificates and credentials, by the names of their settings.
_SECRETS = ("key_file", "ca", "credentials", "tls_cert", "tls_key", "tls_client_ca")
C = TypeVar("C", bound=Config)


class ChangeableServer(Protocol):
    """Interface of a service or router whose settings change while it runs."""

    @property
    def config(self) -> Config: ...
    def reload(self) -> None: ...
    def change(self, config: Config) -> None: ...
    def replace_entries(self, config: Config) -> bool: ...


@dataclasses.dataclass(frozen=True)
class SettingChange:
    """A change of a setting: the running value and the new one.

    Attributes:
        name: The setting's name in the file.
        before: The running value, in the form of a file.
        now: The new value, in the form of a file.
        needs_restart: True if the running value stays in force until a restart.
    """

    name: str
    before: str
    now: str
    needs_restart: bool


def compare(schema: Schema[Any], running: Config, now: Config) -> Iterator[SettingChange]:
    """List the changes of the settings with a single value."""
    for key in schema.keys.values():
        before, after = _value(running, key), _value(now, key)
        if before != after:
            yield SettingChange(key.path, _shown(key, before), _shown(key, after), key.reread != "value")


def merge(schema: Schema[C], running: C, now: C) -> C:
    """The running configuration, with those values of another one that can change without a restart."""
    changed: dict[str, dict[str, Any]] = {}
    for key in schema.keys.values():
        if key.reread == "value":
            section, _, name = key.path.rpartition(".")
            changed.setdefault(section, {})[name] = _value(now, key)
    general = changed.pop("", {})
    sections = {name: dataclasses.replace(getattr(running, name), **its) for name, its in changed.items()}
    return dataclasses.replace(running, **general, **sections)


class SettingsReader(Generic[C]):
    """Reader of the settings of a running service or router, from the same sources as at its start."""

    def __init__(self, schema: Schema[C], read: Callable[[], C]) -> None:
        """Create a reader.

        Args:
            schema: The declaration of the settings.
            read: Function that reads the settings again from the flags, the environment and the file. Raises
                `ConfigError`.
        """
        self._schema = schema
        self._read = read
        self._files: dict[str, bytes | None] = {}

    def begin(self, config: Config) -> None:
        """Store the contents of the files of keys and certificates at the start."""
        self._files = dict(self._contents(config))

    def reread(self, running: ChangeableServer) -> None:
        """Read all settings again, apply those that can change, and log the others."""
        with contextlib.suppress(
            KvatlasError
        ):  # the native part has logged it; the other settings are read all the same
            running.reload()
        try:
            now = self._read()
        except (ConfigError, OSError) as error:
            logger.error("the settings cannot be read again, so all of them stay as they are: %s", error)  # noqa: TRY400
            return
        before: Any = running.config
        merged: Any = merge(self._schema, before, now)
        for change in compare(self._schema, before, now):
            if change.needs_restart:
                logger.warning("%s: %s → %s needs a restart", change.name, change.before, change.now)
            else:
                logger.info("%s: %s → %s from now on", change.name, change.before, change.now)
        if merged != before:
            running.change(merged)
        self._reread_entries(running, now)
        for name, content in self._contents(before):
            if content != self._files.get(name):
                logger.warning("%s: what is in the file (hidden) has changed, and needs a restart", name)
        logger.info("the settings were read again")

    def _reread_entries(self, running: ChangeableServer, now: Config) -> None:
        before, after = _by_name(running.config), _by_name(now)
        parts = {
            "added": after.keys() - before.keys(),
            "removed": before.keys() - after.keys(),
            "changed": {name for name in after.keys() & before.keys() if after[name] != before[name]},
        }
        words = "; ".join(f"{what}: {', '.join(sorted(names))}" for what, names in parts.items() if names)
        if not words:
            return
        if running.replace_entries(now):
            logger.info("engines of the configuration: %s", words)
        else:
            logger.warning(
                "engines of the configuration: %s: needs a restart, as it was started without any: engines_file names "
                "a file that is read again when it changes",
                words,
            )

    def _contents(self, config: Config) -> Iterator[tuple[str, bytes | None]]:
        """Hashes of the files of keys and certificates that are read only at the start, by setting."""
        for key in self._schema.keys.values():
            path = _value(config, key)
            if isinstance(path, Path) and key.reread != "content" and key.path.endswith(_SECRETS):
                try:
                    yield key.path, hashlib.sha256(path.read_bytes()).digest()
                except OSError:
                    yield key.path, None


def _value(config: Config, key: Key) -> Any:
    section, _, name = key.path.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


def _shown(key: Key, value: Any) -> str:
    """A setting's value in the form of a file, without passwords in addresses."""
    return "not set" if value is None else _PASSWORD.sub("//***@", key.kind.show(value))


def _by_name(config: Config) -> Mapping[str, Engine | Stream]:
    streams = {f"{stream.worker} (stream of rank {stream.rank})": stream for stream in config.static_streams}
    return {**{engine.worker: engine for engine in config.engines}, **streams}
