"""The parts of messages: types with bounds, the values in messages, and the decoding of bytes.

The bounds are far from usual values: no working member sends a value beyond them. Numbers from JSON are finite, since
JSON can't express others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from testbed.errors import DetailedError

#: The most members, and so the most entries of a list or map that has one for each.
MOST_MEMBERS = 4096
#: The most figures that a member reports of a step.
MOST_METRICS = 64
#: The most characters of a text for people.
MOST_TEXT = 4096
#: The most entries of a list or a map in a Document, and how deep they nest. A plan's groups' trees' keys are 5 deep.
MOST_ENTRIES, MOST_DEPTH = 2**20, 6
#: Frames between members have 32 bits for epochs and rounds.
MOST_NUMBER = 2**32 - 1
#: The most trains of one peer in a message; members keep 256 of each peer until they report.
MOST_TRAINS = 1024

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"

#: A member's name, which is a host's name: those have at most 64 characters.
Name = Annotated[str, Meta(max_length=64, pattern=rf"^{_NAME}\Z")]
#: A member's name, or empty.
NameOrNone = Annotated[str, Meta(max_length=64, pattern=rf"^({_NAME})?\Z")]
#: Members' names.
Names = Annotated[tuple[Name, ...], Meta(max_length=MOST_MEMBERS)]
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Number = Annotated[int, Meta(ge=0, le=MOST_NUMBER)]
#: A count that a double, and so every JSON reader, holds exactly.
Count = Annotated[int, Meta(ge=0, le=2**53)]
#: A duration: 30 years at most.
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
#: The longest timeout of a round in seconds: 115 days.
MOST_ROUND_TIMEOUT_S = 1e7
#: Unix time, until the year 5138.
Moment = Annotated[float, Meta(ge=0, le=1e11)]
Rate = Annotated[float, Meta(ge=0, le=1e18)]
Weight = Annotated[float, Meta(ge=0)]
Address = tuple[Annotated[str, Meta(min_length=1, max_length=255)], Annotated[int, Meta(ge=0, le=2**16 - 1)]]
Roster = Annotated[Mapping[Name, Address], Meta(max_length=MOST_MEMBERS)]
#: Another member's name → the secret that two members share: 32 bytes, hexadecimal.
Keys = Annotated[Mapping[Name, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]], Meta(max_length=MOST_MEMBERS)]
#: Name of a figure → the figure; None if it is not finite, such as the loss of diverged training.
Metrics = Annotated[
    Mapping[Annotated[str, Meta(min_length=1, max_length=64)], float | None], Meta(max_length=MOST_METRICS)
]


def _nested(inner: Any, _: int) -> Any:
    text = Annotated[str, Meta(max_length=MOST_ENTRIES)]
    items = Annotated[list[inner], Meta(max_length=MOST_ENTRIES)]
    return Union[bool, int, float, text, None, items, Annotated[dict[str, inner], Meta(max_length=MOST_ENTRIES)]]  # noqa: UP007


if TYPE_CHECKING:
    #: A value that another module checks further: a plan, a scheme's options.
    Document = Mapping[str, Any]
else:
    _Leaf = bool | int | float | Annotated[str, Meta(max_length=MOST_ENTRIES)] | None
    Document = Annotated[dict[str, reduce(_nested, range(MOST_DEPTH), _Leaf)], Meta(max_length=MOST_ENTRIES)]

T = TypeVar("T")


class ProtocolError(DetailedError, ValueError):
    """Bytes or a value that are not a message, or that no working member would send."""


def check_name(name: str) -> None:
    """Raise ProtocolError unless a member may have this name."""
    if len(name) > 64 or not re.fullmatch(_NAME, name):
        raise ProtocolError(
            f"{brief(name)!r} is not a member's name: write 1 to 64 letters A-Z and a-z, digits, `_`, `.` and `-`, and "
            "begin with neither `.` nor `-`",
            field="member",
            given=name,
        )


def brief(text: str) -> str:
    """Return a text as a message can carry it: cut where it is too long, without letters that UTF-8 does not have."""
    shown = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 2] + " …"
    return shown.encode(errors="replace").decode()


def decode_as(decoder: msgspec.json.Decoder[T], data: bytes | memoryview) -> T:
    """Return the value of JSON. ProtocolError: it is not of the decoder's type."""
    with protocol_errors():
        return decoder.decode(data)


def decode_lines(decoder: msgspec.json.Decoder[T], lines: bytes) -> list[T]:
    """Return the records in lines of JSON, without lines that do not fit the decoder's type."""
    with suppress(ProtocolError), protocol_errors():
        return decoder.decode_lines(lines)
    found = []
    for line in lines.split(b"\n"):
        with suppress(ProtocolError):
            found.append(decode_as(decoder, line))
    return found


def convert_to(kind: Any, value: Any) -> Any:
    """Return plain values of JSON as a value of this type. ProtocolError: they do not fit the type."""
    with protocol_errors():
        return msgspec.convert(value, kind)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Raise ProtocolError for each error of msgspec in the body."""
    try:
        yield
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError) as error:
        raise ProtocolError(brief(str(error))) from error


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    """A run as the controller describes it to a member."""

    #: How many rounds training takes; iterations, where members gossip.
    rounds: Number
    #: The seed of everything that is drawn at random.
    seed: int = 0
    #: The scheme by which members train together, a name of testbed.schemes or a file, and its options.
    scheme: Annotated[str, Meta(max_length=4096)] = "gradients"
    options: Document = {}
    #: The scheme's values for this member alone; for a member that gossips, its NodeConfiguration.
    assignment: Document = {}
    #: The model and the data of the training; the library does not read them.
    workload: Document = {}
    #: The member's declared speed of computing; 0 where it declares none.
    samples_per_s: Rate = 0.0
    #: How long a member waits for the peers of a round.
    round_timeout_s: Annotated[float, Meta(gt=0, le=MOST_ROUND_TIMEOUT_S)] = 120.0
    #: Connections to each next hop: on long paths that lose packets, several carry more than one.
    streams: Annotated[int, Meta(ge=1, le=255)] = 1
    #: The connections' congestion control; the kernel's default where it is empty.
    congestion: Annotated[str, Meta(max_length=15)] = ""
    #: True if the order of additions is fixed, for the same bits in each run.
    reproducible: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """Return the job in a mapping. ProtocolError: the mapping is not a job."""
        job: Job = convert_to(cls, value)
        return job


class NodeConfiguration(Struct, frozen=True, forbid_unknown_fields=True):
    """A member's neighbours, weights and rules in decentralized training, the `assignment` of its Job."""

    #: The scheme's name (hop for dpsgd); leader or worker where Hop is between sites.
    protocol: Annotated[str, Meta(max_length=64)]
    #: The members that send to this one in the communication graph, and those to which it sends; without itself.
    sources: Names
    targets: Names
    #: Source → its weight in the average; the member's own name is among them.
    weights: Annotated[Mapping[Name, Weight], Meta(max_length=MOST_MEMBERS)]
    #: All members that may send to this one; this member stays until they are done.
    partners: Names
    #: The protocol's own values: Hop's rules; Prague's `generator` and FedAsync's `server` (the member that runs it);
    #: AD-PSGD's `active`; a leader's workers (`site`); a worker's `leader`; the values of StaggeredRules.
    rules: Document
    #: Local steps in an iteration.
    steps: Annotated[int, Meta(ge=1, le=2**32 - 1)] = 1
    #: (period, phase) of the iterations at whose begin the member evaluates its model; None: other members do.
    evaluates: tuple[Number, Number] | None = (1, 0)
    #: The iteration in which the member begins: 0, unless it joins while the others train.
    first: Number = 0
    #: How long the others have trained by then.
    elapsed_s: Seconds = 0.0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NodeConfiguration:
        """Return the configuration in a mapping. ProtocolError: the mapping does not fit."""
        configuration: NodeConfiguration = convert_to(cls, value)
        return configuration


class Train(NamedTuple):
    """Bytes of a peer that arrived back to back, while the peer had more to send: a measurement of its path.

    `bytes` came in the `seconds` after the first packet, which arrived at `began_s` (Unix time). `allowed_bytes_s` is
    the most that the sender's TCP would have sent meanwhile, or 0 where TCP held nothing back; `burst_bytes_s` is the
    rate of TCP's bursts. A train between these two rates is a lower bound of what the path carries. A probe has no
    bursts: it left at `allowed_bytes_s`.
    """

    began_s: Annotated[float, Meta(gt=0, le=1e11)]
    seconds: Annotated[float, Meta(ge=1e-7, le=1e6)]
    bytes: Annotated[int, Meta(ge=1, le=2**53)]
    allowed_bytes_s: Count = 0
    burst_bytes_s: Count = 0

    @property
    def is_probe(self) -> bool:
        """True if the train is a probe's, which leaves at a steady rate."""
        return bool(self.allowed_bytes_s) and not self.burst_bytes_s


#: Peer → the trains that came from it, in their order.
Trains = Annotated[
    Mapping[Name, Annotated[tuple[Train, ...], Meta(max_length=MOST_TRAINS)]], Meta(max_length=MOST_MEMBERS)
]


class PeerSample(Struct, frozen=True, forbid_unknown_fields=True):
    """The path to a next hop over one round, measured by the sender's own sockets."""

    peer: Name
    #: Bytes that were acknowledged while the socket was backlogged and not limited by the receiver, and the seconds of
    #: that time: bytes/busy_s is the path's throughput.
    bytes: Count
    busy_s: Seconds
    #: The least round trip in seconds.
    rtt_s: Seconds
    #: Retransmitted segments.
    retransmits: Count
    #: The kernel's own estimate, over the last round trip that was limited by the path. It needs less data than
    #: bytes/busy_s, which slow start and the delay of the last acknowledgement lower.
    delivery_bytes_s: Rate = 0.0
    #: The mean time that a frame waited before it was sent.
    queued_s: Seconds = 0.0
    #: The part of `bytes` that travelled on auxiliary routes over this hop.
    auxiliary_bytes: Count = 0


class FragmentDrift(Struct, frozen=True, forbid_unknown_fields=True):
    """A member's distance to the others when all merged their changes of a fragment of the model."""

    fragment: Number
    #: The member's weight in the mean.
    weight: Weight
    #: The Euclidean distance from the member to the mean of all.
    apart: Weight
    #: The Euclidean distance from the mean of all to where all began.
    moved: Weight
    #: Random sums of the member's difference to the mean: a group's mean has the mean of its members' sums.
    sketch: Annotated[tuple[float, ...], Meta(max_length=64)] = ()
    #: The loss of the member's last batch, before the merge and after it; None: not measured.
    loss_before: float | None = None
    loss_after: float | None = None


class MeanSlice(Struct, frozen=True, forbid_unknown_fields=True):
    """The elements [start, stop) of a round, the members that their mean is over, and the sum of their weights."""

    start: Count
    stop: Count
    members: Names
    weight: Weight

    def __post_init__(self) -> None:
        if self.start >= self.stop:
            raise ValueError(f"the slice [{self.start}, {self.stop}) of a round holds no elements")
