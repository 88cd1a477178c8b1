"""Settings from flags, the environment and a file: flags first, then the environment, the file, the defaults.

Whatever nobody knows is refused with the nearest right name: a misspelt setting that is silently ignored is found out
when it is needed.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvatlas.errors import SettingsError
from kvatlas.service.engines import Engine, Worker, nearest
from kvatlas.service.kinds import File, Kind, shown
from kvatlas.service.settings import ENV_PREFIX, SECTIONS, Settings, all_keys, check_secret

CONFIG_ENV = "KVATLAS_CONFIG"
# Settings that are lists: the table of a file, the flag, the variable (its items apart by white space).
LISTS: dict[str, tuple[str, str, type[Engine | Worker]]] = {
    "engine": ("--engine", "KVATLAS_ENGINES", Engine),
    "worker": ("--worker", "KVATLAS_WORKERS", Worker),
}
# Keys themselves are never in a flag, where every user of the machine could read them, nor in the settings' file.
SECRETS = {"http.key": ("KVATLAS_KEY", "http.key_file"), "discovery.key": ("KVATLAS_ENGINE_KEY", "discovery.key_file")}
# Variables of other commands, and of the tests.
OTHERS = ("KVATLAS_URL", "KVATLAS_DYNAMO_PYTHON", "KVATLAS_SEEDS", "KVATLAS_SHARED", "KVATLAS_STRESS_SECONDS")

_KEYS = {key.path: key for key in all_keys()}
_SERVICE_HOST = "_SERVICE_HOST"


@dataclass(frozen=True)
class Loaded:
    """Settings, and where each came from.

    Attributes:
        settings: The settings.
        sources: By a setting's path, the flag, the variable, or the file and line; nothing for defaults.
        config: The file, if there was one.
    """

    settings: Settings
    sources: dict[str, str] = field(default_factory=dict)
    config: Path | None = None


def load(
    flags: Mapping[str, str | Sequence[str]] | None = None,
    env: Mapping[str, str] | None = None,
    config: Path | str | None = None,
) -> Loaded:
    """Put settings together.

    Args:
        flags: Texts of flags by the settings' paths; lists for "engine" and "worker".
        env: The environment; that of the process if not given.
        config: The file; else the one that KVATLAS_CONFIG names. No file is read that nobody named.

    Raises:
        SettingsError: Something is unknown or wrong; the message says what, where, and what would be right.
    """
    flags = dict(flags or {})
    env = os.environ if env is None else env
    path = Path(config) if config is not None else _config_path(env)
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
    return Loaded(_build(values), sources, path)


def _config_path(env: Mapping[str, str]) -> Path | None:
    text = env.get(CONFIG_ENV)
    return None if text is None else _converted(File().parse, text, CONFIG_ENV)


def _build(values: Mapping[str, Any]) -> Settings:
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for path, value in values.items():
        if path in LISTS:
            continue
        section, _, name = path.rpartition(".")
        sections[section][name] = value
    general = sections.pop("")
    made: dict[str, Any] = {name: SECTIONS[name](**given) for name, given in sections.items()}
    return Settings(engines=tuple(values.get("engine", ())), workers=tuple(values.get("worker", ())), **general, **made)


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
            raise SettingsError(f"unknown environment variable {variable}: {near}")


def _nearest_variable(variable: str, known: list[str]) -> str:
    names = [name.removeprefix(ENV_PREFIX).lower() for name in known]
    near = difflib.get_close_matches(variable.removeprefix(ENV_PREFIX).lower(), names, n=1)
    return f"did you mean {ENV_PREFIX}{near[0].upper()}?" if near else "no setting is called so"


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
            raise SettingsError(f"{secret_variable} and {_KEYS[file].env} are both set: set one of them")
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
                raise SettingsError(f"{where(name)}: {name} must be a table, [{name}], got {shown(given)}")
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
        raise SettingsError(
            f"{where(name)}: {name} does not belong into a file of settings: use {key_file} or {variable}"
        )
    if name not in _KEYS:
        raise SettingsError(f"{where(name)}: unknown key {name}: {_nearest_path(name, paths)}")
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
        hint = nearest(key, list(candidates))
        if hint.startswith("did"):
            return f"did you mean {_spelled(candidates[hint.removeprefix('did you mean ').rstrip('?')])}?"
    there = ", ".join(here) if here else ", ".join(paths)
    return f"there are {there}"


def _spelled(path: str) -> str:
    return f"[[{path}]]" if path in LISTS else path


def read_list(name: str, given: object, where: Any) -> list[Any]:
    """The engines or workers of a file.

    Raises:
        SettingsError: One of them is wrong.
    """
    kind = LISTS[name][2]
    if not isinstance(given, list):
        raise SettingsError(
            f"{where(name)}: {name} must be tables, [[{name}]], or a list of strings, got {shown(given)}"
        )
    return [_item(kind, item, where(f"{name}.{at}")) for at, item in enumerate(given)]


def read_toml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """A file's content, and the lines that its keys are on.

    Raises:
        SettingsError: It cannot be read or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"cannot read {path}: it is not UTF-8 text") from error
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The content of TOML, and the lines that its keys are on.

    Raises:
        SettingsError: It is no TOML.
    """
    try:
        return tomllib.loads(text), _lines(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\"' -]+?)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"' -]+?)\s*=")


def _lines(text: str) -> dict[str, int]:
    """Lines of keys by their paths, for messages.

    The parser does not say them, so this reads what files commonly look like.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header[2].strip("\"'")
            lines.setdefault(name, number)
            if header[1] == "[[":
                at = counts.get(name, 0)
                counts[name] = at + 1
                name = f"{name}.{at}"
                lines.setdefault(name, number)
            prefix = f"{name}."
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(prefix + assignment[1].strip("\"'"), number)
    return lines


# Values


def _converted(convert: Any, value: object, where: str) -> Any:
    try:
        return convert(value)
    except ValueError as error:
        raise SettingsError(f"{where} {error}") from None


def _item(kind: type[Engine | Worker], item: object, where: str) -> Engine | Worker:
    try:
        return kind.of(item)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def effective(loaded: Loaded) -> str:
    """The settings in force as TOML, each with where it came from; keys are not in it."""
    settings = loaded.settings
    lines = ["# The settings in force. Where nothing is said, it is the default."]
    kind: Kind
    for section in SECTIONS:
        if section:
            lines += ["", f"[{section}]"]
        for key in (key for key in _KEYS.values() if key.path.rpartition(".")[0] == section):
            name = key.path.rpartition(".")[2]
            value = getattr(getattr(settings, section) if section else settings, name)
            kind, source = key.kind, loaded.sources.get(key.path)
            said = f"  # {source}" if source else ""
            lines.append(f"# {name} is not set" if value is None else f"{name} = {kind.show(value)}{said}")
        for secret, (variable, _file) in SECRETS.items():
            if secret.rpartition(".")[0] == section and secret in loaded.sources:
                lines.append(f"# {secret.rpartition('.')[2]} is hidden  # {variable}")
    for name, entries in (("engine", settings.engines), ("worker", settings.workers)):
        for entry in entries:
            lines += ["", f"[[{name}]]  # {loaded.sources.get(name, 'given')}", *_entry(entry)]
    return "\n".join(lines) + "\n"


def _entry(entry: Engine | Worker) -> list[str]:
    lines = []
    for name, value in vars(entry).items():
        if value is None or (name == "topic" and not value):
            continue
        text = entry.shown_url if name == "url" and isinstance(entry, Engine) else value
        lines.append(f"{name} = {text if isinstance(text, int) else File().show(text)}")
    return lines
