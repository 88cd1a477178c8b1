"""Check that optional dependencies, which extras of the package install, are present."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from kvatlas._extension import LABORATORY, other_version
from kvatlas._native import __version__, has_lab
from kvatlas.errors import MissingExtraError

_DISTRIBUTIONS = {"zmq": "pyzmq"}  # distributions whose names differ from the module's


def require(part: str, extra: str, modules: Sequence[str]) -> None:
    """Raise `MissingExtraError` unless all `modules`, which come with `extra`, are installed. Imports none of them."""
    missing = [_DISTRIBUTIONS.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if extra == "lab" and not has_lab:
        its = other_version()
        missing.append(LABORATORY if its is None else f"{LABORATORY} {__version__} ({its} is installed)")
    if missing:
        raise MissingExtraError(f"{part} needs {', '.join(missing)}: pip install 'kvatlas[{extra}]'")
