"""Settings of the router's HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvatlas.service.config import HttpConfig
from kvatlas.service.config.kinds import ABOVE_0, Address, File, Integer, Origins, Size
from kvatlas.service.config.section import about


@dataclass(frozen=True)
class RouterHttpConfig(HttpConfig):
    """Settings of the router's HTTP server."""

    bind: str = field(
        default="127.0.0.1:8080",
        metadata=about(Address(), "--bind", "Address to listen on. Port 0 picks a free port."),
    )
    admin_key_file: Path | None = field(
        default=None,
        metadata=about(
            File(),
            "--admin-key-file",
            "File with the bearer key for changes of the fleet (/engines) and of engines, and for other routers. "
            "Alternatively, set KVATLAS_ADMIN_KEY.",
            reread="content",
        ),
    )
    origins: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Origins(),
            "--origins",
            "Origins whose web pages may send requests from a browser and read the answers, besides the router's own.",
            reread="value",
        ),
    )
    max_body: int = field(default=64 << 20, metadata=about(Size(), "--max-body", "Maximum size of a request body."))
    max_connections: int = field(
        default=65_536,
        metadata=about(Integer(1, 1_000_000), "--max-connections", "Maximum number of open connections."),
    )
    request_timeout: float = field(
        default=60.0,
        metadata=about(ABOVE_0, "--request-timeout", "Time within which the whole request must arrive."),
    )
    write_timeout: float = field(
        default=60.0,
        metadata=about(
            ABOVE_0,
            "--write-timeout",
            "Time within which a client must read the next 16 KiB of its answer, or the rest of it.",
        ),
    )
    # The embedded service's treatment of untrusted workers is not a setting: the router chooses them by load.
    untrusted: Literal["leave-out", "flag"] = "leave-out"
