"""A renewal of requirements.lock: the entries that it keeps, and the changes that it prints."""

from __future__ import annotations

import pytest

from containers.lock import renewed, said
from testbed.emulation.containers.requirements import Locked

THERE, NEW, BUILT_ELSEWHERE = ("0" * 64, "1" * 64, "2" * 64)


def locked(version: str, *hashes: str) -> Locked:
    return Locked("torch", version, None, hashes, ("testbed",))


@pytest.mark.pure
def test_files_that_are_known_of_a_version_stay_with_it() -> None:
    old = {"torch": locked("2.13.0", THERE, BUILT_ELSEWHERE)}
    assert renewed(old, {"torch": locked("2.13.0", THERE)}, {}) == old
    assert renewed(old, {"torch": locked("2.14.0", NEW)}, {}) == {"torch": locked("2.14.0", NEW)}


@pytest.mark.pure
def test_a_build_that_pip_takes_here_comes_in_and_is_told() -> None:
    old = {"torch": locked("2.13.0", THERE)}
    new = renewed(old, old, {"torch": {NEW, BUILT_ELSEWHERE}})
    assert new == {"torch": locked("2.13.0", THERE, NEW, BUILT_ELSEWHERE)}
    assert said(old, new) == ["torch 2.13.0: 2 more files"]


@pytest.mark.pure
def test_a_renewal_says_which_versions_changed_and_the_next_one_nothing() -> None:
    old = {"torch": locked("2.13.0", THERE)}
    new = renewed(old, {"torch": locked("2.14.0", NEW)}, {})
    assert said(old, new) == ["torch 2.13.0 → 2.14.0"]
    assert said(new, renewed(new, new, {})) == []
