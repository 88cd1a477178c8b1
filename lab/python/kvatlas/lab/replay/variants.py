"""Policies with values of options: for example, `kvatlas hold=0.5 price=0` is the policy `kvatlas` with two options."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from kvatlas.errors import ConfigError, PolicyError
from kvatlas.lab.replay.bounds import BOUNDS
from kvatlas.service.config.kinds import Pairs

MOST_ROWS = 200
"""Maximum number of policies that ranges of values may produce."""

_WANTED = "write NAME=VALUE, or a range NAME=FROM..TO:STEP such as hold=0..2:0.5"


def split_policy(policy: str) -> tuple[str, dict[str, Any]]:
    """Split a policy's text into its name and its options. Raises `ConfigError`."""
    name, _, options = policy.partition(" ")
    return name, dict(Pairs().parse(options))


def with_options(policies: Sequence[str], given: Sequence[str], make: Callable[[str], object]) -> tuple[str, ...]:
    """Combine each policy with every combination of the option values in `given`, in order.

    A policy that lacks these options, or a bound, stays as it is. `make` creates a policy, to find out its options.
    Raises `ConfigError` if an option cannot be parsed or is given twice, `PolicyError` if no policy has it.
    """
    values: dict[str, list[str]] = {}
    for text in given:
        name, found = _read(text)
        if name in values:
            raise ConfigError(f"policy option {name} is given twice: {_WANTED}")
        values[name] = found
    made: list[str] = []
    used: set[str] = set()
    refused: dict[str, list[PolicyError]] = {}
    for policy in policies:
        has = []
        for name, found in values.items():
            if policy in BOUNDS:
                continue
            try:
                make(f"{policy} {name}={found[0]}")
            except PolicyError as error:
                if "has no option" not in str(error):
                    raise
                refused.setdefault(name, []).append(error)
                continue
            has.append(name)
        used.update(has)
        rows = itertools.product(*([f"{name}={value}" for value in values[name]] for name in has))
        made += [" ".join((policy, *row)) for row in rows]
    for name in values:
        if name not in used:
            errors = refused.get(name)
            if not errors:
                raise ConfigError(f"policy option {name} means nothing to {', '.join(policies)}")
            # Policies that have options list them, which says more than those without any.
            telling = [str(error) for error in errors if not str(error).endswith("it has none")]
            raise PolicyError("; ".join(telling or [str(errors[0])]), errors[0].code)
    if len(made) > MOST_ROWS:
        raise ConfigError(f"policy options give {len(made)} rows, and the most are {MOST_ROWS}: use larger steps")
    return tuple(made)


def _read(text: str) -> tuple[str, list[str]]:
    """Parse the name of an option and its values."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value or len(text.split()) != 1:
        raise ConfigError(f"policy option {text!r} cannot be read: {_WANTED}")
    if ".." not in value:
        return name, [value]
    first, _, rest = value.partition("..")
    last, _, step = rest.partition(":")
    try:
        low, high, by = float(first), float(last), float(step)
    except ValueError:
        raise ConfigError(f"policy option {text!r} has a bad range: {_WANTED}") from None
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(by) and by > 0 and low <= high):
        raise ConfigError(f"policy option {text!r} has a bad range: FROM must not be above TO, and STEP above 0")
    steps = (high - low) / by + 1e-9
    if steps >= MOST_ROWS:
        raise ConfigError(f"policy option {text!r} has more than {MOST_ROWS} values: use a larger step")
    return name, [f"{low + n * by:.10g}" for n in range(math.floor(steps) + 1)]
