"""Tokenizers that compute the token ids of text or chat messages as an engine does.

Engines cache blocks of tokens, so a prompt must become the same tokens here as in the engine. `LocalTokenizer` reads a
Hugging Face tokenizer and its chat template; `EngineTokenizer` and `AsyncEngineTokenizer` ask an engine. Give one to a
client, and its queries take `text=` and `messages=`.
"""

from kvatlas.tokenize.engine_aio import AsyncEngineTokenizer
from kvatlas.tokenize.engine_sync import EngineTokenizer
from kvatlas.tokenize.local import LocalTokenizer
from kvatlas.tokenize.protocol import AnyTokenizer, AsyncTokenizer, Message, Tokenizer
from kvatlas.tokenize.template import ChatTemplate

__all__ = [
    "AnyTokenizer",
    "AsyncEngineTokenizer",
    "AsyncTokenizer",
    "ChatTemplate",
    "EngineTokenizer",
    "LocalTokenizer",
    "Message",
    "Tokenizer",
]
