"""A headless Chromium, driven over its debugging protocol: what a page requests, reports as errors and looks like.

Every host is refused, so a page that needs the network fails visibly; servers on this machine can be allowed.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import websocket

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
    "--remote-allow-origins=*", "--proxy-server=127.0.0.1:9",
)  # fmt: skip
LOCAL = ("file:", "data:", "blob:", "about:")


def must_have_chromium():
    """Skip the test if there is no Chromium; fail it if CHROMIUM_NEEDED is set, as in the workflow."""
    if CHROMIUM is None and "CHROMIUM_NEEDED" in os.environ:
        pytest.fail("CHROMIUM_NEEDED is set and there is no chromium")
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")


class Browser:
    """One tab; use `with Browser(folder) as browser`. With `served`, servers on this machine are allowed."""

    def __init__(self, folder: Path, served: bool = False):
        self.folder, self.events, self.count = folder, [], 0
        self.hosts = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1" if served else "MAP * ~NOTFOUND"

    def __enter__(self):
        command = [CHROMIUM, *FLAGS, f"--host-resolver-rules={self.hosts}", f"--user-data-dir={self.folder}"]
        self.process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self.folder / "DevToolsActivePort"
        while not port.is_file() or len(port.read_text().splitlines()) < 2:
            assert self.process.poll() is None, "chromium ended at once"
            time.sleep(0.05)
        number, path = port.read_text().splitlines()
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{number}{path}", timeout=60)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)

    def ask(self, method, **params):
        """Send a command and return its answer; events in the meantime are kept in `events`."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, address, width=1280, height=900):
        """Open a page and wait until it is loaded and its mathematics and charts are drawn."""
        self.events.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.ask("Page.navigate", url=address)
        loaded = "document.readyState === 'complete' && location.href !== 'about:blank'"
        drawn = "!(document.getElementById('explorer') && !window.explorer)"
        self.until(f"{loaded} && {drawn}")
        self.value("window.MathJax?.startup?.promise.then(() => true) ?? true")

    def show(self, html, width=1280, height=900):
        """Open a page of this HTML."""
        page = self.folder / "page.html"
        page.write_text(html, encoding="utf-8")
        self.open(page.as_uri(), width, height)

    def until(self, expression, seconds=60):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"waited in vain for {expression}: {self.complaints()}"
            time.sleep(0.05)

    def value(self, expression):
        """The value of an expression in the page; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, x, y):
        """Press and release the mouse."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def complaints(self):
        """Requests that went out or failed, exceptions, and errors on the console."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(LOCAL):
                found.append(f"asked for {params['request']['url']}")
            elif method == "Network.loadingFailed" and not params.get("canceled"):
                found.append(f"failed to load: {params['errorText']}")
            elif method == "Runtime.exceptionThrown":
                found.append(f"threw {params['exceptionDetails']['text']}")
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"logged {params['entry']['text']}")
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(f"console: {params['args']}")
        return found
