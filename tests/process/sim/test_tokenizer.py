"""The toy tokenizer as Hugging Face's files: the same tokens as the engines', text and chat."""

import random
from pathlib import Path

import pytest

from kvatlas.sim.server import tokens, write_tokenizer
from kvatlas.tokenize import LocalTokenizer

CHATS = [
    [("user", "hello")],
    [("system", "be brief"), ("user", "häuser 🙂\n\n  two  spaces"), ("assistant", "ok"), ("user", "again")],
    [("developer", ""), ("user", "text with <|user|> in it and <|not|> a mark"), ("tool", '{"a": [1, 2]}')],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_text(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    chance = random.Random(7)
    letters = "abc  \n\t'sé漢🙂<|>.,0123" + "".join(tokens.MARKS)
    texts = ["", " ", "don't  stop", *("".join(chance.choices(letters, k=200)) for _ in range(50))]
    texts += ["".join(chance.choices([*tokens.MARKS, "x", " ", "<", "|>", "é"], k=40)) for _ in range(50)]
    for text in texts:
        assert made.encode(text, add_special_tokens=False).ids == tokens.encode(text), text


@pytest.mark.parametrize("chat", CHATS)
def test_chat(folder: Path, chat: list[tuple[str, str]]) -> None:
    pytest.importorskip("tokenizers")
    made = LocalTokenizer(folder)
    messages = [{"role": role, "content": content} for role, content in chat]
    assert list(made.encode_chat(messages)) == tokens.chat(chat)
    parts = [{"role": role, "content": [{"type": "text", "text": content}]} for role, content in chat]
    assert list(made.encode_chat(parts)) == tokens.chat(chat)
