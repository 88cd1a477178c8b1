"""Cases of a client in Python. Each prints a line for the test, which looks at the engines and says go on."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from tests.process.clients.expected import ARGUMENTS, MODEL, REFUSAL, TEXT, VECTOR, order

# Libraries print too; the test reads only these lines.
_TOLD, sys.stdout = sys.stdout, sys.stderr


@dataclass
class Client:
    """A way to use a library. What it cannot do is None."""

    name: str
    package: str
    # A prompt and a model to the text of an answer, and to the pieces of a stream.
    whole: Callable[[str, str], str | None] | None
    stream: Callable[[str], Iterator[str | None]] | None
    # The arguments with which the model calls the tool.
    tools: Callable[[], Any] | None = None
    embed: Callable[[], list[float]] | None = None
    asks_again: bool = False  # whatever the error is

    def cases(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """The name of each case, the tag of its prompt, and what it does."""
        whole, stream, tools = self.whole, self.stream, self.tools
        if whole is not None:
            yield "whole", "", lambda: expect(whole("hello", MODEL), TEXT)
        if stream is not None:
            yield "stream", "", lambda: expect("".join(piece or "" for piece in stream("hello")), TEXT)
        if tools is not None:
            yield "tools", "", lambda: expect(tools(), ARGUMENTS)
        if (embed := self.embed) is not None:
            yield "embeddings", "", lambda: expect(embed(), VECTOR)
        if stream is not None:
            slow, tag = order("slow")
            yield "cancelled", tag, lambda: leave(stream(slow))
        if whole is not None:
            busy, tag = order("busy-3")
            yield "retried", tag, lambda: expect(whole(busy, MODEL), TEXT)
            refused, tag = order("refuse")
            yield "refused", "" if self.asks_again else tag, lambda: fails(lambda: whole(refused, MODEL), REFUSAL)
            yield "unknown model", "", lambda: fails(lambda: whole("hello", "nobodys"), "nobodys")
        if stream is not None:
            cut, tag = order("cut")
            yield "broken off", tag, lambda: fails(lambda: list(stream(cut)), "engine e")


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def leave(stream: Iterator[str | None]) -> None:
    """Closes a stream after its first piece."""
    next(piece for piece in stream if piece)
    stream.close()  # type: ignore[attr-defined]  # all of them are generators
    gc.collect()  # LangChain's completions leave the connection to it


def fails(do: Callable[[], object], words: str) -> None:
    try:
        answer = do()
    except Exception as error:
        if words not in f"{error} {error.__cause__}":
            raise AssertionError(f"the error does not say {words!r}: {error!r}") from error
    else:
        raise AssertionError(f"no error, but {answer!r}")


def run(clients: list[Client]) -> None:
    """Runs all cases of the clients. The last argument may be the beginning of the names of those to run."""
    for client in clients:
        if len(sys.argv) > 2 and not client.name.startswith(sys.argv[2]):
            continue
        for case, tag, do in client.cases():
            problem = None
            try:
                do()
            except Exception as error:  # noqa: BLE001 - told
                problem = f"{type(error).__name__}: {error}"
            line = {"client": client.name, "version": version(client.package), "case": case, "tag": tag}
            print(json.dumps({**line, "problem": problem}), file=_TOLD, flush=True)
            sys.stdin.readline()


def base() -> str:
    """The router's address."""
    return sys.argv[1]
