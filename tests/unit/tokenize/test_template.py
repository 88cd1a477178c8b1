"""Chat templates: the text that engines render."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import InvalidArgumentError, InvalidTypeError, TokenizerError
from kvatlas.tokenize import ChatTemplate

from .templates import CHATML, DOCUMENTS, PARTS, TEMPLATES, TURNS, WITH_TOOLS

pytest.importorskip("jinja2")

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
TALK = [*CHAT, {"role": "assistant", "content": "hello to you"}, {"role": "user", "content": "the <world> & 'all'"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"a": "ä<b>"}}}]


def test_chatml() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(CHAT) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(CHAT, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_tools_and_tool_calls() -> None:
    template = ChatTemplate(WITH_TOOLS)
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": "ü", "b": [1, 2]}'}}
    messages = [
        {"role": "system", "content": "be kind"},
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
    ]
    text = template.render(messages, tools=TOOLS, template_kwargs={"enable_thinking": False})
    tool = '{"type": "function", "function": {"name": "look", "parameters": {"a": "ä<b>"}}}'
    assert text == (
        f"<|im_start|>system\nbe kind\n\n# Tools\n<tools>\n{tool}\n</tools><|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "look", "arguments": {"a": "ü", "b": [1, 2]}}</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>a\nb</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    # What was given is as it was.
    assert call["function"]["arguments"] == '{"a": "ü", "b": [1, 2]}'  # type: ignore[index]


def test_special_tokens_and_turns() -> None:
    template = ChatTemplate(TURNS, SPECIAL)
    assert template.render(TALK) == "<s>[INST] hello [/INST] hello to you</s>[INST] the <world> & 'all' [/INST]"
    with pytest.raises(
        InvalidArgumentError, match="the chat template refuses the messages: Roles must alternate"
    ) as no:
        template.render([*CHAT, *CHAT])
    assert no.value.code == "invalid_messages"


def test_documents() -> None:
    documents = [{"title": "t", "text": "x"}, {"title": "u", "text": "y"}]
    assert ChatTemplate(DOCUMENTS).render(CHAT, documents=documents) == "1. t: x\n2. u: y\nUser: hello\n"
    assert ChatTemplate(DOCUMENTS).render(TALK).splitlines()[1] == "Assistant: hello to you"


def test_parts_and_the_day() -> None:
    template = ChatTemplate(PARTS, SPECIAL)
    assert template.as_parts
    day = dt.datetime.now().strftime("%d %b %Y")  # noqa: DTZ005 - where this runs
    parts = [{"role": "user", "content": ["hel", {"type": "text", "text": "lo"}]}]
    wanted = f"<s>Today is {day}\n<|im_start|>user\nhello<|im_end|>\n"
    assert template.render(parts) == template.render(CHAT) == wanted
    # Where the template wants strings, parts are lines, as vLLM has it.
    assert "hel\nlo" in ChatTemplate(CHATML).render(parts)


@pytest.mark.parametrize(
    ("source", "as_parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for c in m['content'] | list %}{{ c.text }}{% endfor %}{% endfor %}", True),
        (
            "{% set all = messages %}{% for m in all %}{% set x = m.content %}{% for c in x %}{% endfor %}{% endfor %}",
            True,
        ),
        (
            "{% for m in messages %}{% for t in m.tool_calls or [] %}{{ t }}{% endfor %}{{ m.content }}{% endfor %}",
            False,
        ),
    ],
)
def test_which_content_a_template_wants(source: str, as_parts: bool) -> None:
    assert ChatTemplate(source).as_parts is as_parts


def test_what_is_not_a_template() -> None:
    with pytest.raises(TokenizerError, match="the chat template is not valid Jinja: ") as caught:
        ChatTemplate("{% for %}")
    assert caught.value.code == "bad_chat_template"


@pytest.mark.parametrize(
    ("messages", "error", "message"),
    [
        ("hello", InvalidTypeError, "messages must be a list of objects, got str"),
        (["hello"], InvalidTypeError, r"messages\[0\] must be an object, got str"),
        ([], InvalidArgumentError, "messages must have at least one message"),
        ([{"content": "a"}], InvalidArgumentError, r'messages\[0\] must have a "role" that is a string, got None'),
        ([{"role": "user", "content": 3}], InvalidArgumentError, r"messages\[0\].content must be a string or a list"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            InvalidArgumentError,
            r"messages\[0\].content\[0\] is of type 'image_url': only text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], InvalidArgumentError, r"content\[0\] must be \{\"type\": "),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            InvalidArgumentError,
            r"messages\[0\].tool_calls\[0\].function.arguments is not JSON",
        ),
    ],
)
def test_messages_that_cannot_be_used(messages: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ChatTemplate(CHATML).render(messages)


def test_templates_cannot_reach_out() -> None:
    source = "{{ messages.append(3) }}"
    with pytest.raises(InvalidArgumentError, match="the chat template refuses"):
        ChatTemplate(source).render(CHAT)
    with pytest.raises(InvalidArgumentError, match="the chat template refuses"):
        ChatTemplate("{{ ''.__class__.__mro__ }}").render(CHAT)
    with pytest.raises(InvalidArgumentError, match="the chat template fails for the messages: TypeError"):
        ChatTemplate("{{ 1 + 'a' }}").render(CHAT)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_same_as_transformers(name: str, model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(model / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    documents = [{"title": "t", "text": "x"}]
    for messages in (CHAT, TALK):
        for tools in (None, TOOLS):
            for generation in (True, False):
                wanted = tokenizer.apply_chat_template(
                    messages,
                    chat_template=TEMPLATES[name],
                    tools=tools,
                    documents=documents,
                    add_generation_prompt=generation,
                    tokenize=False,
                )
                got = template.render(messages, tools=tools, documents=documents, add_generation_prompt=generation)
                assert got == wanted, json.dumps(messages)
