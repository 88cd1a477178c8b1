"""The choice of the extension: `kvatlas._native` is that of the package `kvatlas-lab` where it is installed.

The laboratory's extension is the product's with more in it, and a process loads one of the two: an object that one of
them makes is nothing that the other takes. So the laboratory's is put before the product's on the path that
`kvatlas._native` is looked for on, before anything imports it.
"""

from __future__ import annotations

import importlib.util

import kvatlas

LABORATORY = "kvatlas-lab"


def choose() -> None:
    """Let `kvatlas._native` be the laboratory's extension if it is installed in the version of kvatlas."""
    spec = importlib.util.find_spec("kvatlas_lab")
    places = spec.submodule_search_locations if spec is not None else None
    if places and other_version() is None:
        kvatlas.__path__[:0] = list(places)


def other_version() -> str | None:
    """The version of the laboratory that is installed and is not that of kvatlas; None if it is, or there is none."""
    # It takes a while to import, and only those need it who have the laboratory.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        its = version(LABORATORY)
        return None if its == version("kvatlas") else its
    except PackageNotFoundError:
        return None


choose()
