"""Plans swapped at random among members that reduce at the same time: `python -m tests.sync.swaps --count 2000`.

Plans are trees over random connected graphs. Each is prepared at a random moment, at one member after the other, and
sometimes before the previous plan is in force. Frames are delayed and reordered at random: by a transport inside the
process (`--transport process`), or by proxies before members that use TCP (`--transport sockets`). The mean alone tells
whose updates it holds: member i contributes d · 4^i to each element, with d from 1 to 3 by member and round. So the
i-th digit of the sum in base 4 is member i's contribution, and float32 holds the sum exactly. `--seed N` replays a case
that failed.

With `--plans grouped` most plans have random groups, and a round among all in each second to ninth round. Most of these
plans come into force between rounds among all; sometimes their root can't reach a member, or gets no answer from it,
and leaves the plan to the next round among all.
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
from testbed.sync.transport.handshake import TransportSettings
from tests.sync.controller import Controller, job
from tests.sync.delayed_network import DelayedNetwork
from tests.sync.plans import names, plan_over_graph, random_groups
from tests.sync.proxy import Proxy
from tests.waiting import PATIENCE_S

#: The plan after whose first round all members end.
LAST = 1_000_000
#: The elements of the tensors that are reduced in turn, like a model's buckets.
ELEMENTS = (1500, 400, 900)
TIMEOUT_S = PATIENCE_S
#: The swaps of a case. Each case has other members.
SWAPS_PER_CASE = 50
LEAST_MEMBERS, MOST_MEMBERS = 3, 8
#: The part of the plans after which the next one is prepared before they are in force.
OVERTAKEN = 0.2


class RoundChecker:
    """Checks each member's means of all rounds. Any thread may call.

    Attributes:
        plans: The plans by epoch.
        early: The number of plans that came into force after a round inside groups.
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
        """Return a member's values in a round."""
        elements = ELEMENTS[number % len(ELEMENTS)]
        return torch.full((elements,), float(self._share(self.members.index(member), number)))

    def note(self, member: str, number: int, epoch: int, mean: torch.Tensor, lost: int, duplicated: int) -> None:
        """Check the result of a round at a member."""
        plan = self.plans[epoch]
        [group] = [its.members for its in plan.groups_in(number) if member in its.members]
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
        """Wait until a round has used the plan of `epoch`. Raises TimeoutError after TIMEOUT_S."""
        with self._changed:
            if not self._changed.wait_for(lambda: epoch in self.in_force or self.wrong, TIMEOUT_S):
                raise TimeoutError(f"epoch {epoch} did not come into force")

    def check(self, swaps: int) -> None:
        """Assert that all means were right, and that `swaps` plans came into force."""
        assert not self.wrong, self.wrong[:3]
        assert not self._open, f"rounds {sorted(self._open)} are not over at all members"
        assert len(self.in_force - {0, LAST}) >= swaps

    @staticmethod
    def _share(index: int, number: int) -> int:
        return ((index + number) % 3 + 1) << 2 * index


#: Makes a plan of an epoch among members.
MakePlan = Callable[[random.Random, tuple[str, ...], int], Plan]


def grouped_plan(draw: random.Random, members: tuple[str, ...], epoch: int) -> Plan:
    """Return a plan, three of four with groups, whose rounds among all are up to nine rounds apart."""
    plan = plan_over_graph(draw, members, epoch)
    if epoch == LAST or not draw.randrange(4):
        return plan
    return replace(random_groups(draw, plan), period=draw.randint(2, 9))


PLANS: dict[str, MakePlan] = {"whole": plan_over_graph, "grouped": grouped_plan}


def plans(draw: random.Random, checker: RoundChecker, make: MakePlan, swaps: int) -> Iterator[tuple[Plan, bool]]:
    """Yield the plans to prepare, up to the last, and whether to wait until each is in force."""
    epoch = 0
    while swaps:
        epoch += 1
        waits = draw.random() >= OVERTAKEN
        swaps -= waits
        checker.plans[epoch] = make(draw, checker.members, epoch)
        yield checker.plans[epoch], waits
    checker.plans[LAST] = make(draw, checker.members, LAST)
    yield checker.plans[LAST], True


def _train(checker: RoundChecker, member: str, reduce: Callable[[torch.Tensor], Work[Any] | Over]) -> None:
    """Run rounds up to the second one under the last plan.

    Every other member has two rounds at a time, unless the checker's rounds don't overlap: then the members may agree
    on a plan up to the end of a round.
    """
    ahead = checker.members.index(member) % 2 if checker.overlaps else 0
    begun: deque[tuple[torch.Tensor, Work[Any] | Over]] = deque()
    asked, over, last = 0, 0, sys.maxsize
    while over < last:
        while asked < last and len(begun) <= ahead:
            asked += 1
            values = checker.contribution(member, asked)
            begun.append((values, reduce(values)))
        values, work = begun.popleft()
        done = work.wait()
        over += 1
        checker.note(member, over, done.epoch, values, done.lost, done.duplicated)
        if done.epoch == LAST:
            last = min(last, over + 1)


def inside_process(seed: int, swaps: int, make: MakePlan) -> RoundChecker:
    """Run a case whose members are threads and send frames through no socket."""
    draw = random.Random(seed)
    members = names(draw.randint(LEAST_MEMBERS, MOST_MEMBERS))
    first, network = make(draw, members, 0), DelayedNetwork(seed)
    checker = RoundChecker(first, draw.random() < 0.5)
    roster = dict.fromkeys(members, ("", 0))
    groups = {
        member: AllReduceGroup(first, TransportSettings(member, {}, TIMEOUT_S), roster, make_outbox=network.outbox)
        for member in members
    }
    for group in groups.values():
        network.add(group)
        group.swaps.connect = network.connect

    def train(member: str) -> None:
        group, executor = groups[member], AsyncExecutor(member)

        def reduce(values: torch.Tensor) -> Work[RoundResult]:
            return executor.begin(lambda: group.begin(values, 1.0, overlaps=checker.overlaps))

        try:
            _train(checker, member, reduce)
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
            _run_case(train, plans(draw, checker, make, swaps), prepare, checker)
            for commit in commits:
                commit.result(TIMEOUT_S)
        finally:
            for group in groups.values():
                group.close()
            network.close()
    return checker


class Over(NamedTuple):
    """The work of a round that has ended."""

    done: Any

    def wait(self) -> Any:
        return self.done


def waited_for(session: sync.Session, values: torch.Tensor) -> Over:
    """Run a round to its end."""
    return Over(session.allreduce(values))


def over_sockets(seed: int, swaps: int, make: MakePlan) -> RoundChecker:
    """Run a case of sessions over TCP, with two connections to each peer and a proxy before each member."""
    draw = random.Random(seed)
    members = names(draw.randint(LEAST_MEMBERS, MOST_MEMBERS))
    first = make(draw, members, 0)
    checker = RoundChecker(first, draw.random() < 0.5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swaps-")))
        controller = stack.enter_context(Controller(folder, first, job(streams=2, round_timeout_s=TIMEOUT_S)))
        proxies = {
            member: stack.enter_context(Proxy(partial(controller.roster.__getitem__, member), draw.randrange(2**32)))
            for member in members
        }
        controller.false_rosters = {
            member: {peer: proxy.address for peer, proxy in proxies.items() if peer != member} for member in members
        }

        def train(member: str) -> None:
            with sync.join(controller.address, member, "127.0.0.1", timeout=TIMEOUT_S) as session:
                overlapping = partial(session.allreduce, async_op=True)
                _train(checker, member, overlapping if checker.overlaps else partial(waited_for, session))

        def prepare(plan: Plan) -> None:
            for member in draw.sample(members, len(members)):
                controller.prepare(plan, only=[member])

        _run_case(train, plans(draw, checker, make, swaps), prepare, checker)
    return checker


def _run_case(
    train: Callable[[str], None],
    swapped: Iterable[tuple[Plan, bool]],
    prepare: Callable[[Plan], None],
    checker: RoundChecker,
) -> None:
    """Let all members train while plans are swapped."""
    with ThreadPoolExecutor(len(checker.members)) as pool:
        training = [pool.submit(train, member) for member in checker.members]
        try:
            checker.await_epoch(0)
            for plan, waits in swapped:
                prepare(plan)
                if waits:
                    checker.await_epoch(plan.epoch)
        finally:
            for future in training:
                future.result(TIMEOUT_S * 2)


TRANSPORTS: dict[str, Callable[[int, int, MakePlan], RoundChecker]] = {
    "process": inside_process,
    "sockets": over_sockets,
}


class Found(NamedTuple):
    """The number of rounds of a campaign, and of plans that came into force between rounds among all."""

    rounds: int
    early: int


def campaign(transport: str, kind: str, count: int, seed: int, say: Callable[[str], None] = lambda _: None) -> Found:
    """Run `count` swaps, in cases with other members each. An AssertionError names the seed."""
    rounds = early = 0
    for first in range(0, count, SWAPS_PER_CASE):
        swaps = min(SWAPS_PER_CASE, count - first)
        case = seed + first // SWAPS_PER_CASE
        try:
            checker = TRANSPORTS[transport](case, swaps, PLANS[kind])
            checker.check(swaps)
        except Exception as error:
            where = f"{transport}, {kind}, --seed {case} --count {swaps}"
            raise AssertionError(f"{where}: {error}") from error
        rounds, early = rounds + checker.rounds, early + checker.early
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
