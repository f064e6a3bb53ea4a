"""Verbs where nothing can be written, by root either: a read-only file system, and a full disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from testbed.errors import BAD_INPUT, CANNOT
from tests.cli.verbs import VERBS, Verb, tried

pytestmark = pytest.mark.system


@pytest.fixture(params=["read-only", "full"])
def no_room(request: pytest.FixtureRequest, own: Path) -> Iterator[Path]:
    """A current folder where nothing can be written, also by root."""
    options = {"read-only": "ro", "full": "size=4k"}[request.param]
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", own], check=True)
    os.chdir(own)
    if request.param == "full":
        with suppress(OSError), (own / "others").open("wb", buffering=0) as file:
            while True:
                file.write(b"x")
    yield own
    os.chdir("/")
    subprocess.run(["umount", own], check=True)


#: The verbs that write into the current folder.
WRITERS = [
    verb for verb in VERBS if verb.name in ("launch", "run", "simulate", "compare", "sweep", "new", "certificates")
]
WRITERS += [verb for verb in VERBS if verb.words[:2] == ("trace", "generate") or verb.name == "trace import pensieve"]
WRITERS += [verb for verb in VERBS if verb.name in ("trace convert", "topology import")]


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_a_place_without_room_is_said(verb: Verb, readable: Path, no_room: Path) -> None:
    before = sorted(no_room.iterdir())
    result = tried(*verb.line(readable))
    assert result.exit_code in (0, BAD_INPUT, CANNOT), result.output
    if verb in WRITERS:
        assert result.exit_code == CANNOT, result.output
    assert sorted(no_room.iterdir()) == before
