"""Streams that are given by hand to a router, by the name of an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.engine import MODEL, Engine

from kvatlas.sim.server.ports import free_block

from .deciding import BLOCK, expected
from .running import Router, wait_until
from .test_unverified import TEXT, publish, publishing


@pytest.mark.parametrize("way", ["flag", "file"])
def test_an_engine_that_does_not_report_its_stream(
    engine: Engine, other: Engine, tokenizer: Path, tmp_path: Path, way: str
) -> None:
    port = free_block("127.0.0.1")
    flags: tuple[str, ...] = ("--policy", "kvatlas", "--tokenizer", str(tokenizer))
    if way == "flag":
        flags += ("--stream", f"e0=tcp://127.0.0.1:{port},model={MODEL},block_size={BLOCK}")
    else:
        file = tmp_path / "engines.toml"
        stream = f'worker = "e0"\nendpoint = "tcp://127.0.0.1:{port}"\nmodel = "{MODEL}"\nblock_size = {BLOCK}\n'
        file.write_text(f"[[stream]]\n{stream}")
        flags += ("--engines-file", str(file))
    with Router(engine, other, flags=flags, ready=False) as router, publishing(port) as publisher:
        for number in range(4):
            publish(publisher, number)
        router.wait_ready()
        wait_until(lambda: expected(router, TEXT) == {"e0": 4 * BLOCK, "e1": 0}, "its blocks are known")
        (followed,) = json.loads(router.get("/streams")[1])
        assert followed["instance_id"] == "e0"
        warned = [line for line in router.log.splitlines() if "does not report where its KV events are" in line]
        assert all(other.url in line or 'engine="e1"' in line for line in warned), warned
