"""`kvatlas query`: the length of a prompt's beginning that each worker holds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from kvatlas._text import counted, milliseconds, percent
from kvatlas.cli.console import console
from kvatlas.cli.service_options import asking, asks, no_workers
from kvatlas.client import Answer, Client
from kvatlas.client.prompts import Query, prepare
from kvatlas.errors import ClientError, InvalidArgumentError
from kvatlas.tokenize import EngineTokenizer, LocalTokenizer, Tokenizer

_SEPARATORS = re.compile(r"[\s,;\[\]]+")
_WAYS = ("tokens", "tokens_file", "text", "chat", "content_hashes")
_FLAGS = "--tokens, --tokens-file, --text, --chat and --content-hashes"


@click.command(short_help="Ask a running service or router how much of a prompt each worker holds.")
@asks
@click.option("--model", metavar="NAME", help="Model name. Optional if the service has only one model.")
@click.option("--routing-group", metavar="NAME", help="Routing group.  [default: the model's, if it has only one]")
@click.option("--text", metavar="TEXT", help="Prompt as text, as for a completion.")
@click.option(
    "--chat",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="JSON file with a list of chat messages, or with a whole chat request; - for stdin.",
)
@click.option(
    "--tokenizer",
    metavar="PATH|NAME",
    help="Tokenizer for --text and --chat: a tokenizer.json, a model directory, or a model name on the Hugging Face "
    "Hub.",
)
@click.option(
    "--tokenize-url",
    metavar="URL",
    help="Instead of --tokenizer: a vLLM or SGLang server, asked by POST /tokenize. KVATLAS_ENGINE_KEY holds its API "
    "key.",
)
@click.option("--tokens", metavar="N,N,...", help="Token ids of the prompt.")
@click.option(
    "--tokens-file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="File with the token ids, separated by white space or commas, or as a JSON list; - for stdin.",
)
@click.option("--content-hashes", metavar="N,N,...", help="Content hashes of the prompt's blocks.")
@click.option("--lora", metavar="NAME", help="LoRA adapter of the prompt.")
@click.option("--salt", metavar="TEXT", help="Cache salt of the prompt.")
@click.option("--top-k", type=click.IntRange(1), metavar="N", help="Return only the best N workers.")
@click.option("--among", metavar="NAME,NAME,...", help="Consider only these workers.")
@click.option("--strict", is_flag=True, help="Leave out ranks whose engine may have restarted unnoticed (unverified).")
@click.option("--sites", is_flag=True, help="Ask a service above many sites which of them hold how much.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def query(
    url: str | None,
    key_file: Path | None,
    ca: Path | None,
    timeout: float,
    model: str | None,
    routing_group: str | None,
    top_k: int | None,
    among: str | None,
    strict: bool,
    sites: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Ask a running service or router how much of a prompt each worker holds.

    Give the prompt with one of --text, --chat, --tokens, --tokens-file and --content-hashes. Text and chats are
    tokenized with --tokenizer or --tokenize-url, as the engine would. A router is asked about the engines that take
    requests, in any way but --content-hashes; its own address works as --tokenize-url.

    usable: tokens that the engine can reuse; shown if fewer than it holds. It always computes a prompt's last token.

    Exit status: 0; 1 if the service does not respond or refuses; 2 if an argument is invalid; 130 after Ctrl-C.
    """
    with asking(url, key_file, ca, timeout, os.environ) as client:
        prompt = _prompt(given, timeout)
        if sites:
            _sites(client, prompt, model, routing_group, as_json)
            return
        model, routing_group = _keyspace(client, model, routing_group)
        answer = client.query(
            **_arguments(prompt, model, routing_group),
            top_k=top_k,
            among=None if among is None else [name for name in among.split(",") if name],
            age=True,
            strict=strict,
        )
        if as_json:
            about = {"model": model, "routing_group": routing_group, "unit": answer.unit, "depth": answer.depth}
            click.echo(json.dumps(about | _as_dict(answer), indent=2))
        else:
            _print(answer, model)


def _sites(client: Client, prompt: Query, model: str | None, routing_group: str | None, as_json: bool) -> None:
    model, routing_group = _keyspace_of_sites(client, model, routing_group)
    answer = client.sites(**_arguments(prompt, model, routing_group))
    if as_json:
        about = {"model": model, "routing_group": routing_group, "unit": "tokens"}
        click.echo(json.dumps(about | dataclasses.asdict(answer), indent=2))
        return
    out = console()
    out.print(f"{counted(answer.length, 'token')} in full blocks for {model}", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("at least", "at most"):
        table.add_column(name, justify="right")
    table.add_column("sites", overflow="fold")
    for level in answer.levels:
        table.add_row(f"{level.at_least:,}", f"{level.at_most:,}", Text(", ".join(level.sites)))
    table.add_row("0", f"{answer.rest_at_most:,}", Text("all others", style="italic"))
    out.print(table)
    if answer.unknown:
        out.print(f"May hold anything: {', '.join(answer.unknown)}", highlight=False, markup=False, soft_wrap=True)


def _arguments(prompt: Query, model: str, routing_group: str) -> dict[str, Any]:
    """The arguments of a query for a prompt in tokens or content hashes."""
    given = {name: getattr(prompt, name) for name in ("tokens", "content_hashes", "lora", "salt")}
    return given | {"model": model, "routing_group": routing_group}


def _keyspace_of_sites(client: Client, model: str | None, routing_group: str | None) -> tuple[str, str]:
    found = {
        (site.model, site.routing_group)
        for site in client.site_statuses()
        if model in (None, site.model) and routing_group in (None, site.routing_group)
    }
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ClientError(f"{client.url} has digests of no site, or not of this model", "no_sites")
    names = ", ".join(f"{name} in {group}" for name, group in sorted(found))
    raise InvalidArgumentError(f"{client.url} has several: choose with --model and --routing-group: {names}")


def _as_dict(answer: Answer) -> dict[str, Any]:
    data = dataclasses.asdict(answer)
    for depth in data["workers"]:
        depth["blocks"] = depth["tokens"] // depth.pop("block_size")
    return data


# The prompt


def _prompt(given: dict[str, Any], timeout: float) -> Query:
    """The prompt that the options give, converted to tokens or content hashes."""
    ways = [name for name in _WAYS if given[name] is not None]
    if len(ways) != 1:
        flags = " and ".join(f"--{way.replace('_', '-')}" for way in ways) or "none"
        raise click.UsageError(f"Exactly one of {_FLAGS} is required, got {flags}.")
    lora, salt = given["lora"], given["salt"]
    way = ways[0]
    needs_tokenizer = way in ("text", "chat")
    sources = [name for name in ("tokenizer", "tokenize_url") if given[name] is not None]
    if needs_tokenizer and len(sources) != 1:
        raise click.UsageError(f"--{way} requires one of --tokenizer and --tokenize-url.")
    if sources and not needs_tokenizer:
        raise click.UsageError(f"--{sources[0].replace('_', '-')} can only be used with --text or --chat.")
    if way == "content_hashes":
        if lora is not None or salt is not None:
            raise click.UsageError(
                "--lora and --salt cannot be used with --content-hashes, which already include them."
            )
        return Query(content_hashes=_numbers(given["content_hashes"], "--content-hashes"))
    if not needs_tokenizer:
        text = given["tokens"] if way == "tokens" else _file(given["tokens_file"], "--tokens-file")
        return Query(tokens=_numbers(text, f"--{way.replace('_', '-')}"), lora=lora, salt=salt)
    asked = Query(text=given["text"], lora=lora, salt=salt) if way == "text" else _chat(given["chat"], lora, salt)
    with ExitStack() as stack:
        return prepare(asked, _tokenizer(given, timeout, stack))


def _tokenizer(given: dict[str, Any], timeout: float, stack: ExitStack) -> Tokenizer:
    if given["tokenize_url"] is not None:
        key = os.environ.get("KVATLAS_ENGINE_KEY")
        return stack.enter_context(EngineTokenizer(given["tokenize_url"], key=key, timeout=timeout))
    return open_tokenizer(given["tokenizer"])


def open_tokenizer(name: str) -> LocalTokenizer:
    """Open the tokenizer in a file or directory, or of a model on the Hugging Face hub."""
    return LocalTokenizer(name) if Path(name).exists() else LocalTokenizer.from_hub(name)


def _chat(path: Path, lora: str | None, salt: str | None) -> Query:
    try:
        content = json.loads(_file(path, "--chat"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"--chat: {path} is not JSON: {error}", "invalid_messages") from error
    request = content if isinstance(content, dict) else {"messages": content}
    if not isinstance(request.get("messages"), list):
        raise InvalidArgumentError(
            f'--chat: {path} must be a JSON list of messages, or an object with "messages"', "invalid_messages"
        )
    return Query(messages=request["messages"], tools=request.get("tools"), lora=lora, salt=salt)


def _file(path: Path, flag: str) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{flag}: {path} is not text") from error
    except OSError as error:
        raise InvalidArgumentError(f"{flag}: cannot read {path}: {error.strerror or error}") from error


def _numbers(text: str, flag: str) -> list[int]:
    numbers = []
    for word in filter(None, _SEPARATORS.split(text)):
        if not re.fullmatch(r"-?[0-9]{1,20}", word, re.ASCII):
            words = f"{flag} must be integers separated by commas or white space, got {word[:40]!r}"
            raise InvalidArgumentError(words)
        numbers.append(int(word))
    if not numbers:
        raise InvalidArgumentError(f"{flag} must have at least one integer, got none")
    return numbers


def _keyspace(client: Client, model: str | None, routing_group: str | None) -> tuple[str, str]:
    """The model and routing group to query, if exactly one matches the options."""
    fleet = client.workers(model=model, routing_group=routing_group if model is not None else None)
    found = {
        (worker.model, worker.routing_group)
        for worker in fleet
        if worker.model and routing_group in (None, worker.routing_group)
    }
    if len(found) == 1:
        name, group = found.pop()
        # What was asked for may be an alias, or an adapter of the model.
        return model or name, group
    if found and model is None:
        names = ", ".join(sorted({name for name, _group in found}))
        raise InvalidArgumentError(f"{client.url} has several models: choose one with --model: {names}")
    if found:
        groups = ", ".join(sorted(group for _model, group in found))
        words = f"model {model!r} is in several routing groups: choose one with --routing-group: {groups}"
        raise InvalidArgumentError(words)
    raise ClientError(f"{client.url} has {no_workers(client, model, routing_group)}", "no_workers")


# The table


def _print(answer: Answer, model: str) -> None:
    out = console()
    block_size = answer.block_size
    length = answer.length * block_size if answer.prompt_tokens is None else answer.prompt_tokens
    words = f"{counted(length, 'token')} for {model}, in blocks of {block_size}"
    out.print(words, highlight=False, markup=False, soft_wrap=True)
    untrusted: set[tuple[str, int | None]] = {(each.worker, each.rank) for each in answer.untrusted}
    if answer.workers:
        out.print(_table(answer, length, block_size, untrusted))
    elif length < block_size:
        out.print("The prompt is shorter than one block, and workers cache only whole blocks.")
    else:
        out.print(f"No {'trusted ' if answer.untrusted else ''}worker holds the first block.")
    if answer.no_salts:
        names = ", ".join(f"{worker} rank {rank}" for worker, rank in answer.no_salts)
        words = "Depths are upper bounds without --salt and unknown with it, as the engine does not report salts"
        out.print(f"{words}: {names}", highlight=False, markup=False, soft_wrap=True)
    if answer.upper_bound and not {depth.worker for depth in answer.workers} <= {name for name, _ in answer.no_salts}:
        out.print("Depths are upper bounds, as for some models with sliding-window layers.", highlight=False)
    if answer.untrusted:
        names = ", ".join(f"{each.worker} rank {each.rank} ({each.state})" for each in answer.untrusted)
        out.print(f"Untrusted: {names}", highlight=False, markup=False, soft_wrap=True)
    if answer.partial:
        names = ", ".join(f"{worker} rank {rank}" for worker, rank in answer.partial)
        out.print(f"May hold more (events were missed): {names}", highlight=False, markup=False, soft_wrap=True)
    if answer.unverified:
        names = ", ".join(f"{worker} rank {rank}" for worker, rank in answer.unverified)
        words = "May hold nothing (no replay socket shows that the engine has not restarted)"
        out.print(f"{words}: {names}", highlight=False, markup=False, soft_wrap=True)


def _table(answer: Answer, length: int, block_size: int, untrusted: set[tuple[str, int | None]]) -> Table:
    usable = any(depth.usable not in (None, depth.tokens) for depth in answer.workers)
    tiers = any(depth.any_tier != depth.tokens for depth in answer.workers)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker")
    for name in ("rank", "tokens", "blocks", "prompt"):
        table.add_column(name, justify="right")
    if usable:
        table.add_column("usable", justify="right")
    if tiers:
        table.add_column("with host", justify="right")
        table.add_column("any tier", justify="right")
    table.add_column("state")
    table.add_column("lag", justify="right")
    for depth in answer.workers:
        # A worker may hold it in lower tiers only.
        ranks: list[tuple[int | None, int]] = [*sorted(depth.ranks.items(), key=lambda item: (-item[1], item[0]))]
        ranks = ranks or [(None, 0)]
        for at, (rank, tokens) in enumerate(ranks):
            row = [
                depth.worker if at == 0 else "",
                "" if rank is None else str(rank),
                f"{tokens:,}",
                f"{tokens // block_size:,}",
                percent(tokens / length) if length else "",
            ]
            if usable:
                row.append("" if at or depth.usable is None else f"{depth.usable:,}")
            if tiers:
                row += [f"{depth.host:,}", f"{depth.any_tier:,}"] if at == 0 else ["", ""]
            state = (depth.state or "") if at == 0 else ""
            row.append(state + ("?" if (depth.worker, rank) in untrusted else ""))
            row.append("" if at or depth.lag_ms is None else milliseconds(depth.lag_ms))
            table.add_row(*map(Text, row))
    return table
