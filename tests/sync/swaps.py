"""Plans swapped at random among members that reduce all the while: `python -m tests.sync.swaps --count 2000`.

Plans are trees over random connected graphs. They are prepared at any moment, at one member after the other, and at
times another one before the last is in force; what members send is delayed and reordered at random, by a transport
inside the process (`post`), or over TCP by proxies before the members (`sockets`). What members contribute tells from
the mean alone whose updates are in it: member i adds d · 4^i to each element, d from 1 to 3 by member and round, so in
base 4 the sum's i-th digit is what i contributed, and float32 holds it exactly. `--seed N` replays a case that failed.

With `--plans grouped` most plans have groups, ever others, and meet among all in each second to ninth round. Most of
those take force in between; now and then their root can't reach a member, or does not hear from it, and leaves them to
the next round among all.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from testbed import sync
from testbed.plan import Plan
from testbed.sync.allreduce.group import AllReduceGroup
from testbed.sync.allreduce.round import RoundResult
from testbed.sync.executor import AsyncExecutor, Work
from testbed.sync.transport.settings import TransportSettings
from tests.sync.controller import Controller, job
from tests.sync.plans import names, plan_over_graph, random_groups
from tests.sync.post import Post
from tests.sync.proxy import Proxy

#: The plan after whose first round all members end.
LAST = 1_000_000
#: Of the tensors that are reduced in turns, as a model's buckets are.
ELEMENTS = (1500, 400, 900)
TIMEOUT_S = 30.0
#: Plans in force among the same members. Then others meet, as many as may be.
SWAPS_A_MEETING = 50
LEAST_MEMBERS, MOST_MEMBERS = 3, 8
#: How many of the plans are overtaken by the next before all hold them.
OVERTAKEN = 0.2


class Ledger:
    """What came out of each round at each member, by the plan of `first` and those that follow. Any thread may call.

    `early` counts the plans that took force after a round inside groups.
    """

    def __init__(self, first: Plan, overlaps: bool) -> None:
        members = first.members
        self.overlaps = overlaps
        self.plans = {first.epoch: first}
        self.in_force: set[int] = set()
        self.rounds = self.early = 0
        self.wrong: list[str] = []
        self.members = members
        self._changed = threading.Condition()
        self._open: dict[int, dict[str, tuple[int, torch.Tensor]]] = {}
        self._epochs: dict[int, int] = {}

    def contribution(self, member: str, number: int) -> torch.Tensor:
        """What a member adds in a round."""
        elements = ELEMENTS[number % len(ELEMENTS)]
        return torch.full((elements,), float(self._share(self.members.index(member), number)))

    def note(self, member: str, number: int, epoch: int, mean: torch.Tensor, lost: int, duplicated: int) -> None:
        """A member is done with a round."""
        plan = self.plans[epoch]
        group = plan.group_of(member, number).members
        expected = sum(self._share(self.members.index(one), number) for one in group)
        sums = (mean.double() * len(group)).round()
        with self._changed:
            if lost or duplicated or not torch.all(sums == expected):
                self.wrong.append(f"round {number}, epoch {epoch}: sums {set(sums.tolist())}, not {expected}")
            if self._epochs.setdefault(number, epoch) != epoch:
                self.wrong.append(f"round {number}: members differ in epoch")
            seen = self._open.setdefault(number, {})
            seen[member] = epoch, mean
            if not all(torch.equal(seen[one][1], mean) for one in group if one in seen):
                self.wrong.append(f"round {number}: members differ in bits")
            if len(seen) == len(self.members):
                self._close(number)
            self.rounds = max(self.rounds, number)
            self.in_force.add(epoch)
            self._changed.notify_all()

    def _close(self, number: int) -> None:
        del self._open[number]
        before = self._epochs.get(number - 1)
        if before is not None and before != self._epochs[number]:
            self.early += not self.plans[before].among_all(number - 1)

    def await_epoch(self, epoch: int) -> None:
        """Wait until a round went by a plan. TimeoutError when none does."""
        with self._changed:
            if not self._changed.wait_for(lambda: epoch in self.in_force or self.wrong, TIMEOUT_S):
                raise TimeoutError(f"epoch {epoch} did not come into force")

    def check(self, swaps: int) -> None:
        """AssertionError unless all was right."""
        assert not self.wrong, self.wrong[:3]
        assert not self._open, f"rounds {sorted(self._open)} are not over at all members"
        assert len(self.in_force - {0, LAST}) >= swaps

    @staticmethod
    def _share(index: int, number: int) -> int:
        return ((index + number) % 3 + 1) << 2 * index


#: Makes a plan of an epoch among members.
MakePlan = Callable[[random.Random, tuple[str, ...], int], Plan]


def grouped_plan(draw: random.Random, members: tuple[str, ...], epoch: int) -> Plan:
    """Three of four with groups, whose rounds among all are up to nine rounds apart."""
    plan = plan_over_graph(draw, members, epoch)
    if epoch == LAST or not draw.randrange(4):
        return plan
    return replace(random_groups(draw, plan), period=draw.randint(2, 9))


PLANS: dict[str, MakePlan] = {"whole": plan_over_graph, "grouped": grouped_plan}


def plans(draw: random.Random, ledger: Ledger, make: MakePlan, swaps: int) -> Iterator[tuple[Plan, bool]]:
    """Plans to prepare, the last one included, and whether to wait until each is in force."""
    epoch = 0
    while swaps:
        epoch += 1
        waits = draw.random() >= OVERTAKEN
        swaps -= waits
        ledger.plans[epoch] = make(draw, ledger.members, epoch)
        yield ledger.plans[epoch], waits
    ledger.plans[LAST] = make(draw, ledger.members, LAST)
    yield ledger.plans[LAST], True


def _train(ledger: Ledger, member: str, reduce: Callable[[torch.Tensor], Work[Any] | Over]) -> None:
    """Rounds until the one after the first under the last plan. Every other member has two on at a time, unless the
    ledger says that none does: then a plan may be agreed on up to the end of a round."""
    ahead = ledger.members.index(member) % 2 if ledger.overlaps else 0
    begun: deque[tuple[torch.Tensor, Work[Any] | Over]] = deque()
    asked, over, last = 0, 0, sys.maxsize
    while over < last:
        while asked < last and len(begun) <= ahead:
            asked += 1
            values = ledger.contribution(member, asked)
            begun.append((values, reduce(values)))
        values, work = begun.popleft()
        done = work.wait()
        over += 1
        ledger.note(member, over, done.epoch, values, done.lost, done.duplicated)
        if done.epoch == LAST:
            last = min(last, over + 1)


def by_post(seed: int, swaps: int, make: MakePlan) -> Ledger:
    """A meeting whose members are threads, and what they send goes through no socket."""
    draw = random.Random(seed)
    members = names(draw.randint(LEAST_MEMBERS, MOST_MEMBERS))
    first, post = make(draw, members, 0), Post(seed)
    ledger = Ledger(first, draw.random() < 0.5)
    roster = dict.fromkeys(members, ("", 0))
    groups = {
        member: AllReduceGroup(first, TransportSettings(member, {}, TIMEOUT_S), roster, make_outbox=post.outbox)
        for member in members
    }
    for group in groups.values():
        post.admit(group)
        group.swaps.connect = post.connect

    def train(member: str) -> None:
        group, executor = groups[member], AsyncExecutor(member)

        def reduce(values: torch.Tensor) -> Work[RoundResult]:
            return executor.begin(lambda: group.begin(values, 1.0, overlaps=ledger.overlaps), lambda end: end())

        try:
            _train(ledger, member, reduce)
        finally:
            executor.close()

    def prepare(plan: Plan) -> None:
        for member in draw.sample(members, len(members)):
            groups[member].plans.keep(plan)
            time.sleep(draw.choice([0, draw.uniform(0, 1e-3)]))
        for member in draw.sample(members, len(members)):
            groups[member].hold(plan)
        for member in draw.sample(members, len(members)):
            if (commit := groups[member].swaps.confirm(plan.epoch)) is not None:
                commits.append(roots.submit(commit))

    commits: list[Future[None]] = []
    with ThreadPoolExecutor(thread_name_prefix="root") as roots:
        try:
            _meet(train, plans(draw, ledger, make, swaps), prepare, ledger)
            for commit in commits:
                commit.result(TIMEOUT_S)
        finally:
            for group in groups.values():
                group.close()
            post.close()
    return ledger


class Over(NamedTuple):
    """A round that was waited for already."""

    done: Any

    def wait(self) -> Any:
        return self.done


def waited_for(session: sync.Session, values: torch.Tensor) -> Over:
    """A round that the caller waits for before it goes on."""
    return Over(session.allreduce(values))


def over_sockets(seed: int, swaps: int, make: MakePlan) -> Ledger:
    """A meeting of sessions over TCP, with two connections to each peer and a proxy before each member."""
    draw = random.Random(seed)
    members = names(draw.randint(LEAST_MEMBERS, MOST_MEMBERS))
    first = make(draw, members, 0)
    ledger = Ledger(first, draw.random() < 0.5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swaps-")))
        controller = stack.enter_context(Controller(folder, first, job(streams=2, round_timeout_s=TIMEOUT_S)))
        proxies = {
            member: stack.enter_context(Proxy(partial(controller.roster.__getitem__, member), draw.randrange(2**32)))
            for member in members
        }
        controller.misled = {
            member: {peer: proxy.address for peer, proxy in proxies.items() if peer != member} for member in members
        }

        def train(member: str) -> None:
            with sync.join(controller.address, member, "127.0.0.1", timeout=TIMEOUT_S) as session:
                overlapping = partial(session.allreduce, async_op=True)
                _train(ledger, member, overlapping if ledger.overlaps else partial(waited_for, session))

        def prepare(plan: Plan) -> None:
            for member in draw.sample(members, len(members)):
                controller.prepare(plan, only=[member])

        _meet(train, plans(draw, ledger, make, swaps), prepare, ledger)
    return ledger


def _meet(
    train: Callable[[str], None],
    swapped: Iterable[tuple[Plan, bool]],
    prepare: Callable[[Plan], None],
    ledger: Ledger,
) -> None:
    """Members train while plans are swapped."""
    with ThreadPoolExecutor(len(ledger.members)) as pool:
        training = [pool.submit(train, member) for member in ledger.members]
        try:
            ledger.await_epoch(0)
            for plan, waits in swapped:
                prepare(plan)
                if waits:
                    ledger.await_epoch(plan.epoch)
        finally:
            for future in training:
                future.result(TIMEOUT_S * 2)


TRANSPORTS: dict[str, Callable[[int, int, MakePlan], Ledger]] = {"post": by_post, "sockets": over_sockets}


class Found(NamedTuple):
    """How many rounds there were in a campaign, and plans that took force between rounds among all."""

    rounds: int
    early: int


def campaign(transport: str, kind: str, count: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Found:
    """As many swaps, in meetings of ever other members. AssertionError names the seed."""
    rounds = early = 0
    for first in range(0, count, SWAPS_A_MEETING):
        swaps = min(SWAPS_A_MEETING, count - first)
        case = seed + first // SWAPS_A_MEETING
        try:
            ledger = TRANSPORTS[transport](case, swaps, PLANS[kind])
            ledger.check(swaps)
        except Exception as error:
            where = f"{transport}, {kind}, --seed {case} --count {swaps}"
            raise AssertionError(f"{where}: {error}") from error
        rounds, early = rounds + ledger.rounds, early + ledger.early
        say(f"{transport}, {kind}: {first + swaps} swaps in {rounds} rounds, {early} between rounds among all")
    return Found(rounds, early)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="plans put in force, over each transport")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", choices=TRANSPORTS, action="append", help="only this one")
    parser.add_argument("--plans", choices=PLANS, action="append", help="only these")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for transport, kind in product(args.transport or TRANSPORTS, args.plans or PLANS):
        began = time.monotonic()
        found = campaign(transport, kind, args.count, args.seed, lambda said: print(said, file=sys.stderr, flush=True))
        print(
            f"{transport}, {kind}: {args.count} swaps in {found.rounds} rounds, {found.early} of them between rounds "
            f"among all, nothing lost or doubled, all members the same bits; {time.monotonic() - began:.0f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
