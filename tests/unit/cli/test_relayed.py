"""The messages of relays, as `kvatlas decode` reads them. `crates/wire/tests/compact.rs` has the same bytes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvatlas.cli.decode import decode
from kvatlas.cli.relay import relay
from kvatlas.cli.relayed import decode_message
from kvatlas.errors import DecodeError

MESSAGE = bytes.fromhex("c1010000000000000010ac021007000000000000f83f030403021303050306070901c801000208")
# A store of blocks 0 and 1, one of block 5 below 1, a removal of 5, 1 and 0, a clear.
CHUNK = bytes.fromhex("8404")  # Chunks of host memory have four blocks.
CHANGES = bytes.fromhex("00020100010000000000000002000000000000001000011003000000000000000203000f0103")


def test_a_message_is_read() -> None:
    message = decode_message(MESSAGE)
    assert (message["life"], message["id"], message["block_size"], message["key"]) == (1 << 60, 300, 16, 7)
    assert message["timestamp"] == 1.5
    kinds = [frame["type"] for frame in message["frames"]]
    assert kinds == [
        *("state_begin", "state", "state_rank_end", "state_end"),
        *("status", "batch", "forgotten", "gone"),
    ]
    assert message["frames"][4] == {
        "type": "status",
        "trusted": True,
        "partial": False,
        "upper_bound": False,
        "no_salts": True,
        "late": False,
        "unverified": False,
    }
    assert message["frames"][5] == {"type": "batch", "rank": 200, "changes": []}


def test_changes_are_read() -> None:
    head = MESSAGE[:22]
    changes = CHUNK + CHANGES
    message = decode_message(head + b"\x01\x00" + bytes([len(changes)]) + changes)
    chunk, store, below, removed, clear = message["frames"][0]["changes"]
    assert chunk == {"type": "chunk", "tier": "cpu", "blocks": 4}
    assert (store["blocks"], store["content_hashes"], store["parent"]) == ([0, 1], [1, 2], None)
    assert (below["blocks"], below["parent"], below["tier"]) == ([5], 1, "gpu")
    assert (removed["type"], removed["blocks"], clear) == ("remove", [5, 1, 0], {"type": "clear"})


@pytest.mark.parametrize("cut", [1, 5, 12, 20, 24])
def test_a_message_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode_message(MESSAGE[:cut])


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(decode, ["--json"], input=MESSAGE)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["id"] == 300
    done = CliRunner().invoke(decode, [], input=MESSAGE)
    assert "relay" in done.stdout
    assert "message 300" in done.stdout
    assert CliRunner().invoke(decode, [], input=b"\xc1\x02" + MESSAGE[2:]).exit_code == 1


def test_a_relay_needs_somebody_to_publish_to() -> None:
    done = CliRunner().invoke(relay, ["--bind", "127.0.0.1:0"])
    assert done.exit_code == 2
    assert "--publish" in done.output
