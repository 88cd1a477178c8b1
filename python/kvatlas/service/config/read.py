"""The configuration from flags, the environment and a file: flags first, then the environment, the file, the defaults.

Unknown names are refused with the nearest right one: a misspelt setting that is silently ignored is noticed only when
it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvatlas._text import closest
from kvatlas.errors import ConfigError
from kvatlas.service.config.engines import Engine, Stream
from kvatlas.service.config.kinds import File, Kind, Switch, shown
from kvatlas.service.config.schema import ENV_PREFIX, SECTIONS, Config, all_keys, check_secret
from kvatlas.service.config.toml import read_toml

CONFIG_ENV = "KVATLAS_CONFIG"
# Settings that are lists: the table of a file, the flag, the variable (its items separated by white space).
LISTS: dict[str, tuple[str, str, type[Engine | Stream]]] = {
    "engine": ("--engine", "KVATLAS_ENGINES", Engine),
    "stream": ("--stream", "KVATLAS_STREAMS", Stream),
}
# Keys themselves are never in a flag, where every user of the machine could read them, nor in the configuration file.
SECRETS = {
    "http.key": ("KVATLAS_KEY", "http.key_file"),
    "http.admin_key": ("KVATLAS_ADMIN_KEY", "http.admin_key_file"),
    "discovery.key": ("KVATLAS_ENGINE_KEY", "discovery.key_file"),
}
OTHERS = ("KVATLAS_URL",)  # variables of other commands

_KEYS = {key.path: key for key in all_keys()}
_SERVICE_HOST = "_SERVICE_HOST"


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration, and where each of its values came from.

    Attributes:
        config: The configuration.
        sources: By a setting's path, the flag, the variable, or the file and line; nothing for defaults.
        file: The configuration file, if there was one.
    """

    config: Config
    sources: dict[str, str] = field(default_factory=dict)
    file: Path | None = None


def read_config(
    flags: Mapping[str, str | Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | str | None = None,
) -> ResolvedConfig:
    """Put a configuration together.

    Args:
        flags: Texts of flags by the settings' paths; lists for "engine" and "stream".
        env: The environment; that of the process if not given.
        file: The configuration file; else the one that KVATLAS_CONFIG names. Without either, no file is read.

    Raises:
        ConfigError: Something is unknown or wrong; the message says what, where, and what would be right.
    """
    flags = dict(flags or {})
    env = os.environ if env is None else env
    path = Path(file) if file is not None else _config_path(env)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if path is not None:
        _read_file(path, values, sources)
    _read_env(env, values, sources)
    for name, text in flags.items():
        if name in LISTS:
            flag, _variable, kind = LISTS[name]
            values[name] = [_item(kind, item, flag) for item in text]
            sources[name] = flag
        else:
            key = _KEYS[name]
            values[name] = _converted(key.kind.parse, text, key.flag)
            sources[name] = key.flag
            _overrule(name, values, sources)
    return ResolvedConfig(_build(values), sources, path)


def _config_path(env: Mapping[str, str]) -> Path | None:
    text = env.get(CONFIG_ENV)
    return None if text is None else _converted(File().parse, text, CONFIG_ENV)


def _build(values: Mapping[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for path, value in values.items():
        if path in LISTS:
            continue
        section, _, name = path.rpartition(".")
        sections[section][name] = value
    general = sections.pop("")
    made: dict[str, Any] = {name: SECTIONS[name](**given) for name, given in sections.items()}
    return Config(
        engines=tuple(values.get("engine", ())), static_streams=tuple(values.get("stream", ())), **general, **made
    )


# The environment


def _read_env(env: Mapping[str, str], values: dict[str, Any], sources: dict[str, str]) -> None:
    keys = {key.env: key for key in _KEYS.values()}
    lists = {variable: (name, kind) for name, (_flag, variable, kind) in LISTS.items()}
    secrets = {variable: path for path, (variable, _file) in SECRETS.items()}
    known = [*keys, *lists, *secrets, CONFIG_ENV, *OTHERS]
    links = _kubernetes_links(env)
    for variable in sorted(env):
        text = env[variable]
        if variable.startswith(links) and (variable not in known or "://" in text):
            continue
        if variable in keys:
            values[keys[variable].path] = _converted(keys[variable].kind.parse, text, variable)
            sources[keys[variable].path] = variable
            _overrule(keys[variable].path, values, sources, variable)
        elif variable in lists:
            name, kind = lists[variable]
            values[name] = [_item(kind, item, variable) for item in text.split()]
            sources[name] = variable
        elif variable in secrets:
            path = secrets[variable]
            values[path] = check_secret(text.strip(), variable)
            sources[path] = variable
            _overrule(path, values, sources, variable)
        elif variable.startswith(ENV_PREFIX) and variable not in known:
            near = _nearest_variable(variable, known)
            raise ConfigError(f"unknown environment variable {variable}: {near}")


def _nearest_variable(variable: str, known: list[str]) -> str:
    near = closest(variable.removeprefix(ENV_PREFIX), [name.removeprefix(ENV_PREFIX) for name in known])
    return f"did you mean {ENV_PREFIX}{near}?" if near else "no setting has this name"


def _kubernetes_links(env: Mapping[str, str]) -> tuple[str, ...]:
    """Beginnings of the variables that Kubernetes adds for Services whose names begin with "kvatlas"."""
    services = [name.removesuffix(_SERVICE_HOST) for name in env if name.endswith(_SERVICE_HOST)]
    return tuple(f"{name}_{part}" for name in services for part in ("SERVICE_HOST", "SERVICE_PORT", "PORT"))


def _overrule(path: str, values: dict[str, Any], sources: dict[str, str], variable: str | None = None) -> None:
    """A key given one way takes the place of a key given another way further down; two ways at once are refused."""
    for secret, (secret_variable, file) in SECRETS.items():
        other = {secret: file, file: secret}.get(path)
        if other is None or other not in values:
            continue
        if variable is not None and sources[other] in (secret_variable, _KEYS[file].env):
            raise ConfigError(f"{secret_variable} and {_KEYS[file].env} are both set: set one of them")
        del values[other], sources[other]


# The file


def _read_file(path: Path, values: dict[str, Any], sources: dict[str, str]) -> None:
    tables, lines = read_toml(path)

    def where(name: str) -> str:
        return f"{path}, line {lines[name]}" if name in lines else str(path)

    paths = [*_KEYS, *LISTS]
    for name, given in tables.items():
        if name in LISTS:
            values[name] = read_list(name, given, where)
            sources[name] = where(name)
        elif name and name in SECTIONS:
            if not isinstance(given, Mapping):
                raise ConfigError(f"{where(name)}: {name} must be a table, [{name}], got {shown(given)}")
            for key, value in given.items():
                _take(f"{name}.{key}", value, path, where, values, sources, paths)
        else:
            _take(name, given, path, where, values, sources, paths)


def _take(
    name: str,
    value: object,
    file: Path,
    where: Any,
    values: dict[str, Any],
    sources: dict[str, str],
    paths: list[str],
) -> None:
    if name in SECRETS:
        variable, key_file = SECRETS[name]
        raise ConfigError(f"{where(name)}: {name} is not allowed in a configuration file: use {key_file} or {variable}")
    if name not in _KEYS:
        raise ConfigError(f"{where(name)}: unknown key {name}: {_nearest_path(name, paths)}")
    kind = _KEYS[name].kind
    converted = _converted(kind.convert, value, f"{where(name)}: {name}")
    # A file names others from where it is, not from where the service happens to be started.
    values[name] = file.parent / converted if isinstance(kind, File) else converted
    sources[name] = where(name)


def _nearest_path(name: str, paths: list[str]) -> str:
    field_of = {path.rpartition(".")[2]: path for path in paths}
    section, _, key = name.rpartition(".")
    if key in field_of:
        return f"did you mean {_spelled(field_of[key])}?"
    here = {path.rpartition(".")[2]: path for path in paths if path.rpartition(".")[0] == section}
    for candidates in (here, field_of):
        if near := closest(key, candidates):
            return f"did you mean {_spelled(candidates[near])}?"
    return f"it must be one of {', '.join(here or paths)}"


def _spelled(path: str) -> str:
    return f"[[{path}]]" if path in LISTS else path


def read_list(name: str, given: object, where: Any) -> list[Any]:
    """The engines or streams of a file.

    Raises:
        ConfigError: One of them is wrong.
    """
    kind = LISTS[name][2]
    if not isinstance(given, list):
        raise ConfigError(f"{where(name)}: {name} must be tables, [[{name}]], or a list of strings, got {shown(given)}")
    return [_item(kind, item, where(f"{name}.{at}")) for at, item in enumerate(given)]


# Values


def _converted(convert: Any, value: object, where: str) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from None


def _item(kind: type[Engine | Stream], item: object, where: str) -> Engine | Stream:
    try:
        return kind.of(item)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def show_config(resolved: ResolvedConfig) -> str:
    """The settings in force as TOML, each with where it came from; bearer keys are left out."""
    config = resolved.config
    lines = ["# The effective configuration. Settings without a comment have their default value."]
    kind: Kind
    for section in SECTIONS:
        if section:
            lines += ["", f"[{section}]"]
        for key in (key for key in _KEYS.values() if key.path.rpartition(".")[0] == section):
            name = key.path.rpartition(".")[2]
            value = getattr(getattr(config, section) if section else config, name)
            kind, source = key.kind, resolved.sources.get(key.path)
            said = f"  # {source}" if source else ""
            lines.append(f"# {name} is not set" if value is None else f"{name} = {kind.show(value)}{said}")
        for secret, (variable, _file) in SECRETS.items():
            if secret.rpartition(".")[0] == section and secret in resolved.sources:
                lines.append(f"# {secret.rpartition('.')[2]} is hidden  # {variable}")
    for name, entries in (("engine", config.engines), ("stream", config.static_streams)):
        for entry in entries:
            lines += ["", f"[[{name}]]  # {resolved.sources.get(name, 'given')}", *_entry(entry)]
    return "\n".join(lines) + "\n"


def _entry(entry: Engine | Stream) -> list[str]:
    lines = []
    for name, value in vars(entry).items():
        if value is None or (name == "topic" and not value):
            continue
        text = entry.shown_url if name == "url" and isinstance(entry, Engine) else value
        kind = Switch() if isinstance(text, bool) else File()
        lines.append(f"{name} = {text if type(text) is int else kind.show(text)}")
    return lines
