"""The groups of an elastic member, and the adaptive timeout, after which silent peers are reported."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import torch

from testbed.plan import Plan
from testbed.protocol import Abort, ControlMessage, Holding, Lost, Reconfigure, Rejoin, Renew, Unreached
from testbed.sync.allreduce import elastic as elastic_module
from testbed.sync.allreduce.elastic import (
    LEAST_S,
    LOOK_PART,
    LOOK_SLACK,
    NEEDED,
    REMEMBERED,
    SLACK,
    AdaptiveTimeout,
    ElasticGroup,
)
from testbed.sync.allreduce.fetch import FetchRequest, Refusal, Wanted
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.handover import packed
from testbed.sync.allreduce.receiver import Loss
from testbed.sync.allreduce.recovery import Attempt, RecoveryOrders, recover
from testbed.sync.allreduce.role import route_table
from testbed.sync.allreduce.round import RoundResult
from testbed.sync.errors import Stopped, SyncError
from testbed.sync.transport import Frame, TransportSettings, sockets
from tests.sync.keys import keys
from tests.sync.plans import names, star
from tests.sync.proxy import unanswered
from tests.waiting import PATIENCE_S, until

#: The members of the first generation, and those of the one that another member joins.
MEMBERS, JOINED = names(2), names(3)


def timeout_after(*took: float) -> AdaptiveTimeout:
    made = AdaptiveTimeout(100.0)
    for seconds in took:
        made.note(seconds)
    return made


@pytest.mark.pure
def test_it_follows_the_longest_of_the_last_rounds() -> None:
    assert timeout_after(*[1.0] * (NEEDED - 1)).seconds == 100.0
    assert timeout_after(1.0, 2.0, 1.0).seconds == SLACK * 2
    assert timeout_after(50.0, *[1.0] * REMEMBERED).seconds == SLACK
    assert timeout_after(*[0.001] * NEEDED).seconds == LEAST_S
    assert timeout_after(*[50.0] * NEEDED).seconds == 100.0


@pytest.mark.pure
def test_a_look_at_the_neighbours_comes_before_the_peers_are_suspected() -> None:
    assert timeout_after(*[1.0] * (NEEDED - 1)).look_s == LOOK_PART * 100.0
    assert timeout_after(1.0, 2.0, 1.0).look_s == LOOK_SLACK * 2
    assert timeout_after(*[0.001] * NEEDED).look_s == LEAST_S
    assert timeout_after(*[50.0] * NEEDED).look_s == LOOK_PART * 100.0


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Yield an address at which connections are made and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def plan_of(epoch: int, members: tuple[str, ...] = MEMBERS) -> Plan:
    return Plan(epoch, members, (star(members, "m0"),))


def elastic_of(
    address: tuple[str, int], told: list[ControlMessage], timeout_s: float = 0.5, source: str = ""
) -> ElasticGroup:
    """Return m1's group of the generation 3, whose peers are at an address."""
    settings = TransportSettings("m1", keys("m1", JOINED), timeout_s, generation=3)
    return ElasticGroup(plan_of(3), settings, dict.fromkeys(JOINED, address), told.append, source=source)


def lose(elastic: ElasticGroup, address: tuple[str, int], epoch: int = 5) -> None:
    """Abort the round, and have the members go on under a plan of this epoch."""
    elastic.abort(Abort(epoch, "a member is gone"))
    holdings = tuple(Holding(member, epoch, elastic.finished, over=True) for member in MEMBERS)
    elastic.reconfigure(Reconfigure(plan_of(epoch).to_json(), dict.fromkeys(MEMBERS, address), holdings))


def meanwhile(elastic: ElasticGroup, monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> list[AllReduceGroup]:
    """Call a function after the next group was made, before the member knows it. Returns the groups that are made."""
    make, made = elastic._generations.make, list[AllReduceGroup]()

    def made_first(plan: Plan, roster: dict[str, tuple[str, int]], after_round: int | None) -> AllReduceGroup:
        group = make(plan, roster, after_round)
        made.append(group)
        if len(made) == 1:
            call()
        return group

    monkeypatch.setattr(elastic._generations, "make", made_first)
    return made


def is_closed(group: AllReduceGroup) -> bool:
    try:
        group.outbox.connect(route_table(group.plan, "m1"))
    except SyncError as error:
        return error.rule == "leaving"
    return False


@pytest.mark.local
@pytest.mark.parametrize("ends", [False, True])
def test_a_generation_that_can_t_follow_any_more_is_closed(
    silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """While a thread connects to the members of the next generation, a member is lost, or this one ends."""
    elastic = elastic_of(silent, [])
    with closing(elastic):
        made = meanwhile(elastic, monkeypatch, elastic.close if ends else lambda: lose(elastic, silent))
        with pytest.raises(SyncError) as caught:
            elastic.prepare(plan_of(4, JOINED), dict.fromkeys(JOINED, silent), "m0")()
        assert (caught.value.rule, caught.value.epoch) == ("outdated", 4)
        assert is_closed(made[0]) and made[0] not in elastic._generations.all_groups()


@pytest.mark.local
def test_a_member_that_ends_begins_no_generation(silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    elastic = elastic_of(silent, [])
    with closing(elastic):
        made = meanwhile(elastic, monkeypatch, elastic.close)
        lose(elastic, silent)
        until(lambda: is_closed(made[0]))
        assert made[0] is not elastic.current


@pytest.mark.local
def test_a_generation_whose_peers_do_not_read_ends_with_the_member(silent: tuple[str, int]) -> None:
    elastic = elastic_of(silent, [], 2 * PATIENCE_S)
    generations = elastic._generations
    group = generations.make(plan_of(4), dict.fromkeys(MEMBERS, silent), 0)
    group.outbox.put(("m0",), (0.0,), Frame(b"", 1), memoryview(b"x"), lambda peer: None)
    generations.retire(group, drain=True)
    (retiring,) = generations._retiring
    elastic.close()
    assert not retiring.is_alive()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let only references decide how long objects stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.local
@pytest.mark.usefixtures("uncollected")
def test_groups_that_ended_leave_the_memory_at_once(silent: tuple[str, int]) -> None:
    """A round waits for a silent peer in generation after generation. The last ended one is kept until the next end."""
    told: list[ControlMessage] = []
    elastic = elastic_of(silent, told, 2 * PATIENCE_S)

    def take_part() -> None:
        with pytest.raises(SyncError):
            elastic.begin(torch.ones(2), 1.0)()

    waits = threading.Thread(target=take_part)
    groups = [weakref.ref(elastic.current)]
    with closing(elastic):
        waits.start()
        for epoch in (5, 7, 9):
            until(lambda: elastic.current.finished < elastic.current._rounds.number)
            until(lambda: not any(thread.is_alive() for thread in elastic._generations._retiring))
            lose(elastic, silent, epoch)
            groups.append(weakref.ref(elastic.current))
        until(lambda: [group() is None for group in groups] == [True, True, False, False])
    waits.join()


@pytest.mark.local
def test_a_joining_member_that_is_told_to_leave_does_not_wait_for_its_state(silent: tuple[str, int]) -> None:
    elastic = elastic_of(silent, [], 2 * PATIENCE_S, source="m0")
    with closing(elastic):
        elastic.fail(Stopped("this member could not join", again=True))
        with pytest.raises(Stopped) as caught:
            elastic.share({})
    assert caught.value.again


@pytest.mark.local
def test_a_joining_member_asks_until_its_source_has_packed_its_state(
    silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may take steps for longer than a round's timeout before they pack it."""
    model = torch.nn.Linear(1, 1, bias=False)
    answer = packed(7, {"model": torch.nn.Linear(1, 1, bias=False)})
    refused = SyncError("m0 has no state to hand over for generation 3", rule="refused")
    asked = Mock(side_effect=[refused, refused, answer])
    monkeypatch.setattr(elastic_module, "fetch", asked)
    with closing(elastic_of(silent, [], source="m0")) as elastic:
        elastic.share({"model": model})
        assert elastic.finished == 7 and asked.call_count == 3


@pytest.mark.local
@pytest.mark.parametrize("reached", [True, False])
def test_a_member_that_waits_long_says_which_neighbours_it_can_t_reach(
    silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    monkeypatch.setattr(sockets, "REACHED_S", 0.1)
    told: list[ControlMessage] = []

    def take_part() -> None:
        with pytest.raises(SyncError):
            elastic.begin(torch.ones(2), 1.0)()

    waits = threading.Thread(target=take_part)
    with unanswered() as nowhere, closing(elastic_of(silent if reached else nowhere, told, PATIENCE_S)) as elastic:
        monkeypatch.setattr(elastic._timeout, "_most_s", 0.2)
        waits.start()
        until(lambda: told.count(Unreached("m1", () if reached else ("m0",), 3)) == 2)
    waits.join()


@pytest.mark.local
def test_a_member_that_fetches_for_long_says_for_whom_it_waits(silent: tuple[str, int]) -> None:
    """Others wait for it in the next round, and it would seem to wait for nobody."""
    told: list[ControlMessage] = []
    elastic = elastic_of(silent, told, PATIENCE_S)
    elastic.current.suspect_s = 0.01
    attempt, orders = Attempt(9, torch.ones(2), 1.0, None), RecoveryOrders(9, False, (), (("m0", 0, 2),))

    def fetch() -> None:
        with pytest.raises(SyncError):
            recover(elastic.current, {"m0": silent}, orders, attempt, threading.Condition())

    fetching = threading.Thread(target=fetch)
    with closing(elastic):
        fetching.start()
        until(lambda: [(its.peer, its.broken) for its in told if isinstance(its, Lost)] == [("m0", False)])
    fetching.join()


@pytest.mark.local
@pytest.mark.parametrize(("broken", "renews"), [(False, [Renew("m1", 1)]), (True, [])])
def test_the_end_of_a_round_ends_what_was_said_in_it(
    silent: tuple[str, int], broken: bool, renews: list[Renew]
) -> None:
    told: list[ControlMessage] = []
    elastic = elastic_of(silent, told)
    with closing(elastic):
        elastic._report_lost(3, Loss("m0", "it is slow", broken))
        for number in (1, 2):
            attempt = Attempt(number, torch.ones(2), 1.0, None)
            elastic._finish(elastic.current, attempt, cast(RoundResult, SimpleNamespace(slices=())))
    assert [its for its in told if isinstance(its, Renew)] == renews


@pytest.mark.local
def test_a_request_of_a_generation_that_is_over_is_refused_at_once(silent: tuple[str, int]) -> None:
    """The peer asks again in the new generation, and its thread here would wait for a round's timeout."""
    elastic = elastic_of(silent, [], 2 * PATIENCE_S)
    with closing(elastic):
        lose(elastic, silent)
        answer = elastic._means(FetchRequest(Wanted.MEANS, 3, 9, 0, 2))
    assert isinstance(answer.note, Refusal)


@pytest.mark.local
def test_a_loss_is_reported_again_to_a_controller_that_is_back(silent: tuple[str, int]) -> None:
    told: list[ControlMessage] = []
    elastic = elastic_of(silent, told)
    with closing(elastic):
        for _ in range(2):
            elastic._report_lost(3, Loss("m0", "broken pipe"))
        (lost,) = told
        state, *losses = elastic.rejoin()
        assert isinstance(state, Rejoin) and losses == [lost]
        lose(elastic, silent)
        assert len(elastic.rejoin()) == 1, "the connections of the next generation are others"
        assert not elastic._losses
        elastic._report_lost(5, Loss("m0", "broken pipe"))
        assert len(elastic.rejoin()) == 2
