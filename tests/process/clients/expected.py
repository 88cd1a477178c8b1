"""The engines' answers, as a client must see them, and the prompts that make an engine misbehave.

Clients run in environments of their own, so this needs nothing but Python.
"""

from __future__ import annotations

import uuid

MODEL = "model"
WORDS = ["Hello", " from", " the", " engine", "."]
TEXT = "".join(WORDS)
TOOL, ARGUMENTS = "get_weather", {"city": "Paris"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VECTOR = [0.5, -0.25, 0.125]
REFUSAL = "this engine refuses such prompts"
# Prompt tokens, those of them that were cached, and generated tokens.
PROMPT, CACHED, OUTPUT = 11, 8, 5

# The orders in a prompt, and what the engine does then.
ORDERS = {
    "slow": "begins an answer, and never ends it",
    "busy": "says 503 as many times as the number behind the word, whichever engine is asked, then answers",
    "refuse": "says 400",
    "cut": "breaks a stream off after two words",
}


def order(what: str) -> tuple[str, str]:
    """A prompt that tells the engine to misbehave, and the tag by which the engines know it."""
    tag = f"t{uuid.uuid4().hex}"
    return f"engine:{what}-{tag}", tag
