"""Messages as they travel: a code, a few numbers that go into a frame's head, and bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from testbed.sync.buffers import bytes_of
from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.decentralized.adpsgd import Exchange, Moved
from testbed.sync.decentralized.bridge import Change, Task
from testbed.sync.decentralized.effects import Message
from testbed.sync.decentralized.fedasync import Given, Trained
from testbed.sync.decentralized.hop.messages import Ack, Skipped, Tokens, Update
from testbed.sync.decentralized.hybrid import messages as hybrid
from testbed.sync.decentralized.netmax import Model, Pull
from testbed.sync.decentralized.prague import Group, Groups, Leaving, Part, Ready
from testbed.sync.decentralized.pushsum import Share
from testbed.sync.errors import FrameError

#: A group inside a list of them: its number and the length of the bitmap of its members, which follows.
_GROUP: Final = struct.Struct("<IH")


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The sender's program has ended: it sends nothing any more but answers."""


class Letter(NamedTuple):
    """`number` is an iteration or a group's number, `amount` a second number, `names` a bitmap over the members.

    `body` are the elements of a tensor, or what else the code says; `kept` is whatever its memory belongs to.
    """

    code: int
    number: int = 0
    amount: int = 0
    weight: float = 0.0
    names: int = 0
    body: memoryview = memoryview(b"")
    kept: object = None


class Letters:
    """Writes and reads letters among `members`, whose models have `elements` parameters (float32).

    What groups send each other goes through the `codec`: one whose bytes are as many for each element.
    """

    def __init__(self, members: tuple[str, ...], elements: int, codec: Codec = PLAIN) -> None:
        self.members = members
        self.most_bytes = max(4 * elements, len(members) * (_GROUP.size + len(members)))
        self._elements = elements
        self._codec = codec
        self._bits = {name: 1 << place for place, name in enumerate(members)}

    def write(self, message: Message) -> Letter:
        """The message as a letter. Its tensor is not copied, but for what goes through the codec."""
        match message:
            case Update(iteration, parameters):
                return _with(parameters, Letter(1, iteration))
            case Skipped(first, last):
                return Letter(2, first, last)
            case Tokens(count):
                return Letter(3, amount=count)
            case Ack(iteration):
                return Letter(4, iteration)
            case Share(iteration, numerator, mass):
                return _with(numerator, Letter(5, iteration, weight=mass))
            case Exchange(parameters):
                return _with(parameters, Letter(6))
            case Moved(half):
                return _with(half, Letter(7))
            case Pull():
                return Letter(8)
            case Model(parameters):
                return _with(parameters, Letter(9))
            case Ready():
                return Letter(10)
            case Leaving():
                return Letter(11)
            case Group(number, members):
                return Letter(12, number, names=self._bitmap(members))
            case Groups(groups):
                return Letter(13, body=memoryview(b"".join(map(self._packed, groups))))
            case Part(number, parameters):
                return _with(parameters, Letter(14, number))
            case Done():
                return Letter(15)
            case Task(iteration, parameters):
                return _with(parameters, Letter(16, iteration))
            case Change(iteration, change):
                return _with(change, Letter(17, iteration))
            case Trained(version, parameters):
                return _with(parameters, Letter(18, version))
            case Given(version, parameters):
                return _with(parameters, Letter(19, version))
            case hybrid.Local(number, values):
                return _with(values, Letter(20, number))
            case hybrid.Agreed(number, values):
                return _with(values, Letter(21, number))
            case hybrid.Moved(number, start, values):
                return self._coded(values, Letter(22, number, start))
            case hybrid.Merged(number, start, values):
                return self._coded(values, Letter(23, number, start))
        raise TypeError(f"{message} has no form in which it travels")

    def read(self, letter: Letter) -> Message:
        """The message of a letter; FrameError when it is none."""
        match letter:
            case Letter(1, number):
                return Update(number, self._tensor(letter))
            case Letter(2, number, count):
                return Skipped(number, count)
            case Letter(3, _, count):
                return Tokens(count)
            case Letter(4, number):
                return Ack(number)
            case Letter(5, number, _, weight):
                return Share(number, self._tensor(letter), weight)
            case Letter(6):
                return Exchange(self._tensor(letter))
            case Letter(7):
                return Moved(self._tensor(letter))
            case Letter(8):
                return Pull()
            case Letter(9):
                return Model(self._tensor(letter))
            case Letter(10):
                return Ready()
            case Letter(11):
                return Leaving()
            case Letter(12, number):
                return Group(number, self._listed(letter.names))
            case Letter(13):
                return Groups(self._unpacked(letter.body))
            case Letter(14, number):
                return Part(number, self._tensor(letter))
            case Letter(15):
                return Done()
            case Letter(16, number):
                return Task(number, self._tensor(letter))
            case Letter(17, number):
                return Change(number, self._tensor(letter))
            case Letter(18, number):
                return Trained(number, self._tensor(letter))
            case Letter(19, number):
                return Given(number, self._tensor(letter))
            case Letter(20, number):
                return hybrid.Local(number, self._part(letter, PLAIN))
            case Letter(21, number):
                return hybrid.Agreed(number, self._part(letter, PLAIN))
            case Letter(22, number, start):
                return hybrid.Moved(number, start, self._part(letter, self._codec))
            case Letter(23, number, start):
                return hybrid.Merged(number, start, self._part(letter, self._codec))
        raise FrameError(f"no message has the code {letter.code}")

    def _tensor(self, letter: Letter) -> Tensor:
        if len(letter.body) != 4 * self._elements:
            raise FrameError(f"a model of {len(letter.body)} bytes, where this member's has {4 * self._elements}")
        return torch.frombuffer(letter.body, dtype=torch.float32)

    def _coded(self, values: Tensor, letter: Letter) -> Letter:
        data = self._codec.encode(values.detach().to("cpu", torch.float32))
        return letter._replace(body=bytes_of(data), kept=data)

    def _part(self, letter: Letter, codec: Codec) -> Tensor:
        """Some of a model's elements; whose part it is knows how many they should be."""
        elements = len(letter.body) // codec.size(1)
        if elements > self._elements or not codec.fits(elements, len(letter.body)):
            raise FrameError(f"{len(letter.body)} bytes are no part of a model of {self._elements} elements")
        if not elements:
            return torch.empty(0)  # a member's shard, of more members than elements
        return codec.decode(torch.frombuffer(letter.body, dtype=torch.uint8), elements)

    def _bitmap(self, names: tuple[str, ...]) -> int:
        return sum(self._bits[name] for name in names)

    def _listed(self, bitmap: int) -> tuple[str, ...]:
        return tuple(name for name, bit in self._bits.items() if bitmap & bit)

    def _packed(self, group: Group) -> bytes:
        bitmap = self._bitmap(group.members).to_bytes((len(self.members) + 7) // 8, "little")
        return _GROUP.pack(group.number, len(bitmap)) + bitmap

    def _unpacked(self, body: memoryview) -> tuple[Group, ...]:
        groups, at = [], 0
        while at < len(body):
            if at + _GROUP.size > len(body):
                raise FrameError("a list of groups that is cut short")
            number, length = _GROUP.unpack_from(body, at)
            at += _GROUP.size
            groups.append(Group(number, self._listed(int.from_bytes(body[at : at + length], "little"))))
            at += length
        return tuple(groups)


def _with(tensor: Tensor, letter: Letter) -> Letter:
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return letter._replace(body=bytes_of(values), kept=values)
