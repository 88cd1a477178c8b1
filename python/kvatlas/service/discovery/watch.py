"""Discovery of a list of engines and streams: those of the configuration, and those of a file that may change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvatlas.errors import ConfigError
from kvatlas.service.config import Config, Engine, Stream
from kvatlas.service.config.engines import check_names
from kvatlas.service.config.read import LISTS, read_list
from kvatlas.service.config.toml import parse_toml
from kvatlas.service.discovery.follow import EngineFollower, Follower, StreamFollower, Watcher
from kvatlas.service.discovery.http import Asker
from kvatlas.service.discovery.probe import Prober
from kvatlas.service.discovery.sizes import EmittedSizes
from kvatlas.service.native import Native

logger = logging.getLogger("kvatlas.discovery")

HOLD = "discovery"  # what readiness waits for, until the first engines were asked
_POLL = 1.0  # seconds between looks at the file
_LOOKS = 25  # looks at engines a second, at most: each costs about 2 ms

Entry = Engine | Stream
Name = tuple[str, int | None]  # an engine's, or a worker's with its rank


def read_engines(content: bytes, path: Path, config: Config) -> list[Entry]:
    """The engines and streams of a file.

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


class Discovery:
    """Follows all engines and streams until it is stopped."""

    def __init__(self, config: Config) -> None:
        """Make a discovery. Nothing is asked yet.

        Raises:
            ConfigError: The engines' file or key file cannot be read or is wrong.
        """
        self._config = config
        self.watcher: Watcher | None = None  # notified of engines; set before `run`
        self._key = config.discovery.bearer()
        self._file = config.engines_file
        self._content = self._seen = b""
        self._refused: str | None = None
        self._listed: list[Entry] = []
        if self._file is not None:
            self._content = self._seen = _read(self._file)
            self._listed = read_engines(self._content, self._file, config)
        self._followers: dict[Name, tuple[Entry, Follower, asyncio.Task[None]]] = {}
        self._sizes = EmittedSizes()
        self._leaving: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The engines and streams of the configuration and the file."""
        return (*self._config.engines, *self._config.static_streams, *self._listed)

    async def run(self, native: Native) -> None:
        """Follow the entries until `stop`. Registrations stay."""
        self._native = native
        async with Asker(self._config.discovery.request_timeout, self._key) as asker:
            self._asker = asker
            self._follow()
            settle = asyncio.create_task(self._settle())
            try:
                while not await self._stopped_within(_POLL if self._file is not None else None):
                    self._reread()
            finally:
                settle.cancel()
                for _entry, follower, _task in self._followers.values():
                    follower.stop()
                tasks = [task for _entry, _follower, task in self._followers.values()]
                await asyncio.gather(settle, *tasks, *self._leaving, return_exceptions=True)

    def stop(self) -> None:
        """Ask `run` to end. To be called in its loop."""
        self._stop.set()

    async def _stopped_within(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stop.wait()
        except TimeoutError:
            return False

    async def _settle(self) -> None:
        """Release readiness once the first engines have been asked, or a time limit has passed."""
        first = [(entry, follower) for entry, follower, _task in self._followers.values()]
        try:
            async with asyncio.timeout(self._config.discovery.timeout):
                await asyncio.gather(*(follower.settled.wait() for _entry, follower in first))
        except TimeoutError:
            away = [follower.shown for _entry, follower in first if not follower.settled.is_set()]
            more = f" and {len(away) - 3} more" if len(away) > 3 else ""
            logger.warning("no longer waiting for %s%s", ", ".join(away[:3]), more)
        self._native.release(HOLD)
        if self._config.follows_events and first and not any(follower.is_registered for _entry, follower in first):
            if self.watcher is None:
                logger.warning("none of the configured engines can be used")
            else:  # it sends them requests all the same
                logger.warning("no configured engine's events can be followed: engines are chosen by load only")

    def _follow(self) -> None:
        """Start and stop followers to match the lists."""
        wanted: dict[Name, Entry] = {}
        names: dict[str, type[Entry]] = {}
        for entry in self.entries:
            name = _name(entry)
            is_of_its_kind = self._config.sends_requests or names.setdefault(name[0], type(entry)) is type(entry)
            if name in wanted or not is_of_its_kind:
                logger.warning("%s: ignored %s, which was already configured at the start", self._file, _shown(entry))
                continue
            wanted[name] = entry
        by_hand: dict[str, set[int]] = {}
        for entry in wanted.values():
            if isinstance(entry, Stream):
                by_hand.setdefault(entry.worker, set()).add(entry.rank)
        self._drop({name for name, (entry, _f, _t) in self._followers.items() if wanted.get(name) != entry})
        self._drop(
            {
                name
                for name, (_e, follower, _t) in self._followers.items()
                if isinstance(follower, EngineFollower) and follower.registers is (name[0] in by_hand)
            }
        )
        for name, entry in wanted.items():
            if name not in self._followers:
                self._add(name, entry, by_hand.get(name[0], set()))

    def _add(self, name: Name, entry: Entry, by_hand: set[int]) -> None:
        follower: Follower
        if isinstance(entry, Engine):
            check, routes = self._native.check_allowed, self.watcher is not None
            prober = Prober(self._asker, entry, self._config, check, names_ranks=routes)
            if self.watcher is not None:
                self.watcher.listed(entry, by_hand)
            follower = EngineFollower(
                *(self._native, self._config, prober, entry, self.pace, self.watcher),
                registers=not by_hand,
                sizes=self._sizes,
            )
        else:
            follower = StreamFollower(self._native, self._config, entry)
        before = [task for task in self._leaving if task.get_name() == name[0]]
        self._followers[name] = (entry, follower, asyncio.create_task(_run_after(before, follower)))

    def pace(self, engines: int | None = None) -> float:
        """The seconds between two looks at an engine, longer in large fleets to limit the load."""
        return max(self._config.discovery.interval, (len(self._followers) if engines is None else engines) / _LOOKS)

    def _drop(self, names: Iterable[Name]) -> None:
        for name in names:
            _entry, follower, task = self._followers.pop(name)
            leaving = asyncio.create_task(_leave(follower, task), name=name[0])
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    # The file

    def _reread(self) -> None:
        assert self._file is not None  # noqa: S101 - said by the caller's condition
        try:
            content = _read(self._file)
            if content == self._content:
                self._say(None)
            # Read twice the same, so that a file that is being written is not taken.
            seen, self._seen = self._seen, content
            if content == self._content or content != seen:
                return
            listed = read_engines(content, self._file, self._config)
        except ConfigError as error:
            self._say(str(error))
            return
        before = {_name(entry): entry for entry in self._listed}
        now = {_name(entry): entry for entry in listed}
        self._content, self._listed = content, listed
        self._refused = None
        logger.info("%s: %s", self._file, _difference(before, now))
        self._follow()

    def _say(self, refused: str | None) -> None:
        """Log once that the file is wrong, or right again."""
        if refused != self._refused:
            self._refused = refused
            if refused is None:
                logger.info("%s: unchanged again", self._file)
            else:
                logger.error("%s; keeping the previous content", refused)


async def _run_after(before: list[asyncio.Task[None]], follower: Follower) -> None:
    """Run the follower of a changed entry once the old follower has left."""
    await asyncio.gather(*before, return_exceptions=True)
    await follower.run()


async def _leave(follower: Follower, task: asyncio.Task[None]) -> None:
    follower.stop()
    await asyncio.gather(task, return_exceptions=True)
    await follower.left()
    logger.info("%s: removed from the file; unregistered", follower.shown)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _name(entry: Entry) -> Name:
    return (entry.worker, None) if isinstance(entry, Engine) else (entry.worker, entry.rank)


def _shown(entry: Entry) -> str:
    return f"engine {entry.worker}" if isinstance(entry, Engine) else f"stream of {entry.worker}, rank {entry.rank},"


def _difference(before: Mapping[Name, Entry], now: Mapping[Name, Entry]) -> str:
    added = len(now.keys() - before.keys())
    removed = len(before.keys() - now.keys())
    changed = sum(1 for name in now.keys() & before.keys() if now[name] != before[name])
    return f"{added} added, {changed} changed, {removed} removed"
