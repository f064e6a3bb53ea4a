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
from testbed.schemes import is_file
from testbed.spec.compute import ComputeSection
from testbed.spec.errors import Fault, SpecError
from testbed.spec.event import Event
from testbed.spec.experiment_checks import OWN_TRAINING, RATES, check_parts, check_swap, is_possible
from testbed.spec.load import Source, is_part, parse_yaml, read_kind
from testbed.spec.model import Strict, misfit, validate
from testbed.spec.program import ProgramSection
from testbed.spec.sync import SyncField, read_sync
from testbed.spec.topology import Topology
from testbed.spec.traffic import MAX_SCALE, MIN_SCALE
from testbed.spec.train import TrainField, TrainSection
from testbed.spec.units import Duration, at_least
from testbed.trace.csv import Speeds
from testbed.trace.trace import TraceError


class ControllerSection(Strict):
    """When the controller adopts another plan."""

    period: Annotated[Duration, at_least(0.1)] = 2.0
    """The time between two re-plannings."""
    margin: float = Field(default=0.1, ge=0, lt=1)
    """The least share of a round that another plan must save."""
    dwell: int = Field(default=3, ge=1)
    """How many rounds a plan stays in force at least."""
    hold: bool = False
    """Keep the first plan, unless an event makes it impossible, and probe nothing."""
    knowledge: Literal["measured", "oracle"] = "measured"
    """What planning knows of links: what members measure, or what the links truly carry, told each `period`."""


class ElasticSection(Strict):
    """Members may be lost while the others go on training."""

    quorum: int = Field(ge=1)
    """The least number of members that go on training."""
    lost: Literal["restart", "leave"] = "restart"
    """Whether a worker whose container died is started again and comes back, or stays away."""
    lease: Annotated[Duration, at_least(0.5)] = 5.0
    """A member that does not renew its lease for this time is lost. Members that gossip have no lease."""


def _hosts(value: object) -> object:
    if value == "all" or isinstance(value, list | dict):
        return value
    raise ValueError(f"{value!r} names no hosts | all, a list such as [a, b], or sites with their hosts, {{paris: a}}")


HostsField = Annotated[
    Literal["all"] | Annotated[list[str], Field(min_length=1)] | dict[str, str], BeforeValidator(_hosts)
]


class ExperimentFile(Strict):
    """An experiment file as it is written."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    """The experiment's name."""
    topology: str
    """The topology's file; its path begins in the experiment's folder."""
    scale: float = Field(default=1.0, ge=MIN_SCALE, le=MAX_SCALE)
    """One factor on all WAN rates, so that this machine can carry them."""
    backend: Literal["auto", "netem", "userspace"] = "auto"
    """How links are shaped; auto takes netem where the kernel has it."""
    transport: Literal["fitted", "kernel"] = "fitted"
    """The TCP buffers of workers: fitted to the network's paths, or as the kernel has them."""
    train: TrainField
    """What is trained: a model of the project's own, or a command."""
    compute: ComputeSection = ComputeSection()
    """How long the workers' steps take."""
    sync: SyncField = read_sync({})
    """How members train together."""
    controller: ControllerSection = ControllerSection()
    """When the controller adopts another plan."""
    elastic: ElasticSection | None = None
    """Let training go on where members are lost."""
    hosts: HostsField | None = None
    """Split the network over hosts of the hosts file: all of them, a list of them, or site → host. Where a mapping
    leaves sites out, a host is found for them."""
    events: list[Event] = Field(default_factory=list)
    """What happens during training."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """The seed of everything that is drawn at random."""

    @model_validator(mode="after")
    def _fits_a_program(self) -> Self:
        given = [name for name in ("compute", "sync", "controller", "elastic") if name in self.model_fields_set]
        if self.program is not None and given:
            raise misfit(given[0], OWN_TRAINING, "nothing; leave it out")
        return self

    @model_validator(mode="after")
    def _steps_as_the_scheme_does(self) -> Self:
        inner = self.sync.scheme.inner
        names = (inner,) if isinstance(inner, str) else inner
        if inner and isinstance(self.train, TrainSection) and self.train.optimizer.name not in names:
            rule = f"the members of the strategy {self.sync.strategy} step by {' or '.join(names)}"
            raise misfit("train.optimizer.name", rule, f"`optimizer: {{name: {names[0]}}}`")
        return self

    @model_validator(mode="after")
    def _has_a_tensor_for_each_fragment(self) -> Self:
        scheme, train = self.sync.scheme, self.train
        if scheme.exchange != "all-reduce" or "fragments" not in scheme.fields or not isinstance(train, TrainSection):
            return self
        if self.sync.own.parts > train.tensors:
            rule = f"a fragment has one tensor or more, and the model {train.model} has {train.tensors}"
            raise misfit("sync.fragments", rule, f"at most {train.tensors}")
        return self

    @property
    def program(self) -> ProgramSection | None:
        """The program that is trained by; None where the project's own model is trained."""
        return self.train if isinstance(self.train, ProgramSection) else None

    @property
    def own_train(self) -> TrainSection:
        """The training of the project's own model. TypeError where a program is trained by."""
        if not isinstance(self.train, TrainSection):
            raise TypeError(f"{self.name} trains by a command")
        return self.train

    @property
    def round_bytes(self) -> int:
        """The bytes that one member contributes to a round, through the codec but without PowerSGD."""
        values = self.own_train.model_bytes / 4 * self.sync.own.round_share
        return max(1, round(values * self.sync.bytes_per_value))


@dataclass(frozen=True)
class Experiment:
    """An experiment as its file and overrides describe it, validated, with the networks that it names."""

    spec: ExperimentFile
    #: The network at the experiment's scale.
    topology: Topology
    #: The networks that `swap` events change to, by their paths in the file.
    networks: dict[str, Topology]
    file: Path
    #: Worker → the trace of its speed.
    speeds: Mapping[str, Speeds] = field(default_factory=dict)
    #: The number of rounds in the file where an override asks for fewer, so that later events never come.
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
        _name_plugin_files(value, file, overrides)
        spec = validate(ExperimentFile, value, file, overrides)
        topology = _scaled(Topology.load(file.parent / spec.topology, spec.seed), spec.scale, file)
        swaps = [event.swap for event in spec.events if event.swap]
        networks = {swap: _scaled(Topology.load(file.parent / swap, spec.seed), spec.scale, file) for swap in swaps}
        spec = _with_links_named(spec, topology, networks.values())
        shortened = written if written and spec.program is None and spec.own_train.rounds < written else None
        faults = check_parts(spec, topology, networks, shortened)
        faults += spec.program.check(topology, file.parent) if spec.program is not None else []
        if faults:
            raise SpecError(file, faults)
        return cls(spec, topology, networks, file, spec.compute.read_speeds(topology, file), shortened)

    @classmethod
    def of_program(cls, topology: Topology, train: Mapping[str, Any], name: str | None = None) -> Self:
        """Return the experiment, without a file of its own, in which a program trains on a network.

        The topology's file stands in for the experiment's, and its name where `name` is None. `train` has the fields of
        a ProgramSection, whose relative paths begin in the current folder. SpecError where a field is wrong.
        """
        value = {"name": name or topology.name, "topology": str(topology.file), "train": train}
        spec, folder = validate(ExperimentFile, value, topology.file), Path.cwd()
        program = spec.program
        assert program is not None
        if faults := [*check_parts(spec, topology, {}, None), *program.check(topology, folder)]:
            raise SpecError(topology.file, faults)
        paths = {"files": str(folder / program.files), "image": program.image_from(folder)}
        spec = spec.model_copy(update={"train": program.model_copy(update=paths)})
        return cls(spec, topology, {}, topology.file)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.spec.name

    def link_codecs_among(self, topology: Topology) -> dict[str, str]:
        """Return the codecs that differ from `sync.codec`, by overlay edge of the workers: `paris-w0->tokyo-w1`."""
        named = self.spec.sync.link_codecs
        return {
            f"{source.name}->{target.name}": named[sites]
            for source in topology.workers
            for target in topology.workers
            if (sites := f"{source.site}->{target.site}") in named
        }

    def check_one_host(self) -> None:
        """Raise SpecError where the experiment asks for several hosts: for a verb that takes one."""
        if self.spec.hosts is not None:
            rule = "only `testbed run` splits a network over several hosts"
            raise SpecError(self.file, [Fault("hosts", rule, "nothing; leave it out")])

    def add_network(self, file: Path) -> Topology:
        """Return the network in a topology file, at the experiment's scale; from now on the experiment may swap to it.

        SpecError where the file is wrong, or the training can't go on over its network.
        """
        topology = _scaled(Topology.load(file, self.spec.seed), self.spec.scale, self.file)
        if fault := check_swap("swap", self.topology, topology):
            raise SpecError(file, [fault])
        self.networks[str(file)] = topology
        return topology

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the experiment is made of, with its traces, policies and scheme."""
        topologies = (self.topology, *self.networks.values())
        networks = (file for topology in topologies for file in (topology.file, *topology.trace_files))
        also = self.spec.sync.options.get("also")
        sync = self.spec.sync
        named = (sync.strategy, sync.policy, *(also if isinstance(also, list) else ()))
        plugins = (Path(name) for name in named if is_file(str(name)))
        return (
            self.file,
            *networks,
            *plugins,
            *(self.file.parent / name for name in self.spec.compute.speeds.values()),
        )


def _rounds_in(value: Any) -> int | None:
    train = value.get("train") if isinstance(value, Mapping) else None
    rounds = train.get("rounds") if isinstance(train, Mapping) else None
    return rounds if isinstance(rounds, int) else None


#: The remedy for an override's key.
PATH = "a path of field names, dots between"


def _override(value: dict[str, Any], key: str, text: str, file: Path) -> None:
    if not key.isprintable():
        raise SpecError(file, [Fault(repr(key), "the key is not a field", PATH)])
    *path, last = key.split(".")
    for part in path:
        inner = value.get(part, {})
        if not isinstance(inner, dict):
            raise SpecError(file, [Fault(key, f"`{part}` is not a mapping", PATH)])
        value[part] = dict(inner)  # a YAML alias may have put the mapping elsewhere too
        value = value[part]
    try:
        value[last] = parse_yaml(text)
    except yaml.YAMLError:
        raise SpecError(file, [Fault(key, f"{text!r} is not a YAML value", "a number, a word or a list")]) from None


def _name_plugin_files(value: Mapping[str, Any], file: Path, overrides: Mapping[str, str]) -> None:
    """Write the absolute paths of the scheme and the policies that are named by their files.

    The paths begin in the experiment's folder, or in the current one where the command line names them.
    """

    def whole(name: Any, field: str) -> Any:
        folder = Path() if any(is_part(field, key) for key in overrides) else file.parent
        return str((folder / name).absolute()) if isinstance(name, str) and is_file(name) else name

    sync = value.get("sync")
    if not isinstance(sync, dict):
        return
    sync |= {name: whole(sync[name], f"sync.{name}") for name in ("strategy", "policy") if name in sync}
    options = sync.get("options")
    if isinstance(options, dict) and isinstance(also := options.get("also"), str | list):
        names = [also] if isinstance(also, str) else also
        options["also"] = [whole(name, "sync.options.also") for name in names]


def _scaled(topology: Topology, factor: float, file: Path) -> Topology:
    try:
        scaled = topology.scaled(factor)
    except TraceError as error:
        fault = Fault("scale", f"a trace of {topology.file} can't be scaled: {error}", "a factor nearer to 1")
        raise SpecError(file, [fault]) from None
    for name, link in scaled.links.items():
        if not is_possible(link.state.rate_bps):
            rule = f"{name} of {topology.file} would have {link.state.rate_bps:g} bit/s"
            raise SpecError(file, [Fault("scale", rule, f"a factor that leaves it {RATES}")])
    return scaled


def _with_links_named(spec: ExperimentFile, topology: Topology, networks: Iterable[Topology]) -> ExperimentFile:
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
