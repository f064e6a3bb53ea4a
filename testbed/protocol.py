"""The control messages between a member and the controller: pure values, one JSON object a line.

    member                   controller
      Hello        ------------->             the address at which the member listens for its peers
      Rejoin       ------------->             its plan and its round, after it lost only the controller
                   <-------------      Welcome its job, all addresses, the plan; sent once all members are there
      Report       ------------->             after each round: how its time was spent, what each peer's path carried
      Arrived      ------------->             during a round: what arrived so far
                   <-------------      Prepare another plan
      Held         ------------->             the plan is held: its next hops are connected; or it can't be held
                   <-------------      Confirm all members hold the plan
      Goodbye      ------------->             the member is done; the digest of its parameters
                   <-------------        Probe send bytes to a peer, to measure what the path to it carries
                   <-------------         Died another member is gone; the others go on gossiping
                   <------------- PrepareGraph another graph is proposed (Hop): how far will the member go?
      PromiseGraph ------------->             the member enters no iteration from that one on before it hears
                   <-------------  CommitGraph the graph from this iteration on; or
                   <-------------   AbortGraph the graph stays
                   <-------------         Stop leave now: the run was interrupted, or another member failed

Where the run is elastic (its Welcome has a lease) there are more:

      Renew        ------------->             the member is alive; one that sends nothing for a lease is gone
      Lost         ------------->             a peer's connection broke, or the peer did not send in time
                   <-------------        Abort a member is gone: finish no more elements
      Holding      ------------->             the member's round, and the elements that it holds final
                   <-------------  Reconfigure a plan without the lost member, and what each member holds
      Unreached    ------------->             the peers to which no connection could be opened in a long round
                   <-------------        Reach to a member that waits to join: can it reach the others?
      Unreached    ------------->             those that it can't reach; it joins once it reaches most of them

Members that gossip, by a scheme that goes on without a lost member, send Lost in any run: of two that lost each
other the controller removes the one that lost more of its neighbours, tells it to stop, and the others by Died.

A plan takes force without a further message. The chunks of every round carry the successor that their contributors
hold: the epoch of the plan that they were last asked to prepare, or the round's own epoch until they hold that plan.
If contributors name different epochs, the round's own is taken. The result comes back with the mean, so after round k
all members know the same epoch for round k+1, and each of them holds that plan. Agreement thus needs only the barrier
that a round is anyway: no member pauses for a swap, and a controller that dies during a swap leaves no member
undecided. Confirm only makes the swap sooner: a root that knows that all members hold the plan names the plan in the
means that it has still to make, whatever epoch the contributors' chunks named when they were sent, which may be
seconds ago on a slow path.

Rounds inside groups agree on nothing. There the root of the confirmed plan's first tree, which gets Confirm as all
members do, asks the members which round they are in, and tells them the round from which the plan holds (see
sync/allreduce/early_swaps.py): no member waits for the next round among all, or for the controller.

The controller asks for one plan at a time. A Prepare withdraws the plan of an earlier Prepare that is not in force yet.
So a plan that one member could not hold, and that the controller dropped, is no longer a successor at other members.

Every field is typed and bounded (see schema.py). A malformed message ends its sender, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Union

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
    Roster,
    Seconds,
    Text,
    Trains,
    brief,
    convert_to,
    decode_as,
)
from testbed.schema import FragmentDrift as FragmentDrift
from testbed.schema import Job as Job
from testbed.schema import MeanSlice as MeanSlice
from testbed.schema import NodeConfiguration as NodeConfiguration
from testbed.schema import PeerSample as PeerSample
from testbed.schema import ProtocolError as ProtocolError
from testbed.schema import Train as Train

PROTOCOL_VERSION = 8

#: The longest line. A plan of 1,000 members with 1,000 trees is longer, and does not travel this way.
MAX_LINE_BYTES = 16 * 1024 * 1024

#: The greatest epoch that a member may know. A restarted controller numbers plans from there, and needs room above it.
MOST_EPOCH_KNOWN = 2**31
#: The most ranges of elements in an aborted round: a model of 1,000 chunks a member, each with a mean of its own.
MOST_SPANS = 2**16
#: The most fragments of a model that are merged one by one.
MOST_FRAGMENTS = 4096


def _kind_of(name: str) -> str:
    """Return the kind of a class on the wire: `prepare_graph` for `PrepareGraph`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ControlMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=_kind_of):
    """The base of the messages between a member and the controller; `kind` on the wire names the class."""

    @property
    def kind(self) -> str:
        """The kind of the message, as on the wire."""
        return str(self.__struct_config__.tag)


class Hello(ControlMessage, frozen=True):
    """From a member, first of all: its name, its token and the address at which it listens for peers."""

    member: Name
    #: The host and port at which the member listens for peers.
    address: Address
    device: Annotated[str, Meta(max_length=64)] = "cpu"
    #: The member's own token, over TCP.
    token: Annotated[str, Meta(max_length=256)] = ""
    version: Number = PROTOCOL_VERSION
    #: True if the member was in the run before and lost only the controller: a Rejoin follows.
    returns: bool = False

    def __repr__(self) -> str:
        return f"Hello({self.member!r})"  # without the token, since this may end in a log


class Rejoin(ControlMessage, frozen=True):
    """From a member that reconnected: its state, from which a restarted controller continues.

    A message of its own, because it is as long as a plan. A Hello is short, so that the controller reads no long line
    of a sender that has not shown its token.
    """

    member: Name
    #: The plan in force.
    plan: Document
    roster: Roster
    #: The last round that the member finished, and whether that round was aborted.
    round: Number
    aborted: bool
    #: The newest epoch that the member knows.
    newest: Annotated[int, Meta(ge=0, le=MOST_EPOCH_KNOWN)]


class Welcome(ControlMessage, frozen=True):
    """From the controller: all members have joined. Has the member's job, the peers' addresses and the first plan."""

    job: Job
    #: Member → its address.
    roster: Roster
    plan: Document
    #: Member → the secret that this member shares with it alone, hexadecimal, by which they greet. Keys are never
    #: recorded, as plans are.
    keys: Keys = {}
    #: The time within which members renew their lease; 0 where the run is not elastic.
    lease_s: Seconds = 0.0
    #: For a member that joins while the others train: the member that sends it the state after the round before.
    source: NameOrNone = ""

    def __repr__(self) -> str:
        return f"Welcome(to {self.job.scheme!r})"  # without the keys, since this may end in a log


class Prepare(ControlMessage, frozen=True):
    """From the controller: another plan to hold. It replaces an earlier one that is not in force yet."""

    plan: Document
    #: The whole roster, where the plan has a new member.
    roster: Roster = {}
    #: The member that sends the new member the state.
    source: NameOrNone = ""
    #: The secret that this member shares with the new one.
    keys: Keys = {}

    def __repr__(self) -> str:
        return "Prepare()"  # without the keys, since this may end in a log


class Held(ControlMessage, frozen=True):
    """From a member: it holds the plan of `epoch`, connected to its next hops; or with a `refusal`, it never will."""

    member: Name
    epoch: Number
    refusal: Text = ""


class Confirm(ControlMessage, frozen=True):
    """From the controller: all members hold the plan of `epoch`."""

    epoch: Number


class Report(ControlMessage, frozen=True):
    """From a member: one round as that member saw it."""

    member: Name
    round: Number
    epoch: Number
    #: The start and the end of the synchronization, in Unix seconds.
    started_s: Moment
    finished_s: Moment
    #: The real time of the step, and the time slept to reach the declared one.
    compute_s: Seconds
    paced_s: Seconds
    sent_bytes: Count
    received_bytes: Count
    #: Updates that the plan asked for and the result did not hold, or held twice.
    lost: Count
    duplicated: Count
    #: Peer → the seconds after `started_s` at which its last chunk arrived.
    waited: Annotated[Mapping[Name, Seconds], Meta(max_length=MOST_MEMBERS)] = {}
    peers: Annotated[tuple[PeerSample, ...], Meta(max_length=MOST_MEMBERS)] = ()
    #: The loss, and the accuracy where the round was evaluated.
    metrics: Metrics = {}
    #: The longest time by which a step before the round exceeded its declared time.
    late_s: Seconds = 0.0
    #: The time that the round's connections spent in sending and receiving chunks, and the time spent in adding them.
    #: Each is a sum over threads that work at the same time.
    send_s: Seconds = 0.0
    receive_s: Seconds = 0.0
    add_s: Seconds = 0.0
    #: The members whose updates the means hold, where a member was lost during the round and the means differ in that.
    slices: Annotated[tuple[MeanSlice, ...], Meta(max_length=MOST_SPANS)] = ()
    #: The trains that arrived since the last report.
    arrivals: Trains = {}
    #: The drift in a round among all that merged local steps.
    drift: Annotated[tuple[FragmentDrift, ...], Meta(max_length=MOST_FRAGMENTS)] = ()
    #: The number of the steps before the round, and of those that took longer than declared.
    steps: Count = 0
    late_steps: Count = 0

    @property
    def named(self) -> set[str]:
        """The peers that the message names."""
        return {*self.waited, *self.arrivals, *(sample.peer for sample in self.peers)}


class Arrived(ControlMessage, frozen=True):
    """From a member that is still in a round: the trains of packets that arrived since its last Arrived or Report."""

    member: Name
    arrivals: Trains = {}

    @property
    def named(self) -> set[str]:
        """The peers that the message names."""
        return set(self.arrivals)


class Renew(ControlMessage, frozen=True):
    """From a member: it is alive, so its lease begins again."""

    member: Name
    #: The round that the member has just finished, after it reported in it that it waited for others; else 0.
    round: Number = 0


class Lost(ControlMessage, frozen=True):
    """From a member: it has lost a peer, or waits for it longer than a round takes."""

    member: Name
    peer: Name
    why: Text
    #: The epoch of the generation's first plan; 0 where members gossip.
    generation: Number
    #: The connection is broken; else the peer has not sent for longer than a round takes.
    broken: bool = True


class Reach(ControlMessage, frozen=True):
    """From the controller, to a member that waits to join: try to open a connection to each of these members."""

    roster: Roster


class Unreached(ControlMessage, frozen=True):
    """From a member: the peers to which it could open no connection just now. It replaces the member's last one."""

    member: Name
    peers: Annotated[tuple[Name, ...], Meta(max_length=MOST_MEMBERS)]
    #: The epoch of the generation's first plan; 0 from a member that waits to join.
    generation: Number = 0

    @property
    def named(self) -> set[str]:
        """The peers that the message names."""
        return set(self.peers)


class Abort(ControlMessage, frozen=True):
    """From the controller: a member is gone. No more elements become final before a Reconfigure of `epoch` or later."""

    epoch: Number
    why: Text


class Holding(ControlMessage, frozen=True):
    """From a member, after the Abort of `epoch`: which elements of the interrupted round hold their mean there."""

    member: Name
    epoch: Number
    #: The round that the member is in, or its last round if that is over.
    round: Number
    over: bool
    #: In a round that is not over: the number of elements, and those that hold their mean, as [start, stop) in order.
    elements: Count = 0
    final: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_SPANS)] = ()

    def __post_init__(self) -> None:
        before = 0
        for start, stop in self.final:
            if not before <= start < stop <= self.elements:
                raise ValueError(
                    f"final: the range [{start}, {stop}) must have one element or more, all within "
                    f"[{before}, {self.elements}): ranges stand in rising order"
                )
            before = stop


class Reconfigure(ControlMessage, frozen=True):
    """From the controller: continue under this plan, which has the remaining members."""

    plan: Document
    roster: Roster
    #: The answers of these members. From them all members compute how to finish the round, by the rule in
    #: testbed.sync.recovery.
    holdings: Annotated[tuple[Holding, ...], Meta(max_length=MOST_MEMBERS)]


class Goodbye(ControlMessage, frozen=True):
    """From a member, last of all: it is done after `rounds` rounds, or it failed with an `error`."""

    member: Name
    rounds: Number
    #: The SHA-256 of its parameters' bytes.
    digest: Annotated[str, Meta(max_length=128)] = ""
    metrics: Metrics = {}
    #: Why the member failed; empty where it did not.
    error: Text = ""

    @classmethod
    def with_error(cls, member: str, rounds: int, error: str) -> Goodbye:
        """Return the Goodbye of a member that can't go on, with as much of the error as a message holds."""
        return cls(member, rounds, error=brief(error))


#: The most trains of a probe, with pauses between them: one train alone may have met a round's packets, and three make
#: an estimate.
PROBE_TRAINS = 3


class Probe(ControlMessage, frozen=True):
    """From the controller: measure the rate of the path to a peer, by trains of bytes without meaning."""

    peer: Name
    bytes: Count
    #: The time that all trains together take to leave.
    seconds: Annotated[float, Meta(ge=0, le=3600)]
    trains: Annotated[int, Meta(ge=1, le=PROBE_TRAINS)] = PROBE_TRAINS


class Died(ControlMessage, frozen=True):
    """From the controller, where members gossip: the member `gone` is gone, and the others go on without it."""

    gone: Name


class PrepareGraph(ControlMessage, frozen=True):
    """From the controller: another graph may follow. Enter at most `ahead` - 1 more iterations before the decision."""

    ahead: Number


class PromiseGraph(ControlMessage, frozen=True):
    """From a member: it enters no iteration from `end` on before CommitGraph or AbortGraph arrives."""

    member: Name
    end: Number


class CommitGraph(ControlMessage, frozen=True):
    """From the controller: from `iteration` on, the proposed graph is in force."""

    iteration: Number
    #: The member's configuration in the new graph.
    place: NodeConfiguration
    #: The addresses of members that join with the new graph.
    roster: Roster = {}


class AbortGraph(ControlMessage, frozen=True):
    """From the controller: the proposed graph is dropped; go on over the present one."""


class Stop(ControlMessage, frozen=True):
    """From the controller: leave the run now."""

    reason: Text
    #: The member may come back without its state, since the others go on training.
    again: bool = False


#: Reads the message on a line: any of the classes above.
_MESSAGE: msgspec.json.Decoder[ControlMessage] = msgspec.json.Decoder(
    Union[tuple(ControlMessage.__subclasses__())]  # noqa: UP007 (made of parts)
)

_KIND = re.compile(rb'\s*\{\s*"kind"\s*:\s*"(\w{1,20})"')


def encode(message: ControlMessage) -> bytes:
    """Return the message as one line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> ControlMessage:
    """Return the message on a line.

    Raises:
        ProtocolError: The line is not a message. The text quotes its kind alone, since a Hello has a token in it.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"the line has {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        return decode_as(_MESSAGE, line)
    except ProtocolError as error:
        kind = _KIND.match(line)
        raise ProtocolError(f"{kind[1].decode() if kind else 'not a message'}: {error}") from error


def checked_metrics(metrics: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Return the figures as floats, for a Report's `metrics`.

    Raises:
        ProtocolError: There are more than MOST_METRICS, or a name is empty or has more than 64 characters.
        ValueError, TypeError: `float` refuses a figure.
    """
    found: Mapping[str, float | None] = convert_to(Metrics, {name: float(value) for name, value in metrics.items()})
    return found
