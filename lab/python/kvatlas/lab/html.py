"""Self-contained HTML pages: no scripts, no external files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any

import kvatlas


def page(title: str, parts: Sequence[str], data: Any = None) -> str:
    """Create an HTML page from `parts` in HTML. `data`, if given, is embedded as JSON."""
    body = "\n".join(parts)
    if data is not None:
        facts = html.escape(json.dumps(data, indent=1, sort_keys=True, default=str), quote=False)
        facts = re.sub(r"\n +(?=[\]}\d])", " ", facts)
        body += f"\n<details><summary>All figures (JSON)</summary><pre>{facts}</pre></details>"
    return _PAGE.format(title=html.escape(title), body=body, version=html.escape(kvatlas.__version__))


def heading(text: str) -> str:
    """Create an HTML heading."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraphs(lines: Sequence[str], *, note: bool = False) -> str:
    """Create HTML paragraphs, one for each line of text; with `note`, in small print."""
    opening = '<p class="note">' if note else "<p>"
    return "\n".join(f"{opening}{html.escape(line)}</p>" for line in lines)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], kinds: Sequence[str] = ()) -> str:
    """Create an HTML table. `kinds`: styles of the rows, each "bad", "ours", "bound", or "" for a plain row."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row)
        kind = kinds[number] if number < len(kinds) else ""
        lines.append(f"<tr{f' class={kind}' if kind else ''}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1d2429; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; font-size: .9rem; }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #dde2e6; }}
th:first-child, td:first-child {{ text-align: left; }}
.bad td {{ color: #9c3b00; }} .ours td {{ font-weight: 600; color: #1a7f5a; }}
.bound td, .note, footer, details {{ color: #66727c; }} .note, footer, details {{ font-size: .85rem; }}
pre {{ overflow-x: auto; }} svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
<footer>kvatlas {version}</footer>
</body>
</html>
"""
