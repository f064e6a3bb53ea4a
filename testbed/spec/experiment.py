"""Experiment files: a topology, the training on it, the synchronization of its workers, and events during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from testbed.link import link_name
from testbed.resources import preset_or_file
from testbed.schemes import is_file
from testbed.spec.compute import ComputeSection
from testbed.spec.errors import Fault, SpecError
from testbed.spec.event import Event, named_link
from testbed.spec.experiment_checks import OWN_TRAINING, RATES, check_parts, check_swap, is_possible
from testbed.spec.load import Source, is_part, parse_yaml, read_kind
from testbed.spec.model import Strict, misfit, validate
from testbed.spec.program import ProgramSection
from testbed.spec.sync import SyncField, read_sync, with_plugin_files
from testbed.spec.topology import Topology
from testbed.spec.traffic import MAX_SCALE, MIN_SCALE
from testbed.spec.train import TrainField, TrainSection
from testbed.spec.units import Duration, at_least
from testbed.trace.csv import Speeds
from testbed.trace.trace import TraceError


class ControllerSection(Strict):
    """When the controller adopts another plan. Members that gossip have no plans: there it changes nothing."""

    period: Annotated[Duration, at_least(0.1)] = 2.0
    """The least time, such as `2s`, between two searches for a plan, unless a link falls or the network is swapped."""
    margin: float = Field(default=0.1, ge=0, lt=1)
    """The least share of a round's time that another plan must save, in [0, 1)."""
    dwell: int = Field(default=3, ge=1)
    """The least number of rounds for which a plan stays in force, unless a link falls, the network is swapped or rounds
    take far longer than predicted."""
    hold: bool = False
    """Keep the first plan, unless an event makes it impossible, and probe no links."""
    knowledge: Literal["measured", "oracle"] = "measured"
    """The source of the link states for planning: the members' measurements, or the true states every `period`."""


class ElasticSection(Strict):
    """Training that goes on after members are lost."""

    quorum: int = Field(ge=1)
    """The least number of members with which training goes on; with fewer the run ends."""
    lost: Literal["restart", "leave"] = "restart"
    """After a worker's container died: restart starts it again and the worker rejoins, leave goes on without it."""
    lease: Annotated[Duration, at_least(0.5)] = 5.0
    """The time, such as `5s`, without a renewed lease after which a member is lost. Members that gossip have none."""


def _hosts(value: object) -> object:
    if value == "all" or isinstance(value, list | dict):
        return value
    raise ValueError(f"{value!r} names no hosts | all, a list such as [a, b], or site: host, such as {{paris: a}}")


HostsField = Annotated[
    Literal["all"] | Annotated[list[str], Field(min_length=1)] | dict[str, str], BeforeValidator(_hosts)
]


class ExperimentFile(Strict):
    """An experiment file as it is written."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    """The experiment's name."""
    topology: str
    """The topology file, its path relative to the experiment's folder; or the name of a preset."""
    scale: float = Field(default=1.0, ge=MIN_SCALE, le=MAX_SCALE)
    """A factor on all WAN rates, below 1 where this machine can't carry them."""
    backend: Literal["auto", "netem", "userspace"] = "auto"
    """The implementation of link shaping; auto takes netem where the kernel has it, else userspace."""
    transport: Literal["fitted", "kernel"] = "fitted"
    """The workers' TCP buffers: fitted to the network's paths, or the kernel's defaults."""
    train: TrainField
    """The training: of a built-in model, or by a command."""
    compute: ComputeSection = ComputeSection()
    """The declared time of the workers' steps."""
    sync: SyncField = read_sync({})
    """How members train together."""
    controller: ControllerSection = ControllerSection()
    """When the controller adopts another plan."""
    elastic: ElasticSection | None = None
    """Let training go on after members are lost; by default not."""
    hosts: HostsField | None = None
    """The hosts of the hosts file over which to split the network: `all`, a list, or site → host; the testbed chooses
    the hosts of sites that a mapping leaves out. By default the network is on this machine."""
    events: list[Event] = Field(default_factory=list)
    """Events during training."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """The seed of all random draws."""

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
        """The program that trains; None where a built-in model is trained."""
        return self.train if isinstance(self.train, ProgramSection) else None

    @property
    def own_train(self) -> TrainSection:
        """The training of a built-in model. TypeError: a program trains instead."""
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
    """A validated experiment: its file with overrides, and the networks named in it."""

    spec: ExperimentFile
    #: The network at the experiment's scale.
    topology: Topology
    #: The networks that `swap` events change to, by their paths in the file.
    networks: dict[str, Topology]
    file: Path
    #: Worker → the trace of its speed.
    speeds: Mapping[str, Speeds] = field(default_factory=dict)
    #: The number of rounds in the file if an override asks for fewer: events after the last round are then no faults.
    shortened_from: int | None = None

    @classmethod
    def load(cls, file: Path, overrides: Mapping[str, str] | None = None) -> Experiment:
        """Return the experiment in a file, with `key.path=value` overrides, whose values are YAML.

        Args:
            file: The file's path, or the name of a preset (`quickstart`) where no such file exists.
            overrides: Texts by the dotted paths of fields.

        Raises:
            SpecError: The file, or a topology or trace named in it, is wrong.
        """
        file = preset_or_file("experiment", file)
        try:
            return cls._load(file, overrides or {})
        except SpecError as error:
            faults = Source(file, overrides).located(error.faults) if error.file == file else error.faults
            raise SpecError(error.file, faults) from None

    @classmethod
    def _load(cls, file: Path, overrides: Mapping[str, str]) -> Experiment:
        value = read_kind(file, "an experiment")
        written = _rounds_in(value)
        for key, text in overrides.items():
            _override(value, key, text, file)
        _name_plugin_files(value, file, overrides)
        spec = validate(ExperimentFile, value, file, overrides)
        topology = _network(spec.topology, spec, file)
        swaps = [event.swap for event in spec.events if event.swap]
        networks = {swap: _network(swap, spec, file) for swap in swaps}
        spec = _with_links_named(spec, topology, networks.values(), file)
        shortened = written if written and spec.program is None and spec.own_train.rounds < written else None
        faults = check_parts(spec, topology, networks, shortened)
        faults += spec.program.check(topology, file.parent) if spec.program is not None else []
        if faults:
            raise SpecError(file, faults)
        return cls(spec, topology, networks, file, spec.compute.read_speeds(topology, file), shortened)

    @classmethod
    def of_program(cls, topology: Topology, train: Mapping[str, Any], name: str | None = None) -> Self:
        """Return the experiment, without a file of its own, in which a program trains on a network.

        The topology's file stands for the experiment's, as does its name if `name` is None. `train` has the fields of a
        ProgramSection, with paths relative to the current folder. SpecError: a field is wrong.
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
        """Raise SpecError if the experiment is split over hosts, for commands that run on one host."""
        if self.spec.hosts is not None:
            rule = "only `testbed run` splits a network over several hosts"
            raise SpecError(self.file, [Fault("hosts", rule, "nothing; leave it out")])

    def add_network(self, file: Path) -> Topology:
        """Return the network in a topology file, at the experiment's scale, and allow swaps of the experiment to it.

        SpecError: the file is wrong, or the training can't go on over its network.
        """
        topology = _scaled(Topology.load(file, self.spec.seed), self.spec.scale, self.file)
        if fault := check_swap("swap", self.topology, topology):
            raise SpecError(file, [fault])
        self.networks[str(file)] = topology
        return topology

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the experiment reads, including traces, policies and schemes."""
        topologies = (self.topology, *self.networks.values())
        networks = (file for topology in topologies for file in (topology.file, *topology.trace_files))
        also = self.spec.sync.options.get("also")
        sync = self.spec.sync
        named = (sync.strategy, sync.policy, *(also if isinstance(also, list) else ()))
        plugins = (Path(name) for name in named if is_file(str(name)))
        around = self.spec.program.scheme_file(self.file.parent) if self.spec.program is not None else None
        return (
            self.file,
            *networks,
            *plugins,
            *(self.file.parent / name for name in self.spec.compute.speeds.values()),
            *([around] if around is not None else []),
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


def _name_plugin_files(value: dict[str, Any], file: Path, overrides: Mapping[str, str]) -> None:
    """Replace the paths of a scheme's and policies' files by absolute paths, in place.

    The paths are relative to the experiment's folder, or to the current one if the command line gives them.
    """

    def path_of(field: str, name: str) -> Path:
        folder = Path() if any(is_part(field, key) for key in overrides) else file.parent
        return folder / name

    if "sync" in value:
        value["sync"] = with_plugin_files("sync", value["sync"], path_of)


def _network(name: str, spec: ExperimentFile, file: Path) -> Topology:
    """Return the network that an experiment's `file` names, by a file or a preset's name, at the experiment's scale."""
    named = preset_or_file("topology", Path(name), file.parent)
    return _scaled(Topology.load(named, spec.seed), spec.scale, file)


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


def _with_links_named(
    spec: ExperimentFile, topology: Topology, networks: Iterable[Topology], file: Path
) -> ExperimentFile:
    """Return the file's values with each link by its name. Raises SpecError if `link_codecs` has a link twice."""
    known = {name for network in (topology, *networks) for name in network.links}
    pairs = [link_name(a, b) for a in topology.sites for b in topology.sites] if spec.sync.link_codecs else []
    written: dict[str, str] = {}
    faults = []
    for name in spec.sync.link_codecs:
        first = written.setdefault(named_link(name, pairs), name)
        if first != name:
            rule = f"{first!r} and {name!r} are the same link, {named_link(name, pairs)}"
            faults.append(Fault(f"sync.link_codecs.{name}", rule, f"one of the two, as {first!r}"))
    if faults:
        raise SpecError(file, faults)
    codecs = {link: spec.sync.link_codecs[name] for link, name in written.items()}
    sync = spec.sync.model_copy(update={"link_codecs": codecs}) if codecs else spec.sync
    return spec.model_copy(update={"events": [event.named(known) for event in spec.events], "sync": sync})
