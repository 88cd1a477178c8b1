"""The rules of Prometheus: each alert has a runbook, and a test in which it fires and one in which it is silent."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from .tools import ROOT, RULE_TESTS, RULES, tool

RUNBOOKS = "https://github.com/kvatlas/kvatlas/blob/main/docs/runbooks/"
PAGES = ROOT / "docs/runbooks"


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_has_a_runbook_that_names_it(alert: dict[str, Any]) -> None:
    url = alert["annotations"]["runbook_url"]
    assert url.startswith(RUNBOOKS)
    page = (PAGES / url.removeprefix(RUNBOOKS)).read_text()
    assert f"`{alert['alert']}`, {alert['labels']['severity']}" in page
    assert len(page.splitlines()) <= 40
    assert f"| `{alert['alert']}` | {alert['labels']['severity']} |" in (ROOT / "docs/guides/monitoring.md").read_text()


def test_every_runbook_is_of_an_alert_or_a_condition() -> None:
    named = {alert["annotations"]["runbook_url"].removeprefix(RUNBOOKS) for alert in alerts()}
    conditions = (ROOT / "docs/guides/sick-engines.md").read_text()
    named |= set(re.findall(r"\| \[\w+\]\(\.\./runbooks/(\w+\.md)\)", conditions))
    assert {path.name for path in PAGES.glob("*.md")} == named


def test_each_alert_is_tested_firing_and_silent() -> None:
    cases = [case for test in yaml.safe_load(RULE_TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    names = {alert["alert"] for alert in alerts()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


@pytest.mark.parametrize(("action", "path"), [("check", RULES), ("test", RULE_TESTS)])
def test_promtool_takes_the_rules(action: str, path: Path) -> None:
    done = subprocess.run([tool("promtool"), action, "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
