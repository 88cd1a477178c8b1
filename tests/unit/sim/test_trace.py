"""Reading traces and cutting them into blocks."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas import prefix_hashes
from kvatlas.errors import ConfigError, TraceError
from kvatlas.sim import TraceRequest, make_request, read_trace, use_own_names, write_trace
from kvatlas.sim.trace import parse_line

GOOD = {"timestamp": 5, "input_length": 1000, "output_length": 20, "hash_ids": [3, 9]}


def line(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_line() -> None:
    assert parse_line(line()) == TraceRequest(5, 1000, 20, (3, 9))
    assert parse_line(line(timestamp=7.0, extra="ignored")).timestamp == 7
    assert parse_line(line(input_length=1024)).hash_ids == (3, 9)
    assert parse_line(line(hash_ids=[3])).hash_ids == (3,)  # the partial last block may go without an id
    assert parse_line(line(input_length=3, output_length=0, hash_ids=[])).input_length == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe\x00", "not text"),
        (b"\x1f\x8b\x08\x00\xff", "not text .the file is compressed with gzip: unpack it first"),
        (b"\x28\xb5\x2f\xfd\x24", "compressed with zstd"),
        (b"PAR1\x15\x04", "the file is in Parquet; what is wanted is JSON lines"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens", "not JSON: the file looks like CSV: `kvatlas trace FILE"),
        (b'"2024-05-10 00:00:00.009930+00:00",2162,5', "the file looks like CSV"),
        (b"0\t600\t2", "the file looks like CSV"),
        (b"[", "the file is a single JSON array; what is wanted is JSON lines, an object for each request"),
        (b'0, "hash_ids": [1]}', "not JSON: Extra data"),
        (b"{", "not JSON: Expecting property name .* column 2"),
        (b"[" * 100_000, "not JSON: nested too deep"),
        (b"[1]", "a JSON object was expected, not a list"),
        (b"null", "not null"),
        (b'{"timestamp": 0}', "no 'input_length'"),
        (line(timestamp="0"), 'timestamp must be a whole number, not "0"'),
        (line(timestamp=True), "timestamp must be a whole number, not true"),
        (line(timestamp=-1), "timestamp must be from 0"),
        (line(input_length=0), "input_length must be from 1"),
        (line(input_length=1.5), "whole number, not 1.5"),
        (line(input_length=float("nan")), "whole number, not NaN"),
        (line(input_length=10**30), "must be from 1 to"),
        (line(output_length=-3), "output_length must be from 0"),
        (line(hash_ids=7), "hash_ids must be a list, not a number"),
        (line(hash_ids=[1, "a" * 100]), r"hash_ids\[1\] must be a whole number .*\.\.\."),
        (line(hash_ids=[-1, 0]), r"hash_ids\[0\]"),
        (line(hash_ids=[1, 2**64]), r"hash_ids\[1\]"),
        (line(hash_ids=[]), "0 hash_ids for input_length 1000, which has 2 blocks of 512"),
        (line(hash_ids=[1, 2, 3]), "3 hash_ids for input_length 1000"),
    ],
)
def test_a_malformed_line_says_what_is_wrong(text: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse_line(text)


def test_a_malformed_line_names_its_number(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join([line(), b"", line(timestamp=2), line(timestamp=6)]))
    with pytest.raises(TraceError, match=r"t\.jsonl, line 3: timestamp 2 is earlier than the previous one, 5"):
        read_trace(path)
    trace = read_trace(path, skip_bad=True)
    assert [r.timestamp for r in trace.requests] == [5, 6]
    assert trace.skipped == 1
    assert trace.first_skipped is not None
    assert "line 3" in trace.first_skipped


def test_a_limit_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join([line(), line(), b"bad"]))
    assert len(read_trace(path, limit=2).requests) == 2


def test_files_that_are_not_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(tmp_path)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(TraceError, match="empty"):
        read_trace(empty)
    blank = tmp_path / "blank"
    blank.write_text("\n\n")
    with pytest.raises(TraceError, match="no requests"):
        read_trace(blank)
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x7fELF" + random.Random(1).randbytes(100_000))
    with pytest.raises(TraceError, match="line 1: not"):
        read_trace(junk)
    with pytest.raises(TraceError, match=r"no line of .* is a request"):
        read_trace(junk, skip_bad=True)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    requests = [TraceRequest(0, 700, 3, (1, 2)), TraceRequest(9, 512, 0, (1,)), TraceRequest(9, 4, 1, (2**64 - 1,))]
    path = tmp_path / "t.jsonl"
    write_trace(path, requests)
    assert read_trace(path).requests == requests


@pytest.mark.parametrize("size", [1, 16, 128, 512])
def test_equal_ids_are_equal_blocks(size: int) -> None:
    a = make_request(TraceRequest(0, 1200, 1, (5, 6, 7)), 0, size)
    b = make_request(TraceRequest(0, 1500, 1, (5, 6, 8)), 1, size)
    shared = 1024 // size
    assert a.content_hashes.size == 1200 // size
    assert a.content_hashes[:shared].tolist() == b.content_hashes[:shared].tolist()
    assert a.block_hashes[:shared] == b.block_hashes[:shared]
    assert not set(a.content_hashes[shared:].tolist()) & set(b.content_hashes[shared:].tolist())
    assert len(set(a.content_hashes.tolist())) == a.content_hashes.size
    assert a.block_hashes == prefix_hashes(a.content_hashes).tolist()


def test_blocks_with_generated_tokens_are_like_no_others() -> None:
    row = TraceRequest(0, 100, 61, (5,))
    a, b = make_request(row, 0, 16), make_request(row, 1, 16)
    # 160 tokens have KV: 6 blocks of the prompt, and 4 with generated tokens in them.
    assert a.content_hashes.size == b.content_hashes.size == 10
    assert a.content_hashes[:6].tolist() == b.content_hashes[:6].tolist()
    assert not set(a.content_hashes[6:].tolist()) & set(b.content_hashes[6:].tolist())


def test_blocks_beyond_the_ids_are_like_no_others() -> None:
    row = TraceRequest(0, 1000, 1, (5,))
    a, b = make_request(row, 0, 16), make_request(row, 1, 16)
    assert a.content_hashes.size == 62
    assert (a.content_hashes == b.content_hashes).tolist() == [True] * 32 + [False] * 30


def test_own_names_are_different_names_of_the_same_blocks() -> None:
    row = TraceRequest(0, 1024, 1, (5, 6))
    a, b, c = (make_request(row, 0, 512) for _ in range(3))
    use_own_names(b, 1)
    use_own_names(c, 2)
    assert len({*a.block_hashes, *b.block_hashes, *c.block_hashes}) == 6
    assert np.array_equal(a.content_hashes, b.content_hashes)


@pytest.mark.parametrize("size", [0, -16, 3, 1024])
def test_a_block_size_must_divide_512(size: int) -> None:
    with pytest.raises(ConfigError, match="does not divide 512"):
        make_request(TraceRequest(0, 600, 1, (1, 2)), 0, size)


def test_the_conversation_trace(conversation_trace: Path) -> None:
    trace = read_trace(conversation_trace)
    assert len(trace.requests) == 12_031
    assert sum(r.input_length for r in trace.requests) == 144_793_823
