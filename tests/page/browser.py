"""A headless Chromium, controlled over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.waiting import PATIENCE_S

AXE = Path(__file__).parent / "vendor/axe.min.js"

#: A tab's messages that nobody reads any more are in the way of its answer, and the browser has been told to end.
CLOSE_S = 0.1

#: What a key that is no letter is called, and what it would write.
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "Home": (36, "")}


#: The protocol's code for a command that the page went away from: an address may lead on to another one.
NAVIGATED = -32000


class NavigatedError(Exception):
    """The page went to another address before it answered a command."""


class Tab:
    """An open page. `requests` are the addresses that it requested, `errors` its console's complaints."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command of the protocol. Raises NavigatedError."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv(PATIENCE_S))).get("id") != self._number:
            self._note(message)
        if message.get("error", {}).get("code") == NAVIGATED:
            raise NavigatedError(message)
        assert "error" not in message, message
        return dict(message["result"])

    def open(self, address: str) -> None:
        """Go to an address."""
        self.do("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, or of its promise."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page, and return its value.

        The page is brought to the front first: a page in the background draws nothing.
        """
        self.do("Page.bringToFront")
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self._value_or_none(expression)):
            assert time.monotonic() < deadline, f"{expression}\n{self.value('document.body.innerText')}\n{self.errors}"
            time.sleep(0.02)
        return value

    def _value_or_none(self, expression: str) -> Any:
        try:
            return self.value(expression)
        except NavigatedError:
            return None

    def press(self, key: str, *, shift: bool = False, control: bool = False) -> None:
        """Press and release a key."""
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), "" if control else key)
        held = {"modifiers": 8 * shift + 2 * control, "key": key, "windowsVirtualKeyCode": code}
        self.do("Input.dispatchKeyEvent", type="keyDown", **held, **({"text": text} if text else {}))
        self.do("Input.dispatchKeyEvent", type="keyUp", **held)

    def write(self, text: str) -> None:
        """Type text at the focus."""
        self.do("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        """Give the page a screen of this size."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.do("Emulation.setScrollbarsHidden", hidden=True)  # a picture of a whole page would lack their width

    def prefer(self, scheme: str) -> None:
        """Set the user's preference for `light` or `dark`."""
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def show_as_print(self) -> None:
        """Show the page as it is printed."""
        self.do("Emulation.setEmulatedMedia", media="print")

    def print_to(self, file: Path) -> None:
        """Print the page into a PDF file, on A4 with margins of 1 cm."""
        centimetre = 1 / 2.54
        margins = {f"margin{side}": centimetre for side in ("Top", "Bottom", "Left", "Right")}
        printed = self.do("Page.printToPDF", paperWidth=21 * centimetre, paperHeight=29.7 * centimetre, **margins)
        file.write_bytes(base64.b64decode(printed["data"]))

    def violations(self) -> list[str]:
        """Return axe's findings in the present page that are serious or worse, each with its place."""
        self.value(f"{AXE.read_text()};0")
        found = self.value("axe.run({resultTypes: ['violations']}).then(found => found.violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        return [f"{one['help']}: {[node['html'][:200] for node in one['nodes']]}" for one in serious]

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(params["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(json.dumps(params["entry"]))


class Browser:
    """A browser with a profile of its own while it is entered; in the control group of `tasks`, if given."""

    def __init__(self, tasks: Path | None = None) -> None:
        self._tasks = tasks

    def __enter__(self) -> Self:
        program = shutil.which("chromium")
        assert program, "no chromium here: apt-get install chromium"
        self._profile = tempfile.TemporaryDirectory(prefix="testbed-browser-", ignore_cleanup_errors=True)
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
        quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
        inside = () if self._tasks is None else ("sh", "-c", f'echo $$ > {self._tasks}; exec "$@"', "sh")
        self._process = subprocess.Popen(
            [*inside, program, *options, *quiet, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = Path(self._profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE_S
        while not (port.exists() and len(port.read_text().splitlines()) == 2):
            assert self._process.poll() is None and time.monotonic() < deadline, "the browser does not start"
            time.sleep(0.02)
        number, path = port.read_text().splitlines()
        self._host = f"ws://127.0.0.1:{number}"
        self._sockets = ExitStack()
        self._socket = self._connect(path)
        return self

    def tab(self) -> Tab:
        """Open another tab."""
        params = {"url": "about:blank"}
        self._socket.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": params}))
        while (message := json.loads(self._socket.recv(PATIENCE_S))).get("id") != 1:
            pass
        return Tab(self._connect(f"/devtools/page/{message['result']['targetId']}"))

    def _connect(self, path: str) -> ClientConnection:
        address = f"{self._host}{path}"
        return self._sockets.enter_context(connect(address, max_size=None, ping_interval=None, close_timeout=CLOSE_S))

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._sockets.close()
        self._process.wait(PATIENCE_S)
        self._profile.cleanup()


@contextmanager
def viewer_address(run: Path) -> Iterator[str]:
    """Yield the address of the page that `testbed view` shows of a run."""
    command = [sys.executable, "-m", "testbed", "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            found = re.search(r"page: (\S+\.html)", viewer.stdout.readline())
            assert found, "the command did not say where its page is"
            yield f"file://{found[1]}"
        finally:
            viewer.terminate()
