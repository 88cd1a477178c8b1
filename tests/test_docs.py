"""Every Python example in the documents runs."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]


def examples(path: Path) -> list[tuple[int, str]]:
    """The blocks fenced as Python, each with the number of its first line."""
    found: list[tuple[int, str]] = []
    fence: tuple[int, list[str]] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence is None and line.strip() == "```python":
            fence = (number + 1, [])
        elif fence is not None and line.strip() == "```":
            found.append((fence[0], "\n".join(fence[1])))
            fence = None
        elif fence is not None:
            fence[1].append(line)
    assert fence is None, f"{path.name}: a fence that is not closed"
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a document run in order, as one program would."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, source in examples(path):
        # Blank lines in front make tracebacks name the document's own lines.
        exec(compile("\n" * (line - 1) + source, str(path), "exec"), namespace)
