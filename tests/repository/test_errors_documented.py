"""Every exception of kvatlas is in `kvatlas.errors`, and every code in the docstring of its class."""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvatlas import errors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "kvatlas"
FILES = sorted(
    path
    for package in (PACKAGE, ROOT / "lab" / "python" / "kvatlas")
    for path in package.rglob("*.py")
    if path.name != "errors.py" or path.parent != PACKAGE
)
CLASSES: dict[str, Any] = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
BUILTIN = {name for name, kind in vars(builtins).items() if inspect.isclass(kind) and issubclass(kind, BaseException)}
QUOTED = re.compile(r'"(\w+)"')


def _lines(found: list[str]) -> str:
    return "\n".join(["", *found])


def documented(name: str) -> set[str]:
    """The codes in the docstrings of a class and of those that it is made of."""
    return {
        code
        for kind in CLASSES[name].__mro__
        if kind.__module__ == errors.__name__ and kind is not errors.KvatlasError
        for code in QUOTED.findall(kind.__doc__ or "")
    }


def constants(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can be, as far as that is written there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)


def codes(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """The class, the code and the line of each exception that is made with one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in CLASSES:
            given = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "code")]
            for expression in given:
                for code in constants(expression):
                    yield name, code, node.lineno


def test_all_is_one_hierarchy() -> None:
    assert sorted(CLASSES) == sorted(errors.__all__)
    for name, kind in CLASSES.items():
        assert issubclass(kind, errors.KvatlasError), name
        assert kind.__module__ == errors.__name__, f"{name} is not defined in kvatlas.errors"
    # Twice the same name would hide one of the two.
    tree = ast.parse((PACKAGE / "errors.py").read_text())
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert sorted(defined) == sorted(set(defined))


def test_no_exception_is_defined_elsewhere() -> None:
    elsewhere = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
            if bases & (CLASSES.keys() | BUILTIN | {"ClickException", "UsageError"}):
                elsewhere.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not elsewhere, _lines(elsewhere)


def test_every_class_documents_its_own_code() -> None:
    for name, kind in CLASSES.items():
        if name != "KvatlasError" and "code" in vars(kind):
            assert kind.code in documented(name), f"{name}: {kind.code}"


def test_every_code_of_python_is_documented() -> None:
    unknown = [
        f"{path.relative_to(ROOT)}:{line}: {name} has no code {code!r}"
        for path in FILES
        for name, code, line in codes(ast.parse(path.read_text()))
        # A status of HTTP is part of the code: "http_" and the number.
        if re.sub(r"^http_\d+$", "http_", code) not in documented(name)
    ]
    assert not unknown, _lines(unknown)


RAISES = {
    "argument": "InvalidArgumentError",
    "design": "DesignError",
    "rung": "DesignError",
    "decode": "DecodeError",
}


def test_every_code_of_the_binding_is_documented() -> None:
    found, unknown = 0, []
    for path in sorted((ROOT / "crates" / "python" / "src").rglob("*.rs")):
        for function, code in re.findall(r'errors::(\w+)\(\s*"(\w+)"', path.read_text()):
            found += 1
            if function in RAISES and code not in documented(RAISES[function]):
                unknown.append(f"{path.relative_to(ROOT)}: {RAISES[function]} has no code {code!r}")
    assert found > 20
    assert not unknown, _lines(unknown)


INDEXES = "InvalidArgumentError IndexFullError ConfigError DesignError UnknownParentError"
CRATES = {
    "index": INDEXES,
    "trees": INDEXES,
    "designs": INDEXES,
    "bench": INDEXES,
    "digest": "InvalidArgumentError",
    "wire": "DecodeError",
    "service": "ServiceError",
}


@pytest.mark.parametrize("crate", CRATES)
def test_every_code_of_the_crates_is_documented(crate: str) -> None:
    """The codes of their enums are documented: `Self::Full { .. } => "index_full"` in a function `code`."""
    known = {code for name in CRATES[crate].split() for code in documented(name)}
    if crate == "bench":
        known |= {"io", "interrupted"}  # OSError and KeyboardInterrupt in Python
    unknown = []
    for path in sorted((ROOT / "crates" / crate / "src").rglob("*.rs")):
        text = path.read_text()
        for body in re.findall(r"fn code\(&self\) -> &'static str \{(.*?)\n    \}", text, re.DOTALL):
            unknown += [f"{path.relative_to(ROOT)}: {code}" for code in QUOTED.findall(body) if code not in known]
        if crate == "service":
            made = re.findall(r'Error::(?:invalid|conflict|unknown)\(\s*"(\w+)"', text)
            unknown += [f"{path.relative_to(ROOT)}: {code}" for code in made if code not in known]
    assert not unknown, _lines(unknown)
