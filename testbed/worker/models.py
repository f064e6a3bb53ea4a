"""The models: small, and without batch statistics, which would differ from member to member."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Cnn(nn.Module):
    """Two convolutions and two layers over 8 × 8 images (N, 1, 8, 8): 151,306 parameters for 10 classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores (N, classes) of images (N, 1, 8, 8)."""
        result: torch.Tensor = self.layers(images)
        return result


class Svm(nn.Module):
    """A linear support vector machine over 8 × 8 images (N, 1, 8, 8): 650 parameters for 10 classes."""

    #: The factor of the squared weights in the loss, beside the hinge loss.
    PENALTY = 1e-3

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.plane = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores (N, classes) of images (N, 1, 8, 8)."""
        result: torch.Tensor = self.plane(images.flatten(1))
        return result


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_network = nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Return the stream (N, T, width) after this block."""
        stream = stream + self._attention(self.norm_attention(stream))
        result: torch.Tensor = stream + self.network(self.norm_network(stream))
        return result

    def _attention(self, stream: torch.Tensor) -> torch.Tensor:
        count, length, width = stream.shape
        heads = self.mix(stream).view(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        result: torch.Tensor = self.out(seen.transpose(1, 2).reshape(count, length, width))
        return result


class Gpt(nn.Module):
    """A transformer that predicts the character after each of T ≤ `context` characters."""

    def __init__(self, classes: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return scores (N, T, classes) of the next characters, given character numbers (N, T) of any integer type."""
        stream = self.characters(text.long()) + self.places[: text.shape[1]]
        result: torch.Tensor = self.head(self.norm(self.blocks(stream)))
        return result


#: The layers, width and heads of each size. With 103 characters: 0.11 M, 0.83 M and 2.7 M parameters.
GPT_SIZES = {"gpt-small": (2, 64, 4), "gpt": (4, 128, 4), "gpt-medium": (6, 192, 6)}


class LowRank(nn.Module):
    """A linear layer with a fixed matrix that learns a change of low rank (LoRA: Hu et al. 2022).

        y = (W + B·A)·x + b        W is fixed, the same at all members by the seed; A (rank, in), B (out, rank), b learn

    B begins as zeros, so the layer begins as the one that it replaces. LoRA's scale α/r is 1 here, as part of the
    learning rate.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.register_buffer("fixed", layer.weight.detach().clone())
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.bias = layer.bias
        nn.init.kaiming_uniform_(self.down, a=5**0.5)  # as LoRA's code and nn.Linear do

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Return the outputs (…, out) of a stream (…, in)."""
        changed = functional.linear(functional.linear(stream, self.down), self.up)
        result: torch.Tensor = functional.linear(stream, self.get_buffer("fixed"), self.bias) + changed
        return result


def of_low_rank(model: Gpt, rank: int) -> Gpt:
    """Replace the linear layers of a model's blocks by LowRank layers, and return the model.

    Embeddings, norms and the head learn as before.
    """
    for block in model.blocks.modules():
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, LowRank(layer, rank))
    return model


def build(name: str, classes: int, context: int, seed: int, rank: int = 0) -> nn.Module:
    """Return a new model, whose weights follow from the seed alone.

    Args:
        name: The model's name.
        classes: The number of outputs.
        context: The most characters that a text model looks back on.
        seed: The seed of the weights.
        rank: The rank of the updates of a text model's blocks; 0 for full updates.

    Raises:
        ValueError: There is no model of this name.
    """
    torch.manual_seed(seed)
    if name == "cnn":
        return Cnn(classes)
    if name == "svm":
        return Svm(classes)
    if name in GPT_SIZES:
        gpt = Gpt(classes, context, *GPT_SIZES[name])
        return of_low_rank(gpt, rank) if rank else gpt
    raise ValueError(f"no such model: {name!r}; there are cnn, svm, synthetic, {', '.join(GPT_SIZES)}")


def loss(model: nn.Module, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of scores (…, classes).

    The loss is cross-entropy; that of an SVM is the multi-class hinge loss (Weston and Watkins 1999), divided by the
    number of classes, with its penalty.
    """
    scores, targets = scores.flatten(0, -2), targets.flatten().long()
    if isinstance(model, Svm):
        return functional.multi_margin_loss(scores, targets) + Svm.PENALTY / 2 * model.plane.weight.square().sum()
    return functional.cross_entropy(scores, targets)
