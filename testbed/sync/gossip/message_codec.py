"""Messages as they travel: a code and a few numbers that go into a frame's head, and bytes.

What a frame says of the part of a message that it carries.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from testbed.sync.codecs import PLAIN, Codec
from testbed.sync.codecs.codec import bytes_of
from testbed.sync.errors import FrameError
from testbed.sync.gossip.message import CLASSES, Message, message

_HEADER: Final = struct.Struct("<BIIIdQQ")

#: Of each frame.
HEADER_BYTES: Final = _HEADER.size

#: A frame's part of a message has so many bytes at most. Tokens and acknowledgements overtake a model between two of
#: its parts: at 20 Mbit/s they wait for 26 ms at most.
PART_BYTES: Final = 64 * 1024


class PartHeader(NamedTuple):
    """The part that begins `offset` bytes into a message of `size` bytes, the sender's `sequence`-th to this peer.

    `code`, `number`, `amount` and `weight` are the message's; see WireMessage.
    """

    code: int
    sequence: int
    number: int
    amount: int
    weight: float
    size: int
    offset: int = 0

    def pack(self) -> bytes:
        """As it travels."""
        return _HEADER.pack(*self)

    @classmethod
    def unpack(cls, header: bytes) -> PartHeader:
        """The header that arrived, of HEADER_BYTES; FrameError when it is none."""
        unpacked = cls(*_HEADER.unpack(header))
        if not 0 <= unpacked.weight < float("inf"):
            raise FrameError(
                f"weight {unpacked.weight} is not a finite number of at least 0", field="weight", given=unpacked.weight
            )
        return unpacked


#: Of a codec whose bytes don't tell how many elements they are: that number stands before them.
COUNT = torch.int32
#: A body that is no tensor has fewer bytes for each member and each of its pairs.
BYTES_A_PAIR = 8


@message(15)
class Done(Message):
    """The sender's program has ended: it sends nothing any more but answers."""


class WireMessage(NamedTuple):
    """A message's code, whole numbers and weight, and the bytes of its body.

    It is `large` where that is a tensor: what is small overtakes it.
    """

    code: int
    number: int = 0
    amount: int = 0
    weight: float = 0.0
    body: memoryview = memoryview(b"")
    large: bool = False


class MessageCodec:
    """Packs and unpacks messages among `members`, whose models have `elements` parameters (float32).

    What groups send each other goes through the `codec`. Where its bytes are not as many for each element, the number
    of elements stands before them.
    """

    def __init__(self, members: tuple[str, ...], elements: int, codec: Codec = PLAIN) -> None:
        self.members = members
        self._elements = elements
        self._codec = codec
        self._counts = codec.size(2) != 2 * codec.size(1)
        coded = codec.size(elements) + COUNT.itemsize if elements else 0
        self.most_bytes = max(4 * elements, coded, BYTES_A_PAIR * len(members) * (len(members) + 1))

    def pack(self, message: Message) -> WireMessage:
        """The message as it travels. Its tensor is not copied, but for what goes through the codec."""
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
        """The message that arrived; FrameError when it is none."""
        cls = CLASSES.get(packed.code)
        if cls is None:
            raise FrameError(f"no message has the code {packed.code}")
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
            raise FrameError(f"a model of {len(packed.body)} bytes, where this member's has {4 * self._elements}")
        return torch.frombuffer(packed.body, dtype=torch.float32)

    def _encoded(self, values: Tensor) -> Tensor:
        if not self._counts:
            return self._codec.encode(values)
        count = torch.tensor([len(values)], dtype=COUNT).view(torch.uint8)
        return torch.cat([count, self._codec.encode(values)]) if len(values) else count

    def _some(self, packed: WireMessage, coded: bool) -> Tensor:
        """Some of a model's elements; whose part it is knows how many they should be."""
        codec, body = (self._codec if coded else PLAIN), packed.body
        if coded and self._counts:
            if len(body) < COUNT.itemsize:
                raise FrameError(f"{len(body)} bytes have no count of elements")
            elements, body = int.from_bytes(body[: COUNT.itemsize], "little"), body[COUNT.itemsize :]
        else:
            elements = len(body) // codec.size(1)
        if elements > self._elements or not (codec.fits(elements, len(body)) if elements else not body):
            raise FrameError(
                f"{len(packed.body)} bytes are no part of a model of {self._elements} elements",
                rule="size",
                given=len(packed.body),
            )
        if not elements:
            return torch.empty(0)  # a member's shard, of more members than elements
        return codec.decode(torch.frombuffer(body, dtype=torch.uint8), elements)
