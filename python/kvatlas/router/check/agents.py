"""Check that router and engine make the same tokens of agents' requests, which the engine converts to chats."""

from __future__ import annotations

import json
from typing import Any

from kvatlas._native import prompt_tokens
from kvatlas.errors import ClientError, KvatlasError
from kvatlas.router.check.ask import Engine
from kvatlas.router.check.findings import EngineReport
from kvatlas.router.check.handover import sglang_info

_HI = [{"role": "user", "content": "Hi"}]
_BLOCKS = [{"type": "text", "text": "You help."}, {"type": "text", "text": "Be brief."}]
_BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.0.0;"}
_TOOL = {"type": "function", "name": "read", "description": "Reads a file.", "parameters": {"type": "object"}}
PROBES: dict[str, tuple[str, dict[str, Any]]] = {
    "two blocks of a system prompt": ("/v1/messages", {"system": _BLOCKS, "messages": _HI}),
    "a line of billing": ("/v1/messages", {"system": [_BILLING, *_BLOCKS], "messages": _HI}),
    "a system message among the others": (
        "/v1/messages",
        {"messages": [*_HI, {"role": "system", "content": "Be brief."}, *_HI]},
    ),
    "thinking that is disabled": ("/v1/messages", {"thinking": {"type": "disabled"}, "messages": _HI}),
    "a developer's message": ("/v1/responses", {"input": [{"role": "developer", "content": "Be brief."}, *_HI]}),
    "a namespace of tools": (
        "/v1/responses",
        {"input": _HI, "tools": [{"type": "namespace", "name": "files", "description": "Files.", "tools": [_TOOL]}]},
    ),
}
_OWN = (400, 413, 422, 429)
"""HTTP statuses caused by the request, not by a missing route."""
_FLAG = "start vLLM with --enable-scale-out"


async def compare_agents(engine: Engine, report: EngineReport, model: str, tokenizer: str) -> None:
    """Compare the router's tokens of agents' requests with those of the engine's render routes."""
    same, missing, version = [], {}, await _version(engine)
    for name, (path, fields) in PROBES.items():
        if path in missing:
            continue
        body = {"model": model, "max_tokens": 1, **fields}
        if path == "/v1/responses":
            del body["max_tokens"]
        try:
            theirs = await _rendered(engine, f"{path}/render", body)
        except ClientError as error:
            if error.status not in _OWN:
                missing[path] = str(error)
            else:
                report.add(
                    "agents",
                    "note",
                    f"the engine does not render a request with {name}: {error}",
                    code="agents_not_compared",
                )
            continue
        try:
            ours = prompt_tokens(tokenizer, "vllm", version, path, json.dumps(body).encode())
        except KvatlasError as error:
            report.add(
                "agents",
                "problem",
                f"the router has no tokens of a request with {name}: {error}",
                code="agent_no_tokens",
            )
            continue
        if ours == theirs:
            same.append(name)
            continue
        pairs = zip(ours, theirs, strict=False)
        at = next((i for i, (our, their) in enumerate(pairs) if our != their), min(len(ours), len(theirs)))
        report.add(
            "agents",
            "problem",
            f"at {path}, a request with {name} becomes {len(ours)} tokens here and {len(theirs)} in the engine, "
            f"different from token {at} on: blocks from there on are never found",
            "use --tokenizer engine, or start the engine without options that change what it makes of requests",
            code="agent_tokens_differ",
        )
    if same:
        report.add("agents", "ok", f"the same as in the engine for requests with {', '.join(same)}")
    if missing:
        why = next(iter(missing.values()))
        words = f"not compared at {', '.join(sorted(missing))}: the engine does not render requests there ({why})"
        report.add("agents", "note", words, f"{_FLAG} to have them compared", code="agents_not_compared")


async def look_at_rendering(engine: Engine, report: EngineReport, model: str) -> None:
    """Test that vLLM can render agents' requests, which the router needs with `--tokenizer engine`."""
    if await sglang_info(engine) is not None:
        return  # it has no such routes, and the router does not ask for them
    missing = {}
    for path in dict.fromkeys(path for path, _ in PROBES.values()):
        body = {"model": model, "max_tokens": 16, "messages": _HI} if path == "/v1/messages" else {"input": "Hi"}
        try:
            await _rendered(engine, f"{path}/render", {"model": model, **body})
        except ClientError as error:
            missing[path] = str(error)
    if not missing:
        report.add("agents", "ok", "the engine renders requests of Messages and Responses for the router")
        return
    why = next(iter(missing.values()))
    report.add(
        "agents",
        "note",
        f"the engine does not render requests for {' and '.join(missing)} ({why}): the router makes chats of them "
        "itself and asks /tokenize, which is exact but for system messages that the template moves",
        f"{_FLAG}, or give --tokenizer PATH",
        code="agents_not_rendered",
    )


async def _version(engine: Engine) -> str:
    try:
        answer = await engine.json("GET", "/version")
    except ClientError:
        return ""
    return str(answer.get("version") or "") if isinstance(answer, dict) else ""


async def _rendered(engine: Engine, path: str, body: dict[str, Any]) -> list[int]:
    answer = await engine.json("POST", path, body)
    tokens = answer.get("token_ids") if isinstance(answer, dict) else None
    if not isinstance(tokens, list):
        raise ClientError(f"POST {path} did not return token_ids")
    return tokens
