"""The way from a terminal to the page: files for the user alone, so that no process list, log or history has the token.

api.token   for programs: Authorization: Bearer $(cat api.token)
page.html   leads a browser to http://127.0.0.1:PORT/#token=…
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.atomic_file import write_text

TOKEN, PAGE = "api.token", "page.html"

_REDIRECT = """<!doctype html><meta charset="utf-8"><title>testbed</title>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url=http://127.0.0.1:{port}/#token={token}">
"""


@dataclass(frozen=True, slots=True)
class Door:
    """An API on a port of this machine (0 is any) beside its Unix socket; `shown` in a browser, or not."""

    port: int = 0
    shown: bool = False


def write_entry(folder: Path, port: int, token: str) -> Path:
    """Write both files for the user who called, through sudo or not; the page's."""
    for name, text in ((TOKEN, token + "\n"), (PAGE, _REDIRECT.format(port=port, token=token))):
        write_text(folder / name, text, mode=0o600)
        if owner := os.environ.get("SUDO_UID"):
            os.chown(folder / name, int(owner), int(os.environ.get("SUDO_GID", owner)))
    return folder / PAGE


def show_in_browser(page: Path, door: Door) -> str:
    """Show the page's file to the user who called, in that user's browser if the door says so and there is one; what to
    print."""
    opener = shutil.which("xdg-open") if door.shown else None
    if opener is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return f"  page: {page}; open it in your browser"
    owner, group = (os.environ.get(name) for name in ("SUDO_UID", "SUDO_GID"))
    as_user = {"user": int(owner), "group": int(group or owner), "extra_groups": []} if owner else {}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # Without our label: what carries it ends with its network, and a browser that starts now is the user's.
    unlabelled = {name: value for name, value in os.environ.items() if not name.startswith("TESTBED_")}
    apart = {"start_new_session": True, "env": unlabelled, **quiet, **as_user}
    subprocess.Popen([opener, str(page)], **apart)  # type: ignore[call-overload]
    return f"  page: {page}"
