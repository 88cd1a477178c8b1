"""Check that router and engine make the same tokens from prompts; otherwise no cached block is ever found."""

from __future__ import annotations

from typing import Any

from kvatlas.errors import ClientError, KvatlasError
from kvatlas.router.check.ask import Engine
from kvatlas.router.check.findings import EngineReport
from kvatlas.tokenize import LocalTokenizer

CHATS: dict[str, list[dict[str, Any]]] = {
    "a chat": [{"role": "user", "content": "How much of this is cached?"}],
    "a chat with a system prompt and two turns": [
        {"role": "system", "content": "You are brief. Naïve café, 東京, 🙂."},
        {"role": "user", "content": "One\n\n  two,  three."},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "And then?"},
    ],
}
TEXT = "The quick brown fox,  naïve café, 東京 🙂\n\tprint('x')\n"


async def compare(
    engine: Engine, report: EngineReport, model: str, tokenizer: LocalTokenizer | None, option: str
) -> None:
    """Compare the router's tokens with those of the engine's `/tokenize`, for text and for chats.

    `option`: name of the option that sets the tokenizer, for advice in the report.
    """
    try:
        theirs = await _tokenize(engine, {"prompt": TEXT, "model": model})
    except ClientError as error:
        if tokenizer is None:
            change = "give --tokenizer PATH: this engine cannot tokenize for the router"
            report.add("tokens", "problem", str(error), change, code="cannot_tokenize")
        else:
            words = f"{error}: whether tokens are the same as ours can only be seen from the round trip"
            report.add("tokens", "note", words, code="tokens_not_compared")
        return
    if tokenizer is None:
        report.add(
            "tokens",
            "note",
            "the engine tokenizes each prompt (--tokenizer engine): exact, but one more request for each prompt",
            "give --tokenizer PATH to tokenize in the router",
            code="engine_tokenizes",
        )
        return
    compared = []
    if not _same(report, "text", tokenizer.encode(TEXT), theirs, option):
        return
    for name, messages in CHATS.items():
        try:
            theirs = await _tokenize(engine, {"messages": messages, "model": model, "add_generation_prompt": True})
        except ClientError as error:
            # Base models have no chat template; templates may refuse system prompts.
            report.add("template", "note", f"the engine does not take {name}: {error}", code="chat_not_taken")
            continue
        try:
            ours = tokenizer.encode_chat(messages)
        except KvatlasError as error:
            change = "add the model's chat_template.jinja beside its tokenizer.json"
            report.add(
                "template", "problem", f"the router cannot render {name}: {error}", change, code="template_fails"
            )
            return
        if not _same(report, name, ours, theirs, option):
            return
        compared.append(name)
    report.add("tokens", "ok", f"the same as in the engine for {', '.join(['text', *compared])}")


def _same(report: EngineReport, name: str, ours: list[int], theirs: list[int], option: str) -> bool:
    if ours == theirs:
        return True
    pairs = zip(ours, theirs, strict=False)
    at = next((i for i, (our, their) in enumerate(pairs) if our != their), min(len(ours), len(theirs)))
    what = "tokens" if name == "text" else "template"
    change = (
        f"give the model's own tokenizer as {option}"
        if name == "text"
        else "give the router the same chat template as the engine's (--chat-template of the engine: put that file "
        "beside tokenizer.json as chat_template.jinja)"
    )
    report.add(
        what,
        "problem",
        f"{name} becomes {len(ours)} tokens here and {len(theirs)} in the engine, different from token {at} on (the "
        f"router's {ours[at : at + 4]}, the engine's {theirs[at : at + 4]}): blocks from there on are never found",
        change,
        code="tokens_differ" if name == "text" else "template_differs",
    )
    return False


async def tokens_of(
    engine: Engine, model: str, messages: list[dict[str, Any]] | None, prompt: str, tokenizer: LocalTokenizer | None
) -> list[int]:
    """Tokens of a chat, or of a text if `messages` is None: from the given tokenizer, or from the engine without one.

    Raises:
        ClientError: The engine does not return the tokens.
        KvatlasError: The template cannot be rendered.
    """
    if tokenizer is not None:
        return tokenizer.encode(prompt) if messages is None else tokenizer.encode_chat(messages)
    if messages is None:
        return await _tokenize(engine, {"prompt": prompt, "model": model})
    return await _tokenize(engine, {"messages": messages, "model": model, "add_generation_prompt": True})


async def _tokenize(engine: Engine, body: dict[str, Any]) -> list[int]:
    answer = await engine.json("POST", "/tokenize", body)
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise ClientError("POST /tokenize did not return a list of tokens")
    return tokens
