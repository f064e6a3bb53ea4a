"""Files that lead from a terminal to the page.

Only the user can read them, so that no process list, log or shell history holds the token.

api.token   for programs: Authorization: Bearer $(cat api.token)
page.html   leads a browser to http://127.0.0.1:PORT/#token=…
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.atomic_file import write_text
from testbed.sudo import behind_sudo, give_back

TOKEN, PAGE = "api.token", "page.html"

_REDIRECT = """<!doctype html><meta charset="utf-8"><title>testbed</title>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url=http://127.0.0.1:{port}/#token={token}">
"""


@dataclass(frozen=True, slots=True)
class ApiPort:
    """A port of 127.0.0.1 on which the API listens beside its Unix socket."""

    #: 0 takes any free port.
    port: int = 0
    #: Whether to open the page in the user's browser.
    shown: bool = False
    #: The token that clients need, or None for a new one.
    token: str | None = None
    #: A socket that listens at the port already: no other program takes the port between two runs of a command.
    listening: socket.socket | None = None


def write_entry(folder: Path, port: int, token: str) -> Path:
    """Write the token's and the page's files, owned by the calling user (also under sudo); return the page's path."""
    for name, text in ((TOKEN, token + "\n"), (PAGE, _REDIRECT.format(port=port, token=token))):
        write_text(folder / name, text, mode=0o600)
        give_back([folder / name])
    return folder / PAGE


def show_in_browser(page: Path, api_port: ApiPort) -> str:
    """Open the page in the user's browser if `api_port.shown` is set and there is one. Return the line to print."""
    opener = shutil.which("xdg-open") if api_port.shown else None
    if opener is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return f"  page: {page}; open it in your browser"
    ids = behind_sudo() if os.geteuid() == 0 else None  # only root starts programs as another user
    as_user = {"user": ids[0], "group": ids[1], "extra_groups": []} if ids else {}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # Without our label: what carries it ends with its network, and a browser that starts now is the user's.
    unlabelled = {name: value for name, value in os.environ.items() if not name.startswith("TESTBED_")}
    apart = {"start_new_session": True, "env": unlabelled, **quiet, **as_user}
    subprocess.Popen([opener, str(page)], **apart)  # type: ignore[call-overload]
    return f"  page: {page}"
