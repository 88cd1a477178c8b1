"""Prefill and decode engines, asked through a router that finds out whose hand-over they speak."""

import time
from pathlib import Path
from typing import Literal

import pytest

from kvatlas.router import Router
from kvatlas.service.config import Engine
from kvatlas.sim.server import Fleet, ServerConfig

from .conftest import FAST
from .test_router import PATIENCE, ask, chat, settings

pytest.importorskip("tokenizers")


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_the_first_request_after_ready_is_handed_over(dialect: Literal["vllm", "sglang"], tokenizer: Path) -> None:
    prefill, decode = (ServerConfig(engine=FAST, dialect=dialect, role=role) for role in ("prefill", "decode"))
    with Fleet(1, prefill) as first, Fleet(1, decode) as second:
        engines = (Engine(first.urls[0], role="prefill"), Engine(second.urls[0], role="decode"))
        for attempt in range(3):
            with Router(engines=engines, config=settings(tokenizer=str(tokenizer), decode_alone=0)) as router:
                deadline = time.monotonic() + PATIENCE
                while ask(router.url, "/ready")[0] != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.002)
                status, _, answer = chat(router.url, f"{attempt} {dialect} " * 40)
                assert status == 200, answer
                how = "meanwhile" if dialect == "sglang" else "first"
                assert f'kvatlas_router_handovers_total{{prefill="{how}"}} 1' in ask(router.url, "/metrics")[2]
