"""Members, by their names."""

from __future__ import annotations

import pytest

from testbed.report.member import site_of

pytestmark = pytest.mark.pure


def test_sites_are_in_workers_names() -> None:
    assert [site_of(name) for name in ("paris-w0", "new-york-w12", "alone")] == ["paris", "new-york", "alone"]
