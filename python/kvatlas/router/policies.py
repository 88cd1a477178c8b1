"""Policies of the user's own: classes found by name."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from kvatlas._native import policy_names
from kvatlas._text import nearest
from kvatlas.errors import PolicyError


def check_name(name: str) -> None:
    """Check that a policy by this name comes with kvatlas.

    Raises:
        PolicyError: There is none; the message has the nearest name, or all.
    """
    names = policy_names()
    if name not in names:
        hint = nearest(name, names, otherwise=f"it must be one of {', '.join(names)}, or module:Class")
        raise PolicyError(f"no policy {name!r}: {hint}")


def own_policy(name: str, seed: int, options: dict[str, Any] | None = None) -> object:
    """An instance of the class at `module:Class`, made as `Class(seed, **options)`.

    Modules are looked for where Python looks, and in the working directory.

    Raises:
        PolicyError: It cannot be loaded, is no policy, or cannot be made with these options.
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
        made: object = found(seed, **(options or {}))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        raise PolicyError(
            f"policy {name!r} cannot be made: {type(error).__name__}: {error}{place}", "policy_failed"
        ) from error
    return made
