"""Base of a section of settings: fields with a kind, a flag and a help text, checked against the kind."""

from __future__ import annotations

import dataclasses
import logging
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from kvatlas._http import is_bearer
from kvatlas.errors import ConfigError
from kvatlas.service.config.kinds import (
    Kind,
)

logger = logging.getLogger("kvatlas.config")

Reread: TypeAlias = Literal["value", "content"]

ENV_PREFIX = "KVATLAS_"
MAX_KEY = 8 << 10  # bytes of a key, which is part of each request's head
DEFAULT_GROUP = "default"
_EXPOSED = 0o027  # bits of a mode that open a file to others than its owner and, for reading, its group
_warned: set[str] = set()  # a key is read by each part that shows it


@dataclass(frozen=True)
class Key:
    """A setting: its names and the values that it accepts.

    Attributes:
        path: The setting's name in the file: the section, a dot, the field; or the field alone.
        kind: The kind of its values.
        flag: The flag on the command line.
        help: The help text.
        default: The default; None if there is none.
        optional: True if None is a valid value.
        reread: Part that is read again without a restart: the setting's `value`, the `content` of the file that it
            names, or None for nothing.
    """

    path: str
    kind: Kind
    flag: str
    help: str
    default: Any
    optional: bool
    reread: Reread | None = None

    @property
    def env(self) -> str:
        """The setting's environment variable, named like the flag."""
        return ENV_PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    def show_default(self) -> str:
        """The default in the form of a file; empty if there is none."""
        return "" if self.default in (None, ()) else self.kind.show(self.default)


def about(
    kind: Kind, flag: str, text: str, *, native: bool | str = True, reread: Reread | None = None
) -> dict[str, Any]:
    """Make the metadata of a field of a section: the kind of its values, its flag and its help.

    `native`: True if the native part reads the field, from the section, under the same name; or, as `part.name`, under
    that name in another struct inside it. False if only Python reads it. `reread`: part that is read again on SIGHUP,
    as in `Key`.
    """
    return {"kind": kind, "flag": flag, "help": text, "native": native, "reread": reread}


class Section:
    """Settings of one section, each field checked against its kind."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for key in keys_of(type(self)):
            name = key.path.rpartition(".")[2]
            value = getattr(self, name)
            if value is None and key.optional:
                continue
            try:
                object.__setattr__(self, name, key.kind.convert(value))
            except ValueError as error:
                raise ConfigError(f"{key.path} {error}") from None

    def for_native(self) -> dict[str, Any]:
        """The settings that the native part reads, by name: durations in seconds, sizes in bytes, files by path."""
        given: dict[str, Any] = {}
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            native = each.metadata.get("native")
            if native:
                value = getattr(self, each.name)
                part, _, name = (each.name if native is True else native).rpartition(".")
                into = given.setdefault(part, {}) if part else given
                into[name] = None if value is None else each.metadata["kind"].native(value)
        return given


def keys_of(section: type[Section]) -> Iterator[Key]:
    """The settings of one dataclass."""
    prefix = f"{section.section}." if section.section else ""
    for each in dataclasses.fields(section):  # type: ignore[arg-type]
        about = each.metadata
        if "kind" in about:
            optional = each.default is None
            path = prefix + each.name
            yield Key(path, about["kind"], about["flag"], about["help"], each.default, optional, about["reread"])


def one_key(name: str, key: str | None, file: Path | None) -> None:
    """Check a bearer key that may be given directly or in a file.

    Raises:
        ConfigError: The key is given both ways, or cannot be sent in a header.
    """
    if key is not None:
        check_secret(key, name)
        if file is not None:
            raise ConfigError(f"{name} and {name}_file are both given: give one of them")


def read_secret(path: Path, name: str, *, warn: bool = True) -> str:
    """Read the bearer key in a file of one line. `warn`: True to log a warning if others may read the file.

    Raises:
        ConfigError: The file cannot be read, is empty or does not contain a key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(65_537).decode()
        exposed = exposure(path)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{name}: cannot read {path}: {why}") from error
    if warn and exposed is not None and exposed not in _warned:
        _warned.add(exposed)
        logger.warning("%s: %s", name, exposed)
    return check_secret(text.strip(), f"{name}: {path}")


def exposure(path: Path) -> str | None:
    """A warning about a secret's file that others than its owner and group may read; None if it is safe.

    Raises:
        OSError: The file's mode cannot be read.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & _EXPOSED:
        return None
    where = f"the key in {path} is open to other users of this machine (mode {mode:04o})"
    return f"{where}: chmod 600 {path}, or 640 for a group"


def secret_files(*sections: Section) -> Iterator[tuple[str, Path]]:
    """The configured files with secrets, each with the name of its setting."""
    for section in sections:
        for key in keys_of(type(section)):
            name = key.path.rpartition(".")[2]
            path = getattr(section, name)
            if path is not None and (name.endswith("key_file") or name == "tls_key"):
                yield key.path, path


def check_secret(secret: object, name: str) -> str:
    """Check that a key can be sent in a header, and return it. No message contains the key."""
    if not isinstance(secret, str) or not is_bearer(secret):
        raise ConfigError(f"{name} must hold one key of visible ASCII characters without white space")
    if len(secret) > MAX_KEY:
        raise ConfigError(f"{name} must hold a key of {MAX_KEY} bytes at most, got {len(secret)}")
    return secret
