"""Tiny models with random weights, written without a library.

The tokenizer has a token for each byte and some more that stand for nothing, so that any list of numbers below
`VOCABULARY` is a prompt.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .launch import LONGEST, WEIGHTS

VOCABULARY = 512
HIDDEN = 64
WINDOW = 64
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>"
SPECIAL = "<end>"

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 256,
    "torch_dtype": "bfloat16",
}

# One layer with a window for each with full attention, as in Gemma 3.
HYBRID: dict[str, Any] = PLAIN | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 32,
    "rope_local_base_freq": 10000.0,
    "rms_norm_eps": 1e-6,
}


def write(place: Path, config: Mapping[str, Any], more: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """A directory that an engine takes for a model. `more`: files besides, or in place of, those of every model."""
    place.mkdir(parents=True, exist_ok=True)
    _json(place / "config.json", config)
    _json(place / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 256})
    _json(place / "tokenizer.json", _tokenizer())
    _json(
        place / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": LONGEST,
            "eos_token": SPECIAL,
            "chat_template": TEMPLATE,
        },
    )
    for name, value in (more or {}).items():
        _json(place / name, value)
    return place


def write_adapter(place: Path, seed: int, rank: int = 8) -> Path:
    """A directory that an engine takes for a LoRA adapter of the plain model, with random weights."""
    place.mkdir(parents=True, exist_ok=True)
    modules = {"q_proj": HIDDEN, "v_proj": PLAIN["head_dim"]}  # and how much each puts out
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "base_model_name_or_path": "tiny"}
    _json(place / "adapter_config.json", config | {"target_modules": list(modules), "task_type": "CAUSAL_LM"})
    shapes: dict[str, list[int]] = {}
    for layer in range(int(PLAIN["num_hidden_layers"])):
        for module, width in modules.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            shapes |= {f"{name}.lora_A.weight": [rank, HIDDEN], f"{name}.lora_B.weight": [width, rank]}
    (place / "adapter_model.safetensors").write_bytes(_safetensors(shapes, seed))
    return place


def write_weights(place: Path, config: Mapping[str, Any]) -> None:
    """Weights of a Llama beside its configuration. Without them, an engine has to make them up."""
    inner, head, kv = config["intermediate_size"], config["head_dim"], config["num_key_value_heads"]
    queries = config["num_attention_heads"] * head
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(int(config["num_hidden_layers"])):
        of_layer = {
            "input_layernorm": [HIDDEN],
            "post_attention_layernorm": [HIDDEN],
            "self_attn.q_proj": [queries, HIDDEN],
            "self_attn.k_proj": [kv * head, HIDDEN],
            "self_attn.v_proj": [kv * head, HIDDEN],
            "self_attn.o_proj": [HIDDEN, queries],
            "mlp.gate_proj": [inner, HIDDEN],
            "mlp.up_proj": [inner, HIDDEN],
            "mlp.down_proj": [HIDDEN, inner],
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    (place / WEIGHTS).write_bytes(_safetensors(shapes, seed=0))


def _safetensors(shapes: Mapping[str, list[int]], seed: int) -> bytes:
    random_ = random.Random(seed)
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        raw = struct.pack(f"<{count}f", *(random_.gauss(0, 0.1) for _ in range(count)))
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _tokenizer() -> dict[str, Any]:
    vocabulary = {character: number for number, character in enumerate(_byte_characters())}
    special = [SPECIAL, *(f"<{number}>" for number in range(257, VOCABULARY))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256 + at, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for at, text in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
