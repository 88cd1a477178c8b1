"""The hook of mkdocs: fills the places in pages that are generated, and adds the changelog.

`tools/docs/places.py` says where. The committed text of a place is replaced, so that the site is never stale.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]


def _use_checkout() -> None:
    """Import from this checkout, whether or not another is installed."""
    for path in (str(ROOT / "lab" / "python"), str(ROOT / "python"), str(ROOT)):
        if path in sys.path:
            sys.path.remove(path)
        sys.path.insert(0, path)


_use_checkout()  # mkdocs loads this file by its path

from tools.docs.places import fill  # noqa: E402 - the path is set above

# Where `mkdocs.yml` has mkdocstrings look.
_SOURCES = ROOT / "target" / "docs-sources"
_SOURCES.mkdir(parents=True, exist_ok=True)  # mkdocstrings forgets a path that is not there when it starts
_WATCHED = (
    "python",
    "lab/python",
    "crates/router/src/requests/routes",
    "crates/service/src",
    "tools/docs",
    "CHANGELOG.md",
)


def on_config(config: Any) -> Any:
    """Set the path once more: mkdocs puts it back after it has loaded the hook."""
    _use_checkout()
    return config


def on_pre_build(**_site: Any) -> None:
    """Put both parts of the package `kvatlas` into one directory: mkdocstrings reads a package from one."""
    shutil.rmtree(_SOURCES / "kvatlas", ignore_errors=True)
    for part in ("python", "lab/python"):
        shutil.copytree(
            ROOT / part / "kvatlas",
            _SOURCES / "kvatlas",
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
            dirs_exist_ok=True,
        )


def on_files(files: Files, *, config: Any) -> Files:
    """Add the changelog, which lies beside the README."""
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Fill the generated places of a page."""
    return fill(markdown)


def on_serve(server: Any, **_site: Any) -> Any:
    """Build again when the code changes."""
    for path in _WATCHED:
        server.watch(str(ROOT / path))
    return server
