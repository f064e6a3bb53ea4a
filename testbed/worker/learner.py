"""The learner of a worker, with all gradients in one flat tensor and all parameters in another."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from testbed.sync.codecs.codec import bytes_of
from testbed.worker import data, models, optimizer
from testbed.worker.partition import Scores, Sites, histogram, partition
from testbed.workload import Workload

#: The number of test samples at a time, which bounds the memory of an evaluation.
TEST_BATCH = 128


class Learner(ABC):
    """Computes the gradient of a step, and steps by it. Gradient and parameters may be changed in between."""

    #: One flat tensor. Each of `parameters` has a part of it as its `grad`.
    gradient: torch.Tensor
    parameters: list[torch.Tensor]
    #: The number of samples that each member learns from, by shard.
    samples: list[float]
    #: All parameters in one flat tensor, and the optimizer that moves them.
    _parameters: torch.Tensor
    _optimizer: optimizer.Optimizer

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Put the gradient of this member's next batch into `gradient`, and return metrics of the step."""

    @abstractmethod
    def skip(self, steps: int) -> None:
        """Leave out the batches of the first `steps` steps, for a member that joins while the others train."""

    def apply(self) -> None:
        """Take one optimizer step by the present value of `gradient`."""
        self._optimizer.step(self._parameters, self.gradient)

    def loss(self) -> float | None:
        """Return the loss of the last batch at the current parameters, or None if nothing is learned."""
        return None

    def evaluate(self) -> dict[str, float]:
        """Return metrics over the held-out test set; empty if nothing is learned."""
        return {}

    def describe(self) -> dict[str, float]:
        """Return metrics of the data that this member learns from; empty if there are none."""
        return {}

    def digest(self) -> str:
        """Return the SHA-256 of the parameters and buffers, which must be the same at every member."""
        return digest([self._parameters])

    def moments(self) -> list[torch.Tensor]:
        """Return the tensors that the optimizer keeps of its steps, such as momenta."""
        return self._optimizer.moments()

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and the optimizer's state, from which a member that joins the others begins."""
        return {"parameters": self._parameters, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned, on the device of the parameters."""
        self._parameters.copy_(state["parameters"])
        device = self._parameters.device
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in state["optimizer"].items()
        }
        self._optimizer.load_state_dict(moved)


class Supervised(Learner):
    """A model, and the shard of a data set that this member learns from."""

    def __init__(self, work: Workload, folder: Path, device: torch.device) -> None:
        samples = samples_of(work, folder)
        shards = partition(samples.labels, work.shards, work.partition, work.alpha, work.seed, work.sites)
        self.samples = [float(len(shard)) for shard in shards]
        self._sites = Sites(samples.labels, shards, work.sites)
        self._histogram = histogram(samples.labels, shards[work.shard])
        self._model = models.build(work.model, samples.classes, data.CONTEXT, work.seed, work.rank).to(device)
        self._parameters, self.gradient = flatten(self._model)
        self.parameters: list[torch.Tensor] = list(self._model.parameters())
        self._data = samples.to(device)
        self._batches = batches(shards[work.shard], work.batch, work.seed * work.shards + work.shard)
        self._optimizer = optimizer.make(work.optimizer, work.learning_rate, hidden_matrices(self._model))

    def compute(self) -> dict[str, float]:
        """Put the mean gradient over the next batch into `gradient`, and return its loss."""
        self._chosen = torch.tensor(next(self._batches), device=self._data.inputs.device)
        self.gradient.zero_()
        loss = self._loss(self._data.inputs[self._chosen], self._data.targets[self._chosen])[0]
        loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.item()}

    def skip(self, steps: int) -> None:
        """Leave out the batches of the first `steps` steps."""
        for _ in range(steps):
            next(self._batches)

    def loss(self) -> float:
        """Return the loss of the last batch at the current parameters."""
        with torch.no_grad():
            return self._loss(self._data.inputs[self._chosen], self._data.targets[self._chosen])[0].item()

    def evaluate(self) -> dict[str, float]:
        """Return loss and accuracy over the test set, also weighted by the labels of each site."""
        by_label = {label: self._scores(label) for label in sorted(set(self._data.test_labels))}
        counts = Counter(self._data.test_labels)
        total = len(self._data.test_labels)
        return {
            "test_loss": sum(counts[label] * scores.loss for label, scores in by_label.items()) / total,
            "accuracy": sum(counts[label] * scores.accuracy for label, scores in by_label.items()) / total,
            **self._sites.metrics(by_label),
        }

    def describe(self) -> dict[str, float]:
        """Return the number of this member's samples, by label."""
        return self._histogram

    def _scores(self, label: int) -> Scores:
        """Return loss and accuracy over the test samples of a label."""
        chosen = torch.tensor([i for i, its in enumerate(self._data.test_labels) if its == label])
        loss = right = 0.0
        with torch.inference_mode():
            for part in torch.split(chosen.to(self._data.test_inputs.device), TEST_BATCH):
                wanted = self._data.test_targets[part]
                mean, scores = self._loss(self._data.test_inputs[part], wanted)
                loss += mean.item() * wanted.numel()
                right += (scores.argmax(-1) == wanted).sum().item()
        count = self._data.test_targets[chosen].numel()
        return Scores(loss / count, right / count)

    def digest(self) -> str:
        """Return the SHA-256 of the parameters and buffers."""
        return digest([self._parameters, *self._model.buffers()])

    def _loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self._model(inputs)
        return models.loss(self._model, scores, targets), scores


class Synthetic(Learner):
    """A learner without a model, with as many parameters as the workload asks for: exercises communication alone.

    The gradient of a step is one normal draw, the same for all steps, times the step's own factor, which is uniform in
    [-1, 1]. To draw all values again would cost more than the communication: 0.4 s for 61 M values.
    """

    def __init__(self, work: Workload, device: torch.device) -> None:
        if work.parameters < 1:
            raise ValueError("a synthetic model needs `parameters` of at least 1")
        generator = torch.Generator().manual_seed(work.seed * work.shards + work.shard)
        self._draw = torch.randn(work.parameters, generator=generator).to(device)
        self._parameters = torch.zeros(work.parameters, device=device)
        self.gradient = torch.empty_like(self._draw)
        self.parameters = split(self._parameters, self.gradient, work.tensors)
        self.samples = [1.0] * work.shards
        self._scales = random.Random(work.seed)
        self._optimizer = optimizer.make(work.optimizer, work.learning_rate)

    def compute(self) -> dict[str, float]:
        """Put a gradient into `gradient`, and return no metric, since there is no loss."""
        torch.mul(self._draw, self._scales.uniform(-1, 1), out=self.gradient)
        return {}

    def skip(self, steps: int) -> None:
        """Leave out the factors of the first `steps` steps."""
        for _ in range(steps):
            self._scales.uniform(-1, 1)


def samples_of(work: Workload, folder: Path) -> data.DataSet:
    """Return the data set that a workload's model learns from. Raises ValueError if it is missing."""
    if work.model in ("cnn", "svm"):
        return data.digits(folder)
    return data.documentation(folder) if work.dataset == "documentation" else data.text()


def make(work: Workload, folder: Path, device: torch.device) -> Learner:
    """Make the model of a workload, with its data and its optimizer; return them as a learner.

    Raises:
        ValueError: There is no such model, data set or optimizer.
    """
    return Synthetic(work, device) if work.model == "synthetic" else Supervised(work, folder, device)


def flatten(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Move a model's parameters into one tensor and its gradients into another, and return both tensors.

    Both are flat and in the model's order. Each parameter and its `grad` become views of them, so nothing is gathered
    or scattered in a step.
    """
    parameters = list(model.parameters())
    values = torch.cat([parameter.detach().flatten() for parameter in parameters])
    gradient = torch.zeros_like(values)
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = values[start:stop].view_as(parameter)
        parameter.grad = gradient[start:stop].view_as(parameter)
        start = stop
    return values, gradient


def hidden_matrices(model: nn.Module) -> list[optimizer.Matrix]:
    """Return where the weights of hidden layers lie in the flat vector of a model's parameters.

    Hidden layers are all linear layers and convolutions but the last layer, which makes scores. The weights of a
    convolution are a matrix of its filters.
    """
    layers = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hidden = {id(weight) for weight in layers[:-1]}
    found, start = [], 0
    for parameter in model.parameters():
        if id(parameter) in hidden:
            found.append(optimizer.Matrix(start, len(parameter), parameter[0].numel()))
        start += parameter.numel()
    return found


def split(values: torch.Tensor, gradient: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Return `parts` views of a flat tensor's successive parts, each with its part of `gradient` as its `grad`."""
    views = list(values.tensor_split(parts))
    for view, its in zip(views, gradient.tensor_split(parts), strict=True):
        view.grad = its
    return views


def batches(samples: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of `size` sample numbers without end, in a new order each time that all samples were used."""
    draw = random.Random(seed)
    queue: list[int] = []
    while True:
        while len(queue) < size:
            queue += draw.sample(samples, len(samples))
        yield queue[:size]
        queue = queue[size:]


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Return the SHA-256 of the tensors' bytes, one tensor after the other."""
    whole = hashlib.sha256()
    for tensor in tensors:
        held = tensor.detach().cpu().contiguous()
        whole.update(bytes_of(held))
    return whole.hexdigest()


def device() -> str:
    """Return the best device of this worker: `cuda` or `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen_device(wanted: str) -> torch.device:
    """Return the device that a workload names; `auto` is the best one."""
    return torch.device(device() if wanted == "auto" else wanted)
