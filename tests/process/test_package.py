"""Tests of what `import kvatlas` gives."""

import subprocess
import sys

import pytest

import kvatlas


def test_what_people_try_first() -> None:
    assert kvatlas.Client.__module__ == "kvatlas.client.sync"
    assert kvatlas.AsyncClient.__module__ == "kvatlas.client.aio"
    assert kvatlas.Service.__module__ == "kvatlas.service.service"
    assert {"AsyncClient", "BlockIndex", "Client", "Service", "errors"} <= set(dir(kvatlas))
    assert all(hasattr(kvatlas, name) for name in kvatlas.__all__)
    with pytest.raises(AttributeError, match="module 'kvatlas' has no attribute 'Servcie'"):
        _ = kvatlas.Servcie  # type: ignore[attr-defined]


def test_clients_say_whom_they_ask() -> None:
    with kvatlas.Client("http://h:1/") as client:
        assert repr(client) == "Client('http://h:1')"
    assert repr(kvatlas.AsyncClient("http://h:1")) == "AsyncClient('http://h:1')"


def test_the_index_does_not_import_an_http_client() -> None:
    slow = {"httpx", "asyncio", "numpy", "kvatlas.client"}
    code = f"import sys, kvatlas; kvatlas.BlockIndex(); print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_service_starts_without_numpy() -> None:
    code = "import sys, kvatlas.cli, kvatlas.router, kvatlas.service; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
