"""What members send each other, and in which form it travels: a message's class says so itself.

@message(5)
class Share(Message):
    iteration: int          # whole numbers, two at most, and
    mass: float             # a weight go into the frame's head,
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
else:  # the form of a message follows from the names of its fields' types, so that no message loads PyTorch
    #: A tensor of some of a model's elements; its receiver knows how many they should be.
    Elements = "Elements"
    #: A tensor of some of a model's elements, sent through the codec of the graph.
    CodedElements = "CodedElements"

#: All classes of messages, by the code that stands for them on the wire.
CLASSES: dict[int, type[Message]] = {}

M = TypeVar("M", bound="Message")


@dataclass(frozen=True, slots=True)
class Form:
    """Which of a message's fields travel where: `numbers` and `weight` in the head, `tensor` as the body, coded or not,
    and of the whole model or of some `elements` of it."""

    numbers: tuple[str, ...]
    weight: str
    tensor: str
    elements: bool
    coded: bool


class Message:
    """Base of what members send each other; see `message`."""

    code: ClassVar[int]
    form: ClassVar[Form]

    def to_body(self, members: tuple[str, ...]) -> bytes:
        """What of the message is neither a number nor a tensor, as bytes."""
        return b""

    @classmethod
    def of_body(cls, body: memoryview, members: tuple[str, ...], **numbers: int) -> Self:
        """The message with these numbers whose `to_body` made the bytes; ValueError when it made none such."""
        if body:
            raise ValueError(f"has no body, and came with one of {len(body)} bytes")
        return cls(**numbers)


@dataclass_transform(frozen_default=True)
def message(code: int) -> Callable[[type[M]], type[M]]:
    """Make a class a frozen dataclass that travels under `code`, which no other message may have.

    ValueError where another has it, TypeError where the fields have no room.
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
    """How messages of the class travel; TypeError when they can't."""
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
