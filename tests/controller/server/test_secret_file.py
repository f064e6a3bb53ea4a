"""Files with secrets: nobody else reads them, and none is used that others could have read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from testbed.controller.server.secret_file import SecretError, read_secret, write_secret

pytestmark = pytest.mark.pure


def test_a_secret_is_for_its_owner_alone_whatever_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("another")
    file.chmod(0o644)
    before = os.umask(0)
    try:
        write_secret(file, "hush\n")
    finally:
        os.umask(before)
    assert stat.filemode(file.stat().st_mode) == "-rw-------" and read_secret(file) == "hush"
    assert list(tmp_path.iterdir()) == [file]


def test_a_secret_that_is_invalid_or_readable_by_others_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hush")
    file.chmod(0o640)
    with pytest.raises(SecretError, match="chmod 600"):
        read_secret(file)
    file.write_text("\n")
    file.chmod(0o600)
    with pytest.raises(SecretError):
        read_secret(file)
