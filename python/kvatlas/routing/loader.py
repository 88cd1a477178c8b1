"""Policies by name: those that come with kvatlas, and your own at `module:Class`."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from kvatlas._text import nearest
from kvatlas.errors import PolicyError
from kvatlas.routing.affinity import PrefixAffinity
from kvatlas.routing.exact import Exact
from kvatlas.routing.policy import Policy
from kvatlas.routing.simple import LeastLoaded, Random, RoundRobin

PolicyFactory = Callable[[Sequence[str], int], Policy]

POLICIES: dict[str, PolicyFactory] = {
    "random": Random,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-affinity": PrefixAffinity,
    "exact": Exact,
}


def find_policy(name: str) -> PolicyFactory:
    """The policy called `name`, or the class at `module:Class`. Raises `PolicyError`."""
    if name in POLICIES:
        return POLICIES[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = nearest(name, POLICIES, otherwise=f"it must be one of {', '.join(POLICIES)}, or module:Class")
        raise PolicyError(f"no policy {name!r}: {hint}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may do anything
        raise PolicyError(f"cannot load policy {name!r}: {type(error).__name__}: {error}") from error
    if not (callable(found) and callable(getattr(found, "choose", None))):
        raise PolicyError(f"{name!r} is not a policy: it needs a choose(prompt, loads, match) method")
    if not isinstance(getattr(found, "uses_index", None), bool):
        raise PolicyError(f"{name!r} is not a policy: it needs uses_index = True or False")
    factory: PolicyFactory = found
    return factory


def policy_failed(name: str, when: str, error: Exception) -> PolicyError:
    """The error to raise when a user's policy raised `error`: one line that says where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return PolicyError(f"policy {name!r} failed {when}: {type(error).__name__}: {error}{place}", "policy_failed")
