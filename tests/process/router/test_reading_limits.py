"""The memory that is made of a body, a few times its own at most, and the time, whatever is in it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Engine

from .deciding import exact, prompt, write_tokenizer
from .running import Router

MIB = 1 << 20
LENGTH = 7 * MIB
# What reading takes whatever is read: a tokenizer's memory of words among it.
ROUND = 32 * MIB

JSON = {"content-type": "application/json"}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"


def filled(field: str, item: str, around: str = "[]", **more: object) -> bytes:
    """A body that consists nearly only of one field, filled with these items."""
    inner = ",".join([item] * (LENGTH // (len(item) + 1)))
    others = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
    return f'{{"model":"{MODEL}",{json.dumps(field)}:{around[0]}{inner}{around[1:]}{others}}}'.encode()


def distinct(count: int = LENGTH // 12) -> str:
    return ",".join(f'"k{number:07}":0' for number in range(count))


CHAT = [{"role": "user", "content": "hello"}]
MESSAGE = '{"role":"user","content":"a"}'
CALLS = json.dumps(
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" + "{}," * 4000 + "{}]"}}]}
)
COMPLETIONS, CHATS, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
KINDS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "items": (RESPONSES, lambda: filled("input", "{}")),
    "messages without a field": (CHATS, lambda: filled("messages", "{}")),
    "messages": (CHATS, lambda: filled("messages", MESSAGE)),
    "messages of Messages": (MESSAGES, lambda: filled("messages", MESSAGE, max_tokens=1)),
    "messages to be embedded": ("/v1/embeddings", lambda: filled("messages", MESSAGE)),
    "parts": (CHATS, lambda: filled("messages", '{"type":"text","text":""}', '[{"role":"user","content":[]}]')),
    "texts as parts": (CHATS, lambda: filled("messages", '""', '[{"role":"user","content":[]}]')),
    "blocks": (MESSAGES, lambda: filled("messages", '{"type":"text","text":""}', '[{"role":"user","content":[]}]')),
    "blocks of a system prompt": (MESSAGES, lambda: filled("system", '{"type":"text","text":""}', messages=CHAT)),
    "tools": (CHATS, lambda: filled("tools", '{"":0}', messages=CHAT)),
    "tools that are lists": (CHATS, lambda: filled("tools", "[[],[0]]", messages=CHAT)),
    "tools of Responses": (RESPONSES, lambda: filled("tools", '{"type":"function","name":"f"}', input="a")),
    "tools of Messages": (MESSAGES, lambda: filled("tools", '{"name":"f","input_schema":{}}', messages=CHAT)),
    "arguments of calls": (CHATS, lambda: filled("messages", CALLS)),
    "thoughts": (RESPONSES, lambda: filled("input", '{"text":"a"}', '[{"type":"reasoning","summary":[]}]')),
    "variables": (CHATS, lambda: filled("chat_template_kwargs", '{"":0}', '{"a":[]}', messages=CHAT)),
    "many variables": (
        CHATS,
        lambda: f'{{"model":"{MODEL}","messages":{json.dumps(CHAT)},"chat_template_kwargs":{{{distinct()}}}}}'.encode(),
    ),
    "documents": (CHATS, lambda: filled("documents", "{}", messages=CHAT)),
    "an effort": (CHATS, lambda: filled("reasoning_effort", "{}", messages=CHAT)),
    "a choice": (CHATS, lambda: filled("tool_choice", "{}", messages=CHAT)),
    "token ids": (COMPLETIONS, lambda: filled("prompt", "1")),
    "lists of token ids": (COMPLETIONS, lambda: filled("prompt", "[1]")),
    "texts": (COMPLETIONS, lambda: filled("prompt", '""')),
    "mixed prompts": (COMPLETIONS, lambda: filled("prompt", "1", '["a",]').replace(b"1]", b'1,"b"]')),
    "token ids of SGLang": ("/generate", lambda: filled("input_ids", "1")),
    "parameters of SGLang": ("/generate", lambda: filled("sampling_params", "{}", text="a")),
    "token ids of vLLM": ("/inference/v1/generate", lambda: filled("token_ids", "1")),
    "places": ("/inference/v1/generate", lambda: filled("features", '"a":[]', '{"mm_placeholders":{}}', token_ids=[1])),
    "stop strings": (CHATS, lambda: filled("stop", '""', messages=CHAT)),
    "biases": (
        CHATS,
        lambda: f'{{"model":"{MODEL}","messages":{json.dumps(CHAT)},"logit_bias":{{{distinct()}}}}}'.encode(),
    ),
    "keys": (CHATS, lambda: f'{{"model":"{MODEL}","messages":{json.dumps(CHAT)},{distinct()}}}'.encode()),
    "keys of a stream": (
        CHATS,
        lambda: (
            f'{{"model":"{MODEL}","messages":{json.dumps(CHAT)},"stream":true,"stream_options":{{}},{distinct()}}}'.encode()
        ),
    ),
    "options of a stream": (CHATS, lambda: filled("stream_options", '"":{}', "{}", stream=True, messages=CHAT)),
    "a long key": (
        CHATS,
        lambda: f'{{"model":"{MODEL}","messages":{json.dumps(CHAT)},"{chr(92)}n{"n" * LENGTH}":0}}'.encode(),
    ),
    "a long model": (CHATS, lambda: json.dumps({"model": "m" * LENGTH, "messages": CHAT}).encode()),
    "a long salt": (
        CHATS,
        lambda: json.dumps({"model": MODEL, "messages": CHAT, "cache_salt": "\n" * (LENGTH // 2)}).encode(),
    ),
    "a long role": (
        CHATS,
        lambda: json.dumps({"model": MODEL, "messages": [{"role": "\n" * (LENGTH // 2), "content": "a"}]}).encode(),
    ),
    "a deep value": (CHATS, lambda: filled("x", "[" * (LENGTH // 3) + "]" * (LENGTH // 3), messages=CHAT)),
    "long numbers": (CHATS, lambda: filled("tools", "1" * MIB, messages=CHAT)),
    "a long text": (COMPLETIONS, lambda: json.dumps({"model": MODEL, "prompt": "a b" * (LENGTH // 3)}).encode()),
    "escapes": (
        CHATS,
        lambda: json.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": "\n\t" * (LENGTH // 4)}]}
        ).encode(),
    ),
    "sessions": (CHATS, lambda: filled("metadata", "{}", '{"user_id":[]}', messages=CHAT)),
    "another route": ("/v1/rerank", lambda: filled("documents", "{}", query="a")),
    "keys on another route": ("/v1/score", lambda: f'{{"model":"{MODEL}",{distinct()}}}'.encode()),
    "to be counted": ("/v1/messages/count_tokens", lambda: filled("messages", MESSAGE)),
    "to be tokenized": ("/tokenize", lambda: filled("messages", MESSAGE)),
    "to be explained": ("/explain", lambda: filled("messages", '{"content":[{"type":"a"}]}')),
    "tools to be explained": ("/explain", lambda: filled("tools", '{"":0}', messages=CHAT)),
    "anything to be explained": ("/explain", lambda: filled("x", "{}", messages=CHAT)),
}


class MemoryWatch:
    """A router whose resident memory is watched from its beginning."""

    def __init__(self, router: Router) -> None:
        self.router = router
        router.ask(prompt("warm " * 10_000))
        self.at_first = router.memory()

    def peak(self, work: Callable[[], None]) -> int:
        """Bytes by which its memory is larger than at first, at most, while something is done."""
        process = Path(f"/proc/{self.router.process.pid}")
        (process / "clear_refs").write_text("5", encoding="ascii")
        work()
        high = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text(encoding="ascii"))
        assert high is not None
        return int(high[1]) * 1024 - self.at_first


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"), TEMPLATE)


@pytest.fixture
def watched(model: Path) -> Iterator[MemoryWatch]:
    flags = (*exact(model), "--no-events", "--http-threads", "1")
    with Engine() as engine, Router(engine, flags=flags) as router:
        yield MemoryWatch(router)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_a_few_times_the_body(watched: MemoryWatch, kind: str) -> None:
    path, made = KINDS[kind]
    body = made()
    # What is asked about is not unpacked.
    is_packed = path != "/explain"
    headers = {**JSON, "content-encoding": "gzip"} if is_packed else JSON

    def ask() -> None:
        answer = watched.router.ask(gzip.compress(body, 1) if is_packed else body, path=path, headers=headers)
        assert answer.status < 500, answer

    grown = watched.peak(ask)
    assert grown <= 4 * len(body) + ROUND, f"{grown / MIB:.0f} MiB of {len(body) / MIB:.0f}"
