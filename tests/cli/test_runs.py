"""`testbed view` under sudo: the user's own browser must find the page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from testbed.api import entry, server
from testbed.cli import app
from testbed.report import recording
from tests.report.runs import build_run


class Server:
    """In the place of the API's server."""

    port, token = 1, "token"

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def join(self) -> None:
        pass


@pytest.mark.local
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_user_behind_sudo_may_enter_the_folder_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[int] = []

    def show(page: Path, _: object) -> str:
        owners.extend(path.stat().st_uid for path in (page.parent, page))
        return ""

    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "54321")
    monkeypatch.setattr(server, "ApiServer", Server)
    monkeypatch.setattr(recording, "RecordedRun", lambda *_, **__: None)
    monkeypatch.setattr(entry, "show_in_browser", show)
    assert CliRunner().invoke(app, ["view", str(tmp_path)]).exit_code == 0
    assert owners == [12345, 12345]


@pytest.mark.local
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_is_exported_is_the_user_s_behind_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_run(run := tmp_path / "run")
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "54321")
    done = CliRunner().invoke(app, ["export", str(run), "--form", "csv,tensorboard"])
    assert done.exit_code == 0, done.output
    assert {each.stat().st_uid for each in (run / "export", *(run / "export").rglob("*"))} == {12345}
