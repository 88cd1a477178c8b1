"""The stub says what the built extension says: the docstrings. `python -m mypy.stubtest` compares the signatures."""

import ast
import inspect

import pytest
from tests.unit.stub import STUB, documented, of_the_extension, with_docstrings

from kvatlas import _native

NODES = dict(documented(ast.parse(STUB.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("name", NODES)
def test_the_stub_has_the_docstring_of_the_extension(name: str) -> None:
    wanted = of_the_extension(name)
    assert wanted, f"{name} has no docstring in Rust"
    assert ast.get_docstring(NODES[name]) == wanted, "python -m tests.unit.stub writes the docstrings into the stub"


def test_everything_public_is_in_the_stub() -> None:
    public = {name: it for name, it in vars(_native).items() if not name.startswith("_") and callable(it)}
    members = {
        f"{name}.{member}"
        for name, owner in public.items()
        if inspect.isclass(owner)
        for member in vars(owner)
        if not member.startswith("_")
    }
    assert public.keys() | members == NODES.keys()


def test_docstrings_are_written_where_they_belong() -> None:
    depth = "    @property\n    def depth(self) -> int: ...\n"
    bare = f"class Match:\n{depth}    def scores(\n        self,\n    ) -> dict[str, int]: ...\n"
    written = with_docstrings(bare)
    assert with_docstrings(written) == written
    nodes = dict(documented(ast.parse(written)))
    assert nodes.keys() == {"Match", "Match.depth", "Match.scores"}
    assert all(ast.get_docstring(node) == of_the_extension(name) for name, node in nodes.items())
