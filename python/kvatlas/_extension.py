"""The choice of the extension: `kvatlas._native` is that of the package `kvatlas-lab` where it is installed.

The laboratory's extension is the product's with more in it, and a process uses one of the two: an object that one of
them makes is nothing that the other takes. So the laboratory's takes the name `kvatlas._native` before anything imports
the product's.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

LABORATORY = "kvatlas-lab"


def choose() -> None:
    """Let `kvatlas._native` be the laboratory's extension if it is installed in the version of kvatlas."""
    if importlib.util.find_spec("kvatlas_lab") is None or not _fits():
        return
    try:
        native = importlib.import_module("kvatlas_lab._native")
    except ModuleNotFoundError:  # a directory that only has that name
        return
    sys.modules["kvatlas._native"] = vars(sys.modules["kvatlas"])["_native"] = native


def other_version() -> str | None:
    """The version of the laboratory that is installed and is not that of kvatlas; None if it is, or there is none."""
    its = _version(LABORATORY)
    return None if its == _version("kvatlas") else its


def _fits() -> bool:
    its = _version(LABORATORY)
    return its is not None and its == _version("kvatlas")


def _version(package: str) -> str | None:
    # It takes a while to import, and only those need it who have the laboratory.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(package)
    except PackageNotFoundError:
        return None


choose()
