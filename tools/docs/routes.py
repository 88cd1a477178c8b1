"""The routes of router and service with their keys: files beside the code, which tests in Rust compare with it."""

from __future__ import annotations

from pathlib import Path

CRATES = Path(__file__).resolve().parents[2] / "crates"


def router_page() -> str:
    """The routes of a router: its own, and those that it forwards to engines."""
    return (CRATES / "router/src/requests/routes/routes.md").read_text(encoding="utf-8").strip()


def service_page() -> str:
    """The routes of a service."""
    return (CRATES / "service/src/routes.md").read_text(encoding="utf-8").strip()
