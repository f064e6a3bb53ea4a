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
        """Scores (N, classes)."""
        result: torch.Tensor = self.layers(images)
        return result


class Svm(nn.Module):
    """A linear support vector machine over 8 × 8 images (N, 1, 8, 8): 650 parameters for 10 classes."""

    #: What the squared weights cost beside the hinge loss.
    PENALTY = 1e-3

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.plane = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (N, classes)."""
        result: torch.Tensor = self.plane(images.flatten(1))
        return result


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each behind a norm and beside the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_network = nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(N, T, width) to the same."""
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
    """A transformer over characters: scores (N, T, classes) for the next of each of T ≤ `context` characters."""

    def __init__(self, classes: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores (N, T, classes) from character numbers (N, T), of any whole type."""
        stream = self.characters(text.long()) + self.places[: text.shape[1]]
        result: torch.Tensor = self.head(self.norm(self.blocks(stream)))
        return result


#: Layers, width, heads. With 103 characters: 0.11 M, 0.83 M and 2.7 M parameters.
GPT_SIZES = {"gpt-small": (2, 64, 4), "gpt": (4, 128, 4), "gpt-medium": (6, 192, 6)}


class LowRank(nn.Module):
    """A linear layer whose matrix stays as it is drawn, and learns a change of low rank (LoRA: Hu et al. 2022).

        y = (W + B·A)·x + b        W fixed, the same at all members by the seed; A (rank, in), B (out, rank), b learn

    B begins as zeros, and so the layer as what it stands for. LoRA's scale α/r is 1 here: the learning rate has it.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.register_buffer("fixed", layer.weight.detach().clone())
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.bias = layer.bias
        nn.init.kaiming_uniform_(self.down, a=5**0.5)  # as LoRA's code, and nn.Linear, begin

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(…, in) to (…, out)."""
        changed = functional.linear(functional.linear(stream, self.down), self.up)
        result: torch.Tensor = functional.linear(stream, self.get_buffer("fixed"), self.bias) + changed
        return result


def of_low_rank(model: Gpt, rank: int) -> Gpt:
    """The model whose blocks' matrices learn changes of that rank; embeddings, norms and the head learn as before."""
    for block in model.blocks.modules():
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, LowRank(layer, rank))
    return model


def build(name: str, classes: int, context: int, seed: int, rank: int = 0) -> nn.Module:
    """The model of that name with weights that follow from the seed alone, with updates of a rank where one is given;
    ValueError when there is none."""
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
    """The mean loss of scores (…, classes): cross-entropy; of an SVM the multi-class hinge loss (Crammer and Singer
    2001) with its penalty."""
    scores, targets = scores.flatten(0, -2), targets.flatten().long()
    if isinstance(model, Svm):
        return functional.multi_margin_loss(scores, targets) + Svm.PENALTY / 2 * model.plane.weight.square().sum()
    return functional.cross_entropy(scores, targets)
