"""Output of a measuring process: exactly one line of JSON on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from kvatlas.errors import KvatlasError


def result_to_stdout(run: Callable[[Sequence[str]], str], arguments: Sequence[str]) -> int:
    """Print the result of `run`, and nothing else, on stdout.

    Returns the exit status: 0 if there is a result, 2 if there is none.
    """
    # Only the result goes to stdout, even if a design prints from another thread.
    real = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        text = run(arguments)
    except (KvatlasError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("Error: out of memory", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    with real:
        real.write(" ".join(text.splitlines()) + "\n")
    return 0
