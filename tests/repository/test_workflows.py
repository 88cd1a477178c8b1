"""The hosted workflows call make targets that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist(path: Path) -> None:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    called = set()
    for job in workflow["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for step in job["steps"]:
            if (run := step.get("run", "")).startswith("make "):
                texts = {run} if "matrix.target" not in run else {f"make {row['target']}" for row in rows}
                called |= {text.split()[1] for text in texts}
    assert called, "a workflow without any make target"
    assert called <= TARGETS
