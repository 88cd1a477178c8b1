"""`kvatlas router --check` of a fleet with sick engines: the true cause is named, and none holds up the others."""

import json
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
PATIENT = DiscoveryConfig(request_timeout=60)


def test_an_engine_that_hangs_is_named_and_reported_after_the_others(fleet: Fleet, tokenizer: Path) -> None:
    assert LOOK + WORK <= 15
    with Fleet(1, replace(WELL, faults=Faults(http_hang=1.0))) as hung:
        config = RouterConfig(
            engines=tuple(map(Engine.of, (*hung.urls, *fleet.urls))),
            router=RouterSection(tokenizer=str(tokenizer)),
            discovery=PATIENT,
        )
        order = []
        reports = check(config, lambda one: order.append(one.worker))
    assert order[-1] == reports[0].worker
    assert sorted(order) == sorted(one.worker for one in reports)
    [hangs] = reports[0].problems
    assert hangs.what == "hangs"
    assert hangs.words.startswith("POST /v1/messages/render had no answer within the 9 s")
    assert [one.problems for one in reports[1:]] == [[], []]


def test_the_tokenizer_of_each_model_is_checked(fleet: Fleet, tokenizer: Path, tmp_path: Path) -> None:
    for file in tokenizer.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    about["chat_template"] = "<|system|>Today<|end|>" + about["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    with Fleet(1, replace(WELL, model="other")) as other:
        section = RouterSection(tokenizers=(("sim-model", str(tokenizer)), ("other", str(tmp_path))))
        engines = (Engine.of(fleet.urls[0]), Engine.of(other.urls[0]))
        well, sick = check(RouterConfig(engines=engines, router=section))
    assert well.problems == []
    assert [finding.level for finding in well.findings if finding.what == "tokens"] == ["ok"]
    assert {"template", "index"} <= {finding.what for finding in sick.problems}


@pytest.mark.parametrize(
    ("faults", "what", "words"),
    [(Faults(poison_event=1.0), "refused", "not_an_event"), (Faults(drop=1.0), "live", "no event arrived live")],
)
def test_events_are_blamed_before_the_tokenizer(faults: Faults, what: str, words: str, tokenizer: Path) -> None:
    with Fleet(1, replace(WELL, faults=faults)) as sick:
        config = RouterConfig(
            engines=(Engine.of(sick.urls[0]),), router=RouterSection(tokenizer=str(tokenizer)), discovery=PATIENT
        )
        [report] = check(config)
    [problem] = report.problems
    assert problem.what == what
    assert words in problem.words


def test_three_sick_engines_of_ten_each_for_its_own_reason(tokenizer: Path, tmp_path: Path) -> None:
    for file in tokenizer.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    about["chat_template"] = "<|system|>Today<|end|>" + about["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    with (
        Fleet(7, WELL, processes=1) as well,
        Fleet(1, replace(WELL, faults=Faults(http_hang=1.0))) as hung,
        Fleet(1, replace(WELL, faults=Faults(poison_event=1.0))) as refused,
        Fleet(1, replace(WELL, model="other")) as other,
    ):
        sick = {"hung": hung, "refused": refused, "other": other}
        config = RouterConfig(
            engines=(
                *(Engine(fleet.urls[0], name=name) for name, fleet in sick.items()),
                *map(Engine.of, well.urls),
            ),
            router=RouterSection(tokenizers=(("sim-model", str(tokenizer)), ("other", str(tmp_path)))),
            discovery=PATIENT,
        )
        reports = check(config)
    codes = {one.worker: {finding.code for finding in one.problems} for one in reports}
    assert codes.pop("hung") == {"hangs"}
    assert codes.pop("refused") == {"events_refused"}
    of_template = {"template_differs", "agent_tokens_differ", "token_count_differs", "blocks_differ"}
    assert "template_differs" in codes["other"]
    assert codes.pop("other") <= of_template
    assert [problems for problems in codes.values() if problems] == []
    assert len(codes) == 7
