"""Places in pages whose text is generated, between a begin marker and an end marker on lines of their own.

`<!-- generated: NAME -->` begins the text of `GENERATORS[NAME]`, and `<!-- end of generated: NAME -->` ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tools.docs import cli, configuration, errors, http, metrics, router_metrics, routes

GENERATORS: dict[str, Callable[[], str]] = {
    "cli": cli.page,
    "errors": errors.page,
    "http": http.page,
    "metrics": metrics.page,
    "router_metrics": router_metrics.page,
    "router_routes": routes.router_page,
    "router_settings": configuration.router_page,
    "service_routes": routes.service_page,
    "settings": configuration.page,
}

_PLACE = re.compile(
    r"^<!-- generated: (?P<name>\w+) -->$(?:.*?^<!-- end of generated: (?P=name) -->$)?", re.MULTILINE | re.DOTALL
)


def fill(markdown: str, *, markers: bool = False) -> str:
    """The text with every generated place filled anew; with `markers`, these stay around the text.

    Raises `KeyError` if a place has an unknown name, which ends the build of the site.
    """

    def text(place: re.Match[str]) -> str:
        name = place["name"]
        made = GENERATORS[name]()
        if not markers:
            return made
        return f"<!-- generated: {name} -->\n\n{made.strip()}\n\n<!-- end of generated: {name} -->"

    return _PLACE.sub(text, markdown)
