"""A headless Chromium that tests and benches drive as a user would, by its debugging protocol through a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}


def find_browser() -> str | None:
    """Return the browser's path; None where none is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Chromium:
    """A window of a browser: a context manager.

    Attributes:
        problems: errors that scripts of the page have thrown or logged.
    """

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        browser = find_browser()
        assert browser is not None
        command = [browser, "--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += [f"--window-size={width},{height}", "--no-first-run", "about:blank"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        self.problems: list[str] = []
        (commands, write), (read, answers) = os.pipe(), os.pipe()
        # It reads commands from its file 3, and writes answers into 4.
        in_shell = ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', *command]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(in_shell, pass_fds=(commands, answers), **quiet)
        os.close(commands)
        os.close(answers)
        self._write, self._read = open(write, "wb", buffering=0), open(read, "rb")  # noqa: SIM115
        self._session: dict[str, str] = {}
        self._number = 0
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *exception: object) -> None:
        self._session = {}
        self.call("Browser.close")  # which writes what pages have stored
        self._process.wait()
        self._write.close()
        self._read.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._write.write(json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path) -> None:
        """Load a page from a file, and wait until it has."""
        loader = self.call("Page.navigate", url=page.as_uri())["loaderId"]
        self._wait_for("Page.lifecycleEvent", name="load", loaderId=loader)

    def reload(self) -> None:
        """Load the page again."""
        self.call("Page.reload")
        self._wait_for("Page.lifecycleEvent", name="load")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, or what its promise holds."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        code = KEYS.get(key) or ord(key.upper())
        for kind in ("keyDown", "keyUp"):
            down = {"text": text} if kind == "keyDown" and text else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **down)

    def click(self, selector: str) -> None:
        """Click on the middle of the first element of that selector, where it is seen."""
        place = self.run(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({block: 'center'});"
            " const place = element.getBoundingClientRect();"
            " return [place.x + place.width / 2, place.y + place.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a .png file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _wait_for(self, event: str, **parameters: str) -> None:
        while True:
            message = self._message()
            if message.get("method") == event and parameters.items() <= message["params"].items():
                return

    def _message(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        return message
