"""`kvatlas query`: which worker holds how much of this prompt?"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from kvatlas._text import counted
from kvatlas.cli.ask import asking, asks, no_workers
from kvatlas.cli.console import console
from kvatlas.client import Answer, Client
from kvatlas.errors import ClientError, InvalidArgumentError

_SEPARATORS = re.compile(r"[\s,;\[\]]+")


@click.command(short_help="Ask a service which worker holds how much of a prompt.")
@asks
@click.option("--model", metavar="NAME", help="The model; not needed if the service has only one.")
@click.option("--group", metavar="NAME", help="The routing group.  [default: the model's, if it has only one]")
@click.option("--tokens", metavar="N,N,...", help="The prompt's token ids.")
@click.option(
    "--tokens-file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="The same from a file, apart by white space or commas, or a JSON list; - for stdin.",
)
@click.option("--text", help="The prompt as a text; needs --tokenizer.")
@click.option(
    "--tokenizer", metavar="NAME|PATH", help="A tokenizer.json, its directory, or a name on the Hugging Face hub."
)
@click.option("--hashes", metavar="N,N,...", help="The content hashes of the prompt's blocks, as kvatlas makes them.")
@click.option("--lora", metavar="NAME", help="The LoRA adapter that the prompt is for.")
@click.option("--salt", metavar="TEXT", help="The cache salt of the prompt.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="Only so many workers, the best ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def query(
    url: str, key_file: Path | None, ca: Path | None, timeout: float, model: str | None, group: str | None, **asked: Any
) -> None:
    """Ask a service which worker holds how much of a prompt: one of --tokens, --tokens-file, --text or --hashes.

    Exit status: 0; 1 if the service does not answer or refuses; 2 if something given cannot be used; 130 after Ctrl-C.
    """
    with asking(url, key_file, ca, timeout, os.environ) as client:
        tokens, hashes = _prompt(asked)
        model, group, block_size = _keyspace(client, model, group)
        if hashes is not None:
            answer = client.query_by_hash(hashes, model=model, group=group, top_k=asked["top"], age=True)
            length = len(hashes) * block_size
        else:
            answer = client.query(
                tokens,
                model=model,
                group=group,
                lora=asked["lora"],
                salt=asked["salt"],
                top_k=asked["top"],
                age=True,
            )
            length = len(tokens)
        if asked["as_json"]:
            about = {"model": model, "group": group, "block_size": block_size, "prompt_tokens": length}
            click.echo(json.dumps(about | _as_dict(answer), indent=2))
        else:
            _print(answer, model, length, block_size)


def _as_dict(answer: Answer) -> dict[str, Any]:
    data = dataclasses.asdict(answer)
    del data["block_size"], data["levels"]
    for depth in data["workers"]:
        del depth["block_size"]
    return data


# The prompt


def _prompt(asked: dict[str, Any]) -> tuple[list[int], list[int] | None]:
    ways = [name for name in ("tokens", "tokens_file", "text", "hashes") if asked[name] is not None]
    if len(ways) != 1:
        given = " and ".join(f"--{way.replace('_', '-')}" for way in ways) or "none"
        raise click.UsageError(f"One of --tokens, --tokens-file, --text and --hashes is needed, got {given}.")
    if (asked["tokenizer"] is not None) != (ways == ["text"]):
        raise click.UsageError("--text and --tokenizer go together.")
    if ways == ["hashes"]:
        if asked["lora"] is not None or asked["salt"] is not None:
            raise click.UsageError("--lora and --salt do not go with --hashes, which have them in already.")
        return [], _numbers(asked["hashes"], "--hashes")
    if ways == ["text"]:
        return _tokenized(asked["text"], asked["tokenizer"]), None
    if ways == ["tokens"]:
        return _numbers(asked["tokens"], "--tokens"), None
    return _numbers(_file(asked["tokens_file"]), "--tokens-file"), None


def _file(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"--tokens-file: {path} is not text") from error
    except OSError as error:
        raise InvalidArgumentError(f"--tokens-file: cannot read {path}: {error.strerror or error}") from error


def _numbers(text: str, flag: str) -> list[int]:
    numbers = []
    for word in filter(None, _SEPARATORS.split(text)):
        if not re.fullmatch(r"-?[0-9]{1,20}", word, re.ASCII):
            raise InvalidArgumentError(f"{flag} must be integers apart by commas or white space, got {word[:40]!r}")
        numbers.append(int(word))
    if not numbers:
        raise InvalidArgumentError(f"{flag} must have at least one integer, got none")
    return numbers


def _tokenized(text: str, name: str) -> list[int]:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only this needs it
    except ImportError as error:
        raise InvalidArgumentError("--text needs the package tokenizers: pip install 'kvatlas[tokenizer]'") from error
    path = Path(name)
    if path.is_dir():
        path /= "tokenizer.json"
        if not path.exists():
            raise InvalidArgumentError(f"--tokenizer: there is no {path}")
    try:
        tokenizer = Tokenizer.from_file(str(path)) if path.exists() else Tokenizer.from_pretrained(name)
    except Exception as error:
        # The package raises bare Exceptions, and those of the hub's.
        raise InvalidArgumentError(f"--tokenizer: cannot load {name}: {str(error).splitlines()[0][:200]}") from error
    return list(tokenizer.encode(text).ids)


def _keyspace(client: Client, model: str | None, group: str | None) -> tuple[str, str, int]:
    """The model and routing group, if only one fits, and its block size."""
    workers = client.workers(model=model, group=group if model is not None else None)
    found = {(worker.model, worker.group): worker.block_size for worker in workers if group in (None, worker.group)}
    if len(found) == 1:
        ((name, its_group), block_size) = found.popitem()
        return name, its_group, block_size
    if found and model is None:
        names = ", ".join(sorted({name for name, _group in found}))
        raise InvalidArgumentError(f"{client.url} has several models: say which by --model: {names}")
    if found:
        groups = ", ".join(sorted(its_group for _model, its_group in found))
        raise InvalidArgumentError(f"model {model!r} is in several routing groups: say which by --group: {groups}")
    raise ClientError(f"{client.url} has {no_workers(client, model, group)}", "no_workers")


# The table


def _print(answer: Answer, model: str, length: int, block_size: int) -> None:
    out = console()
    words = f"{counted(length, 'token')} for {model}, in blocks of {block_size}"
    out.print(words, highlight=False, markup=False, soft_wrap=True)
    untrusted: set[tuple[str, int | None]] = {(each.worker, each.rank) for each in answer.untrusted}
    if answer.workers:
        out.print(_table(answer, length, block_size, untrusted))
    elif length < block_size:
        out.print("They do not fill a block, and nobody holds less.")
    else:
        out.print(f"No {'trusted ' if answer.untrusted else ''}worker holds the first block.")
    if answer.upper_bound:
        out.print("Depths are upper bounds: the model has layers with a window or a state.", highlight=False)
    if answer.untrusted:
        names = ", ".join(f"{each.worker} rank {each.rank} ({each.state})" for each in answer.untrusted)
        out.print(f"Not trusted now: {names}", highlight=False, markup=False, soft_wrap=True)


def _table(answer: Answer, length: int, block_size: int, untrusted: set[tuple[str, int | None]]) -> Table:
    tiers = any(depth.any_tier != depth.tokens for depth in answer.workers)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker")
    for name in ("rank", "tokens", "blocks", "prompt"):
        table.add_column(name, justify="right")
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
                f"{100 * tokens / length:.1f} %" if length else "",
            ]
            if tiers:
                row += [f"{depth.host:,}", f"{depth.any_tier:,}"] if at == 0 else ["", ""]
            state = (depth.state or "") if at == 0 else ""
            row.append(state + ("?" if (depth.worker, rank) in untrusted else ""))
            row.append("" if at or depth.lag_ms is None else lag(depth.lag_ms))
            table.add_row(*map(Text, row))
    return table


def lag(milliseconds: float | None) -> str:
    """A time for the table."""
    if milliseconds is None:
        return ""
    return f"{milliseconds:,.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"
