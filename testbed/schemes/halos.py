"""HALoS: workers push their changes to a server of their site, and sites push theirs to a global server.

No member waits for the others.

    worker    h local steps from the site's x    -- Δ = x - x after them -->  its site's server
    site      x ← delayed Nesterov(x, Δ), and back to the worker at once;
              K pushes after it last merged the global model, its x at that merge being a,
                                                 -- a - x -------------------> the global server
    global    y ← delayed Nesterov(y, a - x)     -- y ----------------------> the site
    site      x ← (1 - α)·x + α·y,  a ← x

The only wait is a worker's for its site's server, which is near. Changes that workers push while their site's push is
on its way become part of `a` when the answer comes, and so of no push to the global server: other sites see them only
through later steps. The longer the way, the more such changes there are; a large `accumulate` keeps them few.

A site's server runs in the process of the site's first worker, the global server in that of one of these. Nobody waits
for a worker, or a site of one worker, that dies. A member that comes back begins with its site's model, or with the
global one. The death of a server on which others depend ends the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from testbed.schemes.assignment import GossipAssignment, Setting, best_reached, sites_of, steps_of
from testbed.schemes.options import Checked, LocalSteps, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Advance, Participant, Send, ServedMember, Steps, Until
from testbed.sync.gossip.message import CodedElements, Message, message

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DelayedOptions(Checked):
    """Options of delayed Nesterov (see DelayedNesterov), with the authors' defaults for a site's server."""

    #: The server's learning rate.
    learning_rate: float = limited(0.2, gt=0)
    #: The server's momentum.
    momentum: float = limited(0.9, ge=0, lt=1)
    #: The momentum moves, and is used, in each Nth step.
    buffer: int = limited(16, ge=1)


@dataclass(frozen=True)
class GlobalOptions(DelayedOptions):
    """Options of delayed Nesterov, with the authors' defaults for the global server."""

    learning_rate: float = limited(0.15, gt=0)
    momentum: float = limited(0.5, ge=0, lt=1)
    buffer: int = limited(2, ge=1)


#: The authors' optimizer of a site's server.
SITE = DelayedOptions()
#: The authors' optimizer of the global server.
GLOBAL = GlobalOptions()


@dataclass(frozen=True)
class HalosOptions(LocalSteps):
    """Options of HALoS."""

    #: Local steps of the fastest worker in a push; others take as many as they can in its time (h).
    every: int = limited(8, ge=1)
    #: Workers' pushes after which a site pushes to the global server (K).
    accumulate: int = limited(32, ge=1)
    #: The fraction by which a site's model moves to the global model that comes back (α).
    merge: float = limited(0.25, gt=0, le=1)
    #: The optimizer of a site's server.
    site: DelayedOptions = SITE
    #: The optimizer of the global server.
    overall: GlobalOptions = GLOBAL
    #: The codec of what travels between sites.
    codec: Literal["fp32", "fp16", "bf16"] = "fp32"


SCHEME = Scheme(
    name="halos",
    options=HalosOptions,
    exchange="gossip",
    planned=False,
    synchronous=False,
    elastic=True,
    survives=True,
    alike=False,
    source="Kim et al., ICML 2025, arXiv 2506.04531, and the authors' code",
)


def assign(options: HalosOptions, setting: Setting) -> GossipAssignment:
    """Place a server at each site's first worker, and the global server in the site that all reach best.

    Raises:
        PolicyError: No member can be reached by all.
    """
    from testbed.planning.graphs import Graph

    members = setting.view.members
    servers = {worker: first for first, others in sites_of(setting.view).items() for worker in (first, *others)}
    centre = servers[best_reached(setting.view)]
    pairs = [*servers.items(), *((server, centre) for server in set(servers.values()))]
    return GossipAssignment(
        protocol="halos",
        graph=Graph.undirected(setting.view.names, [(one, other) for one, other in pairs if one != other]),
        rules={"centre": centre, "codec": options.codec, "sites": sorted({*servers.values()} - {centre})},
        own={worker: {"server": server} for worker, server in servers.items()},
        steps=dict(zip(setting.view.names, steps_of(members, options.every), strict=True)),
        evaluators={members[0].name: (1, 0)},
    )


@message(32)
class WorkerPush(Message):
    """To a site's server: the change by the sender's local steps, x minus x after them."""

    iteration: int
    change: Tensor


@message(33)
class SiteModel(Message):
    """From a site's server: the site's model after the receiver's push of this iteration."""

    iteration: int
    parameters: Tensor


@message(34)
class SitePush(Message):
    """To the global server: the change of the sender's site since it last merged the global model."""

    number: int
    change: CodedElements


@message(35)
class GlobalModel(Message):
    """From the global server: the global model after the site's push of this number."""

    number: int
    parameters: CodedElements


@message(36)
class Came(Message):
    """The sender joins while others train, in this iteration, and asks for its site's model, or the global one."""

    iteration: int


class DelayedNesterov:
    """Nesterov momentum for changes that come one by one, from members that began at different times.

        x ← x - η·Δ                         each change; and in each Nth
        m ← β·m + mean of the last N Δ,     x ← x - η·N·β·m

    Source: Liu et al. 2024, arXiv 2401.09135, algorithm 3 with c = 0. The authors' code (utnslab/halos) has η·N as the
    learning rate of Δ/N, which is the same. With momentum in every step, each Δ would be applied again for every other
    change that comes meanwhile. N = 1 is SGD with Nesterov momentum.

    `values` is a server's flat model. It is replaced, never written to.
    """

    def __init__(self, values: Tensor, options: DelayedOptions) -> None:
        self.values = values
        self.taken = 0
        self._options = options
        self._momentum = values.new_zeros(values.shape)
        self._sum = values.new_zeros(values.shape)

    def step(self, change: Tensor) -> None:
        """Apply a change: x before a worker's or site's steps, minus x after them."""
        rate, count = self._options.learning_rate, self._options.buffer
        self.values = self.values - rate * change
        self.taken += 1
        self._sum += change
        if self.taken % count == 0:
            self._momentum = self._options.momentum * self._momentum + self._sum / count
            self.values = self.values - rate * count * self._options.momentum * self._momentum
            self._sum.zero_()


class HalosWorker(ServedMember):
    """A worker that pushes the change by `steps` local steps to its site's `server` in each iteration, from `first`."""

    def __init__(self, name: str, server: str, parameters: Tensor, iterations: int, steps: int, first: int = 0) -> None:
        super().__init__(name, parameters, first)
        self._server = server
        self._iterations = iterations
        self._steps = steps
        self._pushed = 0
        self._answered = 0

    def program(self) -> Steps[None]:
        """Yield local steps, the push of their change, and the wait for the site's model, in each iteration."""
        yield Advance(self._first)
        if self._first:
            yield from self._fetch_model()
        for iteration in range(self._first, self._iterations):
            yield from self._enter(iteration)
            local = yield from self.local_steps(iteration, self._steps)
            self._pushed = iteration + 1
            yield Send(self._server, WorkerPush(self._pushed, self.parameters - local))
            yield Until(lambda: self._answered == self._pushed, "its site's model")
        yield from self._enter(self._iterations)

    def _fetch_model(self) -> Steps[None]:
        self._pushed = self._first
        yield Send(self._server, Came(self._first))
        yield Until(lambda: self._answered == self._first, "its site's model")

    def _enter(self, iteration: int) -> Steps[None]:
        if iteration > self._entered:
            yield Until(lambda: self.may_enter(iteration), "the end of a membership change")
            yield from self.enter(iteration)

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on without another worker. Raises ValueError if it ran this site's server, which is still needed."""
        if gone == self._server and self._entered < self._iterations:
            raise ValueError(f"{self.name} can't go on without {gone}, its site's server")
        return ()

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Set the site's model that the server sends after a push."""
        if not isinstance(message, SiteModel) or sender != self._server or message.iteration != self._pushed:
            raise self.unexpected(sender, message)
        self._answered, self.parameters = message.iteration, message.parameters
        return ()


class SiteServer(HalosWorker):
    """A worker whose process runs its site's server as well. The member `centre` runs the global server."""

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
        self._merged = 0  # pushes that had come when the global model was last merged

    def remove(self, gone: str) -> Iterable[Send]:
        """Go on without a worker or another site. Raises ValueError if it ran the global server."""
        if gone == self._centre:
            raise ValueError(f"{self.name} can't go on without {gone}, the global server")
        return ()

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Step by a worker's push, merge the global model, or answer a worker that came back."""
        match message:
            case WorkerPush(iteration, change):
                return self._take_push(sender, iteration, change)
            case Came(iteration):
                return (Send(sender, SiteModel(iteration, self._model.values)),)
            case GlobalModel(_, parameters) if sender == self._centre:
                part = self._options.merge if self._knows else 1.0
                self._model.values = self._model.values.lerp(parameters, part)
                self._anchor, self._merged, self._knows = self._model.values, self._model.taken, True
                return ()
            case _:
                return super().receive(sender, message)

    def _fetch_model(self) -> Steps[None]:
        yield Send(self._centre, Came(self._first))
        yield Until(lambda: self._knows, "the global model")
        self.parameters = self._model.values

    def _take_push(self, worker: str, iteration: int, change: Tensor) -> Iterable[Send]:
        self._model.step(change)
        yield Send(worker, SiteModel(iteration, self._model.values))
        if self._model.taken == self._merged + self._options.accumulate:
            yield Send(self._centre, SitePush(self._model.taken, self._anchor - self._model.values))


class GlobalServer(SiteServer):
    """A site's server whose process runs the global server as well.

    `sites` are the members that run the other sites' servers.
    """

    def __init__(
        self, name: str, sites: Collection[str], options: HalosOptions, parameters: Tensor, iterations: int, steps: int
    ) -> None:
        super().__init__(name, name, options, parameters, iterations, steps)
        self._sites = sites
        self._overall = DelayedNesterov(parameters, options.overall)

    def receive(self, sender: str, message: Message) -> Iterable[Send]:
        """Step by a site's push and send the global model back, or act as a site's server."""
        match message:
            case SitePush(number, change):
                self._overall.step(change)
                return (Send(sender, GlobalModel(number, self._overall.values)),)
            case Came() if sender in self._sites:
                return (Send(sender, GlobalModel(0, self._overall.values)),)
            case _:
                return super().receive(sender, message)


def build(options: HalosOptions, training: GossipTraining) -> Participant:
    """Return the participant of a worker, of a site's server, or of the one that runs the global server as well."""
    name, node = training.name, training.node
    begin, iterations, steps = training.parameters, training.iterations, node.steps
    server, centre = node.rules["server"], node.rules["centre"]
    if name == centre:
        return GlobalServer(name, node.rules["sites"], options, begin, iterations, steps)
    if name == server:
        return SiteServer(name, centre, options, begin, iterations, steps, node.first)
    return HalosWorker(name, server, begin, iterations, steps, node.first)
