"""Render the chat templates of `crates/prompt/tests/data/templates.json` again, with transformers.

The file has bodies of requests, templates by family, and what transformers makes of each body with each template, or
nothing where it refuses. To add a family, add it with its `template`; to add a body, add it to `bodies`; then run this.
Needs `transformers` and `jinja2`: python tools/chat_templates.py [FILE]
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from kvatlas.errors import InvalidArgumentError
from kvatlas.tokenize import ChatTemplate
from kvatlas.tokenize.messages import prepare

FILE = Path(__file__).parents[1] / "crates/prompt/tests/data/templates.json"


def main() -> None:
    """Write the file anew."""
    chat_template_utils = importlib.import_module("transformers.utils.chat_template_utils")
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    golden = json.loads(file.read_text(encoding="utf-8"))
    now = dt.datetime.fromisoformat(golden["now"])
    with mock.patch.object(chat_template_utils, "datetime", mock.Mock(now=lambda: now)):
        for family in golden["templates"].values():
            family["as_parts"] = ChatTemplate(family["template"]).as_parts
            family["expected"] = {
                name: _text(chat_template_utils.render_jinja_template, family, body, golden["special_tokens"])
                for name, body in golden["bodies"].items()
            }
    file.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _text(render: Any, family: dict[str, Any], body: dict[str, Any], special: dict[str, str]) -> str | None:
    """The text that transformers renders from a body; None if it, or the preparation of messages, refuses."""
    try:
        messages = prepare(body["messages"], as_parts=family["as_parts"])
    except InvalidArgumentError:
        return None
    try:
        texts, _ = render(
            [messages],
            tools=body.get("tools"),
            chat_template=family["template"],
            add_generation_prompt=body.get("add_generation_prompt", True),
            **special,
            **body.get("chat_template_kwargs", {}),
        )
    except Exception:  # noqa: BLE001 - templates fail in any way
        return None
    return str(texts[0])


if __name__ == "__main__":
    main()
