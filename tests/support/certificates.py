"""Certificates for tests, made by openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def make(tmp_path: Path, name: str, subject: str, *more: str) -> tuple[Path, Path]:
    """A certificate and its key."""
    cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", subject, "-keyout", str(key), "-out", str(cert), *more]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


SERVER = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
