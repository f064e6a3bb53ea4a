"""A link's name and its ends."""

from __future__ import annotations

import pytest

from testbed.link import link_ends, link_name

pytestmark = pytest.mark.unit


def test_a_name_tells_its_ends() -> None:
    assert link_ends(link_name("st-denis", "tokyo")) == ("st-denis", "tokyo")


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(ValueError):
        link_ends("paris-tokyo")
