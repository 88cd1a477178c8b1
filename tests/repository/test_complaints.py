"""The page of complaints, and the tests that it names: each is there, and each test of a complaint is on the page."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def named_tests() -> set[tuple[str, str]]:
    text = (ROOT / "docs/reference/complaints.md").read_text(encoding="utf-8")
    return set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))


def test_every_named_test_exists() -> None:
    names = named_tests()
    assert len(names) >= 20
    for path, name in names:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body), f"{path}::{name}"


def test_every_complaint_of_a_test_is_in_the_table() -> None:
    """Tests that say in their docstring which complaint they answer are named in its row."""
    text = (ROOT / "docs/reference/complaints.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests/process/router").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            said = (ast.get_docstring(node) or "") if isinstance(node, ast.FunctionDef) else ""
            if said.startswith("Complaint"):
                assert isinstance(node, ast.FunctionDef)
                assert f"`tests/process/router/{path.name}::{node.name}`" in text, node.name
