"""The page of a real service, in a browser."""

from __future__ import annotations

import asyncio
import json

from kvatlas._native import Service

from .chromium import Browser


def test_a_registered_engine_is_shown(browser: Browser) -> None:
    settings = {"http": {"bind": "127.0.0.1:0"}, "log": {"level": "off"}}
    engine = {"instance_id": "w", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4}

    async def work(service: Service) -> None:
        async with browser.tab() as tab:
            await tab.open(f"http://{service.address}/ui")
            await tab.until("document.body?.innerText.includes('No engines yet')")
            service.register(json.dumps(engine))
            await tab.until("document.querySelector('#engines-table tbody tr')?.innerText.includes('connecting')")
            assert await tab.evaluate("document.getElementById('decisions').hidden")
            await tab.evaluate("document.querySelector('#engines-table tbody tr').click()")
            await tab.until("document.getElementById('drawer-body').innerText.includes('tcp://127.0.0.1:9')")
            assert tab.problems == []

    service = Service(json.dumps(settings))
    try:
        asyncio.run(work(service))
    finally:
        service.close()
