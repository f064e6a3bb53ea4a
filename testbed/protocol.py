"""The control messages between a member and the controller; pure values, one JSON object a line.

    member                   controller
      Hello        ------------->             where the member listens for its peers
                   <-------------      Welcome its job, everybody's addresses, the plan; sent when all are there
      Report       ------------->             after each round: where the time went, what each peer's path did
      Arrived      ------------->             while a round takes long: what came in so far
                   <-------------      Prepare another plan
      Held         ------------->             the plan is held: its next hops are connected; or it can't be
                   <-------------      Confirm all hold the plan
      Goodbye      ------------->             done, with the digest of the parameters
                   <-------------        Probe send something to a peer, to find out what the path there carries
                   <-------------         Died another member is gone (the others go on gossiping)
                   <------------- PrepareGraph how far can you go on? Another graph is to hold (Hop)
      PromiseGraph ------------->             no iteration from that one on is entered until word comes
                   <-------------  CommitGraph from this iteration on the graph is another; or
                   <-------------   AbortGraph it is not
                   <-------------         Stop leave now (the run was interrupted or another member failed)

Where the run is elastic (a Welcome with a lease) there is more:

      Renew        ------------->             still there; a member that says nothing for a lease is gone
      Lost         ------------->             a peer's connection broke, or it is waited for in vain
                   <-------------        Abort a member is gone: let nothing more become final
      Holding      ------------->             how far this member is, and which elements it holds final
                   <-------------  Reconfigure a plan without the one that is gone, and what to do about the round

A plan takes force without a further message. Every round's chunks carry the successor that their contributors
hold: the epoch of the plan they were last asked for, or the round's own until they hold that one. Contributors that
say different ones make it the round's own; what came of it comes back with the mean, so after round k all members
know the same epoch to use in round k+1, and every one of them holds it. Agreement thus rides on the barrier that
the round is anyway: nobody pauses for a swap, and a controller that dies in the middle of one leaves no member
undecided. Confirm only makes it sooner: a root that knows all to hold the plan says so with the means that it has
still to make, whatever their contributors said when they sent theirs, which may be seconds ago on a slow path.

One plan at a time is asked for. Prepare takes back what an earlier Prepare asked for and is not in force yet, so a
plan that a member could not hold, and the controller dropped, is no successor any more where it is held.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar

PROTOCOL_VERSION = 3

#: A line longer than this is refused: a plan of 1,000 members with 1,000 trees would not come this way.
MAX_LINE_BYTES = 16 * 1024 * 1024


class ProtocolError(ValueError):
    """A line that is not one of the messages."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a member is told of a run, as the controller hands it out.

    rounds           how many there are; iterations, where members gossip
    seed             of all that is drawn at random
    scheme           how members train together: a name of testbed.schemes; its `options`, by name
    assignment       what the scheme tells this member alone; of one that gossips, its NodeConfiguration
    workload         what is trained; the library does not look into it
    samples_per_s    what the member declares to compute; 0 where it declares nothing
    round_timeout_s  how long is waited for a round's peers
    streams          connections to each next hop: on long paths that lose packets, more of them carry more
    congestion       their congestion control; the kernel's default when empty
    reproducible     whether the order of additions is fixed, for the same bits run after run
    """

    rounds: int
    seed: int = 0
    scheme: str = "gradients"
    options: Mapping[str, Any] = field(default_factory=dict)
    assignment: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    samples_per_s: float = 0.0
    round_timeout_s: float = 120.0
    streams: int = 1
    congestion: str = ""
    reproducible: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """The job that a mapping says; ProtocolError when it says none."""
        try:
            return cls(**value)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"not a job: {error}") from error


@dataclass(frozen=True, slots=True)
class NodeConfiguration:
    """Where a member stands in decentralized training, and by which protocol: what a Job's `assignment` holds.

    protocol    the scheme's name, dpsgd's being hop; leader or worker where Hop is between sites
    sources     who sends to it in the communication graph, itself left out; `targets`, to whom it sends
    weights     of averaging what comes, by source, its own name among them
    partners    all who may send it anything; it stays until they are done
    rules       what the protocol takes: Hop's rules, Prague's `generator` (the member with
                whom it lives), AD-PSGD's `active`, a leader's workers (`site`), a worker's `leader`, FedAsync's
                `server` (the member with whom it lives); what StaggeredRules are made of, `steps` by member
    steps       local steps that the member takes to an iteration
    evaluates   (period, phase): it evaluates what it begins such iterations with, where that is due; None: others do
    first       the iteration in which it begins: 0, but for who comes while the others train
    """

    protocol: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    weights: Mapping[str, float]
    partners: tuple[str, ...]
    rules: Mapping[str, Any]
    steps: int = 1
    evaluates: tuple[int, int] | None = (1, 0)
    first: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NodeConfiguration:
        """The place that a mapping says; ValueError when it says none."""
        try:
            listed = {name: tuple(value[name]) for name in ("sources", "targets", "partners")}
            if evaluates := value.get("evaluates"):
                listed["evaluates"] = tuple(evaluates)
            return cls(**{**value, **listed})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a place in decentralized training: {error!r}") from error


class Train(NamedTuple):
    """Bytes of a peer's that arrived one right behind another, while it had more to send: what its path carried then.

    `bytes` came in the `seconds` after its first packet, which arrived at `began_s` (Unix time). `allowed_bytes_s` is
    the most that the sender's TCP would have let go meanwhile, 0 where it held nothing back, and `burst_bytes_s` how
    fast it would have let go at a time: a train between them says what the path carries at least.
    """

    began_s: float
    seconds: float
    bytes: int
    allowed_bytes_s: int = 0
    burst_bytes_s: int = 0


@dataclass(frozen=True, slots=True)
class PeerSample:
    """One path to a next hop over one round, measured by the sender's own socket.

    `bytes` acknowledged while the socket was backlogged for `busy_s` seconds (not limited by the receiver), so
    bytes/busy_s is the path's throughput; `rtt_s` the least round trip seen; `retransmits` segments.
    `delivery_bytes_s` is the kernel's own estimate, over the last round trip that was limited by the path; it needs
    less data than bytes/busy_s, which a slow start and the last acknowledgement's way back weigh on. `queued_s` is
    the mean time that a frame waited before it was sent; `auxiliary_bytes` are those of `bytes` that travelled on
    auxiliary routes, of which this hop is one.
    """

    peer: str
    bytes: int
    busy_s: float
    rtt_s: float
    retransmits: int
    delivery_bytes_s: float = 0.0
    queued_s: float = 0.0
    auxiliary_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MeanSlice:
    """The elements [start, stop) of a round, the `members` that their mean is over, and the sum of their weights."""

    start: int
    stop: int
    members: tuple[str, ...]
    weight: float


class ControlMessage:
    """Base of the messages: `kind` on the wire names the class."""

    __slots__ = ()
    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Hello(ControlMessage):
    """A member is there and listens for peers at `address` (host, port). Over TCP it shows its own `token`.

    Who was there before, and lost the controller alone, says where it stands: the `plan` it goes by, the `roster`,
    the last `round` it finished, and whether it is `halted`. A controller that was started anew has it from there.
    """

    kind: ClassVar[str] = "hello"
    member: str
    address: tuple[str, int]
    device: str = "cpu"
    token: str = field(default="", repr=False)
    version: int = PROTOCOL_VERSION
    standing: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Welcome(ControlMessage):
    """All members are there: work begins under `plan`. `roster` maps each member to its address.

    `keys`, by member, are what this one and each other one of the run know of each other and nobody else does: they
    greet by them (hexadecimal; never on record, as plans are).

    With a `lease_s` the run is elastic, and members renew their lease within that time. Who comes while the others
    train already has a `source`: the member that hands it the state after the last round without it.
    """

    kind: ClassVar[str] = "welcome"
    job: Mapping[str, Any]
    roster: Mapping[str, tuple[str, int]]
    plan: Mapping[str, Any]
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    lease_s: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Prepare(ControlMessage):
    """Another plan, to be held beside the one in force, instead of any that was asked for and is not in force.

    One with a member more comes with the whole `roster`, and names the `source` that hands it the state.
    """

    kind: ClassVar[str] = "prepare"
    plan: Mapping[str, Any]
    roster: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Held(ControlMessage):
    """The plan of `epoch` is held: connections to its next hops are open. With a `refusal` it never will be."""

    kind: ClassVar[str] = "held"
    member: str
    epoch: int
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Confirm(ControlMessage):
    """All members have said that they hold the plan of `epoch`."""

    kind: ClassVar[str] = "confirm"
    epoch: int


@dataclass(frozen=True, slots=True)
class Report(ControlMessage):
    """One round as one member saw it. `started_s` and `finished_s` bound the synchronization (Unix time).

    `compute_s` is the step's real time, `paced_s` the time slept to reach the declared step time, `late_s` how far
    past it the step ended, `waited` the seconds after the start at which each sending peer's last chunk arrived.
    `lost` and `duplicated` count updates that the plan asked for and the result did not hold, or held twice.
    `metrics` has loss, and accuracy when the round was evaluated. `send_s`, `receive_s` and `add_s` are what the
    round's connections spent in sending and in receiving chunks, and what was spent in adding them up: each is a sum
    over threads, which work at the same time. `slices` says whose updates the means are of, where a member was lost
    in the middle of the round and they are not all the same. `arrivals` are the trains that came from each peer since
    the last report, in their order.
    """

    kind: ClassVar[str] = "report"
    member: str
    round: int
    epoch: int
    started_s: float
    finished_s: float
    compute_s: float
    paced_s: float
    sent_bytes: int
    received_bytes: int
    lost: int
    duplicated: int
    waited: Mapping[str, float] = field(default_factory=dict)
    peers: tuple[PeerSample, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    late_s: float = 0.0
    send_s: float = 0.0
    receive_s: float = 0.0
    add_s: float = 0.0
    slices: tuple[MeanSlice, ...] = ()
    arrivals: Mapping[str, tuple[Train, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrived(ControlMessage):
    """A member is still in a round: the `arrivals` since it said so last, or since its last Report."""

    kind: ClassVar[str] = "arrived"
    member: str
    arrivals: Mapping[str, tuple[Train, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renew(ControlMessage):
    """A member is still there."""

    kind: ClassVar[str] = "renew"
    member: str


@dataclass(frozen=True, slots=True)
class Lost(ControlMessage):
    """A member has lost `peer`: its connection is `broken`, or it owes something for longer than a round takes."""

    kind: ClassVar[str] = "lost"
    member: str
    peer: str
    why: str
    broken: bool = True


@dataclass(frozen=True, slots=True)
class Abort(ControlMessage):
    """A member is gone: nothing becomes final any more, until a Reconfigure of `epoch` or a later one."""

    kind: ClassVar[str] = "abort"
    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class Holding(ControlMessage):
    """The answer to the Abort of `epoch`. `round` is the one this member is in, or the last one that is over for it.

    Not over, `final` are the elements, of `elements`, that hold their mean: [start, stop) in order.
    """

    kind: ClassVar[str] = "holding"
    member: str
    epoch: int
    round: int
    over: bool
    elements: int = 0
    final: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reconfigure(ControlMessage):
    """Go on under `plan`, whose members are those that are left and said what they hold.

    From their `holdings` all reckon what to do about the round that was on: testbed.sync.recovery has the rule.
    """

    kind: ClassVar[str] = "reconfigure"
    plan: Mapping[str, Any]
    roster: Mapping[str, tuple[str, int]]
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Goodbye(ControlMessage):
    """A member is done. `digest` is the SHA-256 of its parameters' bytes; `error` is empty when all went well."""

    kind: ClassVar[str] = "goodbye"
    member: str
    rounds: int
    digest: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Probe(ControlMessage):
    """Find out what the path to `peer` carries: send there for `seconds`, but at most `bytes`. They mean nothing."""

    kind: ClassVar[str] = "probe"
    peer: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Died(ControlMessage):
    """In decentralized training: a member is gone, and the others go on without it."""

    kind: ClassVar[str] = "died"
    gone: str


@dataclass(frozen=True, slots=True)
class PrepareGraph(ControlMessage):
    """Another communication graph is to hold: enter `ahead` - 1 more iterations at most, until CommitGraph or
    AbortGraph."""

    kind: ClassVar[str] = "prepare_graph"
    ahead: int


@dataclass(frozen=True, slots=True)
class PromiseGraph(ControlMessage):
    """The member enters no iteration from `end` on until it hears of the graph there."""

    kind: ClassVar[str] = "promise_graph"
    member: str
    end: int


@dataclass(frozen=True, slots=True)
class CommitGraph(ControlMessage):
    """From `iteration` on the graph is another, in which the member's `place` is this one (see NodeConfiguration).

    `roster` says where they listen who come with it.
    """

    kind: ClassVar[str] = "commit_graph"
    iteration: int
    place: Mapping[str, Any]
    roster: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AbortGraph(ControlMessage):
    """The graph stays as it is; go on."""

    kind: ClassVar[str] = "abort_graph"


@dataclass(frozen=True, slots=True)
class Stop(ControlMessage):
    """Leave now. Who is told so `again` may come back as a member that knows nothing: the others train on."""

    kind: ClassVar[str] = "stop"
    reason: str
    again: bool = False


MESSAGES: dict[str, type[ControlMessage]] = {
    cls.kind: cls
    for cls in (
        *(
            Hello,
            Welcome,
            Prepare,
            Held,
            Confirm,
            Report,
            Arrived,
            Renew,
            Lost,
            Abort,
            Holding,
            Reconfigure,
            Goodbye,
            Probe,
        ),
        *(Died, PrepareGraph, PromiseGraph, CommitGraph, AbortGraph, Stop),
    )
}

M = TypeVar("M", bound=ControlMessage)


def encode(message: ControlMessage) -> bytes:
    """The message as one line."""
    body = {"kind": message.kind, **asdict(message)}  # type: ignore[call-overload]
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> ControlMessage:
    """The message on a line; ProtocolError when it is none of them."""
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        body = json.loads(line)
        cls = MESSAGES[body.pop("kind")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ProtocolError(f"not a message: {line[:80]!r}") from error
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(body) - known):
        raise ProtocolError(f"{cls.kind}: unknown fields {unknown}")
    try:
        return cls(**_revive(cls, body))
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{cls.kind}: {error}") from error


#: What JSON may hold for a field of this annotation.
_PLAIN: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def _check_plain(cls: type, body: Mapping[str, Any]) -> None:
    """TypeError when a number or a text of a dataclass is something else."""
    for f in fields(cls):
        expected = _PLAIN.get(str(f.type))
        if expected is not None and f.name in body and not isinstance(body[f.name], expected):
            raise TypeError(f"{f.name} is {body[f.name]!r}, not {f.type}")


def _revive(cls: type[ControlMessage], body: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where the values have tuples; numbers and texts are what they should be."""
    _check_plain(cls, body)
    if cls is Hello and "address" in body:
        body["address"] = _address(body["address"])
    if cls in (Welcome, Prepare, Reconfigure, CommitGraph) and "roster" in body:
        body["roster"] = {name: _address(address) for name, address in dict(body["roster"]).items()}
    if cls is Report and "peers" in body:
        body["peers"] = tuple(_sample(sample) for sample in body["peers"])
    if cls in (Report, Arrived) and "arrivals" in body:
        body["arrivals"] = {str(peer): tuple(map(_train, its)) for peer, its in dict(body["arrivals"]).items()}
    if cls is Report and "slices" in body:
        body["slices"] = tuple(mean_slice_of(value) for value in body["slices"])
    if cls is Holding and "final" in body:
        body["final"] = tuple(_span(span) for span in body["final"])
    if cls is Reconfigure and "holdings" in body:
        body["holdings"] = tuple(Holding(**_revive(Holding, dict(value))) for value in body["holdings"])
    return body


def _sample(value: Mapping[str, Any]) -> PeerSample:
    _check_plain(PeerSample, value)
    return PeerSample(**{name: its for name, its in value.items() if name != "ticks"})  # of earlier versions


def _train(value: Any) -> Train:
    """The train that JSON has; TypeError or ValueError when it is none."""
    began_s, seconds, *counts = value
    train = Train(float(began_s), float(seconds), *map(int, counts))
    if not (train.began_s > 0 and train.seconds > 0 and train.bytes > 0 and min(train[3:]) >= 0):
        raise ValueError(f"{train} is no train")
    return train


def mean_slice_of(value: Mapping[str, Any]) -> MeanSlice:
    """The slice that JSON has; TypeError or ValueError when it is none."""
    start, stop = _span((value["start"], value["stop"]))
    return MeanSlice(start, stop, tuple(str(member) for member in value["members"]), float(value["weight"]))


def _span(value: Any) -> tuple[int, int]:
    start, stop = value
    if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop):
        raise ValueError(f"[{start!r}, {stop!r}) are no elements")
    return start, stop


def _address(value: Any) -> tuple[str, int]:
    host, port = value
    return str(host), int(port)
