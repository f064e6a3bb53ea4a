"""A link's name and its ends."""

from __future__ import annotations

import pytest

from testbed.link import (
    MTU_FRAME_BYTES,
    Delivery,
    GilbertElliott,
    LinkState,
    NoSuchLink,
    Opportunities,
    Queue,
    find_link,
    link_ends,
    link_name,
)

pytestmark = pytest.mark.pure


def test_a_name_tells_its_ends() -> None:
    assert link_ends(link_name("st-denis", "tokyo")) == ("st-denis", "tokyo")


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(ValueError):
        link_ends("paris-tokyo")


LINKS = ("paris->st-denis", "st-denis->paris", "a->b", "a->b-c", "a-b->c")


@pytest.mark.parametrize(
    ("written", "link"),
    [
        ("a->b", "a->b"),
        ("a-b", "a->b"),
        ("[a, b]", "a->b"),
        (["a", "b"], "a->b"),
        (("paris", "st-denis"), "paris->st-denis"),
        ("st-denis-paris", "st-denis->paris"),
        (" paris -> st-denis ", "paris->st-denis"),
        ("[a, b-c]", "a->b-c"),
        (["a-b", "c"], "a-b->c"),
    ],
)
def test_each_way_to_name_a_link(written: str | list[str], link: str) -> None:
    assert find_link(written, LINKS) == link


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("a-b-c", "ambiguous-link"),
        ("b->a", "unknown-link"),
        (["b", "a"], "unknown-link"),
        ("paris-rome-oslo", "unknown-link"),
        ("paris", "not-a-link"),
        ("paris-", "not-a-link"),
        ("", "not-a-link"),
        ("[a, b, c]", "not-a-link"),
        ("a->b->c", "not-a-link"),
    ],
)
def test_a_name_that_is_no_link_s_or_several_s(written: str | list[str], rule: str) -> None:
    with pytest.raises(NoSuchLink) as caught:
        find_link(written, LINKS)
    assert (caught.value.rule, caught.value.given) == (rule, written)


def test_the_mean_of_bursts_weighs_the_states_by_how_often_they_are_found() -> None:
    assert GilbertElliott(p=0.01, r=0.24).mean == pytest.approx(0.04)
    assert GilbertElliott(p=0.1, r=0.3, bad=0.5, good=0.1).mean == pytest.approx(0.25 * 0.5 + 0.75 * 0.1)


@pytest.mark.parametrize("values", [(0, 0.5), (0.5, 0), (1.5, 0.5), (0.5, 0.5, 0.2, 0.2)])
def test_an_invalid_chain_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        GilbertElliott(*values)


def test_the_loss_of_a_state_is_the_mean_of_its_bursts() -> None:
    with pytest.raises(ValueError):
        LinkState(1e6, 0.01, loss=0.5, bursts=GilbertElliott(0.1, 0.4))


def test_a_queue_before_single_opportunities_follows_their_mean_rate() -> None:
    delivery = Delivery(Opportunities((50, 100), 62_500.0), began_s=0.0)  # 10 Mbit/s
    assert LinkState(64e3, 0.1, delivery=delivery).queue_bytes == 250_000


@pytest.mark.parametrize("queue", [Queue(1, "bytes"), Queue(1513, "bytes"), Queue(1, "packets")])
def test_a_short_queue_holds_a_frame(queue: Queue) -> None:
    assert LinkState(1e6, 0.01, queue=queue).queue_bytes == MTU_FRAME_BYTES
