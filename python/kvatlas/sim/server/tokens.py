"""Toy tokenizer: a token is a byte of UTF-8 (ids 0 to 255), and a few higher ids mark the turns of a chat.

The encoding is reversible: an answer that a client sends back as text becomes the same tokens that were generated, so
the next request of a conversation finds the whole previous turn in the cache, on any engine. Prompts given as token ids
may use any 32-bit id; ids without a text are decoded as U+FFFD.

`write_tokenizer` writes the tokenizer as Hugging Face's files, so that a router in front turns messages into the same
tokens.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROLES = {"system": 256, "developer": 256, "user": 257, "assistant": 258, "tool": 259}
END = 260
MARKS = {"<|system|>": 256, "<|user|>": 257, "<|assistant|>": 258, "<|tool|>": 259, "<|end|>": END}
"""Special tokens: ids by text. The texts are also recognized inside a prompt, as with real tokenizers."""
MAX_TOKEN = (1 << 32) - 1
TEMPLATE = """\
{%- for message in messages -%}
{%- set role = 'system' if message.role == 'developer' else message.role -%}
{{- '<|' + role + '|>' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- elif message.content -%}
{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}
{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""
"""Chat template of the toy tokenizer, for Jinja."""

_LETTERS = b"eeeeetttaaooiinnsshhrrddllcumwfgypbvk" + b" " * 8
_MARK = re.compile("(" + "|".join(re.escape(mark) for mark in MARKS) + ")")


def encode(text: str) -> list[int]:
    """Encode a text as token ids; the text of a special token becomes that token."""
    if "<|" not in text:
        return list(text.encode("utf-8", errors="replace"))
    found: list[int] = []
    for piece in _MARK.split(text):
        mark = MARKS.get(piece)
        found += piece.encode("utf-8", errors="replace") if mark is None else (mark,)
    return found


def decode(tokens: Iterable[int]) -> str:
    """Decode token ids to text, without the special tokens."""
    data = bytearray()
    for token in tokens:
        if token < 256:
            data.append(token)
        elif token > END:
            data += b"\xef\xbf\xbd"
    return data.decode("utf-8", errors="replace")


def chat(messages: Sequence[tuple[str, str]]) -> list[int]:
    """Encode a conversation of (role, text) messages as a prompt that ends where the assistant's answer begins."""
    tokens: list[int] = []
    for role, text in messages:
        tokens += (ROLES[role], *encode(text), END)
    tokens.append(ROLES["assistant"])
    return tokens


def answer(seed: object, count: int) -> list[int]:
    """Generate `count` tokens (letters) that depend only on the seed, so that equal prompts get equal answers."""
    return random.Random(repr(seed)).choices(_LETTERS, k=count)


def write_tokenizer(folder: str | Path) -> Path:
    """Write `tokenizer.json` and `tokenizer_config.json` (with the chat template) to `folder`. Returns the folder.

    Raises:
        OSError: The files cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    by_byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {letter: byte for byte, letter in enumerate(_byte_letters())},
        "merges": [],
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": mark, **flags} for mark, number in MARKS.items()],
        "normalizer": None,
        "pre_tokenizer": by_byte,
        "post_processor": None,
        "decoder": by_byte,
        "model": model,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "added_tokens_decoder": {str(number): {"content": mark, **flags} for mark, number in MARKS.items()},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def _byte_letters() -> list[str]:
    """Characters with which byte-level tokenizers write bytes: printable ones as is, others from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]
