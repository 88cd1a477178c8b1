"""A browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .chromium import Browser, find


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find() is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    with Browser() as browser:
        yield browser
