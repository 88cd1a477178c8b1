"""What kvatlas raises: one hierarchy, each with a code that stays the same in every release.

Each class is also the built-in exception that fits, so code that knows nothing of kvatlas catches it as usual.
"""

__all__ = [
    "ClientError",
    "DecodeError",
    "IndexFullError",
    "InvalidArgumentError",
    "InvalidTypeError",
    "KvatlasError",
    "MissingExtraError",
    "PolicyError",
    "RungError",
    "ServiceError",
    "SettingsError",
    "UnknownParentError",
    "UnreachableError",
]


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
    "invalid_block_size", "invalid_string", "missing_argument", "conflicting_arguments", "unknown_dialect",
    "unknown_rung", "never_strict", "unknown_search", "unknown_layout", "invalid_jump_size", "plan", "plan_file",
    "options", "index", "unknown_policy", "invalid_page_size", "invalid_snapshot", "no_tokens", "evicted_node",
    "not_in_use", "foreign_node", "no_thread".
    """

    code = "invalid_argument"


class InvalidTypeError(KvatlasError, TypeError):
    """A value of the wrong type. Code: "wrong_type"."""

    code = "wrong_type"


class IndexFullError(KvatlasError, RuntimeError):
    """The index cannot number any more workers or blocks. Code: "index_full"."""

    code = "index_full"


class DecodeError(KvatlasError, ValueError):
    """A payload that is no batch of events at all. What is wrong with single events is in `Batch.refused` instead.

    Codes: "empty_payload", "not_a_batch", "truncated_payload", "malformed_payload".
    """

    code = "not_a_batch"


class SettingsError(InvalidArgumentError):
    """A setting that is unknown, of the wrong type or of no use. Code: "invalid_settings"."""

    code = "invalid_settings"


class UnknownParentError(InvalidArgumentError, LookupError):
    """A store continues a block that its worker does not hold, and the design has no place for it.

    Code: "unknown_parent".
    """

    code = "unknown_parent"


class RungError(KvatlasError, RuntimeError):
    """A rung of the ladder could not be started, or a defect of it has shown, so that its answers are worth nothing.

    Codes: "not_started", "broken".
    """

    code = "broken"


class ServiceError(KvatlasError, RuntimeError):
    """The service could not be started, or refused what it was told in this process.

    Codes: "not_started", "closed", "not_ready", and those that the HTTP interface gives to the same refusal.
    """

    code = "service"


class ClientError(KvatlasError, RuntimeError):
    """A service refused a request, or gave an answer that cannot be understood.

    Codes: those that the service gives; "http_" and the status if it gave none; "bad_answer".

    Attributes:
        status: The HTTP status; None if there was no answer.
    """

    code = "client"

    def __init__(self, message: str, code: str | None = None, status: int | None = None) -> None:
        super().__init__(message, code)
        self.status = status


class UnreachableError(ClientError, ConnectionError):
    """Nobody answered. Codes: "unreachable", "timeout"."""

    code = "unreachable"


# Of routing, the simulator and the laboratory


class MissingExtraError(KvatlasError, ImportError):
    """A part of kvatlas was imported without the packages that its extra installs. Code: "missing_extra"."""

    code = "missing_extra"


class PolicyError(KvatlasError, ValueError):
    """There is no such policy, what was named is not a policy, or a policy failed.

    Codes: "invalid_policy"; "policy_failed" if the policy itself raised an error or chose an engine that is not there.
    """

    code = "invalid_policy"
