"""What live engines raise."""

from kvatlas.errors import KvatlasError


class EngineError(KvatlasError, RuntimeError):
    """An engine that cannot start, or cannot do what it was asked.

    Codes: "port_in_use", "bad_host", "not_started", "running", "down", "bad_answer", or "http_" and an answer's status.
    """

    code = "engine"


class RequestFailedError(KvatlasError, RuntimeError):
    """The engine gave a request up before its end."""

    code = "request_failed"
