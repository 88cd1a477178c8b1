"""A tokenizer made here: bytes and a few merges, with a special token in front of completions."""

import json
from pathlib import Path
from typing import Any

import pytest

TEXT = "the quick brown fox jumps over the lazy dog and says hello to the world of blocks " * 8
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `tokenizer.json` and `tokenizer_config.json`, as models have them; no chat template."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    # What some models have in their files, and engines turn off.
    made.enable_truncation(8)
    made.enable_padding(pad_id=4, pad_token="<pad>", length=6)
    directory = tmp_path_factory.mktemp("model")
    made.save(str(directory / "tokenizer.json"))
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = {"__type": "AddedToken", "content": "<s>", "special": True, **flags}
    config = {"bos_token": added, "eos_token": "</s>", "pad_token": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
