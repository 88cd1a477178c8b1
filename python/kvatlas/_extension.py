"""Choice of the native extension: `kvatlas._native` comes from the package `kvatlas-lab` where that is installed.

The laboratory's extension contains everything of the product's. A process may load only one of them, because neither
accepts objects of the other. So the laboratory's extension takes the name `kvatlas._native` before anything imports the
product's.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

LABORATORY = "kvatlas-lab"


def choose() -> None:
    """Let `kvatlas._native` be the extension of `kvatlas-lab`, if that is installed in the same version as kvatlas."""
    if importlib.util.find_spec("kvatlas_lab") is None or not _fits():
        return
    try:
        native = importlib.import_module("kvatlas_lab._native")
    except ModuleNotFoundError:  # a directory that only has that name
        return
    sys.modules["kvatlas._native"] = vars(sys.modules["kvatlas"])["_native"] = native


def other_version() -> str | None:
    """The version of the installed package `kvatlas-lab` if it differs from the version of kvatlas, else None."""
    its = _version(LABORATORY)
    return None if its == _version("kvatlas") else its


def _fits() -> bool:
    its = _version(LABORATORY)
    return its is not None and its == _version("kvatlas")


def _version(package: str) -> str | None:
    # It takes a while to import, and is needed only with the laboratory.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(package)
    except PackageNotFoundError:
        return None


choose()
