"""The workload by which the wheels' extension is optimised: `python -m benchmarks.training`.

A profile-guided build lays out code by how often each part ran here, and takes what never ran for rare. So this runs
what users run often, in the proportions of a busy router and service: prompts read and hashed, short and long, known
and new; decisions; answers passed on, streamed and whole; queries; events; the index from Python. It measures nothing.
The engines are simulated: their time does not count, as they are other processes.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from benchmarks.service.servers import free_port

from kvatlas import BlockIndex, content_hashes, prefix_hashes
from kvatlas.routing import Router
from kvatlas.sim.server import Fleet, ServerConfig, write_tokenizer
from kvatlas.wire import Stored, decode_batch, encode_batch

BLOCK = 16
TEXT = Path(__file__).resolve().parents[1] / "docs"
STARTS = 60.0  # seconds within which a process must be ready


def read_words() -> list[str]:
    """The words of the documentation, as text that tokenizers are made for."""
    return " ".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.glob("*/*.md"))).split()


def write_bpe(folder: Path, text: Sequence[str]) -> Path:
    """Write a byte-level tokenizer of 8,000 tokens, split and merged as those of today's models."""
    import tokenizers as tk  # noqa: PLC0415 - only where the build is trained

    made = tk.Tokenizer(tk.models.BPE())
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    split = words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    made.pre_tokenizer = tk.pre_tokenizers.Sequence(
        [
            tk.pre_tokenizers.Split(tk.Regex(split), "isolated"),
            tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([" ".join(text)], tk.trainers.BpeTrainer(vocab_size=8_000, initial_alphabet=alphabet))
    write_tokenizer(folder)  # for the template, and what else a model's folder has
    made.save(str(folder / "tokenizer.json"))
    return folder


@contextmanager
def running(*command: str, port: int) -> Iterator[int]:
    """Run `kvatlas` with a command until the end of the block; it then ends by itself, which writes its profile."""
    process = subprocess.Popen([sys.executable, "-m", "kvatlas", *command], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + STARTS
        while ask(port, "GET", "/ready")[0] != 200:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"not ready: kvatlas {' '.join(command)}")
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Send one request; status 0 if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json"} if data else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def demand(status: int, body: bytes) -> None:
    """Raise if a request failed: a build must not be trained on errors."""
    if status not in {200, 201}:
        raise RuntimeError(f"status {status}: {body[:500]!r}")


TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file, and return its lines.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def converse(port: int, text: Sequence[str], seed: int, turns: int, letters: int, path: str) -> None:
    """Have a conversation whose first prompt has this many letters; later turns add to it, as clients do.

    Every other chat is an agent's: it has tools, and their results.
    """
    has_tools = bool(seed % 2)
    draw = random.Random(seed)

    def some(length: int) -> str:
        start = draw.randrange(len(text) - length // 4)
        return " ".join(text[start : start + length // 6])

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    messages: list[dict[str, object]] = [{"role": "user", "content": f"{seed} {some(letters)}"}]
    for turn in range(turns):
        body: dict[str, object] = {"model": "sim-model", "max_tokens": 8, "stream": bool((seed + turn) % 3)}
        if path.endswith("/chat/completions"):
            body["messages"] = messages
            if has_tools:
                body["tools"] = [TOOL] * 8
        else:
            body["prompt"] = " ".join(str(message["content"]) for message in messages)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        demand(answer.status, answer.read())
        if has_tools:
            call = {"name": "read_file", "arguments": json.dumps({"path": some(40)})}
            calls = [{"id": f"call_{turn}", "type": "function", "function": call}]
            messages.append({"role": "assistant", "content": some(60), "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": some(400)})
        else:
            messages += [{"role": "assistant", "content": some(200)}, {"role": "user", "content": some(400)}]
    connection.close()


def route(text: Sequence[str], folder: Path) -> None:
    """Chats through a router: mostly short, some of 48 KB that grow, some new ones of that length."""
    with Fleet(2, ServerConfig(speed=1_000)) as fleet:
        engines = [part for number, url in enumerate(fleet.urls) for part in ("--engine", f"e{number}={url}")]
        for tokenizer in (("--tokenizer", str(folder)), ()):
            port = free_port()
            command = ("router", "--bind", f"127.0.0.1:{port}", *engines, *tokenizer)
            with running(*command, port=port), ThreadPoolExecutor(4) as pool:
                chats = [(seed, 20, 1_000, "/v1/chat/completions") for seed in range(150)]
                chats += [(seed, 10, 48_000, "/v1/chat/completions") for seed in range(1_000, 1_020)]
                chats += [(seed, 1, 48_000, "/v1/chat/completions") for seed in range(2_000, 2_040)]
                chats += [(seed, 5, 2_000, "/v1/completions") for seed in range(3_000, 3_030)]
                for done in [pool.submit(converse, port, text, *chat) for chat in chats]:
                    done.result()
                for page in ("/metrics", "/workers", "/router"):
                    demand(*ask(port, "GET", page))


def serve() -> None:
    """Events into a service, and queries by tokens and by hashes."""
    draw = np.random.default_rng(0)
    with Fleet(4, ServerConfig(speed=1_000)) as fleet:
        port = free_port()
        with running("serve", "--bind", f"127.0.0.1:{port}", "--block-size", str(BLOCK), port=port):
            for number in range(4):
                engine = fleet[number]
                about = {"instance_id": number, "endpoint": engine.endpoint(), "model_name": "sim-model"}
                about |= {"replay_endpoint": engine.replay_endpoint(), "block_size": BLOCK}
                demand(*ask(port, "POST", "/register", about))
            prompts = [draw.integers(0, 32_000, 2_048).tolist() for _ in range(64)]
            for number, prompt in enumerate(prompts):
                body = {"model": "sim-model", "prompt": prompt, "max_tokens": 4}
                demand(*ask(int(fleet.urls[number % 4].rpartition(":")[2]), "POST", "/v1/completions", body))
            for turn in range(1_500):
                prompt = prompts[turn % 64]
                if turn % 3:
                    hashes = content_hashes(prompt, BLOCK).tolist()
                    asked = ask(port, "POST", "/query_by_hash", {"model_name": "sim-model", "content_hashes": hashes})
                else:
                    asked = ask(port, "POST", "/query", {"model_name": "sim-model", "token_ids": prompt})
                demand(*asked)


def index() -> None:
    """The index, its files, and the decision core, from Python."""
    draw = np.random.default_rng(1)
    made = BlockIndex(block_size=BLOCK)
    shared = draw.integers(0, 32_000, 4_096)
    held: list[tuple[str, np.ndarray]] = []
    router = Router(workers=[f"w{worker}" for worker in range(32)], block_size=BLOCK)
    for turn in range(3_000):
        cut = int(draw.integers(0, 256)) * BLOCK
        tokens = np.concatenate([shared[:cut], draw.integers(0, 32_000, 1_024)])
        contents = content_hashes(tokens, BLOCK)
        worker = f"w{turn % 32}"
        names = prefix_hashes(contents)
        sent = router.choose(content_hashes=contents, match=made.find(content_hashes=contents))
        sent.first_token()
        sent.finish()
        made.store(worker, block_hashes=names, content_hashes=contents)
        held.append((worker, names[cut // BLOCK :]))
        if len(held) > 512:
            made.remove(held[0][0], block_hashes=held[0][1][::-1])
            held.pop(0)
        batch = encode_batch([Stored(names.tolist(), None, tokens.tolist(), BLOCK)], timestamp=0.0)
        decode_batch(batch)
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "index")
        BlockIndex.load(Path(folder) / "index")


def main() -> None:
    """Run all of it."""
    text = read_words()
    index()
    serve()
    with tempfile.TemporaryDirectory() as folder:
        route(text, write_bpe(Path(folder), text))


if __name__ == "__main__":
    main()
