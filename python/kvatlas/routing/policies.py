"""Routing policies of users: classes found by name."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kvatlas
from kvatlas._native import has_lab, policy_names
from kvatlas._text import nearest
from kvatlas.errors import PolicyError


def check_name(name: str) -> None:
    """Check that a policy of a given name comes with kvatlas.

    Raises:
        PolicyError: The name is unknown; the message has the most similar name, or all names.
    """
    names = policy_names()
    if name not in names:
        hint = nearest(name, names, otherwise=f"it must be one of {', '.join(names)}, or module:Class")
        more = "" if has_lab else "; those of other routers need kvatlas-lab: pip install 'kvatlas[lab]'"
        raise PolicyError(f"no policy {name!r}: {hint}{more}")


def own_policy(name: str, seed: int, options: Mapping[str, Any] | None = None) -> object:
    """Create an instance of the policy class at `module:Class`, as `Class(seed, **options)`, or without a seed.

    Modules are looked for where Python looks, and in the working directory.

    Raises:
        PolicyError: The class cannot be loaded, is not a policy, or cannot be created with these options.
    """
    module, _colon, attribute = name.partition(":")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - as a string, as sys.path has them
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may do anything
        raise PolicyError(f"cannot load policy {name!r}: {type(error).__name__}: {error}") from error
    if not (callable(found) and callable(getattr(found, "choose", None))):
        raise PolicyError(f"{name!r} is not a policy: it needs a choose(request, candidates) method")
    try:
        made = _make(found, seed, options or {})
    except Exception as error:
        frames = own_frames(error)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        if isinstance(error, TypeError) and not frames:  # it was never begun
            place = f"; it is made as {attribute}(seed, **options)"
        raise PolicyError(
            f"policy {name!r} cannot be made: {type(error).__name__}: {error}{place}", "policy_failed"
        ) from error
    return made


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The stack frames of an error that are in a user's code: neither in kvatlas nor in Python's import system."""
    ours = str(Path(kvatlas.__file__).parent) + os.sep
    imports = str(Path(importlib.__file__).parent) + os.sep
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((ours, imports, "<frozen "))]


def own_traceback(error: BaseException) -> str:
    """The part of an error's traceback that is in a user's code; empty if there is none."""
    frames = own_frames(error)
    if not frames:
        # A module with a syntax error is not compiled, so the error is in no frame of the module's own.
        return "".join(traceback.format_exception_only(error)) if isinstance(error, SyntaxError) else ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*lines, *traceback.format_exception_only(error)])


def _make(factory: Callable[..., object], seed: int, options: Mapping[str, Any]) -> object:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # it does not tell what it takes
        return factory(seed, **options)
    ways: list[tuple[tuple[int, ...], Mapping[str, Any]]] = [
        ((seed,), options),
        ((), {"seed": seed, **options}),
        ((), options),
    ]
    for arguments, keywords in ways:
        try:
            signature.bind(*arguments, **keywords)
        except TypeError:
            continue
        return factory(*arguments, **keywords)
    return factory(seed, **options)
