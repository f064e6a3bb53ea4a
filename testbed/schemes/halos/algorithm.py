"""HALoS (Kim et al. 2025, arXiv 2506.04531; as the authors' code, utnslab/halos, has it).

    worker    h local steps from the site's x    -- Δ = x - x after them -->  its site's server
    site      x ← delayed Nesterov(x, Δ), and back to the worker at once;
              K pushes after it last took in the model of all, of what it was then, a
                                                 -- a - x -------------------> the server of all
    all       y ← delayed Nesterov(y, a - x)     -- y ----------------------> the site
    site      x ← (1 - α)·x + α·y,  a ← x

Nobody waits but a worker for its site's server, which is near. What workers push while a site's own push is on its way
is in a when the answer comes, and so in no push to the server of all: others learn of it by later steps alone. Long
ways cost a site the more of what it learns, which a large `accumulate` keeps small.

A site's server lives with the site's first worker, the server of all with one of these. A worker that dies is missed
by nobody, nor is a site of one; what comes back begins with its site's model, or with that of all. Nobody goes on
without a server on which others hang.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor

from testbed.schemes.halos import HalosOptions
from testbed.schemes.halos.delayed_nesterov import DelayedNesterov
from testbed.schemes.halos.messages import Came, GlobalModel, SiteModel, SitePush, WorkerPush
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, LocalCompute, Participant, Send, Step, Steps, Until
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.served import ServedMember


class HalosWorker(ServedMember):
    """Makes pushes of `steps` local steps each to its site's `server`, one in each of `iterations`, from `first` on."""

    def __init__(self, name: str, server: str, parameters: Tensor, iterations: int, steps: int, first: int = 0) -> None:
        super().__init__(name, parameters, first)
        self._server = server
        self._iterations = iterations
        self._steps = steps
        self._pushed = 0
        self._answered = 0

    def program(self) -> Steps[None]:
        yield Advance(self._first)
        if self._first:
            yield from self._come()
        for iteration in range(self._first, self._iterations):
            yield from self._enter(iteration)
            local = self.parameters
            for number in range(iteration * self._steps, (iteration + 1) * self._steps):
                step: Step = yield LocalCompute(local, number)
                yield from self.finished(step, number)
                local = local + step.change
            self._pushed = iteration + 1
            yield Send(self._server, WorkerPush(self._pushed, self.parameters - local))
            yield Until(lambda: self._answered == self._pushed, "its site's model")
        yield from self._enter(self._iterations)

    def _come(self) -> Steps[None]:
        self._pushed = self._first
        yield Send(self._server, Came(self._first))
        yield Until(lambda: self._answered == self._first, "its site's model")

    def _enter(self, iteration: int) -> Steps[None]:
        if iteration > self._entered:
            yield Until(lambda: self.may_enter(iteration), "word of who comes")
            yield from self.enter(iteration)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        if not isinstance(message, SiteModel) or sender != self._server or message.iteration != self._pushed:
            raise self.unexpected(sender, message)
        self._answered, self.parameters = message.iteration, message.parameters
        return ()


class SiteServer(HalosWorker):
    """A worker whose process runs its site's server as well; the server of all is with the member `centre`."""

    def __init__(
        self,
        name: str,
        centre: str,
        options: HalosOptions,
        parameters: Tensor,
        iterations: int,
        steps: int,
        first: int = 0,
    ) -> None:
        super().__init__(name, name, parameters, iterations, steps, first)
        self._knows = not first
        self._centre = centre
        self._options = options
        self._model = DelayedNesterov(parameters, options.site)
        self._anchor = parameters
        self._merged = 0  # pushes that had come when the model of all was last taken in

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case WorkerPush(iteration, change):
                return self._learn(sender, iteration, change)
            case Came(iteration):
                return (Send(sender, SiteModel(iteration, self._model.values)),)
            case GlobalModel(_, parameters) if sender == self._centre:
                part = self._options.merge if self._knows else 1.0
                self._model.values = self._model.values.lerp(parameters, part)
                self._anchor, self._merged, self._knows = self._model.values, self._model.taken, True
                return ()
            case _:
                return super().receive(sender, message)

    def _come(self) -> Steps[None]:
        yield Send(self._centre, Came(self._first))
        yield Until(lambda: self._knows, "the model of all")
        self.parameters = self._model.values

    def _learn(self, worker: str, iteration: int, change: Tensor) -> Iterable[Send]:
        self._model.step(change)
        yield Send(worker, SiteModel(iteration, self._model.values))
        if self._model.taken == self._merged + self._options.accumulate:
            yield Send(self._centre, SitePush(self._model.taken, self._anchor - self._model.values))


class GlobalServer(SiteServer):
    """The site's server whose process runs that of all as well."""

    def __init__(
        self, name: str, sites: Collection[str], options: HalosOptions, parameters: Tensor, iterations: int, steps: int
    ) -> None:
        """`sites` are the members with whom the other sites' servers are."""
        super().__init__(name, name, options, parameters, iterations, steps)
        self._sites = sites
        self._overall = DelayedNesterov(parameters, options.overall)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        match message:
            case SitePush(number, change):
                self._overall.step(change)
                return (Send(sender, GlobalModel(number, self._overall.values)),)
            case Came() if sender in self._sites:
                return (Send(sender, GlobalModel(0, self._overall.values)),)
            case _:
                return super().receive(sender, message)


def build(options: HalosOptions, training: GossipTraining) -> Participant:
    """A worker, its site's server, or the one that runs the server of all as well."""
    name, node = training.name, training.node
    begin, iterations, steps = training.parameters, training.iterations, node.steps
    server, centre = node.rules["server"], node.rules["centre"]
    if name == centre:
        return GlobalServer(name, node.rules["sites"], options, begin, iterations, steps)
    if name == server:
        return SiteServer(name, centre, options, begin, iterations, steps, node.first)
    return HalosWorker(name, server, begin, iterations, steps, node.first)
