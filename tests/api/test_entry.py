"""The browser that is opened for a run is the user's own, and outlives the run's network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.api.entry import ApiPort, show_in_browser
from tests.waiting import until

pytestmark = pytest.mark.local


def test_a_browser_does_not_carry_our_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener, seen = tmp_path / "xdg-open", tmp_path / "seen"
    opener.write_text(f"#!/bin/sh\nenv > {seen}.part\nmv {seen}.part {seen}\n")
    opener.chmod(0o755)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("TESTBED_NETWORK", "quickstart")
    show_in_browser(tmp_path / "page.html", ApiPort(shown=True))
    until(seen.exists)
    names = [line.partition("=")[0] for line in seen.read_text().splitlines()]
    assert "DISPLAY" in names
    assert [name for name in names if name.startswith("TESTBED_")] == []
