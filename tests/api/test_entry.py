"""The files that lead to the page, and the browser: it is the user's own, and outlives the run's network."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from testbed.api.entry import TOKEN, ApiPort, show_in_browser, write_entry
from tests.waiting import until

pytestmark = pytest.mark.local


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> str:
    """Show a page in a browser that runs a command of the shell, and return the command's output."""
    opener, seen = folder / "xdg-open", folder / "seen"
    opener.write_text(f"#!/bin/sh\n{command} > {seen}.part\nmv {seen}.part {seen}\n")
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    show_in_browser(folder / "page.html", ApiPort(shown=True))
    until(seen.exists)
    return seen.read_text()


def test_a_browser_does_not_carry_our_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("TESTBED_NETWORK", "quickstart")
    names = [line.partition("=")[0] for line in opened(tmp_path, monkeypatch, "env").splitlines()]
    assert "DISPLAY" in names
    assert [name for name in names if name.startswith("TESTBED_")] == []


def test_a_user_that_is_not_root_starts_the_browser_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `sudo -u SOMEBODY`."""
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert int(opened(tmp_path, monkeypatch, "id -u")) == os.getuid()


def test_files_that_cannot_be_given_away_lead_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `sudo -u SOMEBODY`, or in a file system without owners."""

    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setattr(os, "chown", refuse)
    page = write_entry(tmp_path, 4321, "key")
    assert "127.0.0.1:4321/#token=key" in page.read_text()
    assert (tmp_path / TOKEN).read_text() == "key\n"
