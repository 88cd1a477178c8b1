"""Reader of a configuration from flags, environment variables, a file and defaults, in this order of precedence.

Unknown names are refused with the most similar known one, because an ignored misspelt setting is noticed only when it
is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from kvatlas._text import closest
from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import Engine, Stream
from kvatlas.service.config.kinds import File, Kind, shown
from kvatlas.service.config.pools import Pool
from kvatlas.service.config.schema import SECTIONS, Config
from kvatlas.service.config.section import ENV_PREFIX, Key, Section, check_secret, keys_of
from kvatlas.service.config.toml import read_toml

CONFIG_ENV = "KVATLAS_CONFIG"
# Settings that are lists: the table of a file, the flag, the variable (its items separated by white space).
LISTS: dict[str, tuple[str, str, EntryKind]] = {
    "engine": ("--engine", "KVATLAS_ENGINES", Engine),
    "stream": ("--stream", "KVATLAS_STREAMS", Stream),
}
POOLS: dict[str, tuple[str, str, EntryKind]] = {"pool": ("--pool", "KVATLAS_POOLS", Pool)}
# Keys themselves are never in a flag, where every user of the machine could read them, nor in the configuration file.
SECRETS = {
    "http.key": ("KVATLAS_KEY", "http.key_file"),
    "http.admin_key": ("KVATLAS_ADMIN_KEY", "http.admin_key_file"),
    "discovery.key": ("KVATLAS_ENGINE_KEY", "discovery.key_file"),
    "relay.key": ("KVATLAS_RELAY_KEY", "relay.key_file"),
}
OTHERS = ("KVATLAS_URL", "KVATLAS_ROUTER_URL", "KVATLAS_TRACES")  # variables of other commands

_SERVICE_HOST = "_SERVICE_HOST"
C = TypeVar("C", bound=Section)


class EntryKind(Protocol):
    """Interface of a class of list entries, which parses a flag's text or a table of a file."""

    def of(self, value: Any, /) -> Engine | Stream | Pool:
        """Create an entry from a flag's text or a table. Raises `ConfigError`."""


@dataclass(frozen=True)
class Schema(Generic[C]):
    """Declaration of all settings of one command.

    Attributes:
        whole: The class of the whole configuration.
        sections: The sections of the configuration by name; the whole by "".
        lists: The settings that are lists: see `LISTS`.
        fields: The field of `whole` for each list, by the list's name.
        secrets: The bearer keys that a variable or a file may contain: see `SECRETS`.
    """

    whole: type[C]
    sections: Mapping[str, type[Section]]
    lists: Mapping[str, tuple[str, str, EntryKind]]
    fields: Mapping[str, str]
    secrets: Mapping[str, tuple[str, str]]

    @cached_property
    def keys(self) -> dict[str, Key]:
        """All settings with a single value, by path, in the order of the sections."""
        return {key.path: key for section in self.sections.values() for key in keys_of(section)}


SERVICE = Schema(
    Config, SECTIONS, LISTS | POOLS, {"engine": "engines", "stream": "static_streams", "pool": "pools"}, SECRETS
)
"""Declaration of all settings of `kvatlas serve`."""


@dataclass(frozen=True)
class ResolvedConfig(Generic[C]):
    """A configuration with the source of each of its values.

    Attributes:
        config: The configuration.
        sources: Source of each setting by its path: the flag, the variable, or the file and line; absent for defaults.
        file: The configuration file; None without one.
    """

    config: C
    sources: dict[str, str] = field(default_factory=dict)
    file: Path | None = None


def read_config(
    flags: Mapping[str, str | Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | str | None = None,
) -> ResolvedConfig[Config]:
    """Read the configuration of a service from flags, the environment and a file.

    Args:
        flags: Texts of flags by the settings' paths; lists for "engine" and "stream".
        env: The environment variables; None for those of the process.
        file: The configuration file; None for the one that KVATLAS_CONFIG names, if any.

    Raises:
        ConfigError: A name is unknown or a value is invalid; the message says which, where, and what is valid.
    """
    return read_as(SERVICE, flags, env, file)


def read_as(
    schema: Schema[C],
    flags: Mapping[str, str | Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | str | None = None,
    usual: Mapping[str, str] | None = None,
) -> ResolvedConfig[C]:
    """Read the configuration of any command, like `read_config` for `kvatlas serve`.

    `usual`: texts of a command's defaults, by the settings' paths, which replace those of the settings.

    Raises:
        ConfigError: For the reasons of `read_config`.
    """
    return _PartialConfig(schema).read(dict(flags or {}), os.environ if env is None else env, file, usual or {})


class _PartialConfig(Generic[C]):
    """Values and sources collected so far while a configuration is read."""

    def __init__(self, schema: Schema[C]) -> None:
        self.schema = schema
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def read(
        self, flags: Mapping[str, Any], env: Mapping[str, str], file: Path | str | None, usual: Mapping[str, str]
    ) -> ResolvedConfig[C]:
        schema, values, sources = self.schema, self.values, self.sources
        path = Path(file) if file is not None else _config_path(env)
        if path is not None:
            self._read_file(path)
        self._read_env(env)
        for name, text in flags.items():
            if name in schema.lists:
                flag, _variable, kind = schema.lists[name]
                values[name] = [_item(kind, item, flag) for item in text]
                sources[name] = flag
            else:
                key = schema.keys[name]
                values[name] = _converted(key.kind.parse, text, key.flag)
                sources[name] = key.flag
                self._overrule(name)
        for name, text in usual.items():
            if name not in values:
                key = schema.keys[name]
                values[name] = _converted(key.kind.parse, text, key.flag)
        return ResolvedConfig(self._build(), sources, path)

    def _build(self) -> C:
        sections: dict[str, dict[str, Any]] = {name: {} for name in self.schema.sections}
        entries: dict[str, tuple[Any, ...]] = {}
        for path, value in self.values.items():
            if (its := self.schema.fields.get(path)) is not None:
                entries[its] = (*entries.get(its, ()), *value)
                continue
            section, _, name = path.rpartition(".")
            sections[section][name] = value
        general = sections.pop("")
        made: dict[str, Any] = {name: self.schema.sections[name](**given) for name, given in sections.items()}
        return self.schema.whole(**entries, **general, **made)

    # The environment

    def _read_env(self, env: Mapping[str, str]) -> None:
        schema, values, sources = self.schema, self.values, self.sources
        keys = {key.env: key for key in schema.keys.values()}
        lists = {variable: (name, kind) for name, (_flag, variable, kind) in schema.lists.items()}
        secrets = {variable: path for path, (variable, _file) in schema.secrets.items()}
        known = [*keys, *lists, *secrets, CONFIG_ENV, *OTHERS]
        links = _kubernetes_links(env)
        for variable in sorted(env):
            text = env[variable]
            if variable.startswith(links) and (variable not in known or "://" in text):
                continue
            if variable in keys:
                values[keys[variable].path] = _converted(keys[variable].kind.parse, text, variable)
                sources[keys[variable].path] = variable
                self._overrule(keys[variable].path, variable)
            elif variable in lists:
                name, kind = lists[variable]
                values[name] = [_item(kind, item, variable) for item in text.split()]
                sources[name] = variable
            elif variable in secrets:
                path = secrets[variable]
                values[path] = check_secret(text.strip(), variable)
                sources[path] = variable
                self._overrule(path, variable)
            elif variable.startswith(ENV_PREFIX) and variable not in known:
                near = _nearest_variable(variable, known)
                raise ConfigError(f"unknown environment variable {variable}: {near}")

    def _overrule(self, path: str, variable: str | None = None) -> None:
        """Replace the other form of a setting if its source is weaker; two forms in one source are refused."""
        values, sources, keys = self.values, self.sources, self.schema.keys
        for secret, (secret_variable, file) in self.schema.secrets.items():
            other = {secret: file, file: secret}.get(path)
            if other is None or other not in values:
                continue
            if variable is not None and sources[other] in (secret_variable, keys[file].env):
                raise ConfigError(f"{secret_variable} and {keys[file].env} are both set: set one of them")
            del values[other], sources[other]

    # The file

    def _read_file(self, path: Path) -> None:
        tables, lines = read_toml(path)

        def where(name: str) -> str:
            return f"{path}, line {lines[name]}" if name in lines else str(path)

        for name, given in tables.items():
            if name in self.schema.lists:
                self.values[name] = read_list(name, given, where, self.schema)
                self.sources[name] = where(name)
            elif name and name in self.schema.sections:
                if not isinstance(given, Mapping):
                    raise ConfigError(f"{where(name)}: {name} must be a table, [{name}], got {shown(given)}")
                for key, value in given.items():
                    self._take(f"{name}.{key}", value, path, where)
            else:
                self._take(name, given, path, where)

    def _take(self, name: str, value: object, file: Path, where: Any) -> None:
        schema = self.schema
        if name in schema.secrets:
            variable, key_file = schema.secrets[name]
            raise ConfigError(
                f"{where(name)}: {name} is not allowed in a configuration file: use {key_file} or {variable}"
            )
        if name not in schema.keys:
            raise ConfigError(f"{where(name)}: unknown key {name}: {_nearest_path(name, schema)}")
        kind = schema.keys[name].kind
        converted = _converted(kind.convert, value, f"{where(name)}: {name}")
        # A file names others from where it is, not from where the service happens to be started.
        self.values[name] = file.parent / converted if isinstance(kind, File) else converted
        self.sources[name] = where(name)


def _config_path(env: Mapping[str, str]) -> Path | None:
    text = env.get(CONFIG_ENV)
    return None if text is None else _converted(File().parse, text, CONFIG_ENV)


def _nearest_variable(variable: str, known: list[str]) -> str:
    near = closest(variable.removeprefix(ENV_PREFIX), [name.removeprefix(ENV_PREFIX) for name in known])
    return f"did you mean {ENV_PREFIX}{near}?" if near else "no setting has this name"


def _kubernetes_links(env: Mapping[str, str]) -> tuple[str, ...]:
    """Prefixes of the variables that Kubernetes adds for Services whose names begin with "kvatlas"."""
    services = [name.removesuffix(_SERVICE_HOST) for name in env if name.endswith(_SERVICE_HOST)]
    return tuple(f"{name}_{part}" for name in services for part in ("SERVICE_HOST", "SERVICE_PORT", "PORT"))


def _nearest_path(name: str, schema: Schema[Any]) -> str:
    paths = [*schema.keys, *schema.lists]
    field_of = {path.rpartition(".")[2]: path for path in paths}
    section, _, key = name.rpartition(".")
    if key in field_of:
        return f"did you mean {_spelled(field_of[key], schema)}?"
    here = {path.rpartition(".")[2]: path for path in paths if path.rpartition(".")[0] == section}
    for candidates in (here, field_of):
        if near := closest(key, candidates):
            return f"did you mean {_spelled(candidates[near], schema)}?"
    return f"it must be one of {', '.join(here or paths)}"


def _spelled(path: str, schema: Schema[Any]) -> str:
    return f"[[{path}]]" if path in schema.lists else path


def read_list(name: str, given: object, where: Any, schema: Schema[Any] = SERVICE) -> list[Any]:
    """Parse a list of a configuration file: engines, streams or pools.

    Raises:
        ConfigError: An entry is invalid.
    """
    kind = schema.lists[name][2]
    if not isinstance(given, list):
        raise ConfigError(f"{where(name)}: {name} must be tables, [[{name}]], or a list of strings, got {shown(given)}")
    return [_item(kind, item, where(f"{name}.{at}")) for at, item in enumerate(given)]


# Values


def _converted(convert: Any, value: object, where: str) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from None


def _item(kind: EntryKind, item: object, where: str) -> Engine | Stream | Pool:
    try:
        return kind.of(item)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def show_config(resolved: ResolvedConfig[C], schema: Schema[C] | None = None) -> str:
    """The effective settings as TOML, each with its source; bearer keys are left out."""
    config: Any = resolved.config
    its: Schema[Any] = SERVICE if schema is None else schema
    lines = ["# The effective configuration. Settings without a comment have their default value."]
    kind: Kind
    for section in its.sections:
        if section:
            lines += ["", f"[{section}]"]
        for key in (key for key in its.keys.values() if key.path.rpartition(".")[0] == section):
            name = key.path.rpartition(".")[2]
            value = getattr(getattr(config, section) if section else config, name)
            kind, source = key.kind, resolved.sources.get(key.path)
            said = f"  # {source}" if source else ""
            lines.append(f"# {name} is not set" if value is None else f"{name} = {kind.show(value)}{said}")
        for secret, (variable, _file) in its.secrets.items():
            if secret.rpartition(".")[0] == section and secret in resolved.sources:
                lines.append(f"# {secret.rpartition('.')[2]} is hidden  # {variable}")
    for name, entries in (("engine", config.engines), ("stream", config.static_streams), ("pool", config.pools)):
        for entry in entries:
            lines += ["", f"[[{name}]]  # {resolved.sources.get(name, 'given')}", *_entry(entry)]
    return "\n".join(lines) + "\n"


def _entry(entry: Engine | Stream | Pool) -> list[str]:
    kinds: dict[str, Kind] = {each.name: each.metadata["kind"] for each in dataclasses.fields(entry)}
    lines = []
    for name, value in vars(entry).items():
        if value is None or (name == "topic" and not value):
            continue
        if name == "key":
            lines.append("# key is hidden")
            continue
        if isinstance(value, tuple):
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
            continue
        text = entry.shown_url if name == "url" and isinstance(entry, Engine) else value
        lines.append(f"{name} = {kinds[name].show(text)}")
    return lines
