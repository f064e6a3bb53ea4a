"""Messages on the wire: a code and a few numbers in each frame's header, and the bytes of a body, in parts."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.errors import FrameError
from testbed.sync.gossip.message import CLASSES, Message, message

#: The fields of PartHeader, in their order.
_HEADER: Final = struct.Struct("<BIIIdQQ")

#: The header of each frame.
HEADER_BYTES: Final = _HEADER.size

#: The most bytes of a message in one frame. Tokens and acknowledgements overtake a model between two of its parts: at
#: 20 Mbit/s they wait for 26 ms at most.
PART_BYTES: Final = 64 * 1024


class PartHeader(NamedTuple):
    """The header of a frame, which carries a part of a message."""

    #: The code, `number`, `amount` and `weight` of the message; see WireMessage.
    code: int
    #: The message's number among the sender's messages to this peer.
    sequence: int
    number: int
    amount: int
    weight: float
    #: Bytes of the message's body.
    size: int
    #: Bytes of the body before this part.
    offset: int = 0

    def pack(self) -> bytes:
        """Return the header's HEADER_BYTES bytes."""
        return _HEADER.pack(*self)

    @classmethod
    def unpack(cls, header: bytes) -> PartHeader:
        """Return the header in HEADER_BYTES bytes. Raises FrameError if its weight is not a number of at least 0."""
        unpacked = cls(*_HEADER.unpack(header))
        if not 0 <= unpacked.weight < float("inf"):
            raise FrameError(
                f"weight {unpacked.weight} is not a finite number of at least 0", field="weight", given=unpacked.weight
            )
        return unpacked


#: The type of the number of elements, which precedes a codec's bytes if these do not determine it.
COUNT = torch.int32
#: The most bytes of a body without a tensor, for each member and each pair of members.
BYTES_A_PAIR = 8


@message(15)
class Done(Message):
    """The sender's program has ended; from now on it only answers messages."""


class WireMessage(NamedTuple):
    """A message as it travels: the numbers of its header, and its body in bytes."""

    #: The code of its class.
    code: int
    #: Its first whole number, and its second.
    number: int = 0
    amount: int = 0
    weight: float = 0.0
    body: memoryview = memoryview(b"")
    #: True if the body is a tensor. Other messages overtake it.
    large: bool = False


class MessageCodec:
    """Packs and unpacks the messages of a run.

    If a codec's number of bytes does not determine the number of elements, the latter precedes the bytes.

    Attributes:
        members: The names of all members.
        most_bytes: The most bytes of a body.
    """

    def __init__(self, members: tuple[str, ...], elements: int, codec: Codec = PLAIN) -> None:
        """Make the codec of one run's messages.

        Args:
            members: The names of all members, in the same order at each.
            elements: The number of the model's parameters, float32.
            codec: The codec of CodedElements.

        Raises:
            ValueError: The codec can't count this many parameters.
        """
        self.members = members
        self._elements = elements
        self._codec = codec
        self._counts = codec.size(2) != 2 * codec.size(1)
        if self._counts and elements >= 2**31:
            raise ValueError(
                f"the codec {codec.name} takes models of fewer than 2^31 parameters, and this model has {elements}: "
                "use fp16, bf16 or fp32"
            )
        coded = codec.most(elements) + COUNT.itemsize if elements else 0
        self.most_bytes = max(4 * elements, coded, BYTES_A_PAIR * len(members) * (len(members) + 1))

    def pack(self, message: Message) -> WireMessage:
        """Return the packed message. Its tensor is not copied, unless it is sent through the codec."""
        form = message.form
        numbers = [getattr(message, name) for name in form.numbers]
        weight = getattr(message, form.weight) if form.weight else 0.0
        head = WireMessage(message.code, *numbers)._replace(weight=weight)
        if not form.tensor:
            return head._replace(body=memoryview(message.to_body(self.members)))
        values = getattr(message, form.tensor).detach().to("cpu", torch.float32)
        values = self._encoded(values) if form.coded else values.contiguous()
        return head._replace(body=bytes_of(values), large=True)

    def unpack(self, packed: WireMessage) -> Message:
        """Return the message in a packed one. Raises FrameError if the code is unknown or the body does not fit."""
        cls = CLASSES.get(packed.code)
        if cls is None:
            raise FrameError(f"no class of messages has the code {packed.code}")
        form = cls.form
        values: dict[str, Any] = dict(zip(form.numbers, (packed.number, packed.amount), strict=False))
        if form.weight:
            values[form.weight] = packed.weight
        try:
            if not form.tensor:
                return cls.of_body(packed.body, self.members, **values)
            tensor = self._some(packed, form.coded) if form.elements else self._model(packed)
            return cls(**values, **{form.tensor: tensor})
        except ValueError as error:
            raise FrameError(f"{cls.__name__}: {error}") from error

    def _model(self, packed: WireMessage) -> Tensor:
        if len(packed.body) != 4 * self._elements:
            raise FrameError(
                f"the peer's model has {len(packed.body)} bytes and this member's has {4 * self._elements}; give all "
                "members the same model"
            )
        return torch.frombuffer(packed.body, dtype=torch.float32)

    def _encoded(self, values: Tensor) -> Tensor:
        if not self._counts:
            return self._codec.encode(values)
        count = torch.tensor([len(values)], dtype=COUNT, device="cpu").view(torch.uint8)
        return torch.cat([count, self._codec.encode(values)]) if len(values) else count

    def _some(self, packed: WireMessage, coded: bool) -> Tensor:
        """Return a message's tensor that is only a part of a model. The receiver's protocol checks its size."""
        codec, body = (self._codec if coded else PLAIN), packed.body
        if coded and self._counts:
            if len(body) < COUNT.itemsize:
                raise FrameError(f"{len(body)} bytes are too few for the number of elements")
            elements, body = int.from_bytes(body[: COUNT.itemsize], "little"), body[COUNT.itemsize :]
        else:
            elements = len(body) // codec.size(1)
        if elements > self._elements or not (codec.fits(elements, len(body)) if elements else not body):
            raise FrameError(
                f"{len(packed.body)} bytes are not a part of a model of {self._elements} elements",
                rule="size",
                given=len(packed.body),
            )
        if not elements:  # the shard of a member where members outnumber elements
            return torch.empty(0, dtype=torch.float32, device="cpu")
        return codec.decode(torch.frombuffer(body, dtype=torch.uint8), elements)
