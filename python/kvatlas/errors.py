"""What kvatlas raises: one hierarchy, each with a code that stays the same in every release.

Each class is also the built-in exception that fits, so code that knows nothing of kvatlas catches it as usual.
"""

__all__ = ["IndexFullError", "InvalidArgumentError", "InvalidTypeError", "KvatlasError"]


class KvatlasError(Exception):
    """The base of all.

    Attributes:
        code: A short name of what is wrong, for programs: "wrong_type", "out_of_range", "length_mismatch" and so on.
            Messages may change from release to release, codes do not.
    """

    code: str = "error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidArgumentError(KvatlasError, ValueError):
    """A value of the right type that cannot be used: out of range, unknown, or not fitting another.

    Codes: "out_of_range", "length_mismatch", "token_count", "token_bytes", "wrong_shape", "unknown_tier",
    "invalid_block_size", "invalid_string", "missing_argument", "conflicting_arguments".
    """

    code = "invalid_argument"


class InvalidTypeError(KvatlasError, TypeError):
    """A value of the wrong type. Code: "wrong_type"."""

    code = "wrong_type"


class IndexFullError(KvatlasError, RuntimeError):
    """The index cannot number any more workers or blocks. Code: "index_full"."""

    code = "index_full"
