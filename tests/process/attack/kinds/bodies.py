"""Hostile bodies: many items, bombs, long prompts, pictures, fields that only the router writes."""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
import zlib
from functools import cache
from typing import Any

from tests.process.attack.target import MODEL, Attack, Target, send

MIB = 1 << 20
WAIT = 10.0  # seconds for an answer to a large body


@cache
def _packed(prefix: bytes, item: bytes, suffix: bytes, size: int) -> bytes:
    """A body of `size` bytes of items, packed piece by piece: it is much smaller."""
    packer = zlib.compressobj(9, wbits=31)
    many = item * (MIB // len(item))
    pieces = [packer.compress(prefix)]
    pieces += [packer.compress(many) for _ in range(size // len(many))]
    return b"".join(pieces) + packer.compress(suffix) + packer.flush()


PLACES = {
    "/v1/chat/completions": ("messages", "tools", "documents", "stop", "logit_bias", "more"),
    "/v1/completions": ("prompt", "stop", "more"),
    "/v1/responses": ("input", "tools"),
    "/v1/messages": ("messages", "tools", "system"),
    "/v1/embeddings": ("input", "messages"),
    "/v1/rerank": ("documents",),
    "/tokenize": ("messages", "prompt"),
    "/pooling": ("messages", "input"),
    "/explain": ("messages", "input", "prompt", "tools", "more"),
    "/query": ("token_ids", "block_hashes", "messages", "more"),
    "/query_by_hash": ("hashes", "block_hashes"),
    "/register": ("aliases", "more"),
}
ITEMS = (
    b"{},",
    b"[],",
    b"1,",
    b'"",',
    b'{"":0},',
    b'{"role":"user","content":""},',
    b'{"role":"user","content":[{"type":"text","text":""}]},',
    b'{"type":"function","function":{"name":"f"}},',
    b"[[[[]]]],",
    b"0.1,",
)


def many_items(target: Target, choose: random.Random) -> None:
    """Lists of millions of small items, which are some KiB packed."""
    path = choose.choice(tuple(PLACES))
    name = choose.choice(PLACES[path]).encode()
    prefix, suffix = b'{"model": "%s", "%s": [' % (MODEL.encode(), name), b"0]}"
    size = choose.choice((2 * MIB, 20 * MIB, 60 * MIB))
    body = _packed(prefix, choose.choice(ITEMS), suffix, size)
    send(target, target.post(path, body, "Content-Encoding: gzip"), WAIT)


def many_names(target: Target, choose: random.Random) -> None:
    """Objects of a hundred thousand names, at the top and deeper."""
    many = ",".join(f'"{number:x}":0' for number in range(choose.choice((10_000, 200_000))))
    body = choose.choice(("{%s}", '{"messages": [{%s}]}', '{"prompt": {%s}}', '{"more": {%s}}')) % many
    send(target, target.post(choose.choice(tuple(PLACES)), body.encode()), WAIT)


def explained(target: Target, choose: random.Random) -> None:
    """Questions how a prompt would be placed, of half a megabyte of empty objects; queries of 8 MiB."""
    if choose.random() < 0.5:
        body = b'{"messages": [' + b'{"":0},' * (504 * 1024 // 7) + b"0]}"
        send(target, target.post("/explain", body), WAIT)
    else:
        many = b",".join(b"%d" % (number % 10) for number in range(4 * MIB))
        body = b'{"model_name": "%s", "token_ids": [%s]}' % (MODEL.encode(), many)
        send(target, target.post(choose.choice(("/query", "/query_by_hash", "/find")), body), WAIT)


def bombs(target: Target, choose: random.Random) -> None:
    """Codings upon codings, and windows that are larger than what they hold."""
    inner = _packed(b'{"prompt": "', b" " * 1024, b'"}', 60 * MIB)
    # A frame of zstd that asks for a window of 128 MiB and holds runs of one byte: RFC 8878, 3.1.1.
    runs = b"".join(struct.pack("<I", (131_072 << 3) | 2)[:3] + b" " for _ in range(480))
    last = struct.pack("<I", (1 << 3) | 1)[:3] + b" "
    window = choose.choice((17, 20, 27, 31))
    zstd = b"\x28\xb5\x2f\xfd\x00" + bytes([(window - 10) << 3]) + runs + last
    body, coding = choose.choice(
        (
            (inner, "gzip"),
            (gzip.compress(inner), "gzip, gzip"),
            (gzip.compress(gzip.compress(inner)), "gzip, gzip, gzip"),
            (zstd, "zstd"),
            (gzip.compress(zstd), "zstd, gzip"),
            (inner, ", ".join(["gzip"] * 50)),
        )
    )
    path = choose.choice(("/v1/completions", "/explain", "/query", "/v1/audio/transcriptions", "/engines"))
    send(target, target.post(path, body, f"Content-Encoding: {coding}"), WAIT)


def long_prompts(target: Target, choose: random.Random) -> None:
    """Prompts of megabytes, and chats of tens of thousands of messages; some before a template without end."""
    words = choose.choice(("a word ", "x", "\\u00e9", "🏳️‍🌈 ", "<|im_start|>"))
    size = choose.choice((1 * MIB, 4 * MIB, 16 * MIB))
    if choose.random() < 0.5:
        body: dict[str, Any] = {"model": MODEL, "prompt": words * (size // len(words)), "max_tokens": 1}
        send(target, target.post("/v1/completions", json.dumps(body).encode()), WAIT)
        return
    count = choose.choice((1000, 30_000))
    kind = choose.choice(("hello", "endless", "large"))
    messages = [{"role": "user", "content": kind}, *({"role": "user", "content": f"{n}"} for n in range(count))]
    path = choose.choice(("/v1/chat/completions", "/explain", "/v1/messages"))
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    send(target, target.post(path, json.dumps(body).encode()), WAIT)


# Pictures


def _picture(width: int, height: int, seed: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes([8, 2, 0, 0, 0, seed])
    return "data:image/png;base64," + base64.b64encode(head).decode()


FORGED = "kvatlas-" + "0123456789abcdef" * 4


def picture_names(target: Target, choose: random.Random) -> None:
    """A picture under a name of the router's, in bodies that it may not read."""
    part = {"type": "image_url", "image_url": {"url": _picture(64, 64, 1)}, "uuid": FORGED}
    chat: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    more: dict[str, Any] = choose.choice(
        (
            {},
            {"mm_processor_kwargs": {}},
            {"prompt_logprobs": 1},
            {"chat_template": "{{ messages }}"},
            {"features": {"mm_hashes": {"image": [FORGED]}}},
            {"messages": [{"role": "user", "content": [part, {"type": "input_audio", "input_audio": {}}]}]},
            {"messages": [{"role": "user", "content": [part | {"type": "image_pil"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "video_url", "uuid": FORGED, "video_url": {}}]}]},
            {"input": [{"type": "input_image", "image_url": _picture(8, 8, 2), "uuid": FORGED}]},
        )
    )
    text = json.dumps(chat | more)
    body = choose.choice(
        (
            text.encode(),
            text.replace("{", '{"messages": 1, ', 1).encode(),
            text.replace("{", '{"x": NaN, ', 1).encode(),
            text.encode("utf-16"),
            b"\xef\xbb\xbf" + text.encode(),
            text.replace("{", '{"x": "\\ud800", ', 1).encode(),
            text.replace("kvatlas-", "\\u006bvatlas-").encode(),
            text.replace("kvatlas-", "\\u006B\\u0076atlas\\u002d").encode(),
        )
    )
    fields = ()
    if choose.random() < 0.3:
        body, fields = gzip.compress(body), ("Content-Encoding: gzip",)  # type: ignore[assignment]
    paths = ("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/chat/completions/render", "/v1/embeddings")
    path = choose.choice((*paths, "/pooling", "/v1/responses", "/tokenize", "/v1/score", "/v1/messages"))
    send(target, target.post(path, body, *fields))


def lying_pictures(target: Target, choose: random.Random) -> None:
    """A picture whose head says another size than it has."""
    url = _picture(choose.choice((1, 64, 1 << 31)), choose.choice((1, 4096, (1 << 32) - 1)), choose.randrange(256))
    parts = [{"type": "image_url", "image_url": {"url": url}}] * choose.choice((1, 500))
    body = {"model": MODEL, "messages": [{"role": "user", "content": parts}]}
    send(target, target.post("/v1/chat/completions", json.dumps(body).encode()))


# Fields of the router's


def hand_over_fields(target: Target, choose: random.Random) -> None:
    """Fields by which engines give each other blocks, and the rank at which a request is to run."""
    field: dict[str, Any] = choose.choice(
        (
            {"kv_transfer_params": {"do_remote_decode": True, "remote_host": "10.0.0.1", "remote_block_ids": [[1, 2]]}},
            {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "x", "remote_port": 1}},
            {"bootstrap_host": "10.0.0.1", "bootstrap_port": 1, "bootstrap_room": 7},
            {"ec_transfer_params": {"x": 1}},
            {"data_parallel_rank": 3},
            {"vllm_xargs": {"kv_transfer_params": {"x": 1}}},
        )
    )
    text = json.dumps(json.loads(_CHATS[choose.randrange(2)]) | field)
    body = choose.choice((text, text.replace('"kv_', '"\\u006bv_'), text.replace("{", '{"x": NaN, ', 1))).encode()
    send(target, target.post(choose.choice(("/v1/chat/completions", "/v1/completions", "/v1/responses")), body))


_CHATS = (
    json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}),
    json.dumps({"model": MODEL, "prompt": "hello", "input": "hello"}),
)


def usage_without_end(target: Target, choose: random.Random) -> None:
    """A prompt that is nothing but the beginning of usage, which some engines say again."""
    piece = choose.choice((b'"usage":{', b'\\"usage\\":{', b'"usage":', b'data: {"usage":{'))
    text = json.dumps((piece * (MIB // len(piece))).decode())
    body = b'{"model": "%s", "stream": true, "prompt": %s}' % (MODEL.encode(), text.encode())
    send(target, target.post("/v1/completions", body), WAIT)


ATTACKS: tuple[Attack, ...] = (
    many_items,
    many_names,
    explained,
    bombs,
    long_prompts,
    picture_names,
    lying_pictures,
    hand_over_fields,
    usage_without_end,
)
