from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec.graph.site_graph import GraphNode, SiteGraph, named, site_name
from testbed.spec.topology import RESERVED, SITE_NAME

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Sao Paulo", "sao-paulo"),
        ("San José", "san-jose"),
        ("Miami, Florida", "miami"),
        ("1", "site-1"),
        ("lo", "site-lo"),
        ("", "site"),
        ("W0", "sitew0"),
        ("Paris W12", "parisw12"),
        ("a-very-long-w12345", "a-very-longw12"),
        ("London Docklands", "london-dockland"),
        ("Frankfurt-Main A-West", "frankfurt-main"),
        ("Santa+Clara,+CA389", "santa-clara"),
    ],
)
def test_a_label_becomes_a_site_s_name(label: str, name: str) -> None:
    assert site_name(label) == name


def names(*labels: str) -> list[str]:
    return list(named(SiteGraph({str(i): GraphNode(label) for i, label in enumerate(labels)}, ()))[0].values())


def test_labels_that_repeat_get_a_number_that_nobody_has() -> None:
    assert names("Rome", "Rome, Georgia", "Rome 2", "Rome") == ["rome", "rome-3", "rome-2", "rome-4"]
    assert names("London Docklands A", "London Docklands B") == ["london-dockland", "london-dockla-2"]
    assert names("?", "!", "Москва") == ["site", "site-2", "site-3"]


def test_a_note_names_some_of_many() -> None:
    _, notes = named(SiteGraph({str(i): GraphNode("None") for i in range(400)}, ()))
    assert notes[0].startswith("400 ") and "none-2" in notes[0]
    assert "392" in notes[0]


@given(
    st.lists(st.text(max_size=30) | st.text("aw01-", max_size=20) | st.sampled_from(["a", "a-2", "A 2"]), max_size=20)
)
def test_any_labels_become_valid_names_each_once(labels: list[str]) -> None:
    found = names(*labels)
    assert len(set(found)) == len(labels)
    for name in found:
        assert SITE_NAME.fullmatch(name)
        assert len(name) <= 15
        assert not RESERVED.fullmatch(name)
