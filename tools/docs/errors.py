"""The hierarchy of `kvatlas.errors`, from the classes."""

from __future__ import annotations

import re

from tools.docs.markdown import join, table

_CODE = re.compile(r'"([a-z0-9_]+)"')


def page() -> str:
    """A tree of the classes, then which class has which codes. The descriptions are on the page by mkdocstrings."""
    from kvatlas import errors  # noqa: PLC0415 - only when the page is built

    classes: list[type[Exception]] = [getattr(errors, name) for name in errors.__all__]
    tree = _tree(errors.KvatlasError, classes, 0)
    rows = [(f"`{each.__name__}`", ", ".join(f"`{found}`" for found in codes(each))) for each in classes]
    return join(
        [
            "```text\n" + "\n".join(tree) + "\n```",
            "## Codes",
            table(("class", "codes"), [row for row in rows if row[1]]),
        ]
    )


def codes(error: type[Exception]) -> list[str]:
    """The codes that the docstring of a class names, in its order."""
    _, found, text = (error.__doc__ or "").partition("Code")
    text = text.partition("Attributes:")[0]
    names = dict.fromkeys(_CODE.findall(text)) if found else {}
    return [f"{name}STATUS" if name.endswith("_") else name for name in names]


def _tree(error: type[Exception], classes: list[type[Exception]], depth: int) -> list[str]:
    builtin = [base.__name__ for base in error.__bases__ if base.__module__ == "builtins" and base is not Exception]
    line = "    " * depth + error.__name__ + (f" ({', '.join(builtin)})" if builtin else "")
    below = [each for each in classes if error in each.__bases__]
    return [line, *(entry for each in below for entry in _tree(each, classes, depth + 1))]
