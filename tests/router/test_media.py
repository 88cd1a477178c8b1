"""Prompts with images and sounds: what comes before the first of them counts, and nothing after it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.sim.server import Publisher

from .deciding import exact, expected, stored
from .engines import MODEL, Engine
from .running import Router, wait_until

IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256))).decode()


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("image", {"type": "image_url", "image_url": {"url": IMAGE}}),
        ("audio", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    ],
)
def test_depth_ends_where_an_image_begins(
    engine: Engine, other: Engine, tokenizer: Path, reason: str, part: dict[str, object]
) -> None:
    """Complaint 46: requests with images that never find what is held of them."""
    before, after = "what was said before the picture " * 16, " and what is said of it" * 16
    with (
        Publisher() as one,
        Publisher() as two,
        Router(engine, other, flags=exact(tokenizer, (engine, one), (other, two))) as router,
    ):
        router.wait_followed()
        one.publish(stored(before))
        two.publish(stored(before + after))  # the prompt, if the image were nothing
        wait_until(lambda: expected(router, before + after + "?")["e1"] > len(before), "it is known")
        wait_until(lambda: expected(router, before + "?")["e0"] > 0, "it is known")
        # Templates of plain texts put all images of a message before its text: the message before is what is safe.
        messages: list[dict[str, Any]] = [{"role": "system", "content": before}]
        messages += [{"role": "user", "content": [part, {"type": "text", "text": after}]}]
        asked = {"model": MODEL, "messages": messages, "max_tokens": 1}
        metric = "kvatlas_router_prompts_without_tokens_total"
        counted = router.metric(metric, reason=reason)
        candidates = router.ask(asked, path="/explain").json["candidates"]
        cached = {candidate["worker"]: candidate["cached_tokens"] for candidate in candidates}
        assert 0 < cached["e0"] == cached["e1"] <= len(before)
        assert router.metric(metric, reason=reason) == counted + 1
        answer = router.ask(asked)
        assert int(answer.headers["x-kvatlas-cached-tokens"]) == cached["e0"]
        assert json.loads(router.get("/decisions")[1])[0]["tokens"] > cached["e0"], "the rest is estimated"
