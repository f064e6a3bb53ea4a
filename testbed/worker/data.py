"""The data sets: digits, English text and documentation.

The digits are scikit-learn's and the documentation is Debian's, both from the image; the text is from the standard
library.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

#: The share of the images that is held out: every fifth, 360 of 1,797.
DIGITS_TEST_SHARE = 0.2
#: The share at the end of each of the text's parts that is held out: mostly subjects that training does not see.
TEXT_TEST_SHARE = 0.1
#: The number of characters that the text model looks back on.
CONTEXT = 64
#: The windows held out of each part of the documentation. All parts together hold out 300 of 218,000 windows, whose
#: evaluation costs as much as training steps over 100 samples, and fits into the pause of a step of half a second.
DOCUMENTATION_TEST_WINDOWS = 30
#: The characters of the documentation: the new line, and all that ASCII can print.
DOCUMENTATION_CHARACTERS = 96
#: The number of parts of a text. Text has no labels, so a window's part is its label when data is shared out unevenly.
TEXT_LABELS = 10

#: The split is the same in every run, so that accuracies compare.
_SPLIT_SEED = 0


@dataclass(frozen=True)
class DataSet:
    """The inputs, targets and labels of samples, for training and for tests; samples lie along the first dimension."""

    inputs: torch.Tensor
    targets: torch.Tensor
    #: The label of each sample, by which samples are shared out.
    labels: list[int]
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    #: The label of each test sample, so that it can count as much as a site's workers have of its label.
    test_labels: list[int]
    #: The number of a model's outputs.
    classes: int

    def to(self, device: torch.device) -> DataSet:
        """Return the same data on a device."""
        tensors = ("inputs", "targets", "test_inputs", "test_targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def digits(folder: Path) -> DataSet:
    """Return 8 × 8 images (N, 1, 8, 8) in [0, 1] and their digits.

    Args:
        folder: The folder that containers/digits.py writes.

    Raises:
        ValueError: The folder has no digits.
    """
    index = folder / "digits" / "digits.json"
    if not index.exists():
        raise ValueError(f"no digits in {folder}: {index} is missing; make it with containers/digits.py")
    fields = json.loads(index.read_text())
    images = _tensor(index.parent, fields["images"]).unsqueeze(1)
    labels = _tensor(index.parent, fields["labels"])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out = math.ceil(DIGITS_TEST_SHARE * len(images))
    test, train = order[:held_out], order[held_out:]
    train_labels, test_labels = labels[train], labels[test]
    return DataSet(
        images[train], train_labels, train_labels.tolist(), images[test], test_labels, test_labels.tolist(), 10
    )


def text(context: int = CONTEXT) -> DataSet:
    """Return windows of the texts of Python's `help()`, joined into one (`pydoc_data.topics`).

    Inputs and targets are int64 of shape (N, context). A target is the character that follows the input; a character is
    its number among the sorted characters of the text.

    Args:
        context: The length of a window in characters.
    """
    from pydoc_data.topics import topics

    whole = "".join(topics[name] for name in sorted(topics))
    numbers = {character: i for i, character in enumerate(sorted(set(whole)))}
    characters = torch.tensor([numbers[character] for character in whole])
    return _in_windows(characters, len(numbers), context, TEXT_TEST_SHARE)


def documentation(folder: Path, context: int = CONTEXT) -> DataSet:
    """Return windows of the documentation, in the form of `text`.

    Inputs and targets are uint8, because there are 14 million characters; the model turns those of a batch into int64.

    Args:
        folder: The folder that containers/documentation.py writes.
        context: The length of a window in characters.

    Raises:
        ValueError: The documentation is missing, or differs from its index.
    """
    index, whole = folder / "documentation" / "documentation.json", folder / "documentation" / "text.txt"
    if not index.exists():
        raise ValueError(f"no documentation in {folder}: {index} is missing; `make documentation` makes it")
    said, read = json.loads(index.read_text())["sha256"], whole.read_bytes()
    if hashlib.sha256(read).hexdigest() != said:
        raise ValueError(f"{whole} is not what {index} says; `make documentation` makes both again")
    characters = torch.frombuffer(bytearray(read), dtype=torch.uint8)
    numbers = torch.where(characters == ord("\n"), 0, characters - (ord(" ") - 1))
    share = TEXT_LABELS * (DOCUMENTATION_TEST_WINDOWS * context + 1) / len(numbers)
    return _in_windows(numbers, DOCUMENTATION_CHARACTERS, context, share)


def _in_windows(characters: torch.Tensor, classes: int, context: int, test_share: float) -> DataSet:
    """Return the windows of a text's parts; the share `test_share` at the end of each part is held out."""
    train, test = [], []
    for part in characters.chunk(TEXT_LABELS):
        cut = round(len(part) * (1 - test_share))
        train.append(_windows(part[:cut], context))
        test.append(_windows(part[cut:], context))
    inputs, targets, labels = _joined(train)
    test_inputs, test_targets, test_labels = _joined(test)
    return DataSet(inputs, targets, labels, test_inputs, test_targets, test_labels, classes)


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return the parts' windows one after the other, each labelled with its part."""
    inputs, targets = (torch.cat(each) for each in zip(*parts, strict=True))
    return inputs, targets, [label for label, (part, _) in enumerate(parts) for _ in part]


def _windows(characters: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = (len(characters) - 1) // context
    return characters[: count * context].view(count, context), characters[1 : count * context + 1].view(count, context)


def _tensor(folder: Path, field: dict[str, object]) -> torch.Tensor:
    raw = bytearray((folder / str(field["file"])).read_bytes())
    shape = field["shape"]
    assert isinstance(shape, list)
    return torch.frombuffer(raw, dtype=getattr(torch, str(field["dtype"]))).reshape(shape)
