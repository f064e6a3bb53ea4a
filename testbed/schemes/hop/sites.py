"""Hop between sites: one member of each site stands for it, and its step is the mean of the steps of the site.

    leader    in iteration k, where a member of Hop makes its step      worker
      SiteTask(k, x_k)  -- over the LAN ---------------------------------->  its own step at x_k
      mean of the changes  <------------------------ SiteChange(k, step)

So a site's members all-reduce at the leader, and leaders run Hop over the WAN: tokens bound how many iterations sites
get apart, whatever each of them does inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.reception import HopRules
from testbed.sync.gossip.effects import Advance, LocalCompute, Send, Step, Steps, TrainingMember, Until
from testbed.sync.gossip.message import Message, message
from testbed.sync.gossip.neighbours import Neighbours, WeightedMean

if TYPE_CHECKING:
    from torch import Tensor


@message(16)
class SiteTask(Message):
    """From a site's leader: the site's parameters in `iteration`; after the last one, the final parameters."""

    iteration: int
    parameters: Tensor


@message(17)
class SiteChange(Message):
    """From a worker to its site's leader: the change by the worker's step of `iteration`."""

    iteration: int
    change: Tensor


class _SiteStep(Step):
    """The mean of a site's local steps, done when the leader and all workers that are left have made theirs."""

    def __init__(self, own: Step, workers: list[str], changes: dict[str, Tensor]) -> None:
        super().__init__()
        self._own = own
        self._workers = workers
        self._changes = changes

    @property
    def done(self) -> bool:
        return self._own.done and set(self._workers) <= self._changes.keys()

    @property
    def change(self) -> Tensor:
        average = WeightedMean()
        for change in (self._own.change, *self._changes.values()):
            average.add(change, 1.0)
        return average.value


class SiteLeader(HopMember):
    """A site's leader: a member of Hop among the leaders of all sites, whose steps are its site's mean steps.

    `workers` are the site's other members; the other arguments are those of HopMember.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        rules: HopRules,
        parameters: Tensor,
        iterations: int,
        workers: Sequence[str],
        first: int = 0,
    ) -> None:
        super().__init__(neighbours, rules, parameters, iterations, first)
        self._workers = list(workers)
        self._changes: dict[int, dict[str, Tensor]] = defaultdict(dict)

    def program(self) -> Steps[None]:
        """Yield the effects of a member of Hop, with the site's steps for its own."""
        program, answer = super().program(), None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                break
            if isinstance(effect, LocalCompute):
                answer = yield from self._begin(effect)
            else:
                answer = yield effect
        yield from self._tell(SiteTask(self._iterations, self.parameters))

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Keep a worker's change; take another message as a member of Hop."""
        if not isinstance(message, SiteChange):
            return super().receive(sender, message)
        self._changes[message.iteration][sender] = message.change
        return ()

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on without a worker of the site, or without another site's leader."""
        if gone not in self._workers:
            return super().remove(gone)
        self._workers.remove(gone)
        return ()

    def _begin(self, compute: LocalCompute) -> Steps[Step]:
        for iteration in [past for past in self._changes if past < compute.iteration]:
            del self._changes[iteration]
        yield from self._tell(SiteTask(compute.iteration, compute.parameters))
        own: Step = yield compute
        return _SiteStep(own, self._workers, self._changes[compute.iteration])

    def _tell(self, task: SiteTask) -> Steps[None]:
        for worker in tuple(self._workers):
            yield Send(worker, task)


class SiteWorker(TrainingMember):
    """A site's other worker: makes a step at the parameters of each iteration that its leader sends.

    The leader may leap over iterations. The worker ends with its leader, at the leader's last parameters.
    """

    def __init__(self, name: str, leader: str, parameters: Tensor, iterations: int) -> None:
        """Follow the `leader` for `iterations` iterations."""
        super().__init__(name, parameters)
        self._leader = leader
        self._iterations = iterations
        self._tasks: list[SiteTask] = []

    @property
    def patience(self) -> int:
        """Four: in one iteration the leader waits for acknowledgements, the site's step, an update and a token."""
        return 4

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Keep the leader's task until the program comes to it."""
        if not isinstance(message, SiteTask):
            raise self.unexpected(sender, message)
        self._tasks.append(message)
        return ()

    def program(self) -> Steps[None]:
        """Yield the effects of a step for each task."""
        iteration = -1
        while iteration < self._iterations:
            yield Until(lambda: bool(self._tasks), f"the next iteration of {self._leader}")
            task = self._tasks.pop(0)
            iteration, self.parameters = task.iteration, task.parameters
            if iteration < self._iterations:
                change = yield from self.local_step(iteration)
                yield Send(self._leader, SiteChange(iteration, change))
        yield Advance(iteration)

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on without another site's member. Raises ValueError where it is this site's leader."""
        if gone == self._leader:
            raise ValueError(f"{self.name} can't go on without {gone}, which stands for its site")
        return ()
