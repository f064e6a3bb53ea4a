"""The user behind sudo, who gets the files that root makes for them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def behind_sudo() -> tuple[int, int] | None:
    """Return the ids of the user and the group behind sudo; None without sudo, or if its variables are not ids."""
    user = os.environ.get("SUDO_UID", "")
    group = os.environ.get("SUDO_GID", user)
    return (int(user), int(group)) if user.isdecimal() and group.isdecimal() else None


def give_back(paths: Iterable[Path]) -> None:
    """Make the user behind sudo the owner of root's files; without sudo, nothing changes.

    A file keeps its owner if another run is replacing it, if its file system has no owners, or if this process may not
    give it away: SUDO_UID is also set by `sudo -u SOMEBODY`.
    """
    if (ids := behind_sudo()) is None:
        return
    for path in paths:
        with suppress(OSError):
            if path.lstat().st_uid == 0:
                os.chown(path, *ids, follow_symlinks=False)
