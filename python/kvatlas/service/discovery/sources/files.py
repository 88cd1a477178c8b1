"""Sources of engines and streams from the configuration, and from a file that may change."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import ConfigError, DiscoveryError
from kvatlas.service.config import Config, Engine, Stream
from kvatlas.service.config.engines import check_names
from kvatlas.service.config.read import LISTS, read_list
from kvatlas.service.config.toml import parse_toml
from kvatlas.service.discovery.sources.base import READY, EngineSource, Entry, Member, Name, name_of

logger = logging.getLogger("kvatlas.discovery")

_POLL = 1.0  # seconds between looks at the file


def read_engines(content: bytes, path: Path, config: Config) -> list[Entry]:
    """Parse the engines and streams in a file's content.

    Raises:
        ConfigError: An entry is unknown or invalid.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    tables, lines = parse_toml(text, path)
    where = {name: f"{path}, line {line}" for name, line in lines.items()}
    for name in tables:
        if name not in LISTS:
            wanted = ", ".join(f"[[{known}]]" for known in LISTS)
            raise ConfigError(f"{where.get(name, path)}: unknown key {name}: it must be one of {wanted}")
    engines: list[Engine] = read_list("engine", tables.get("engine", []), lambda name: where.get(name, str(path)))
    streams: list[Stream] = read_list("stream", tables.get("stream", []), lambda name: where.get(name, str(path)))
    for number, stream in enumerate(streams):
        try:
            stream.check(model=config.model, block_size=config.block_size)
        except ConfigError as error:
            raise ConfigError(f"{where.get(f'stream.{number}', path)}: {error}") from None
    try:
        check_names(engines, streams, shared=config.sends_requests)
        for engine in engines:
            config.check_engine(engine)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for engine in engines:
        for name, why in config.without_effect(engine).items():
            logger.warning("%s: engine %s: %s has no effect here: it %s", path, engine.shown_url, name, why)
    return [*engines, *streams]


class GivenEngines(EngineSource):
    """Source of the configured engines and streams, which change only with the configuration."""

    def __init__(self, config: Config) -> None:
        super().__init__("the configuration")
        self.replace(config)
        self.first.set()

    def replace(self, config: Config) -> None:
        """Replace the engines and streams by those of another configuration."""
        entries: list[Entry] = [*config.engines, *config.static_streams]
        self._members = [Member(entry) for entry in entries]
        self.changed()

    @property
    def members(self) -> Iterable[Member]:
        return self._members

    async def run(self) -> None:
        return None


class FileOfEngines(EngineSource):
    """Source of the engines and streams of a file, which is read again when it changes."""

    def __init__(self, path: Path, config: Config) -> None:
        """Create the source, and read the file.

        Raises:
            ConfigError: The file cannot be read or is invalid.
        """
        super().__init__(str(path))
        self._path, self._config = path, config
        self._refused: ConfigError | DiscoveryError | None = None
        self._counts: Counter[str] = Counter({"read": 1})
        self._content = self._seen = _read(path)
        self._listed = read_engines(self._content, path, config)
        if not self._listed and not config.allow_empty:
            logger.warning("%s lists no engines", path)
        self.first.set()

    @property
    def members(self) -> Iterable[Member]:
        return [Member(entry) for entry in self._listed]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_POLL)
            self._reread()

    def report(self) -> dict[str, Any]:
        return {
            "source": self.shown,
            "state": "following" if self._refused is None else "away",
            "code": None if self._refused is None else self._refused.code,
            "reason": None if self._refused is None else str(self._refused),
            "members": {READY: len(self._listed)},
            "counts": dict(self._counts),
        }

    def _reread(self) -> None:
        path = self._path
        try:
            content = _read(path)
            if content == self._content:
                self._say(None)
            # The same content must be read twice, so that a file that is being written is not used.
            seen, self._seen = self._seen, content
            if content == self._content or content != seen:
                return
            listed = read_engines(content, path, self._config)
            if self._listed and not listed and not self._config.allow_empty:
                raise DiscoveryError(
                    f"{path} lists nothing any more: to remove all engines, start with --allow-empty", "empty_file"
                )
        except (ConfigError, DiscoveryError) as error:
            self._say(error)
            return
        before = {name_of(entry): entry for entry in self._listed}
        now = {name_of(entry): entry for entry in listed}
        self._content, self._listed = content, listed
        self._refused = None
        self._counts["read"] += 1
        logger.info("%s: %s", path, _difference(before, now))
        self.changed()

    def _say(self, refused: ConfigError | DiscoveryError | None) -> None:
        """Log and count once that the file is invalid, or valid again."""
        if str(refused) != str(self._refused):
            self._refused = refused
            if refused is None:
                logger.info("%s: unchanged again", self._path)
            else:
                self._counts[f"refused_{refused.code}"] += 1
                logger.error("%s; keeping the previous content", refused)
            self.changed()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _difference(before: Mapping[Name, Entry], now: Mapping[Name, Entry]) -> str:
    added = len(now.keys() - before.keys())
    removed = len(before.keys() - now.keys())
    changed = sum(1 for name in now.keys() & before.keys() if now[name] != before[name])
    return f"{added} added, {changed} changed, {removed} removed"
