"""Codes of `kvatlas router --check`: each finding has one, and the page says what each means."""

import ast
import re
from pathlib import Path

from kvatlas.router.check.codes import CODES, OK, STATUSES, exit_status

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/check.md").read_text()


def used() -> set[str]:
    """The codes of all calls of `EngineReport.add` in the check."""
    found = set()
    for file in (ROOT / "python/kvatlas/router/check").glob("*.py"):
        tree = ast.parse(file.read_text())
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add"):
                continue
            if len(call.args) < 3:
                continue
            level = call.args[1]
            codes = [word.value for word in call.keywords if word.arg == "code"]
            is_ok = isinstance(level, ast.Constant) and level.value == "ok"
            assert len(codes) == (0 if is_ok else 1), f"{file.name}:{call.lineno} needs a code, or must have none"
            given = [codes[0].body, codes[0].orelse] if codes and isinstance(codes[0], ast.IfExp) else codes
            for code in given:
                if isinstance(code, ast.Name):  # what a function of the file returned
                    words = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
                    found |= {word for word in words if isinstance(word, str) and word in CODES}
                    continue
                assert isinstance(code, ast.Constant)
                found.add(str(code.value))
    return found - {OK}


def test_each_finding_has_a_code_and_each_code_a_finding() -> None:
    assert used() == CODES.keys() - {OK}


def test_the_page_has_each_code_under_its_status() -> None:
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    by_title = {
        section.partition("\n")[0]: set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) for section in sections
    }
    listed = [code for codes in by_title.values() for code in codes]
    assert sorted(listed) == sorted(CODES.keys() - {OK})
    for title, codes in by_title.items():
        if status := re.match(r"Status (\d)", title):
            assert {STATUSES[CODES[code]] for code in codes} == {int(status[1])}, title


def test_the_status_is_that_of_the_first_kind() -> None:
    assert exit_status([]) == 0
    assert exit_status(["wrong_model"]) == 1
    assert exit_status(["wrong_model", "tokens_differ"]) == 5
    assert exit_status(["tokens_differ", "events_refused"]) == 4
    assert exit_status(["events_refused", "unreachable", "handover_failed"]) == 3
