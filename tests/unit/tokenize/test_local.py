"""A tokenizer in this process: the tokens that engines make."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import InvalidTypeError, MissingExtraError, TokenizerError
from kvatlas.tokenize import LocalTokenizer

from .templates import CHATML, TURNS

tokenizers: Any = pytest.importorskip("tokenizers")
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    """The model's directory, to write into."""
    return Path(shutil.copytree(model, tmp_path / "model"))


def spelled(model: Path, tokens: list[int]) -> str:
    text: str = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).decode(tokens, skip_special_tokens=False)
    return text


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_completions_have_special_tokens(model: Path, name: str) -> None:
    tokenizer = LocalTokenizer(model / name)
    tokens = tokenizer.encode("the quick brown fox jumps over the lazy dog")
    assert tokens[0] == 0
    assert tokens[1:] == tokenizer.encode("the quick brown fox jumps over the lazy dog", add_special_tokens=False)
    assert spelled(model, tokens[1:]) == "the quick brown fox jumps over the lazy dog"
    # Neither cut nor filled up, whatever the file says.
    assert len(tokens) > 8
    assert len(tokenizer.encode("a")) == 2
    assert tokenizer.encode("") == [0]
    # Special tokens in a text are those tokens, as engines have it.
    assert tokenizer.encode("a<|im_end|>")[-1] == 3


def test_chats_have_only_what_their_template_writes(own: Path) -> None:
    pytest.importorskip("jinja2")
    (own / "chat_template.jinja").write_text(TURNS)
    tokenizer = LocalTokenizer(own)
    tokens = tokenizer.encode_chat(CHAT)
    assert tokens.count(0) == 1
    assert spelled(own, tokens) == "<s>[INST] hello [/INST]"


def test_where_chat_templates_are(own: Path) -> None:
    pytest.importorskip("jinja2")
    config = json.loads((own / "tokenizer_config.json").read_text())

    def rendered(**kwargs: Any) -> str:
        return spelled(own, LocalTokenizer(own).encode_chat(CHAT, **kwargs))

    with pytest.raises(TokenizerError, match=r"has no chat template: .* have none; give chat_template=") as caught:
        rendered()
    assert caught.value.code == "no_chat_template"
    given = LocalTokenizer(own, chat_template="mine {{ messages[0].content }}")
    assert spelled(own, given.encode_chat(CHAT)) == "mine hello"
    (own / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert rendered() == "processor"
    (own / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "one {{ bos_token }}"}))
    assert rendered() == "one <s>"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools | length }}"}]
    (own / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    assert (rendered(), rendered(tools=[{}, {}])) == ("plain", "tools 2")
    (own / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named[1:]}))
    with pytest.raises(TokenizerError, match="have only ones named tool_use"):
        rendered()
    (own / "additional_chat_templates").mkdir()
    (own / "additional_chat_templates" / "tool_use.jinja").write_text("file {{ tools | length }}")
    (own / "chat_template.jinja").write_text(CHATML)
    assert rendered() == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(tools=[{}]) == "file 1"
    assert rendered(add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_special_tokens_of_older_models(own: Path) -> None:
    pytest.importorskip("jinja2")
    (own / "tokenizer_config.json").unlink()
    (own / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    tokenizer = LocalTokenizer(own, chat_template="{{ eos_token }}{{ bos_token is defined }}")
    assert spelled(own, tokenizer.encode_chat(CHAT)) == "</s>False"


def test_the_same_as_transformers(own: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    (own / "chat_template.jinja").write_text(TURNS)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(own))
    ours = LocalTokenizer(own)
    assert ours.encode("hello to the world") == theirs("hello to the world").input_ids
    wanted = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(CHAT) == wanted


def test_files_that_cannot_be_used(own: Path) -> None:
    with pytest.raises(TokenizerError, match=r"there is no .*nowhere: a tokenizer is a tokenizer.json") as caught:
        LocalTokenizer(own / "nowhere")
    assert caught.value.code == "bad_tokenizer"
    (own / "empty").mkdir()
    with pytest.raises(TokenizerError, match=r"there is no .*empty/tokenizer.json"):
        LocalTokenizer(own / "empty")
    (own / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json must be a JSON object, got list"):
        LocalTokenizer(own)
    (own / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json is not JSON"):
        LocalTokenizer(own)
    (own / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"cannot read .*tokenizer.json: "):
        LocalTokenizer(own)


def test_what_is_not_a_text(model: Path) -> None:
    with pytest.raises(InvalidTypeError, match="text must be a str, got bytes"):
        LocalTokenizer(model).encode(b"a")  # type: ignore[arg-type]


def test_names_that_the_hub_cannot_have() -> None:
    with pytest.raises(TokenizerError, match="neither a path nor the name of a model"):
        LocalTokenizer.from_hub("no such/thing/here")


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_packages_that_are_not_installed(package: str, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}: pip install 'kvatlas\[tokenizer\]'") as caught:
        LocalTokenizer(own, chat_template="x").encode_chat(CHAT)
    assert caught.value.code == "missing_extra"
    assert isinstance(caught.value, ImportError)
