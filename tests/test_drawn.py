"""The same seed draws the same names and messages, from every room."""

from __future__ import annotations

import pytest

from tests import drawn

pytestmark = pytest.mark.pure


def test_a_seed_draws_the_same_again_and_another_seed_draws_others() -> None:
    assert drawn.draw(1, 40) == drawn.draw(1, 40)
    assert drawn.draw(1, 40) != drawn.draw(2, 40)


def test_each_is_drawn_once_with_its_place_and_every_room_gives_some() -> None:
    found = drawn.draw(1, 400)
    assert len({(each.where, each.name, each.sentence) for each in found}) == 400
    assert {each.room for each in found} >= {"sync", "schemes", "controller", "planning", "emulation", drawn.ROOMLESS}
    assert any(each.name == "message" for each in found)
