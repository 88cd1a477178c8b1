"""Kinds of values of settings: their form in a file, a variable or a flag, and their limits.

A kind converts a given value or text, or raises ValueError with a description of valid values. The caller adds the
source of the value.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeAlias

Scalar: TypeAlias = bool | int | float | str
_LONGEST = 366 * 86_400.0
_DURATIONS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def shown(value: object) -> str:
    """A value as text for messages, shortened if it is long."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Kind(ABC):
    """Base class of the kinds of values that a setting accepts.

    Attributes:
        wanted: Description of the valid values, which follows "must be".
        metavar: The value's name in the help of a flag.
        repeatable: True if the flag may be given several times; the texts are parsed together, one per line.
    """

    wanted: str
    metavar: str
    repeatable = False

    @abstractmethod
    def convert(self, value: object) -> Any:
        """Convert a value from a file or a program."""

    def parse(self, text: str) -> Any:
        """Convert a text from a flag or a variable."""
        return self.convert(text)

    def show(self, value: Any) -> str:
        """Format a value in the form of a file."""
        return _toml(value)

    def native(self, value: Any) -> Any:
        """Convert a value to a JSON type for the native part."""
        return value

    def bad(self, value: object) -> ValueError:
        """Create the error for an invalid value."""
        return ValueError(f"must be {self.wanted}, got {shown(value)}")


class Text(Kind):
    """A string that is not empty."""

    wanted = "a string that is not empty"
    metavar = "TEXT"

    def convert(self, value: object) -> str:
        if isinstance(value, str) and value.strip():
            return value
        raise self.bad(value)


class Texts(Kind):
    """Strings, separated in text by commas or, as for a repeated flag, by lines."""

    wanted = "a list of strings that are not empty"
    metavar = "TEXT[,TEXT...]"
    repeatable = True

    def convert(self, value: object) -> tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(item, str) and item.strip() for item in value):
            return tuple(item.strip() for item in value)
        raise self.bad(value)

    def parse(self, text: str) -> tuple[str, ...]:
        return self.convert(text.strip().replace("\n", ",").split(",")) if text.strip() else ()

    def show(self, value: tuple[str, ...]) -> str:
        return f"[{', '.join(map(_toml, value))}]"

    def native(self, value: tuple[str, ...]) -> list[str]:
        return list(value)


class Names(Texts):
    """Names of models, separated in text by bars, because commas separate the keys of a stream."""

    metavar = "NAME[|NAME...]"

    def parse(self, text: str) -> tuple[str, ...]:
        return self.convert(text.split("|"))


class Hosts(Texts):
    """A list of networks and patterns of host names."""

    wanted = 'a list of networks, host names and paths: "10.0.0.0/8", "pod-*.engines", "ipc:///run/engines/*"'
    metavar = "HOST[,HOST...]"

    def convert(self, value: object) -> tuple[str, ...]:
        hosts = super().convert(value)
        for host in hosts:
            if re.fullmatch(r"ipc://.+|[\w.*-]*[^\W\d_*.-][\w.*-]*|[\w.*-]*\*[\w.*-]*", host, re.DOTALL):
                continue
            try:
                ipaddress.ip_network(host, strict=False)
            except ValueError:
                raise self.bad(host) from None
        return hosts


class Origins(Texts):
    """A list of origins of web pages."""

    wanted = 'a list of origins: "https://chat.example", "http://localhost:3000"'
    metavar = "ORIGIN[,ORIGIN...]"

    def convert(self, value: object) -> tuple[str, ...]:
        origins = super().convert(value)
        for origin in origins:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#*\s@]+", origin, re.IGNORECASE):
                raise self.bad(origin)
        return origins


class Choice(Kind):
    """One word of a fixed set."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.wanted = "one of " + ", ".join(json.dumps(choice) for choice in choices)
        self.metavar = "|".join(choices)

    def convert(self, value: object) -> str:
        if isinstance(value, str) and value in self.choices:
            return value
        raise self.bad(value)


class OnOff(Choice):
    """The word on or off, which becomes true or false for the native part."""

    def native(self, value: str) -> bool:
        return value == "on"


class Integer(Kind):
    """An integer from `low` to `high`."""

    metavar = "N"

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.wanted = f"an integer from {low} to {high}"

    def convert(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high:
            return value
        raise self.bad(value)

    def parse(self, text: str) -> int:
        if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", text, re.ASCII):
            return self.convert(int(text))
        raise self.bad(text)


class Switch(Kind):
    """True or false."""

    metavar = "true|false"
    wanted = "true or false"

    def convert(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise self.bad(value)

    def parse(self, text: str) -> bool:
        said = {"true": True, "false": False}.get(text.strip().lower())
        if said is None:
            raise self.bad(text)
        return said

    def show(self, value: object) -> str:
        return "true" if value else "false"


class Duration(Kind):
    """Duration in seconds; in text also with a unit."""

    metavar = "TIME"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero
        self.wanted = (
            f'a duration {"of 0 or more" if zero else "above 0"}: "30s", "500ms", "2m", or a number of seconds'
        )

    def convert(self, value: object) -> float:
        if isinstance(value, str):
            seconds = self._read(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
        else:
            raise self.bad(value)
        if not math.isfinite(seconds) or seconds < 0 or seconds > _LONGEST or (seconds == 0 and not self.zero):
            raise self.bad(value)
        return seconds

    def _read(self, text: str) -> float:
        match = _NUMBER.fullmatch(text)
        unit = _DURATIONS.get(match[2] or "s") if match else None
        if match is None or unit is None:
            raise self.bad(text)
        return float(match[1]) * unit

    def show(self, value: float) -> str:
        if value >= 1 or value == 0:
            return _toml(f"{value:g}s") if float(f"{value:g}") == value else repr(value)
        milliseconds = f"{value * 1000:g}"
        return _toml(f"{milliseconds}ms") if float(milliseconds) * 1e-3 == value else repr(value)


class Size(Kind):
    """Size in bytes; in text also with a unit."""

    wanted = 'a size of at least 1 byte: "8MiB", "500kB", or a number of bytes'
    metavar = "SIZE"

    def convert(self, value: object) -> int:
        if isinstance(value, str):
            match = _NUMBER.fullmatch(value)
            unit = _SIZES.get(match[2].upper()) if match else None
            if match is None or unit is None:
                raise self.bad(value)
            number = float(match[1]) * unit
            if not number.is_integer():
                raise self.bad(value)
            size = int(number)
        elif isinstance(value, int) and not isinstance(value, bool):
            size = value
        else:
            raise self.bad(value)
        if not 1 <= size < 1 << 48:
            raise self.bad(value)
        return size

    def show(self, value: int) -> str:
        for unit in ("GiB", "MiB", "KiB"):
            if value % _SIZES[unit.upper()] == 0:
                return _toml(f"{value // _SIZES[unit.upper()]}{unit}")
        return str(value)


class Number(Kind):
    """A number from `low` to `high`."""

    metavar = "NUMBER"

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.wanted = f"a number from {low:g} to {high:g}"

    def convert(self, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high:
            return float(value)
        raise self.bad(value)

    def parse(self, text: str) -> float:
        try:
            return self.convert(float(text))
        except ValueError:
            raise self.bad(text) from None


class Pairs(Kind):
    """Values by name, stored as pairs; in text `NAME=VALUE`, separated by white space."""

    metavar = "NAME=VALUE"
    repeatable = True

    def __init__(self, *, plain: bool = False) -> None:
        """Create the kind. With `plain`, all values are strings; otherwise numbers, true and false are converted."""
        self.plain = plain
        values = "strings" if plain else "strings, numbers, true or false"
        self.wanted = f"NAME=VALUE, several separated by white space, or in a file a table of {values}"

    def convert(self, value: object) -> tuple[tuple[str, Scalar], ...]:
        kinds: tuple[type, ...] = (str,) if self.plain else (str, bool, int, float)
        try:
            pairs = dict(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise self.bad(value) from None
        if not all(isinstance(name, str) and name and type(item) in kinds for name, item in pairs.items()):
            raise self.bad(pairs)
        return tuple(pairs.items())

    def parse(self, text: str) -> tuple[tuple[str, Scalar], ...]:
        found: dict[str, Scalar] = {}
        for part in text.split():
            name, equals, said = part.partition("=")
            if not equals or not name:
                raise self.bad(text)
            found[name] = said if self.plain else _scalar(said)
        return self.convert(found)

    def show(self, value: tuple[tuple[str, Scalar], ...]) -> str:
        inside = ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value)
        return f"{{ {inside} }}" if inside else "{}"

    def native(self, value: tuple[tuple[str, Scalar], ...]) -> dict[str, Scalar]:
        return dict(value)


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII) else number


class Address(Kind):
    """An address on which to listen: an IP address and a port."""

    wanted = 'an IP address and a port: "127.0.0.1:8090", "[::1]:8090", "0.0.0.0:8090" for all, port 0 for any free one'
    metavar = "IP:PORT"

    def convert(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.bad(value)
        host, colon, port = value.strip().rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65_535:
            raise self.bad(value)
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            address = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
        except ValueError:
            raise self.bad(value) from None
        if address.version == 6 and bare == host:
            raise self.bad(value)
        return f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"


class Addresses(Texts):
    """Several addresses on which to listen."""

    wanted = 'a list of IP addresses with ports: "0.0.0.0:5557", "[::1]:5557"'
    metavar = "IP:PORT[,IP:PORT...]"

    def convert(self, value: object) -> tuple[str, ...]:
        try:
            return tuple(map(Address().convert, super().convert(value)))
        except ValueError:
            raise self.bad(value) from None


class File(Kind):
    """The path of a file."""

    wanted = "the path of a file"
    metavar = "FILE"

    def convert(self, value: object) -> Path:
        if isinstance(value, Path) or (isinstance(value, str) and value and "\0" not in value):
            return Path(value).expanduser()
        raise self.bad(value)

    def native(self, value: Path) -> str:
        return str(value)


class Directory(File):
    """The path of a directory."""

    wanted = "the path of a directory"
    metavar = "DIR"


def _toml(value: object) -> str:
    """A string, number, boolean or list in the syntax of TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    # JSON's strings are TOML's, but for the one control character that JSON leaves alone.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


ABOVE_0 = Duration()
FROM_0 = Duration(zero=True)
PORT = Integer(1, 65_535)
