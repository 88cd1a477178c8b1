"""`kvatlas router --check` of a fleet with sick engines: each true cause is named, and no engine holds up the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvatlas.router import RouterConfig, RouterSection
from kvatlas.router.check import check
from kvatlas.router.check.check import LOOK, WORK
from kvatlas.service import DiscoveryConfig, Engine
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.faults import Faults

from .conftest import FAST

pytest.importorskip("tokenizers")

WELL = ServerConfig(engine=FAST)


def test_an_engine_that_hangs_is_named_and_reported_after_the_others(fleet: Fleet, tokenizer: Path) -> None:
    assert LOOK + WORK <= 15
    with Fleet(1, replace(WELL, faults=Faults(http_hang=1.0))) as hung:
        config = RouterConfig(
            engines=tuple(map(Engine.of, (*hung.urls, *fleet.urls))),
            router=RouterSection(tokenizer=str(tokenizer)),
            discovery=DiscoveryConfig(request_timeout=60),
        )
        order = []
        reports = check(config, lambda one: order.append(one.worker))
    assert order[-1] == reports[0].worker
    assert sorted(order) == sorted(one.worker for one in reports)
    [hangs] = reports[0].problems
    assert hangs.what == "hangs"
    assert hangs.words.startswith("POST /v1/messages/render had no answer within the 9 s")
    assert [one.problems for one in reports[1:]] == [[], []]
