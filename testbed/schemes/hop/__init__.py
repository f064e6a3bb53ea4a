"""Hop: decentralized training in which tokens bound the gap between members.

Members need not wait for their slowest neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from testbed.protocol import NodeConfiguration
from testbed.schemes.assignment import GossipAssignment, Setting, graph_of, sites_of
from testbed.schemes.hop.member import HopMember
from testbed.schemes.hop.reception import HopRules
from testbed.schemes.hop.sites import SiteLeader, SiteWorker
from testbed.schemes.options import Checked, InGraph, Misfit, limited
from testbed.schemes.scheme import Scheme
from testbed.schemes.training import GossipTraining
from testbed.sync.gossip.effects import Participant

if TYPE_CHECKING:
    import torch

    from testbed.sync.gossip import Membership
    from testbed.sync.rendezvous import Rendezvous

__all__ = ["SCHEME", "HopOptions", "Skip", "assign", "build", "join"]


@dataclass(frozen=True)
class Skip(Checked):
    """How a member that lags skips iterations. Its lag follows from the leads of its out-neighbours."""

    #: The most iterations that a member leaps at once.
    jump: int = limited(ge=2, le=1000)
    #: The lag is the minimum of the leads, or their quantile: the fraction of out-neighbours that may have a smaller
    #: lead (0.75: three quarters).
    rule: Literal["min"] | float = "min"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule != "min" and not 0 < self.rule <= 1:
            raise Misfit("rule", f"is {self.rule}", "min, or a number above 0 and up to 1, such as 0.75")

    @property
    def quantile(self) -> float:
        """The rule as a quantile, which is 0 for the minimum."""
        return 0.0 if isinstance(self.rule, str) else self.rule


@dataclass(frozen=True)
class HopOptions(InGraph):
    """Options of Hop; HopRules has the meaning of each mode."""

    #: The rule by which members weigh the parameters that they average; by default `uniform`.
    weights: Literal["uniform", "metropolis"] | None = None
    #: Take the local step before the average (serial), or beside it (parallel).
    form: Literal["serial", "parallel"] = "serial"
    #: With notify_ack a member sends only after its out-neighbours have acknowledged the last update.
    mode: Literal["standard", "notify_ack"] = "standard"
    #: The number of an iteration's updates for which a member does not wait.
    backup: int = limited(0, ge=0)
    #: Tokens keep a member at most this many iterations ahead of an out-neighbour; by default there are no tokens.
    max_ig: int | None = limited(None, ge=1, le=10_000)
    #: Iterations by which a neighbour's newest update may be behind.
    staleness: int = limited(0, ge=0, le=10_000)
    #: How members that lag leap over iterations; by default they do not.
    skip: Skip | None = None
    #: The nodes of the graph: all workers, or the first worker of each site, which stands for its site.
    between: Literal["workers", "sites"] = "workers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.between == "sites" and self.graph == "network":
            raise Misfit("between", "`graph: network` has fast pairs of workers, not of sites", "`between: workers`")
        if self.backup and self.staleness:
            raise Misfit("staleness", "backup already says what a member does not wait for", "one of the two")
        if self.mode == "notify_ack" and (self.backup or self.staleness or self.max_ig is not None):
            raise Misfit("mode", "notify_ack holds members back by itself", "no max_ig, backup or staleness with it")
        if self.backup and self.max_ig is None:
            raise Misfit("backup", "nothing would bound the updates that a slow member queues", "`max_ig: 4` with it")
        if self.skip and not (self.max_ig and (self.backup or self.staleness)):
            rule = "without tokens no member knows its lag, and without backup or staleness no lag reaches two"
            raise Misfit("skip", rule, "`max_ig: 4` and `backup: 1` (or `staleness: 1`) with it")

    @property
    def gap(self) -> Mapping[str, Any]:
        """The options that bound how many iterations members get apart."""
        return {
            "max_ig": self.max_ig,
            "backup": self.backup,
            "staleness": self.staleness,
            "notify_ack": self.mode == "notify_ack",
        }

    def check_graph(self, fewest: int) -> None:
        """Raise Misfit if `backup` is above `fewest`, the least number of in-neighbours of any member."""
        if self.backup > fewest:
            rule = f"{self.backup}, where some member has {fewest} in-neighbours"
            raise Misfit("backup", rule, f"{fewest} at most")

    def check_elastic(self) -> None:
        """Raise Misfit where a lost worker could be the one that stands for its site."""
        if self.between == "sites":
            raise Misfit("between", "a lost worker that stands for its site can't be replaced", "`between: workers`")


SCHEME = Scheme(
    name="hop",
    options=HopOptions,
    exchange="gossip",
    planned=False,
    elastic=True,
    survives=True,
    alike=False,
    source="Luo et al. 2019, arXiv 1902.01064",
)


def assign(options: HopOptions, setting: Setting) -> GossipAssignment:
    """Give members, or the first of each site, their neighbours and rules.

    Raises:
        GraphError: The workers make no such graph.
    """
    sites = sites_of(setting.view) if options.between == "sites" else {}
    return GossipAssignment(
        protocol="hop",
        graph=graph_of(options, setting, tuple(sites)),
        sites=sites,
        weighing=options.weights or "uniform",
        rules={
            "max_ig": options.max_ig,
            "backup": options.backup,
            "staleness": options.staleness,
            "max_jump": options.skip.jump if options.skip else 1,
            "quantile": options.skip.quantile if options.skip else 0.0,
            "notify_ack": options.mode == "notify_ack",
            "parallel": options.form == "parallel",
        },
    )


def build(options: InGraph, training: GossipTraining) -> Participant:
    """Return a member, a site's leader, or a worker of a site, by the rules of its node configuration.

    Raises:
        ValueError: The member has too few neighbours for the rules.
    """
    node, parameters, iterations = training.node, training.parameters, training.iterations
    if node.protocol == "worker":
        return SiteWorker(training.name, node.rules["leader"], parameters, iterations)
    rules = HopRules(**{name: value for name, value in node.rules.items() if name != "site"})
    if node.protocol == "leader":
        return SiteLeader(training.neighbours, rules, parameters, iterations, node.rules["site"], node.first)
    return HopMember(training.neighbours, rules, parameters, iterations, node.first)


def join(
    name: str,
    parameters: Sequence[torch.Tensor],
    iterations: int | None = None,
    *,
    peers: Mapping[str, str] | None = None,
    control: str = "",
    listen: str = "",
    device: str = "cpu",
    timeout: float = 120.0,
    token: str = "",
    tls: str | Path | None = None,
    **options: Any,
) -> Membership:
    """Become a member of Hop: among `peers` alone, or in the run of a controller.

        with hop.join("paris", parameters, 200, peers=peers, token=token, max_ig=4) as membership:
            membership.train_model(parameters, step)

    Args:
        name: This member's name.
        parameters: The model's parameters, from which the member starts; float32.
        iterations: Iterations to train for; with a controller, its job says how many.
        peers: Each member's address by name; this and the other arguments are those of `testbed.sync.gossip.join`.
        control: The controller's address, in place of `peers`.
        listen: The address to accept connections at.
        device: The device that the member trains on.
        timeout: The longest wait in seconds for a neighbour.
        token: The secret of all members, or with a controller the member's own.
        tls: The folder with this member's certificate.
        **options: Among peers alone, the options of Hop as an experiment has them under `sync`, the same at all
            members; the graph is over the members in the order of their names.

    Raises:
        ValueError: The arguments contradict each other, the members make no such graph, or the controller's run has
            another scheme.
        SyncError, TlsError: As `testbed.sync.gossip.join`.
    """
    from testbed.sync import flat, gossip

    if control and (options or iterations is not None):
        raise ValueError("the controller gives iterations and options: leave them out beside control=")
    if peers is not None and iterations is None:
        raise ValueError("write iterations=, how many to train for")
    start = flat.gather(parameters).cpu()
    chosen = SCHEME.read(options)
    assert isinstance(chosen, HopOptions)
    own = None if peers is None else _node_among(chosen, tuple(sorted({*peers, name})), name, len(start))

    def program(met: Rendezvous) -> Participant:
        if own is None and met.job.assignment.get("protocol") not in ("hop", "leader", "worker"):
            raise ValueError(f"the run's scheme is {met.job.scheme}, and hop.join takes part in hop and dpsgd alone")
        count = met.job.rounds if iterations is None else iterations
        return build(chosen, GossipTraining(name, (*met.welcome.roster,), own or met.node, start, count, met.job.seed))

    return gossip.join(
        program,
        name,
        peers=peers,
        partners=None if own is None else own.partners,
        control=control,
        listen=listen,
        device=device,
        timeout=timeout,
        token=token,
        tls=tls,
        survives=SCHEME.survives,
    )


def _node_among(options: HopOptions, members: tuple[str, ...], name: str, elements: int) -> NodeConfiguration:
    """Return the node configuration of a member where no controller assigns it and nothing is known of the network.

    Raises:
        ValueError: The options take the graph from the network, or the members make no such graph.
    """
    from testbed.planning.view import Member, View

    if options.graph == "network":
        raise Misfit("graph", "members among peers alone know no rates of their network", "`graph: ring`")
    known = tuple(Member(member, site=member, speed=1.0, uplink="", downlink="") for member in members)
    return assign(options, Setting(view=View(known, {}, {}, {}, model_bytes=4 * elements))).node(name)
