"""Engines that share an index, and what a LiteLLM proxy says of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvatlas import Service
from kvatlas.service import Config, HttpConfig
from kvatlas.sim.server import Fleet, ServerConfig, write_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Three simulated engines."""
    with Fleet(3, ServerConfig(speed=100)) as engines:
        yield engines


@pytest.fixture
def service(fleet: Fleet) -> Iterator[Service]:
    """A service that follows them."""
    with Service(engines=fleet.urls, config=Config(http=HttpConfig(bind="127.0.0.1:0"))) as made:
        made.wait_ready()
        yield made


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two names of LiteLLM's that the picker uses: the real thing is in `test_proxy.py`."""

    def get_llm_provider(model: str, **more: Any) -> tuple[str, str, None, None]:
        provider, _, name = model.partition("/")
        return name, provider, None, None

    modules = {name: ModuleType(name) for name in ("litellm", "litellm.integrations", _LOGGER)}
    monkeypatch.setattr(modules["litellm"], "get_llm_provider", get_llm_provider, raising=False)
    monkeypatch.setattr(modules[_LOGGER], "CustomLogger", type("CustomLogger", (), {}), raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "kvatlas.litellm.picker", raising=False)


_LOGGER = "litellm.integrations.custom_logger"
