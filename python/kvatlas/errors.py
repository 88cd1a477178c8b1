"""The exceptions of kvatlas: one hierarchy of classes, with codes that are the same in every release.

Each class is also a subclass of the matching built-in exception, so generic handlers catch it as usual. The docstring
of each class lists all codes that it can have.
"""

__all__ = [
    "ClientError",
    "ConfigError",
    "DecodeError",
    "DesignError",
    "DiscoveryError",
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
    "SimulatedEngineError",
    "TokenizerError",
    "TraceError",
    "UnknownParentError",
    "UnreachableError",
]


class KvatlasError(Exception):
    """The base class of all exceptions of kvatlas. It is never raised itself. Code: "error".

    Attributes:
        code: A short name of the problem, for programs: "wrong_type", "out_of_range", "length_mismatch" and so on.
            Messages may change from release to release, codes do not.
    """

    code: str = "error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidArgumentError(KvatlasError, ValueError):
    """A value of the right type that is invalid: out of range, unknown, or inconsistent with another value.

    Codes of all parts: "invalid_argument", "out_of_range", "missing_argument", "conflicting_arguments",
    "invalid_string", "length_mismatch", "wrong_shape".

    Blocks and tokens: "invalid_block_size", "token_count", "token_bytes", "unknown_tier", "unknown_dialect",
    "no_tokens".

    Clients and tokenizers: "invalid_url", "invalid_key", "invalid_certificate", "invalid_messages".

    Trees: "unknown_policy", "invalid_page_size", "invalid_snapshot", "evicted_node", "not_in_use",
    "foreign_node", "no_thread".

    Lab: "unknown_rung", "never_strict", "unknown_search", "unknown_layout", "invalid_jump_size",
    "invalid_group_size", "invalid_sparse_step", "plan", "plan_file", "irregular_array", "options", "index".

    Sites: "invalid_site_name", "invalid_grain", "invalid_duration", "invalid_digest", "other_grain", "whole_wanted",
    "too_many_sites".

    Routing: "unknown_worker", "block_size_mismatch".

    Simulated engines: "bad_engine", "bad_rank", "bad_faults", "bad_request", "too_long".
    """

    code = "invalid_argument"


class InvalidTypeError(KvatlasError, TypeError):
    """A value of the wrong type. Code: "wrong_type"."""

    code = "wrong_type"


class IndexFullError(KvatlasError, RuntimeError):
    """The index cannot number any more workers or blocks. Code: "index_full"."""

    code = "index_full"


class DecodeError(KvatlasError, ValueError):
    """A payload that is not a batch of events. Problems with single events are in `Batch.refused` instead.

    Codes: "empty_payload", "not_a_batch", "truncated_payload", "malformed_payload".
    """

    code = "not_a_batch"


class ConfigError(InvalidArgumentError):
    """A setting that is unknown, of the wrong type or out of range. Code: "invalid_config"."""

    code = "invalid_config"


class MissingExtraError(KvatlasError, ImportError):
    """A package that a part of kvatlas needs is not installed. Code: "missing_extra".

    The message names the extra of kvatlas that installs the package: `pip install 'kvatlas[tokenizer]'`.
    """

    code = "missing_extra"


class UnknownParentError(InvalidArgumentError, LookupError):
    """A store continues a block that its worker does not hold, and the design of the index cannot keep it.

    Code: "unknown_parent".
    """

    code = "unknown_parent"


class ServiceError(KvatlasError, RuntimeError):
    """The service could not be started, or refused a request made in this process.

    Codes: "not_started", "closed", "not_ready"; and the codes of the HTTP interface for the same refusals:
    "already_registered", "block_size_mismatch", "empty_name", "invalid_block_size", "invalid_endpoint",
    "limit_reached", "not_listening", "rank_taken", "topic_taken", "too_many_names", "unknown_rank", "unknown_worker",
    "unknown_keyspace", "ambiguous_model", "endpoint_not_allowed", "internal" (a bug; the log has more),
    "invalid_config", "cannot_start", "unknown_engine", "name_taken", "too_many_engines", "forbidden",
    "state_not_written" (the router's state file), "service"; "invalid_snapshot" (it is damaged, or of another version),
    "snapshot_failed" (another service did not give its snapshot).
    """

    code = "service"


class DiscoveryError(KvatlasError, RuntimeError):
    """An engine cannot be registered as it is, or the source that lists engines does not answer.

    `kvatlas serve` logs the error and tries again.

    Codes: "unreachable", "timeout", "http_" and the status of a refusal, "bad_answer", "no_events" (the engine does not
    publish events that can be followed), "unknown_address" (it does not report its event sockets), "unusable_address",
    "refused" (the service did not accept the registration), "discovery". Of a cluster: "no_token", "no_namespace" and
    "no_authority" (the service account cannot be used), "gone" (the changes asked for are lost), "no_watch_list". Of a
    pod that is left out: "no_address", "ended", "not_leader", "bad_annotation", "too_many". Of an InferencePool:
    "no_pool", "bad_pool". Of an InferenceObjective that is left out: "bad_objective". Of a file of engines that listed
    some and lists none any more: "empty_file".

    Attributes:
        temporary: True if a later try may succeed, because the engine is starting or unreachable.
        after: Seconds after which the other side asks for a retry; None if it gave none.
    """

    code = "discovery"

    def __init__(
        self, message: str, code: str | None = None, *, temporary: bool = False, after: float | None = None
    ) -> None:
        super().__init__(message, code)
        self.temporary = temporary
        self.after = after


class TokenizerError(KvatlasError, RuntimeError):
    """Text or messages cannot be turned into token ids.

    Codes: "bad_tokenizer" (the file cannot be used), "no_chat_template", "bad_chat_template", "bad_messages" (the
    template refused the messages), "unreachable", "timeout", "http_" and the status of an engine's refusal,
    "bad_answer", "closed", "tokenizer".
    """

    code = "tokenizer"


class ClientError(KvatlasError, RuntimeError):
    """A service refused a request, or returned an unexpected answer.

    Codes: those of the service, "http_" and the status if it gave none, "bad_answer", "closed" (the client is closed),
    "not_ready" (the time limit passed), "no_workers", "no_sites", "router" (a router's), "client".

    Attributes:
        status: The HTTP status; None if there was no answer.
    """

    code = "client"

    def __init__(self, message: str, code: str | None = None, status: int | None = None) -> None:
        super().__init__(message, code)
        self.status = status


class UnreachableError(ClientError, ConnectionError):
    """The service did not answer. Codes: "unreachable", "timeout"."""

    code = "unreachable"


# Routing, simulator and lab


class PolicyError(KvatlasError, ValueError):
    """A routing policy is unknown, is not a policy, or failed.

    Codes: "invalid_policy"; "policy_failed" if the policy raised an error or chose an engine that does not exist.
    """

    code = "invalid_policy"


class TraceError(KvatlasError, ValueError):
    """A trace that cannot be read. Code: "invalid_trace"."""

    code = "invalid_trace"


class SimulatedEngineError(KvatlasError, RuntimeError):
    """A simulated engine cannot start, or cannot do what was requested.

    Codes: "port_in_use", "invalid_host", "not_started", "running", "down", "unreachable", "timeout", "bad_answer",
    "http_" and the status of an answer, "simulated_engine".
    """

    code = "simulated_engine"


class RequestRefusedError(InvalidArgumentError):
    """A request that is invalid or can never run on a simulated engine. Codes: "invalid_request", "too_long".

    Attributes:
        param: The invalid field of the request; None if it is not a single field.
        status: The HTTP status of the refusal.
    """

    code = "invalid_request"

    def __init__(self, message: str, code: str | None = None, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message, code)
        self.param = param
        self.status = status


class RequestFailedError(KvatlasError, RuntimeError):
    """A simulated engine abandoned a request. Code: "request_failed"."""

    code = "request_failed"


class DesignError(KvatlasError, RuntimeError):
    """A design of the index is unknown, cannot be started, or is broken, so that its answers are not valid.

    Codes: "unknown_design", "cannot_load", "not_started", "broken".
    """

    code = "broken"


class PlotError(KvatlasError, ValueError):
    """A plot cannot be written under the given file name. Code: "unknown_format"."""

    code = "unknown_format"


class MeasurementError(KvatlasError, RuntimeError):
    """A measurement gave no result. Codes: "measurement_failed", "measurement_timeout", "no_program"."""

    code = "measurement_failed"


class JournalError(KvatlasError, ValueError):
    """A file that does not contain measurements. Code: "invalid_journal"."""

    code = "invalid_journal"


class PageError(KvatlasError, ValueError):
    """A document lacks the place for figures, or a file lacks the figures. Code: "invalid_page"."""

    code = "invalid_page"
