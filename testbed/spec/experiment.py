"""Experiment files: a topology, what is trained on it, how it synchronizes, and what happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from testbed.link import NoSuchLink, find_link, link_name
from testbed.resources import preset_or_file
from testbed.schemes import SCHEMES
from testbed.schemes.options import Misfit
from testbed.spec.compute import ComputeSection
from testbed.spec.errors import Fault, SpecError
from testbed.spec.event import Event
from testbed.spec.load import Source, Strict, misfit, parse_yaml, read_kind, validate
from testbed.spec.program import ProgramSection
from testbed.spec.sync import SyncField, read_sync
from testbed.spec.topology import MAX_SCALE, MIN_SCALE, Topology
from testbed.spec.units import Duration
from testbed.trace.speed import Speeds
from testbed.trace.trace import LEAST_RATE_BPS, MOST_RATE_BPS, TraceError

Model = Literal["cnn", "svm", "gpt-small", "gpt", "gpt-medium", "synthetic"]

#: What each model may learn from, the first unless another is named; a data set that does not fit is an error.
_TEXTS = ("text", "documentation")
DATASETS: Mapping[str, tuple[str, ...]] = {
    "cnn": ("digits",),
    "svm": ("digits",),
    "gpt-small": _TEXTS,
    "gpt": _TEXTS,
    "gpt-medium": _TEXTS,
    "synthetic": ("none",),
}

#: Parameters of the models that have a size of their own; planning knows a round's bytes by it before it begins.
PARAMETERS = {"cnn": 151_306, "svm": 650, "gpt-small": 116_864, "gpt": 825_856, "gpt-medium": 2_716_800}
#: Of a GPT: its blocks, their width, and the elements of a block's matrices and those in and out of them, in widths.
_GPTS = {"gpt-small": (2, 64), "gpt": (4, 128), "gpt-medium": (6, 192)}
_MATRICES, _SIDES = 12, 16
#: The text's characters that the documentation does not have: each is a row of the embedding and one of the head.
_FEWER_CHARACTERS = 7


RATES_IN_WORDS = f"from {LEAST_RATE_BPS:g} to {MOST_RATE_BPS:g} bit/s"


class OptimizerSection(Strict):
    name: Literal["sgd", "adam", "adamw", "muon"] = "adam"
    learning_rate: float = Field(default=2e-3, gt=0)


class PartitionSection(Strict):
    """How the training data is cut over the workers: evenly at random, by Dirichlet draws over labels, by label, or by
    Dirichlet draws for the sites, whose workers share evenly."""

    kind: Literal["iid", "dirichlet", "classes", "sites"] = "iid"
    alpha: float = Field(default=1.0, ge=1e-3, le=1e6)


class TrainSection(Strict):
    """What is trained. `parameters` sizes the `synthetic` model, whose gradients are random but sent for real.

    With a `rank` a GPT's matrices stay as the seed draws them and learn changes of that rank (LoRA), which travel.
    """

    model: Model
    dataset: Literal["digits", "text", "documentation", "none"] | None = None
    batch: int = Field(default=32, ge=1, le=1_000_000)
    optimizer: OptimizerSection = OptimizerSection()
    rounds: int = Field(ge=1, lt=2**31)
    partition: PartitionSection = PartitionSection()
    evaluate_every: int = Field(default=10, ge=1)
    parameters: int | None = Field(default=None, ge=1, le=10**11)
    rank: int | None = Field(default=None, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        fitting = DATASETS[self.model]
        if self.dataset not in (None, *fitting):
            raise misfit("dataset", f"the model {self.model} does not learn from {self.dataset}", " or ".join(fitting))
        if (self.model == "synthetic") != (self.parameters is not None):
            raise misfit("parameters", "goes with `model: synthetic`, and only there", "both, or neither")
        if self.rank is not None:
            if self.model not in _GPTS:
                raise misfit(
                    "rank", f"the model {self.model} has no matrices that learn by low rank", "a GPT, or no rank"
                )
            if (width := _GPTS[self.model][1]) <= self.rank:
                raise misfit("rank", f"{self.rank} is no low rank of matrices of {width} rows", f"below {width}")
        return self

    @property
    def data(self) -> str:
        """What is learned from."""
        return self.dataset or DATASETS[self.model][0]

    @property
    def model_bytes(self) -> int:
        """What one member contributes to a round: the gradient in fp32."""
        if self.parameters or self.model not in _GPTS:
            return 4 * (self.parameters or PARAMETERS[self.model])
        blocks, width = _GPTS[self.model]
        spared = 2 * width * _FEWER_CHARACTERS if self.data == "documentation" else 0
        if self.rank:
            spared += blocks * width * (_MATRICES * width - _SIDES * self.rank)
        return 4 * (PARAMETERS[self.model] - spared)


def read_train(value: Any) -> Any:
    """A file's value of `train` as what it is: a program, where it has a command, or a model of ours."""
    if isinstance(value, TrainSection | ProgramSection):
        return value
    program = isinstance(value, Mapping) and "command" in value
    return (ProgramSection if program else TrainSection).model_validate(value)


TrainField = Annotated[TrainSection | ProgramSection, BeforeValidator(read_train)]


class ControllerSection(Strict):
    """When another plan is adopted: replanned every `period`, its predicted gain above `margin`, and the plan in
    force at least `dwell` rounds old.

    With `hold` the first plan stays, unless an event of the experiment makes it impossible, and no member probes. Where
    `knowledge` is `oracle` the controller is told each `period` what links truly carry, in place of what its members
    measure: re-planning is compared with both.
    """

    period: Duration = Field(default=2.0, ge=0.1)
    margin: float = Field(default=0.1, ge=0, lt=1)
    dwell: int = Field(default=3, ge=1)
    hold: bool = False
    knowledge: Literal["measured", "oracle"] = "measured"


class ElasticSection(Strict):
    """Members may be lost while the others train, as long as `quorum` of them are left.

    A worker whose container died is started anew and comes back (`lost: restart`), or stays away (`leave`). One that
    does not renew its lease for `lease` counts as lost as well; members that gossip have none.
    """

    quorum: int = Field(ge=1)
    lost: Literal["restart", "leave"] = "restart"
    lease: Duration = Field(default=5.0, ge=0.5)


def _hosts(value: object) -> object:
    """`all`, a list of hosts, or site → host."""
    if value == "all" or isinstance(value, list | dict):
        return value
    raise ValueError(f"{value!r} names no hosts | all, a list such as [a, b], or sites with their hosts, {{paris: a}}")


HostsField = Annotated[
    Literal["all"] | Annotated[list[str], Field(min_length=1)] | dict[str, str], BeforeValidator(_hosts)
]


class ExperimentFile(Strict):
    """The file as written.

    `hosts` splits the network over hosts of the hosts file: all of them, those of a list, or, site by site, those of a
    mapping; where the others' sites go is then found.

    Under `transport: fitted` workers' TCP buffers are as large as the network's paths need, under `kernel` as they are.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    topology: str
    scale: float = Field(default=1.0, ge=MIN_SCALE, le=MAX_SCALE)
    backend: Literal["auto", "netem", "userspace"] = "auto"
    transport: Literal["fitted", "kernel"] = "fitted"
    train: TrainField
    compute: ComputeSection = ComputeSection()
    sync: SyncField = read_sync({})
    controller: ControllerSection = ControllerSection()
    elastic: ElasticSection | None = None
    hosts: HostsField | None = None
    events: list[Event] = Field(default_factory=list)
    seed: int = Field(default=1, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _fits_a_program(self) -> Self:
        given = [name for name in ("compute", "sync", "controller", "elastic") if name in self.model_fields_set]
        if self.program is not None and given:
            raise misfit(given[0], "is for training that is ours, and `train` has a command", "leave it out")
        return self

    @model_validator(mode="after")
    def _steps_as_the_scheme_does(self) -> Self:
        inner = self.sync.scheme.inner
        if inner and isinstance(self.train, TrainSection) and self.train.optimizer.name != inner:
            rule = f"the strategy {self.sync.strategy} has its members step by {inner}"
            raise misfit("train.optimizer.name", rule, f"`optimizer: {{name: {inner}}}`")
        return self

    @property
    def program(self) -> ProgramSection | None:
        """What is trained where that is not ours."""
        return self.train if isinstance(self.train, ProgramSection) else None

    @property
    def own_train(self) -> TrainSection:
        """What is trained where that is ours; TypeError where it is not."""
        if not isinstance(self.train, TrainSection):
            raise TypeError(f"{self.name} trains by a command")
        return self.train

    @property
    def round_bytes(self) -> int:
        """What one member contributes to a round, through the codec; with PowerSGD, what it would be without."""
        values = self.own_train.model_bytes / 4 * self.sync.own.round_share
        return max(1, round(values * self.sync.bytes_per_value))


@dataclass(frozen=True)
class Experiment:
    """A validated experiment: the file's values, its network at the experiment's scale, and the networks it swaps to.

    `networks` maps each `swap` event's path, as written, to its topology, `speeds` workers to the traces of theirs.
    `shortened_from` is the file's number of rounds where an override asks for fewer: its later events never come.
    """

    spec: ExperimentFile
    topology: Topology
    networks: dict[str, Topology]
    file: Path
    speeds: Mapping[str, Speeds] = field(default_factory=dict)
    shortened_from: int | None = None

    @classmethod
    def load(cls, file: Path, overrides: Mapping[str, str] | None = None) -> Experiment:
        """Return the experiment in a file, with `key.path=value` overrides, whose values are YAML.

        Args:
            file: The file's path, or the name of a preset (`quickstart`) where no such file exists.
            overrides: Texts by the dotted paths of fields.

        Raises:
            SpecError: The file, or a topology or trace that it names, is wrong.
        """
        file = preset_or_file("experiment", file)
        try:
            return cls._load(file, overrides or {})
        except SpecError as error:
            faults = Source.of(file, overrides).located(error.faults) if error.file == file else error.faults
            raise SpecError(error.file, faults) from None

    @classmethod
    def _load(cls, file: Path, overrides: Mapping[str, str]) -> Experiment:
        value = read_kind(file, "an experiment")
        written = _rounds_in(value)
        for key, text in overrides.items():
            _override(value, key, text, file)
        spec = validate(ExperimentFile, value, file, overrides)
        topology = _scaled(Topology.load(file.parent / spec.topology), spec.scale, file)
        swaps = [event.swap for event in spec.events if event.swap]
        networks = {swap: _scaled(Topology.load(file.parent / swap), spec.scale, file) for swap in swaps}
        spec = _with_policy_files(spec, file, overrides)
        spec = _with_links_named(spec, topology, networks.values())
        faults = [*_check_elastic(spec, topology), *_check_link_codecs(spec, topology)]
        faults += _check_hosts(spec, (topology, *networks.values()))
        shortened = written if written and spec.program is None and spec.own_train.rounds < written else None
        faults += [*_check_events(spec, topology, networks, shortened), *spec.compute.check(topology)]
        faults += spec.program.check(topology, file.parent) if spec.program is not None else []
        if faults:
            raise SpecError(file, faults)
        return cls(spec, topology, networks, file, spec.compute.read_speeds(topology, file), shortened)

    @property
    def name(self) -> str:
        return self.spec.name

    def link_codecs_among(self, topology: Topology) -> dict[str, str]:
        """The codecs that differ from `sync.codec`, by overlay edge of a topology's workers, `paris-w0->tokyo-w1`."""
        named = self.spec.sync.link_codecs
        return {
            f"{source.name}->{target.name}": named[sites]
            for source in topology.workers
            for target in topology.workers
            if (sites := f"{source.site}->{target.site}") in named
        }

    def check_one_host(self) -> None:
        """SpecError where it asks for several hosts, of what takes one."""
        if self.spec.hosts is not None:
            rule = "a network is split over several hosts by `testbed run` alone"
            raise SpecError(self.file, [Fault("hosts", rule, "leave it out")])

    def add_network(self, file: Path) -> Topology:
        """The network in a topology file, at the experiment's scale: from now on one of those that it may swap to.
        SpecError when it can't be."""
        topology = _scaled(Topology.load(file), self.spec.scale, self.file)
        if fault := _check_swap("swap", self.topology, topology):
            raise SpecError(file, [fault])
        self.networks[str(file)] = topology
        return topology

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file it is made of, the traces included."""
        topologies = (self.topology, *self.networks.values())
        networks = (file for topology in topologies for file in (topology.file, *topology.trace_files))
        also = self.spec.sync.options.get("also")
        policies = (self.spec.sync.policy, *(also if isinstance(also, list) else ()))
        plugins = (Path(name) for name in policies if str(name).endswith(".py"))
        return (
            self.file,
            *networks,
            *plugins,
            *(self.file.parent / name for name in self.spec.compute.speeds.values()),
        )


def _rounds_in(value: Any) -> int | None:
    """Return the number of rounds that a file asks for, before overrides; None where the file says none."""
    train = value.get("train") if isinstance(value, Mapping) else None
    rounds = train.get("rounds") if isinstance(train, Mapping) else None
    return rounds if isinstance(rounds, int) else None


def _override(value: dict[str, Any], key: str, text: str, file: Path) -> None:
    if not key.isprintable():
        raise SpecError(file, [Fault(repr(key), "is no field", "a path of field names, dots between")])
    *path, last = key.split(".")
    for part in path:
        value = value.setdefault(part, {})
        if not isinstance(value, dict):
            raise SpecError(file, [Fault(key, f"`{part}` is not a mapping", "a path of field names, dots between")])
    try:
        value[last] = parse_yaml(text)
    except yaml.YAMLError:
        raise SpecError(file, [Fault(key, f"{text!r} is not a YAML value", "a number, a word or a list")]) from None


def _scaled(topology: Topology, factor: float, file: Path) -> Topology:
    """The network at the experiment's scale, if its links can have such rates."""
    try:
        scaled = topology.scaled(factor)
    except TraceError as error:
        fault = Fault("scale", f"a trace of {topology.file} {error}", "a factor nearer to 1")
        raise SpecError(file, [fault]) from None
    for name, link in scaled.links.items():
        if not _can_be(link.state.rate_bps):
            rule = f"{name} of {topology.file} would have {link.state.rate_bps:g} bit/s"
            raise SpecError(file, [Fault("scale", rule, f"a factor that leaves it {RATES_IN_WORDS}")])
    return scaled


def _can_be(rate_bps: float) -> bool:
    """Whether a link can have this rate."""
    return LEAST_RATE_BPS <= rate_bps <= MOST_RATE_BPS


def _check_events(
    spec: ExperimentFile, topology: Topology, networks: Mapping[str, Topology], shortened: int | None
) -> list[Fault]:
    """What is wrong with the events, each against the network that is in force when it happens.

    A swap in a round comes at a time that is not known beforehand; where there is one, links are looked for in all
    networks.
    """
    known = {name for network in (topology, *networks.values()) for name in network.links}
    timed = all(event.at is not None for event in spec.events if event.swap)
    faults = []
    for number, event in sorted(enumerate(spec.events), key=lambda item: item[1].at or 0.0):
        in_force = _links_at(event, spec, topology, networks) if timed and event.at is not None else known
        faults += _check_event(f"events.{number}", event, spec, topology, networks, in_force)
        if spec.program is not None:
            faults += _check_beside_program(f"events.{number}", event)
        elif event.round is not None and event.round > (most := shortened or spec.own_train.rounds):
            rule = f"round {event.round} never comes: training has {most}"
            faults.append(Fault(f"events.{number}.round", rule, f"a round from 1 to {most}"))
    return faults


def _check_beside_program(field: str, event: Event) -> list[Fault]:
    """What can't happen to a program: nothing here knows of its rounds, or speaks to it."""
    wrong = {"round": "`at: 30s`", "kill": "an event of the network", "graph": "an event of the network"}
    return [
        Fault(f"{field}.{name}", "is for training that is ours, and `train` has a command", remedy)
        for name, remedy in wrong.items()
        if getattr(event, name) is not None
    ]


def _check_elastic(spec: ExperimentFile, topology: Topology) -> list[Fault]:
    """What of an elastic experiment can't be."""
    if spec.elastic is None:
        return []
    faults = []
    count = len(topology.workers)
    if spec.elastic.quorum > count:
        rule = f"{spec.elastic.quorum} are more than the {count} workers of {topology.file}"
        faults.append(Fault("elastic.quorum", rule, f"from 1 to {count}"))
    scheme = spec.sync.scheme
    if not scheme.elastic:
        rule = f"with the strategy {scheme.name} a lost member can't be made up for"
        able = ", ".join(other.name for other in SCHEMES.values() if other.elastic)
        faults.append(Fault("elastic", rule, f"`strategy:` one of {able}"))
    try:
        spec.sync.own.check_elastic()
    except Misfit as error:
        faults.append(Fault("elastic", error.problem, f"{error.remedy}, or no `elastic`"))
    if scheme.exchange == "gossip" and "lease" in spec.elastic.model_fields_set:
        rule = "members that gossip have none: one that hangs up is gone"
        faults.append(Fault("elastic.lease", rule, "leave it out"))
    return faults


def _check_hosts(spec: ExperimentFile, topologies: Sequence[Topology]) -> list[Fault]:
    """Sites that are to be on a host and do not exist."""
    if not isinstance(spec.hosts, dict):
        return []
    known = list(dict.fromkeys(site for topology in topologies for site in topology.sites))
    return [
        Fault(f"hosts.{site}", f"no network of this experiment has a site {site!r}", f"one of {', '.join(known)}")
        for site in spec.hosts
        if site not in known
    ]


def _with_policy_files(spec: ExperimentFile, file: Path, overrides: Mapping[str, str]) -> ExperimentFile:
    """Return the file with whole paths of the policies that are named by files. The paths begin in the experiment's
    folder, or in the current one where the command line names the policies."""

    def whole(name: str, field: str) -> str:
        folder = Path() if field in overrides else file.parent
        return str((folder / name).absolute()) if name.endswith(".py") else name

    policy, options = whole(spec.sync.policy, "sync.policy"), dict(spec.sync.options)
    if isinstance(also := options.get("also"), str | list):
        named = [also] if isinstance(also, str) else also
        options["also"] = [whole(str(name), "sync.options") for name in named]
    if policy == spec.sync.policy and options == spec.sync.options:
        return spec
    return spec.model_copy(update={"sync": spec.sync.model_copy(update={"policy": policy, "options": options})})


def _with_links_named(spec: ExperimentFile, topology: Topology, networks: Iterable[Topology]) -> ExperimentFile:
    """Return the file with the names of links as the topologies have them: `paris->tokyo` for `paris-tokyo`."""
    known = {name for network in (topology, *networks) for name in network.links}
    pairs = [link_name(a, b) for a in topology.sites for b in topology.sites] if spec.sync.link_codecs else []
    codecs = {_named(name, pairs): codec for name, codec in spec.sync.link_codecs.items()}
    sync = spec.sync.model_copy(update={"link_codecs": codecs}) if codecs else spec.sync
    return spec.model_copy(update={"events": [event.named(known) for event in spec.events], "sync": sync})


def _named(name: str, known: Sequence[str]) -> str:
    try:
        return find_link(name, known)
    except NoSuchLink:
        return name


def _check_link_codecs(spec: ExperimentFile, topology: Topology) -> list[Fault]:
    """Sites that do not exist: members send to members of any other site, whether a link joins the two or not."""
    faults = []
    for name in spec.sync.link_codecs:
        source, _, target = name.partition("->")
        if source == target or not {source, target} <= topology.sites.keys():
            rule = f"{name!r} does not lead from one site of {topology.file} to another"
            faults.append(Fault(f"sync.link_codecs.{name}", rule, f"`a->b` with two of {', '.join(topology.sites)}"))
    return faults


def _links_at(event: Event, spec: ExperimentFile, topology: Topology, networks: Mapping[str, Topology]) -> set[str]:
    """The links of the network in force when a timed event happens; its own swap is not yet."""
    earlier = [e for e in spec.events if e.swap and e.at is not None and e.at < (event.at or 0.0)]
    last = max(earlier, key=lambda e: e.at or 0.0, default=None)
    return set((networks[last.swap] if last and last.swap else topology).links)


def _check_event(
    field: str,
    event: Event,
    spec: ExperimentFile,
    topology: Topology,
    networks: Mapping[str, Topology],
    known: set[str],
) -> list[Fault]:
    faults = []
    if event.change and event.change.link not in known:
        faults.append(Fault(f"{field}.change.link", f"no link {event.change.link!r} is there then", _some(known)))
    if event.change and event.change.rate and not _can_be(rate := event.change.rate * spec.scale):
        rule = f"is {rate:g} bit/s at the experiment's scale"
        faults.append(Fault(f"{field}.change.rate", rule, f"what leaves it {RATES_IN_WORDS}"))
    if event.kill is not None and spec.program is None:
        workers = {worker.name for worker in topology.workers}
        if spec.elastic is None and not spec.sync.scheme.survives:
            rule = f"ends a run that is not elastic, unless its strategy is {_surviving()}"
            faults.append(Fault(f"{field}.kill", rule, "`elastic: {quorum: 2}` beside it"))
        if event.kill not in workers:
            faults.append(Fault(f"{field}.kill", f"no worker {event.kill!r} is there", _some(workers)))
    if event.graph and spec.program is None and not spec.sync.scheme.regraphs:
        rule = f"the members of {spec.sync.strategy} can't go over to another graph"
        faults.append(Fault(f"{field}.graph", rule, f"`strategy:` {_regraphing()}"))
    for kind in ("down", "up"):
        pair = getattr(event, kind)
        if pair and pair not in known:
            faults.append(Fault(f"{field}.{kind}", f"no link {pair!r} is there then", _some(known)))
    if event.swap and (fault := _check_swap(f"{field}.swap", topology, networks[event.swap])):
        faults.append(fault)
    return faults


def _check_swap(field: str, topology: Topology, after: Topology) -> Fault | None:
    """What is wrong with training going on over another network."""
    if set(topology.workers) == set(after.workers) and topology.lan == after.lan:
        return None
    names = ", ".join(worker.name for worker in topology.workers)
    rule = "a network swap in an experiment keeps its workers, their speeds and limits, and the LAN"
    return Fault(field, rule, f"a topology with the workers {names}, and `lan`, as here")


def _surviving() -> str:
    return " or ".join(scheme.name for scheme in SCHEMES.values() if scheme.survives)


def _regraphing() -> str:
    return " or ".join(scheme.name for scheme in SCHEMES.values() if scheme.regraphs)


def _some(names: set[str]) -> str:
    return "one of " + ", ".join(sorted(names)[:12])
