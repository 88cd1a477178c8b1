"""The docstrings of `kvatlas/_native.pyi`, which are those of the built extension, so that editors show them.

`python -m tests.unit.stub` writes them into the stub; `tests/unit/test_stub.py` checks that they are there.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from kvatlas import _native

STUB = Path(_native.__file__).with_name("_native.pyi")
Documented: TypeAlias = ast.ClassDef | ast.FunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[str, Documented]]:
    """Every public class, function, method and property of the stub by its dotted name, once each."""

    def inside(owner: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Documented]]:
        for node in owner.body:
            if not isinstance(node, Documented) or node.name.startswith("_"):
                continue
            if isinstance(node, ast.FunctionDef) and any(is_a_setter(one) for one in node.decorator_list):
                continue
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from inside(node, f"{node.name}.")

    # Overloads share a docstring, which stands with the first.
    return iter(dict(reversed(list(inside(tree, "")))).items())


def is_a_setter(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr == "setter"


def of_the_extension(name: str) -> str | None:
    """The docstring of a dotted name in the built extension; None if it has none of its own."""
    owner, _, member = name.rpartition(".")
    if not member or not owner:
        return inspect.getdoc(getattr(_native, name))
    found = vars(getattr(_native, owner))[member]
    text = found.__func__.__doc__ if isinstance(found, staticmethod | classmethod) else found.__doc__
    return None if text is None else inspect.cleandoc(text)


def with_docstrings(stub: str) -> str:
    """The stub with the docstrings of the extension in place of its own."""
    lines = stub.splitlines()
    for name, node in sorted(documented(ast.parse(stub)), key=lambda one: -one[1].lineno):
        docstring = of_the_extension(name)
        assert docstring is not None, f"{name} has no docstring"
        first, last = node.body[0], node.body[-1]
        indent = " " * (node.col_offset + 4)
        quoted = '"""' + docstring.replace("\\", "\\\\") + ('\n"""' if "\n" in docstring else '"""')
        text = textwrap.indent(quoted, indent, lambda line: bool(line.strip())).splitlines()
        old = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if isinstance(node, ast.ClassDef):
            start, end = (first.lineno - 1, first.end_lineno) if old else (start_of(first) - 1, start_of(first) - 1)
            lines[start:end] = text
        elif first.lineno == last.lineno and lines[first.lineno - 1].rstrip().endswith(": ..."):
            head = lines[first.lineno - 1].rstrip().removesuffix(" ...")
            lines[first.lineno - 1 : first.lineno] = [head, *text]
        else:
            lines[first.lineno - 1 : last.end_lineno] = text
    return "\n".join(lines) + "\n"


def start_of(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, Documented) else []
    return min([node.lineno, *(one.lineno for one in decorators)])


if __name__ == "__main__":
    STUB.write_text(with_docstrings(STUB.read_text(encoding="utf-8")), encoding="utf-8")
