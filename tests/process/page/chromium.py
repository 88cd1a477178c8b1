"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The path of Chromium; None if it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class NavigatedError(Exception):
    """The page went away while it was asked."""


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.problems: list[str] = []
        """The problems that the page met: exceptions, and what its policy forbade."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if (number := said.get("id")) is not None:
                self._waiting.pop(number).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                details = said["params"]["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description", details["text"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["source"] != "network":
                self.problems.append(said["params"]["entry"]["text"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol."""
        self._number += 1
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        said = await asyncio.wait_for(answer, 60)
        if "error" in said:
            if "navigated" in said["error"]["message"]:
                raise NavigatedError
            raise RuntimeError(f"{method}: {said['error']['message']}")
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, url: str) -> None:
        """Goes to an address."""
        for domain in ("Page", "Runtime", "Log", "Performance"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    async def reload(self) -> None:
        """Loads the page again."""
        await self.evaluate("window.isOld = true")
        await self.call("Page.reload")
        await self.until("!window.isOld && document.readyState === 'complete'")

    async def size(self, width: int, height: int, scale: float = 1) -> None:
        """Sets the window's size in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def scheme(self, name: str) -> None:
        """Set the colour scheme that the system prefers: `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression."""
        said = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(said["exceptionDetails"]["exception"]["description"])
        return said["result"].get("value")

    async def until(self, expression: str, seconds: float = 60) -> Any:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while True:
            # While the page is loaded, there is nothing to ask.
            with contextlib.suppress(NavigatedError):
                if value := await self.evaluate(expression):
                    return value
            if time.monotonic() > end:
                body = await self.evaluate("document.body?.innerText")
                raise AssertionError(f"never true: {expression}\n{body}\n{self.problems}")
            await asyncio.sleep(0.05)

    async def key(self, key: str) -> None:
        """Presses a key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        more = {"text": text} if text else {}
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38}.get(key, 0)
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def write(self, text: str) -> None:
        """Types into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, whole: bool = False) -> None:
        """Saves what is seen, or the whole page."""
        said = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(said["data"]))

    async def metrics(self) -> dict[str, float]:
        """The renderer's own measurements; durations are in seconds."""
        said = await self.call("Performance.getMetrics")
        return {metric["name"]: metric["value"] for metric in said["metrics"]}

    async def close(self) -> None:
        """Ends the reading."""
        self._reading.cancel()


class Browser:
    """Chromium, with a profile that is thrown away."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvatlas-chromium-", ignore_cleanup_errors=True)
        command = [
            find() or "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    async def port(self) -> int:
        """The port at which Chromium listens."""
        file = Path(self._folder.name) / "DevToolsActivePort"
        for _ in range(1_200):
            with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
                return int(file.read_text().split()[0])
            await asyncio.sleep(0.05)
        raise RuntimeError("Chromium does not start")

    @contextlib.asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """A page of its own."""
        base = f"http://127.0.0.1:{await self.port()}"
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{base}/json/new?about:blank") as answer:
                target = await answer.json()
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                yield tab
                await tab.close()
            async with session.get(f"{base}/json/close/{target['id']}"):
                pass
