"""File in which a router keeps the changes of engines made over HTTP (orders) over a restart."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from kvatlas.errors import ConfigError
from kvatlas.router.fleet.orders import Order

_VERSION = 1


class StateFile:
    """File of orders in JSON, replaced as a whole. It may contain keys of engines, so only its owner may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Order]:
        """Read the orders; an empty list if there is no file yet.

        Raises:
            ConfigError: The file cannot be read, is broken, or has another version.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"router.state_file: cannot read {self.path}: {error.strerror or error}") from error
        try:
            state = json.loads(content)
            if not isinstance(state, dict) or "version" not in state or not isinstance(state.get("orders"), list):
                raise ConfigError("it needs a version and a list of orders")
            if state["version"] != _VERSION:
                raise ConfigError(f"it has version {state['version']!r}, and this kvatlas reads {_VERSION}")
            return [Order.of(order) for order in state["orders"]]
        except (ValueError, RecursionError, ConfigError) as error:
            what = error if isinstance(error, ConfigError) else f"it is not JSON: {error}"
            raise ConfigError(
                f"router.state_file: {self.path} cannot be used: {what}; mend it, or remove it to begin without the "
                "engines that were added, removed and drained over HTTP"
            ) from error

    def check(self, orders: list[Order]) -> None:
        """Write the orders at the start, so that an unwritable file is noticed then.

        Raises:
            ConfigError: The file cannot be written.
        """
        try:
            self.write(orders)
        except OSError as error:
            raise ConfigError(f"router.state_file: cannot write {self.path}: {error.strerror or error}") from error

    def write(self, orders: list[Order]) -> None:
        """Replace the file by one with these orders, atomically.

        Raises:
            OSError: The file cannot be written.
        """
        state = {"version": _VERSION, "orders": [order.table() for order in orders]}
        folder = self.path.parent
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(state, file, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        of_folder = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(of_folder)
        finally:
            os.close(of_folder)
