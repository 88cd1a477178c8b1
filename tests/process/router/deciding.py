"""Prompts whose tokens are known, engines that announce what they hold, and the flags for decisions by that."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import MODEL, Engine

from kvatlas import content_hashes, prefix_hashes
from kvatlas.sim.server import Publisher
from kvatlas.wire import Cleared, Stored, encode_batch

from .running import Router

BLOCK = 16


def write_tokenizer(
    folder: Path, template: str = "{% for m in messages %}{{ m['content'] }}{% endfor %}", added: tuple[str, ...] = ()
) -> Path:
    """A tokenizer whose tokens are bytes; by default its template writes contents only. Further tokens are `added`."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = _byte_names()
    vocabulary = {names[byte]: byte for byte in range(256)}
    assert set(vocabulary) == set(alphabet)
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens(list(added))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def tokens_of(text: str) -> list[int]:
    """Tokens as the tokenizer of these tests has them: a byte is a token."""
    return list(text.encode())


def _byte_names() -> list[str]:
    """The characters by which byte-level tokenizers write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = [], 0
    for byte in range(256):
        if byte in plain:
            names.append(chr(byte))
        else:
            names.append(chr(256 + extra))
            extra += 1
    return names


def stored(text: str, rank: int = 0, medium: str | None = None) -> bytes:
    tokens = tokens_of(text)
    tokens = tokens[: len(tokens) // BLOCK * BLOCK]
    names = prefix_hashes(content_hashes(tokens, BLOCK)).tolist()
    return encode_batch([Stored(names, None, tokens, BLOCK, medium=medium)], timestamp=time.time(), rank=rank)


def cleared() -> bytes:
    return encode_batch([Cleared()], timestamp=time.time())


def exact(tokenizer: Path, *pairs: tuple[Engine, Publisher], policy: str = "kvatlas") -> tuple[str, ...]:
    """Flags for decisions by the engines' events. Each engine says from now on where its events are."""
    for engine, publisher in pairs:
        engine.publishers = {0: publisher}
    return ("--policy", policy, "--tokenizer", str(tokenizer), "--model", MODEL, "--block-size", str(BLOCK))


def prompt(text: str) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}


def holder(router: Router, text: str) -> str:
    """The name of the engine that answers a prompt."""
    answer = router.ask(prompt(text))
    assert answer.status == 200, answer
    return answer.headers["x-kvatlas-worker"]


def expected(router: Router, text: str) -> dict[str, int]:
    """The tokens of a prompt that each engine is expected to hold. Nothing is sent: what is sent counts as held."""
    answer = router.ask(prompt(text), path="/explain")
    assert answer.status == 200, answer
    return {candidate["worker"]: candidate["cached_tokens"] for candidate in answer.json["candidates"]}
