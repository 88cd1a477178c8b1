"""The settings of `kvatlas serve`, from their declarations in `kvatlas.service.config`."""

from __future__ import annotations

from tools.docs.markdown import cell, code, join, table

_TITLES = {
    "": "General",
    "http": "Queries over HTTP, `[http]`",
    "streams": "Engines' event streams, `[streams]`",
    "discovery": "Asking engines, `[discovery]`",
    "log": "Logs, `[log]`",
}


def page() -> str:
    """A table for each section of the file: key, flag, variable, default, meaning."""
    from kvatlas.service.config.schema import SECTIONS, keys_of  # noqa: PLC0415 - only when the page is built

    parts = []
    for section, fields in SECTIONS.items():
        rows = [
            (
                code(key.path),
                code(key.flag),
                code(key.env),
                code(key.show_default().strip('"')) or "none",
                cell(key.help),
            )
            for key in keys_of(fields)
        ]
        parts.append(f"### {_TITLES.get(section, f'`[{section}]`')}")
        parts.append(table(("key", "flag", "variable", "default", "meaning"), rows))
    return join(parts)
