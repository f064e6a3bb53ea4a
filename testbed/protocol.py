"""The control messages between a member and the controller; pure values, one JSON object a line.

    member                   controller
      Hello        ------------->             where the member listens for its peers
      Rejoin       ------------->             and where it stands, if it lost the controller alone
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

Rounds inside groups agree on nothing. There the root of the confirmed plan's first tree, which Confirm reaches as it
does all, has the members promise how far they are, and tells them the round from which on it holds (see
sync/allreduce/early_swaps.py): nobody waits for the next round among all, and again not for the controller.

One plan at a time is asked for. Prepare takes back what an earlier Prepare asked for and is not in force yet, so a
plan that a member could not hold, and the controller dropped, is no successor any more where it is held.

Every field is typed and bounded (see schema.py). What is malformed ends who said it, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from testbed.schema import (
    MOST_MEMBERS,
    Address,
    Count,
    Document,
    Keys,
    Metrics,
    Moment,
    Name,
    NameOrNone,
    Number,
    Rate,
    Roster,
    Seconds,
    Text,
    Weight,
    brief,
    convert_to,
    decode_as,
)
from testbed.schema import ProtocolError as ProtocolError  # what `decode` raises is this module's too

PROTOCOL_VERSION = 4

#: A line longer than this is refused: a plan of 1,000 members with 1,000 trees would not come this way.
MAX_LINE_BYTES = 16 * 1024 * 1024

#: A controller that was started anew numbers plans from what members say they know of, and needs room above that.
MOST_EPOCH_KNOWN = 2**31
#: Runs of elements in a round that was cut short: a model of 1,000 chunks a member, each of a mean of its own.
MOST_SPANS = 2**16
#: Of a model, merged each by itself.
MOST_FRAGMENTS = 4096
#: Trains of one peer in a message; members keep 256 of each until they tell.
MOST_TRAINS = 1024

#: Members, each once or not.
Names = Annotated[tuple[Name, ...], Meta(max_length=MOST_MEMBERS)]


class Job(Struct, frozen=True, forbid_unknown_fields=True):
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

    rounds: Number
    seed: int = 0
    scheme: Annotated[str, Meta(max_length=64)] = "gradients"
    options: Document = {}
    assignment: Document = {}
    workload: Document = {}
    samples_per_s: Rate = 0.0
    round_timeout_s: Annotated[float, Meta(gt=0, le=1e7)] = 120.0
    streams: Annotated[int, Meta(ge=1, le=255)] = 1
    congestion: Annotated[str, Meta(max_length=15)] = ""
    reproducible: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """The job that a mapping says; ProtocolError when it says none."""
        job: Job = convert_to(cls, value)
        return job


class NodeConfiguration(Struct, frozen=True, forbid_unknown_fields=True):
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

    protocol: Annotated[str, Meta(max_length=64)]
    sources: Names
    targets: Names
    weights: Annotated[Mapping[Name, Weight], Meta(max_length=MOST_MEMBERS)]
    partners: Names
    rules: Document
    steps: Annotated[int, Meta(ge=1, le=2**32 - 1)] = 1
    evaluates: tuple[Number, Number] | None = (1, 0)
    first: Number = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NodeConfiguration:
        """The configuration that a mapping says; ProtocolError when it says none."""
        configuration: NodeConfiguration = convert_to(cls, value)
        return configuration


class Train(NamedTuple):
    """Bytes of a peer's that arrived one right behind another, while it had more to send: what its path carried then.

    `bytes` came in the `seconds` after its first packet, which arrived at `began_s` (Unix time). `allowed_bytes_s` is
    the most that the sender's TCP would have let go meanwhile, 0 where it held nothing back, and `burst_bytes_s` how
    fast it would have let go at a time: a train between them says what the path carries at least. A probe knows no
    bursts: it left at `allowed_bytes_s`.
    """

    began_s: Annotated[float, Meta(gt=0, le=1e11)]
    seconds: Annotated[float, Meta(ge=1e-7, le=1e6)]
    bytes: Annotated[int, Meta(ge=1, le=2**53)]
    allowed_bytes_s: Count = 0
    burst_bytes_s: Count = 0

    @property
    def is_probe(self) -> bool:
        """Whether it is a probe's, which leaves at a steady rate, whatever comes of it."""
        return bool(self.allowed_bytes_s) and not self.burst_bytes_s


#: What came from each peer, in its order.
Trains = Annotated[
    Mapping[Name, Annotated[tuple[Train, ...], Meta(max_length=MOST_TRAINS)]], Meta(max_length=MOST_MEMBERS)
]


class PeerSample(Struct, frozen=True, forbid_unknown_fields=True):
    """One path to a next hop over one round, measured by the sender's own socket.

    `bytes` acknowledged while the socket was backlogged for `busy_s` seconds (not limited by the receiver), so
    bytes/busy_s is the path's throughput; `rtt_s` the least round trip seen; `retransmits` segments.
    `delivery_bytes_s` is the kernel's own estimate, over the last round trip that was limited by the path; it needs
    less data than bytes/busy_s, which a slow start and the last acknowledgement's way back weigh on. `queued_s` is
    the mean time that a frame waited before it was sent; `auxiliary_bytes` are those of `bytes` that travelled on
    auxiliary routes, of which this hop is one.
    """

    peer: Name
    bytes: Count
    busy_s: Seconds
    rtt_s: Seconds
    retransmits: Count
    delivery_bytes_s: Rate = 0.0
    queued_s: Seconds = 0.0
    auxiliary_bytes: Count = 0


class FragmentDrift(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a member stood when all merged what they had changed of a fragment of the model.

    weight       what the member counts in the mean
    apart        how far it stood from the mean of all (Euclidean), and `moved`, how far that was from where all began
    sketch       random sums of the difference to the mean: those of a group's mean are the mean of its members'
    loss_before  of the member's last batch, at its parameters before the merge, and after it; None: not measured
    """

    fragment: Number
    weight: Weight
    apart: Weight
    moved: Weight
    sketch: Annotated[tuple[float, ...], Meta(max_length=64)] = ()
    loss_before: float | None = None
    loss_after: float | None = None


class MeanSlice(Struct, frozen=True, forbid_unknown_fields=True):
    """The elements [start, stop) of a round, the `members` that their mean is over, and the sum of their weights."""

    start: Count
    stop: Count
    members: Names
    weight: Weight

    def __post_init__(self) -> None:
        if self.start >= self.stop:
            raise ValueError(f"[{self.start}, {self.stop}) are no elements")


def _kind_of(name: str) -> str:
    """`PrepareGraph` travels as `prepare_graph`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ControlMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=_kind_of):
    """Base of the messages: `kind` on the wire names the class."""

    @property
    def kind(self) -> str:
        """What it is, on the wire."""
        return str(self.__struct_config__.tag)


class Hello(ControlMessage, frozen=True):
    """A member is there and listens for peers at `address` (host, port). Over TCP it shows its own `token`.

    Who was there before, and lost the controller alone, `returns`: a Rejoin follows.
    """

    member: Name
    address: Address
    device: Annotated[str, Meta(max_length=64)] = "cpu"
    token: Annotated[str, Meta(max_length=256)] = ""
    version: Number = PROTOCOL_VERSION
    returns: bool = False

    def __repr__(self) -> str:
        return f"Hello({self.member!r})"  # without the token: what is shown may end in a log


class Rejoin(ControlMessage, frozen=True):
    """Where a member stands that found its controller again: the `plan` it goes by, the `roster`, the last `round` it
    finished, whether that was `aborted`, and the `newest` epoch that it knows of.

    A controller that was started anew has it from there. A message of its own: it is as long as a plan, and a hello is
    short, so that nobody without the token has the controller read more.
    """

    member: Name
    plan: Document
    roster: Roster
    round: Number
    aborted: bool
    newest: Annotated[int, Meta(ge=0, le=MOST_EPOCH_KNOWN)]


class Welcome(ControlMessage, frozen=True):
    """All members are there: work begins under `plan`. `roster` maps each member to its address.

    `keys`, by member, are what this one and each other one of the run know of each other and nobody else does: they
    greet by them (hexadecimal; never on record, as plans are).

    With a `lease_s` the run is elastic, and members renew their lease within that time. Who comes while the others
    train already has a `source`: the member that hands it the state after the last round without it.
    """

    job: Job
    roster: Roster
    plan: Document
    keys: Keys = {}
    lease_s: Seconds = 0.0
    source: NameOrNone = ""

    def __repr__(self) -> str:
        return f"Welcome(to {self.job.scheme!r})"  # without the keys: what is shown may end in a log


class Prepare(ControlMessage, frozen=True):
    """Another plan, to be held beside the one in force, instead of any that was asked for and is not in force.

    One with a member more comes with the whole `roster`, and names the `source` that hands it the state. `keys` has
    what this member and that one know of each other: it may be none of those that the Welcome told of.
    """

    plan: Document
    roster: Roster = {}
    source: NameOrNone = ""
    keys: Keys = {}

    def __repr__(self) -> str:
        return "Prepare()"  # without the keys: what is shown may end in a log


class Held(ControlMessage, frozen=True):
    """The plan of `epoch` is held: connections to its next hops are open. With a `refusal` it never will be."""

    member: Name
    epoch: Number
    refusal: Text = ""


class Confirm(ControlMessage, frozen=True):
    """All members have said that they hold the plan of `epoch`."""

    epoch: Number


class Report(ControlMessage, frozen=True):
    """One round as one member saw it. `started_s` and `finished_s` bound the synchronization (Unix time).

    `compute_s` is the step's real time, `paced_s` the time slept to reach the declared step time, `late_s` how far
    past it the step ended, `waited` the seconds after the start at which each sending peer's last chunk arrived.
    `lost` and `duplicated` count updates that the plan asked for and the result did not hold, or held twice.
    `metrics` has loss, and accuracy when the round was evaluated. `send_s`, `receive_s` and `add_s` are what the
    round's connections spent in sending and in receiving chunks, and what was spent in adding them up: each is a sum
    over threads, which work at the same time. `slices` says whose updates the means are of, where a member was lost
    in the middle of the round and they are not all the same. `arrivals` are the trains that came from each peer since
    the last report, in their order. `drift` is that of rounds among all in which local steps were merged.
    """

    member: Name
    round: Number
    epoch: Number
    started_s: Moment
    finished_s: Moment
    compute_s: Seconds
    paced_s: Seconds
    sent_bytes: Count
    received_bytes: Count
    lost: Count
    duplicated: Count
    waited: Annotated[Mapping[Name, Seconds], Meta(max_length=MOST_MEMBERS)] = {}
    peers: Annotated[tuple[PeerSample, ...], Meta(max_length=MOST_MEMBERS)] = ()
    metrics: Metrics = {}
    late_s: Seconds = 0.0
    send_s: Seconds = 0.0
    receive_s: Seconds = 0.0
    add_s: Seconds = 0.0
    slices: Annotated[tuple[MeanSlice, ...], Meta(max_length=MOST_SPANS)] = ()
    arrivals: Trains = {}
    drift: Annotated[tuple[FragmentDrift, ...], Meta(max_length=MOST_FRAGMENTS)] = ()

    @property
    def named(self) -> set[str]:
        """The peers that it says something of."""
        return {*self.waited, *self.arrivals, *(sample.peer for sample in self.peers)}


class Arrived(ControlMessage, frozen=True):
    """A member is still in a round: the `arrivals` since it said so last, or since its last Report."""

    member: Name
    arrivals: Trains = {}

    @property
    def named(self) -> set[str]:
        """The peers that it says something of."""
        return set(self.arrivals)


class Renew(ControlMessage, frozen=True):
    """A member is still there."""

    member: Name


class Lost(ControlMessage, frozen=True):
    """A member has lost `peer`, in the generation whose first plan has this epoch: its connection is `broken`, or it
    owes something for longer than a round takes."""

    member: Name
    peer: Name
    why: Text
    generation: Number
    broken: bool = True


class Abort(ControlMessage, frozen=True):
    """A member is gone: nothing becomes final any more, until a Reconfigure of `epoch` or a later one."""

    epoch: Number
    why: Text


class Holding(ControlMessage, frozen=True):
    """The answer to the Abort of `epoch`. `round` is the one this member is in, or the last one that is over for it.

    Not over, `final` are the elements, of `elements`, that hold their mean: [start, stop) in order.
    """

    member: Name
    epoch: Number
    round: Number
    over: bool
    elements: Count = 0
    final: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_SPANS)] = ()

    def __post_init__(self) -> None:
        before = 0
        for start, stop in self.final:
            if not before <= start < stop <= self.elements:
                raise ValueError(f"[{start}, {stop}) are no elements of {self.elements} that follow the first {before}")
            before = stop


class Reconfigure(ControlMessage, frozen=True):
    """Go on under `plan`, whose members are those that are left and said what they hold.

    From their `holdings` all reckon what to do about the round that was on: testbed.sync.recovery has the rule.
    """

    plan: Document
    roster: Roster
    holdings: Annotated[tuple[Holding, ...], Meta(max_length=MOST_MEMBERS)]


class Goodbye(ControlMessage, frozen=True):
    """A member is done. `digest` is the SHA-256 of its parameters' bytes; `error` is empty when all went well."""

    member: Name
    rounds: Number
    digest: Annotated[str, Meta(max_length=128)] = ""
    metrics: Metrics = {}
    error: Text = ""

    @classmethod
    def with_error(cls, member: str, rounds: int, error: str) -> Goodbye:
        """Of a member that can't go on; as much of the error as has room."""
        return cls(member, rounds, error=brief(error))


#: A probe is so many trains, with pauses between them: one alone may have met a round's packets, and three make an
#: estimate.
PROBE_TRAINS = 3


class Probe(ControlMessage, frozen=True):
    """Find out what the path to `peer` carries: send there `bytes` that mean nothing, in PROBE_TRAINS trains that take
    `seconds` to leave, all together."""

    peer: Name
    bytes: Count
    seconds: Annotated[float, Meta(ge=0, le=3600)]


class Died(ControlMessage, frozen=True):
    """In decentralized training: a member is gone, and the others go on without it."""

    gone: Name


class PrepareGraph(ControlMessage, frozen=True):
    """Another communication graph is to hold: enter `ahead` - 1 more iterations at most, until CommitGraph or
    AbortGraph."""

    ahead: Number


class PromiseGraph(ControlMessage, frozen=True):
    """The member enters no iteration from `end` on until it hears of the graph there."""

    member: Name
    end: Number


class CommitGraph(ControlMessage, frozen=True):
    """From `iteration` on the graph is another, in which the member's `place` is this one (see NodeConfiguration).

    `roster` says where they listen who come with it.
    """

    iteration: Number
    place: NodeConfiguration
    roster: Roster = {}


class AbortGraph(ControlMessage, frozen=True):
    """The graph stays as it is; go on."""


class Stop(ControlMessage, frozen=True):
    """Leave now. Who is told so `again` may come back as a member that knows nothing: the others train on."""

    reason: Text
    again: bool = False


#: What comes on a line.
_MESSAGE: msgspec.json.Decoder[ControlMessage] = msgspec.json.Decoder(
    Hello
    | Rejoin
    | Welcome
    | Prepare
    | Held
    | Confirm
    | Report
    | Arrived
    | Renew
    | Lost
    | Abort
    | Holding
    | Reconfigure
    | Goodbye
    | Probe
    | Died
    | PrepareGraph
    | PromiseGraph
    | CommitGraph
    | AbortGraph
    | Stop
)

_KIND = re.compile(rb'\s*\{\s*"kind"\s*:\s*"(\w{1,20})"')


def encode(message: ControlMessage) -> bytes:
    """The message as one line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> ControlMessage:
    """The message on a line; ProtocolError when it is none of them. Nothing of the line but its kind is quoted: a hello
    has a token in it."""
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        return decode_as(_MESSAGE, line)
    except ProtocolError as error:
        kind = _KIND.match(line)
        raise ProtocolError(f"{kind[1].decode() if kind else 'not a message'}: {error}") from error


def checked_metrics(metrics: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Figures that a report can carry; ProtocolError when they are too many, or none."""
    found: Mapping[str, float | None] = convert_to(Metrics, {name: float(value) for name, value in metrics.items()})
    return found
