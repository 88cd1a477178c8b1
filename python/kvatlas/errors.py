"""What kvatlas raises: one hierarchy, each with a code that stays the same in every release.

Each class is also the built-in exception that fits, so code that knows nothing of kvatlas catches it as usual.
"""

__all__ = [
    "ClientError",
    "ConfigError",
    "DecodeError",
    "DesignError",
    "IndexFullError",
    "InvalidArgumentError",
    "InvalidTypeError",
    "JournalError",
    "KvatlasError",
    "MeasurementError",
    "MissingExtraError",
    "PageError",
    "PlotError",
    "PolicyError",
    "RequestFailedError",
    "RequestRefusedError",
    "ServiceError",
    "SettingsError",
    "SimulatedEngineError",
    "TraceError",
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


class ConfigError(InvalidArgumentError):
    """A configuration with a value that is unknown, of the wrong type or out of range. Code: "invalid_config"."""

    code = "invalid_config"


class PolicyError(KvatlasError, ValueError):
    """There is no such routing policy, what was named is not a policy, or a policy failed.

    Codes: "invalid_policy"; "policy_failed" if the policy itself raised an error or chose an engine that is not there.
    """

    code = "invalid_policy"


class TraceError(KvatlasError, ValueError):
    """A trace that cannot be read. Code: "invalid_trace"."""

    code = "invalid_trace"


class SimulatedEngineError(KvatlasError, RuntimeError):
    """A simulated engine that cannot start, or cannot do what it was asked.

    Codes: "port_in_use", "invalid_host", "not_started", "running", "down", "bad_answer", or "http_" and the status of
    an answer.
    """

    code = "simulated_engine"


class RequestRefusedError(InvalidArgumentError):
    """A request that a simulated engine can never run. Codes: "invalid_request", "too_long"."""

    code = "invalid_request"


class RequestFailedError(KvatlasError, RuntimeError):
    """A simulated engine gave a request up before its end. Code: "request_failed"."""

    code = "request_failed"


class DesignError(KvatlasError, RuntimeError):
    """A design of the index that is unknown, cannot be started, or is broken, so that its answers are worth nothing.

    Codes: "unknown_design", "cannot_load", "not_started", "broken".
    """

    code = "broken"


class PlotError(KvatlasError, ValueError):
    """A picture cannot be made under the name given. Code: "unknown_format"."""

    code = "unknown_format"


class MeasurementError(KvatlasError, RuntimeError):
    """A measurement that came to no result. Codes: "measurement_failed", "measurement_timeout", "no_program"."""

    code = "measurement_failed"


class JournalError(KvatlasError, ValueError):
    """A file that does not hold measurements. Code: "invalid_journal"."""

    code = "invalid_journal"


class PageError(KvatlasError, ValueError):
    """A document without the place for figures, or a file without the figures. Code: "invalid_page"."""

    code = "invalid_page"
