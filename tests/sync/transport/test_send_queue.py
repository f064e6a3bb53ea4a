"""The queue of frames for a connection, and auxiliary routes that take frames over from it."""

from __future__ import annotations

from threading import Thread

import pytest

from testbed.sync.transport.frame import Frame
from testbed.sync.transport.send_queue import Feed, Item, SendQueue
from tests.waiting import until

pytestmark = pytest.mark.local

TABLE, ROUTE, LEFT = 7, 3, 1
PAYLOAD = memoryview(b"chunk")


def put(queue: SendQueue, count: int, table: int | None = TABLE) -> None:
    for number in range(count):
        queue.put((number,), Frame(bytes([number]), len(PAYLOAD)), PAYLOAD, table=table)


def test_the_most_urgent_goes_first() -> None:
    queue = SendQueue()
    for number in (2, 0, 1):
        queue.put((number,), Frame(bytes([number]), len(PAYLOAD)), PAYLOAD)
    assert [item.priority for _ in range(3) if (item := queue.take())] == [(0,), (1,), (2,)]


def test_what_is_too_much_for_the_direct_way_goes_another() -> None:
    direct, auxiliary = SendQueue(), SendQueue()
    auxiliary.feed([Feed(direct, TABLE, ROUTE, LEFT)])
    put(direct, 3)
    item = auxiliary.take()
    assert item is not None
    assert (item.frame.table, item.frame.route, item.frame.left) == (TABLE, ROUTE, LEFT)
    assert len(direct) == 2, "the frames that the direct connection takes soon stay"


@pytest.mark.parametrize("table", [None, TABLE + 1])
def test_what_is_not_of_the_route_s_table_stays(table: int | None) -> None:
    direct, auxiliary = SendQueue(), SendQueue()
    auxiliary.feed([Feed(direct, TABLE, ROUTE, LEFT)])
    put(direct, 3, table)
    auxiliary.close()
    assert auxiliary.take() is None and len(direct) == 3


def test_a_queue_is_relieved_while_another_takes_over_from_it() -> None:
    """Send pacing holds partial sums back only for queues that no auxiliary route relieves."""
    direct, first_hop = SendQueue(), SendQueue()
    auxiliary = SendQueue(beside=first_hop)
    assert not direct.relieved
    auxiliary.feed([Feed(direct, TABLE, ROUTE, LEFT)])
    assert direct.relieved and not first_hop.relieved
    auxiliary.feed([])
    assert not direct.relieved
    auxiliary.feed([Feed(direct, TABLE, ROUTE, LEFT)])
    auxiliary.close()
    assert not direct.relieved


def test_an_auxiliary_route_waits_until_its_first_hop_has_nothing_of_its_own() -> None:
    direct, first_hop = SendQueue(), SendQueue()
    auxiliary = SendQueue(beside=first_hop)
    auxiliary.feed([Feed(direct, TABLE, ROUTE, LEFT)])
    put(first_hop, 1)
    put(direct, 3)
    taken: list[Item | None] = []
    thread = Thread(target=lambda: taken.append(auxiliary.take()))
    thread.start()
    thread.join(0.1)
    assert not taken
    first_hop.take()
    until(lambda: bool(taken))
    thread.join()
    assert len(direct) == 2
