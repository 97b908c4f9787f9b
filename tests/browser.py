"""Chromium without a window, driven by the DevTools protocol through pipes: no other package is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def npm_package(name):
    """The folder of a package of npm, in one that NODE_PATH names; else the test is skipped."""
    for folder in filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)):
        if (Path(folder) / name).is_dir():
            return Path(folder) / name
    return pytest.skip(f"NODE_PATH names no folder with npm's {name}")


class Page:
    """A page in a browser of its own, whose profile lies in a folder."""

    def __init__(self, folder):
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()
        # The browser reads commands from 3 and writes answers to 4.
        pipes = f'exec "$@" 3<&{from_us} 4>&{to_us}'
        words = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={folder}", "--remote-debugging-pipe",
        )  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", pipes, "bash", find(), *words], pass_fds=(from_us, to_us), stderr=subprocess.DEVNULL
        )
        os.close(from_us)
        os.close(to_us)
        self._out, self._in = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb", 0)
        self._number, self._rest, self._session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **params):
        """A command's result; events are left out."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                read = os.read(self._in.fileno(), 1 << 20)
                assert read, "the browser ended"
                self._rest += read
            answer, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, expression):
        """What JavaScript makes of it; promises are awaited."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, expression, seconds=60):
        """Until it is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"not in {seconds} s: {expression}; {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def open(self, address, width=1280, height=800):
        """Load a page in a window of this size, and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def screenshot(self, path):
        """A PNG file of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        """End the browser."""
        self._process.terminate()
        self._process.wait()
        self._out.close()
        self._in.close()
