"""The folder of a container that programs may change: what its mounts are made of."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.launch.working_folder import _mount_points, _swapped

IDS = 2**32 - 1


@pytest.mark.pure
@pytest.mark.parametrize(("one", "other"), [(0, 10001), (1000, 10001), (20000, 10001), (10000, 10001), (10001, 10001)])
def test_two_ids_stand_for_each_other_and_the_rest_for_themselves(one: int, other: int) -> None:
    ranges = [tuple(map(int, line.split())) for line in _swapped(one, other).splitlines()]
    assert sum(count for _, _, count in ranges) == IDS
    for side in (0, 1):  # each id once
        at = sorted((each[side], each[2]) for each in ranges)
        assert all(start + count == after for (start, count), (after, _) in pairwise(at))

    def outside(inside: int) -> int:
        return next(to + inside - start for start, to, count in ranges if start <= inside < start + count)

    assert (outside(one), outside(other)) == (other, one)
    assert [outside(each) for each in (1, 500, 65534, IDS - 1)] == [1, 500, 65534, IDS - 1]


@pytest.mark.pure
def test_spaces_of_a_folder_s_path_are_no_ends_of_fields(tmp_path: Path) -> None:
    """An ideographic space, a no-break space and a line separator are parts of names for the kernel."""
    lines = (
        "36 35 8:1 /home/研究\u3000データ\u00a0a\u2028b /work ro - ext4 /dev/sda rw",
        r"37 35 0:5 / /tmp/x\040y rw - tmpfs t rw",
    )
    (tmp_path / "mountinfo").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert _mount_points(SimpleNamespace(folder=tmp_path)) == ["/work", "/tmp/x y"]  # type: ignore[arg-type]
