from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.sudo import behind_sudo, give_back


@pytest.mark.local
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_other_users_stay_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "54321")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for path in (theirs, ours):
        path.touch()
    os.chown(theirs, 4321, 4321)
    give_back([theirs, ours])
    assert (theirs.stat().st_uid, ours.stat().st_uid) == (4321, 12345)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("user", "group", "ids"),
    [
        ("12345", "54321", (12345, 54321)),
        ("12345", None, (12345, 12345)),
        (None, "54321", None),
        ("", "", None),
        ("ann", "54321", None),
        ("12345", "staff", None),
        ("-1", "54321", None),
    ],
)
def test_the_user_behind_sudo_has_two_ids(
    monkeypatch: pytest.MonkeyPatch, user: str | None, group: str | None, ids: tuple[int, int] | None
) -> None:
    for name, value in (("SUDO_UID", user), ("SUDO_GID", group)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert behind_sudo() == ids
