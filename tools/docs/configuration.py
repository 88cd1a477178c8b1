"""The settings of `kvatlas serve` and of `kvatlas router`, from their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.docs.markdown import cell, code, join, table

_TITLES = {
    "": "General",
    "http": "Queries over HTTP, `[http]`",
    "streams": "Engines' event streams, `[streams]`",
    "discovery": "Asking engines, `[discovery]`",
    "log": "Logs, `[log]`",
}
_ROUTER_TITLES = {
    "": "General",
    "http": "Clients, `[http]`",
    "router": "Placing requests, `[router]`",
    "upstream": "Speaking to engines, `[upstream]`",
    "health": "Engines' health, `[health]`",
}
_REREAD = {"value": "changes", "content": "the file is read again", None: "needs a restart"}


def page() -> str:
    """A table for each section of the service's file: key, flag, variable, default, meaning."""
    from kvatlas.service.config.schema import SECTIONS  # noqa: PLC0415 - only when the page is built

    return _tables(SECTIONS, _TITLES)


def router_page() -> str:
    """The same for what the router has besides, or otherwise than the service."""
    from kvatlas.router.config import ROUTER_SECTIONS  # noqa: PLC0415 - only when the page is built

    own = {name: section for name, section in ROUTER_SECTIONS.items() if name in _ROUTER_TITLES}
    return _tables(own, _ROUTER_TITLES)


def _tables(sections: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    from kvatlas.service.config.section import keys_of  # noqa: PLC0415 - only when the page is built

    parts = []
    for section, fields in sections.items():
        rows = [
            (
                code(key.path),
                code(key.flag),
                code(key.env),
                code(key.show_default().strip('"')) or "none",
                _REREAD[key.reread],
                cell(key.help),
            )
            for key in keys_of(fields)
        ]
        parts.append(f"### {titles.get(section, f'`[{section}]`')}")
        parts.append(table(("key", "flag", "variable", "default", "on SIGHUP", "meaning"), rows))
    return join(parts)
