"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--proxy-server=127.0.0.1:9",  # nothing listens there: the network is off, but for loopback
    "--proxy-bypass-list=127.0.0.1",
    "--remote-debugging-port=0",
)


class Tab:
    """One page of the browser."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop, self._socket, self._sent = loop, socket, 0
        self.failed: list[str] = []  # what the console, the network and the page's rules complained of

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and wait for its result; what the page complains of meanwhile is kept."""
        self._sent += 1
        text = json.dumps({"id": self._sent, "method": method, "params": params})
        self._loop.run_until_complete(self._send(text))
        while True:
            told = self._loop.run_until_complete(asyncio.wait_for(self._receive(), START_S))
            if told.get("id") == self._sent:
                assert "error" not in told, told["error"]
                return told["result"]
            self._note(told)

    async def _send(self, text: str) -> None:
        await self._socket.write_message(text)

    async def _receive(self) -> dict[str, Any]:
        message = await self._socket.read_message()
        assert message is not None, "the browser went away"
        return json.loads(message)

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told["method"] == "Runtime.exceptionThrown":
            self.failed.append(json.dumps(params["exceptionDetails"])[:500])
        if told["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.failed.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        if told["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.failed.append(json.dumps(params["args"])[:500])

    def open(self, url: str, width: int, height: int) -> None:
        """Load a page in a window of that size."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> Any:
        """Its value as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.js(expression)):
            assert time.monotonic() < end, f"never true: {expression}\n{self.failed}"
            time.sleep(0.02)
        return value

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key in the element that has the focus; ``text``: what it types."""
        pressed = {"key": name, "code": name, "windowsVirtualKeyCode": code, "text": text}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **pressed)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A fresh browser with one tab.

    Args:
        folder: for its profile.
    """
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    loop = asyncio.new_event_loop()
    try:
        tab = Tab(loop, loop.run_until_complete(_connected(_address(folder))))
        yield tab
        loop.run_until_complete(_closed(tab._socket))
    finally:
        process.terminate()
        process.wait()
        loop.close()


async def _connected(url: str) -> WebSocketClientConnection:
    return await websocket_connect(url, max_message_size=100 * 2**20)


async def _closed(socket: WebSocketClientConnection) -> None:
    socket.close()
    while await socket.read_message() is not None:
        pass


def _address(folder: Path) -> str:
    """Where the first tab listens."""
    told = folder / "DevToolsActivePort"
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if told.exists() and (lines := told.read_text().split()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=START_S) as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("chromium did not start")
