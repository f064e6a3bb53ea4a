"""What messages are made of: types with bounds, and how bytes become values of them or a ProtocolError.

The bounds are those of what can be, not of what is usual: what is beyond them was not written by a member that works.
Numbers are finite wherever they come from JSON, which has no word for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

import msgspec
from msgspec import Meta

from testbed.errors import DetailedError

#: Members, at most, so entries of whatever has one for each.
MOST_MEMBERS = 4096
#: Figures that a member may report of a step, and characters of a figure's name.
MOST_METRICS = 64
#: Characters of a text for people.
MOST_TEXT = 4096
#: Entries of a list or a map in a Document, and how deep they nest. A plan's groups' trees' keys are 5 deep.
MOST_ENTRIES, MOST_DEPTH = 2**20, 6
#: Frames between members have 32 bits for epochs and rounds.
MOST_NUMBER = 2**32 - 1

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"

#: A member's: a host's name, and those end at 64 characters.
Name = Annotated[str, Meta(max_length=64, pattern=rf"^{_NAME}\Z")]
#: Empty where there is none.
NameOrNone = Annotated[str, Meta(max_length=64, pattern=rf"^({_NAME})?\Z")]
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Number = Annotated[int, Meta(ge=0, le=MOST_NUMBER)]
#: What doubles, and so all JSON readers, hold exactly.
Count = Annotated[int, Meta(ge=0, le=2**53)]
#: A duration: 30 years at most.
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
#: Unix time, until the year 5138.
Moment = Annotated[float, Meta(ge=0, le=1e11)]
Rate = Annotated[float, Meta(ge=0, le=1e18)]
Weight = Annotated[float, Meta(ge=0)]
Address = tuple[Annotated[str, Meta(min_length=1, max_length=255)], Annotated[int, Meta(ge=0, le=2**16 - 1)]]
Roster = Annotated[Mapping[Name, Address], Meta(max_length=MOST_MEMBERS)]
#: What two members know of each other, by the other's name: 32 bytes, hexadecimal.
Keys = Annotated[Mapping[Name, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]], Meta(max_length=MOST_MEMBERS)]
#: None stands for a figure that is not finite: the loss of a training that diverged.
Metrics = Annotated[
    Mapping[Annotated[str, Meta(min_length=1, max_length=64)], float | None], Meta(max_length=MOST_METRICS)
]


def _nested(inner: Any, _: int) -> Any:
    text = Annotated[str, Meta(max_length=MOST_ENTRIES)]
    items = Annotated[list[inner], Meta(max_length=MOST_ENTRIES)]
    return Union[bool, int, float, text, None, items, Annotated[dict[str, inner], Meta(max_length=MOST_ENTRIES)]]  # noqa: UP007


if TYPE_CHECKING:
    #: What another module checks further: a plan, a scheme's options.
    Document = Mapping[str, Any]
else:
    _Leaf = bool | int | float | Annotated[str, Meta(max_length=MOST_ENTRIES)] | None
    Document = Annotated[dict[str, reduce(_nested, range(MOST_DEPTH), _Leaf)], Meta(max_length=MOST_ENTRIES)]

T = TypeVar("T")


class ProtocolError(DetailedError, ValueError):
    """What is not one of the messages, or holds what none can."""


def check_name(name: str) -> None:
    """ProtocolError unless a member may have this name."""
    if len(name) > 64 or not re.fullmatch(_NAME, name):
        raise ProtocolError(
            f"{brief(name)!r} is no member's name: write 1 to 64 letters of A-Z and a-z, digits, `_`, `.` and `-`, "
            "and begin with none of the last two",
            field="member",
            given=name,
        )


def brief(text: str) -> str:
    """A text for people that a message can carry: cut where it is too long, without what has no UTF-8."""
    shown = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 2] + " …"
    return shown.encode(errors="replace").decode()


def decode_as(decoder: msgspec.json.Decoder[T], data: bytes | memoryview) -> T:
    """What the JSON says; ProtocolError when that is no value of the decoder's type."""
    with protocol_errors():
        return decoder.decode(data)


def convert_to(kind: Any, value: Any) -> Any:
    """Plain values of JSON as a value of this type; ProtocolError when they are none."""
    with protocol_errors():
        return msgspec.convert(value, kind)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """What msgspec raises as what it means here."""
    try:
        yield
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ProtocolError(brief(str(error))) from error
