"""Protocols of tokenizers for the clients, blocking and for asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Message: TypeAlias = Mapping[str, Any]


class Tokenizer(Protocol):
    """Converter of text and chat messages to token ids."""

    def encode(self, text: str, /) -> Sequence[int]:
        """Compute the token ids of a completion's prompt, with the special tokens that engines add."""

    def encode_chat(
        self, messages: Sequence[Message], /, *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Sequence[int]:
        """Compute the token ids of a chat, up to the beginning of the assistant's answer."""


class AsyncTokenizer(Protocol):
    """Converter of text and chat messages to token ids, for asyncio."""

    async def encode(self, text: str, /) -> Sequence[int]:
        """Compute the token ids of a completion's prompt, with the special tokens that engines add."""

    async def encode_chat(
        self, messages: Sequence[Message], /, *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Sequence[int]:
        """Compute the token ids of a chat, up to the beginning of the assistant's answer."""


AnyTokenizer: TypeAlias = Tokenizer | AsyncTokenizer
