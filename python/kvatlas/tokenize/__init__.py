"""Tokenizers that compute the token ids of text or chat messages as an engine does.

Engines cache blocks of tokens, so a prompt must have the same token ids here as in the engine. `LocalTokenizer` reads a
Hugging Face tokenizer and its chat template; `EngineTokenizer` and `AsyncEngineTokenizer` send the text to an engine. A
client that is given a tokenizer accepts `text=` and `messages=` in its queries.
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
