"""The requests that are sent, and the tokenizer that gives their tokens.

| corpus | a body |
|---|---|
| `1k` | one message of 1,000 characters that begins with a number no other request has: nothing of it was seen before |
| `48k-seen` | one of 64 conversations of 48,000 characters that were seen before, then a numbered message of 1,200 |
| `48k-new` | the same conversations, with the number at the very beginning |

The client puts the number where `@@@@@@@@` stands.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MARK = "@@@@@@@@"
MODEL = "model"
CONVERSATIONS = 64
TURNS = 16  # messages of a conversation before its last one
ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

Messages = list[dict[str, str]]


class Words:
    """English of a kind: words of this project's documentation, the common ones as often as there."""

    def __init__(self, seed: int) -> None:
        text = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
        self._words = re.findall(r"[A-Za-z]+[,.]?|[0-9]+", text)
        self._choose = random.Random(seed)

    def text(self, length: int) -> str:
        """About `length` characters."""
        words: list[str] = []
        size = 0
        while size < length:
            words.append(self._choose.choice(self._words))
            size += len(words[-1]) + 1
        return " ".join(words)[:length]


def short() -> list[Messages]:
    """Messages of the corpus `1k`."""
    words = Words(1)
    return [[{"role": "user", "content": f"{MARK} {words.text(990)}"}] for _ in range(256)]


def conversations() -> list[Messages]:
    """The conversations of 48,000 characters, without their last message."""
    words = Words(2)
    roles = ["system"] + ["user", "assistant"] * TURNS
    return [[{"role": role, "content": words.text(3_000)} for role in roles[:TURNS]] for _ in range(CONVERSATIONS)]


def seen() -> list[Messages]:
    """Messages of the corpus `48k-seen`."""
    words = Words(3)
    return [[*one, {"role": "user", "content": f"{MARK} {words.text(1_190)}"}] for one in conversations()]


def new() -> list[Messages]:
    """Messages of the corpus `48k-new`."""
    return [
        [{"role": one[0]["role"], "content": f"{MARK} {one[0]['content']}"}, *one[1:]]
        for one in ([*c, {"role": "user", "content": "go on"}] for c in conversations())
    ]


CORPORA = {"1k": short, "48k-seen": seen, "48k-new": new}


@dataclass(frozen=True)
class Corpora:
    """The files of bodies, written below `folder`, and a model's directory with tokenizer and template."""

    folder: Path
    tokenizer_json: Path

    def bodies(self, corpus: str, *, tokens: int | None = None, model: str = MODEL) -> Path:
        """A file with a body a line; streamed with `tokens` tokens, or not streamed."""
        path = self.folder / f"{corpus}-{tokens or 'whole'}-{Path(model).name}.jsonl"
        if not path.exists():
            how: dict[str, Any] = {"max_tokens": 16} if tokens is None else {"max_tokens": tokens, "stream": True}
            lines = [json.dumps({"model": model, "messages": one, **how}) for one in CORPORA[corpus]()]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @cached_property
    def model(self) -> Path:
        """A directory as models have it: the tokenizer with the template's marks added, and the template."""
        folder = self.folder / "model"
        folder.mkdir(parents=True, exist_ok=True)
        made = json.loads(self.tokenizer_json.read_text(encoding="utf-8"))
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
        following = 1 + max([*made["model"]["vocab"].values(), *(one["id"] for one in made["added_tokens"])])
        for offset, content in enumerate(("<|im_start|>", "<|im_end|>")):
            made["added_tokens"].append({"id": following + offset, "content": content, **flags})
        made["post_processor"] = None  # the template writes all there is
        (folder / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": TEMPLATE,
            "eos_token": "<|im_end|>",
            "bos_token": None,
            "model_max_length": 131072,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        eos = following + 1
        model: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": following + 2,
            "max_position_embeddings": 131072,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "rms_norm_eps": 1e-5,
            "eos_token_id": eos,
            "bos_token_id": 0,
            "torch_dtype": "float16",
        }
        (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}), encoding="utf-8")
        return folder


def rendered(messages: Messages) -> str:
    """A prompt as the template writes it, up to the end of the last message."""
    return "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)


def four_bytes(messages: Messages) -> list[int]:
    """Tokens as the fake engine has them: four bytes of the text as it stands in the JSON are one."""
    ids: list[int] = []
    for one in messages:
        text = json.dumps(one["content"])[1:-1].encode()
        words = (int.from_bytes(text[at : at + 4], "little") for at in range(0, len(text) - 3, 4))
        ids.extend((word * 2654435761 & 0xFFFFFFFF) >> 15 for word in words)
    return ids
