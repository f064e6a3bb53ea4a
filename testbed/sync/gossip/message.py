"""Messages between members. The type of a field decides where in a frame it travels.

@message(5)
class Share(Message):
    iteration: int          # up to two whole numbers, and
    mass: float             # a weight, go into the frame's header,
    numerator: Tensor       # the elements of one tensor, as long as the model, into its body
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from torch import Tensor

    Elements = Tensor
    CodedElements = Tensor
else:  # a message's form follows from the names of its fields' types, so that no message loads PyTorch
    #: A tensor of some of a model's elements; its receiver knows how many to expect.
    Elements = "Elements"
    #: A tensor of some of a model's elements, which is sent through the graph's codec.
    CodedElements = "CodedElements"

#: All classes of messages by their codes on the wire.
CLASSES: dict[int, type[Message]] = {}

M = TypeVar("M", bound="Message")


@dataclass(frozen=True, slots=True)
class Form:
    """The layout of a message class: the fields that go into the header, and the tensor that is the body."""

    #: The fields of whole numbers, in the header.
    numbers: tuple[str, ...]
    #: The field of the weight, in the header; empty where there is none.
    weight: str
    #: The field of the tensor, which is the body; empty where there is none.
    tensor: str
    #: True if the tensor has some of the model's elements, and not all.
    elements: bool
    #: True if the tensor is sent through the codec.
    coded: bool


class Message:
    """Base class of messages; see `message`."""

    code: ClassVar[int]
    form: ClassVar[Form]

    def to_body(self, members: tuple[str, ...]) -> bytes:
        """Return the fields that are neither numbers nor a tensor, as bytes."""
        return b""

    @classmethod
    def of_body(cls, body: memoryview, members: tuple[str, ...], **numbers: int) -> Self:
        """Return the message that has these numbers in its header and this body, as `to_body` made it.

        Raises:
            ValueError: `to_body` makes no such bytes.
        """
        if body:
            raise ValueError(f"{cls.__name__} came with a body of {len(body)} bytes; it has no body")
        return cls(**numbers)


@dataclass_transform(frozen_default=True)
def message(code: int) -> Callable[[type[M]], type[M]]:
    """Make a class a frozen dataclass that travels under a code of its own.

    Args:
        code: The code, from 0 to 255. No other class of messages has it.

    Raises:
        ValueError: Another class has the code.
        TypeError: A message has no room for all of its fields.
    """

    def made(cls: type[M]) -> type[M]:
        cls.code = code
        done = dataclass(frozen=True, slots=True)(cls)
        if code in CLASSES:
            raise ValueError(f"{cls.__name__}: {CLASSES[code].__name__} has the code {code} already; take another")
        done.form = _form_of(done)
        CLASSES[code] = done
        return done

    return made


def _form_of(cls: type[Message]) -> Form:
    """Return the layout of a class of messages. Raises TypeError where its fields have no room in a message."""
    by_kind: dict[str, list[str]] = {}
    for its in fields(cls):  # type: ignore[arg-type]
        kind = its.type if isinstance(its.type, str) else its.type.__name__
        by_kind.setdefault(kind.rpartition(".")[2], []).append(its.name)
    tensors = [(name, kind) for kind in ("Tensor", "Elements", "CodedElements") for name in by_kind.get(kind, ())]
    numbers, weights = by_kind.get("int", []), by_kind.get("float", [])
    if len(numbers) > 2 or len(weights) > 1 or len(tensors) > 1:
        raise TypeError(f"{cls.__name__}: two whole numbers, a weight and a tensor at most have room in a message")
    name, kind = tensors[0] if tensors else ("", "")
    return Form(tuple(numbers), "".join(weights), name, kind in ("Elements", "CodedElements"), kind == "CodedElements")
