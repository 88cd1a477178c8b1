"""The toy tokenizer: a token is a byte of UTF-8 (ids 0 to 255), a few ids above mark the turns of a chat.

Reversible on purpose: an answer that a client sends back as text becomes the very tokens that were generated, so the
next turn of a conversation finds all of the last one in the cache, on any engine. Prompts given as token ids may use
any 32-bit id; those without a text read as U+FFFD.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

ROLES = {"system": 256, "developer": 256, "user": 257, "assistant": 258, "tool": 259}
END = 260
MAX_TOKEN = (1 << 32) - 1

_LETTERS = b"eeeeetttaaooiinnsshhrrddllcumwfgypbvk" + b" " * 8


def encode(text: str) -> list[int]:
    """The tokens of a text."""
    return list(text.encode("utf-8", errors="replace"))


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; marks of turns have none."""
    data = bytearray()
    for token in tokens:
        if token < 256:
            data.append(token)
        elif token > END:
            data += b"\xef\xbf\xbd"
    return data.decode("utf-8", errors="replace")


def chat(messages: Sequence[tuple[str, str]]) -> list[int]:
    """The prompt of a conversation, (role, text) each, up to where the assistant's answer begins."""
    tokens: list[int] = []
    for role, text in messages:
        tokens += (ROLES[role], *encode(text), END)
    tokens.append(ROLES["assistant"])
    return tokens


def answer(seed: object, count: int) -> list[int]:
    """`count` generated tokens: letters that follow from the seed alone, so equal prompts get equal answers."""
    return random.Random(repr(seed)).choices(_LETTERS, k=count)
