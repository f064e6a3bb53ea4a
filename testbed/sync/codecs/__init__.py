"""Codecs: encodings of chunks of float32 for slow links. `by_name` and `by_code` find them.

    name       bytes per element         what it loses
    fp32       4                         nothing
    fp16       2                         relative 2^-11 of each value; saturates at 65,504
    bf16       2                         relative 2^-8 of each value; keeps float32's range
    int8       1 + 4/256                 1/254 of the largest value of its block of 256
    topk       6 × its share kept        all but the largest values
    bins2      1/4 + 16/4096             up to 1.5 σ of its block of 4096
    bins4      1/2 + 64/4096             up to 0.375 σ
    sparse     depends on the zeros      nothing

Relays decode, add in float32, and encode the sum again, so a chunk costs the same bytes on every link and each hop adds
one of the errors above. The mean is encoded once, at the root, and all members, the root too, use the decoded mean, so
they stay bit-identical. A member keeps the errors of its encodings (`Residual`) and adds them to its next contribution:
over rounds values are late but not lost ("error feedback": Seide et al. 2014; Karimireddy et al. 2019; in both
directions, as here: DoubleSqueeze, Tang et al. 2019).
"""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.sync.codecs.blocks import Bins, Int8
from testbed.sync.codecs.codec import Codec, Half, Plain, Residual
from testbed.sync.codecs.sparse import Sparse, TopK

__all__ = ["PLAIN", "Codec", "Residual", "by_code", "by_name", "rounded"]

#: The codec of float32 unchanged.
PLAIN = Plain()

_CODECS: tuple[Codec, ...] = (
    PLAIN,
    Half("fp16", 3, torch.float16),
    Half("bf16", 4, torch.bfloat16),
    Int8(),
    TopK(),
    Bins("bins2", 7, 2),
    Bins("bins4", 8, 4),
    Sparse(),
)
_BY_CODE: dict[int, Codec] = {codec.code: codec for codec in _CODECS}
_BY_NAME: dict[str, Codec] = {codec.name: codec for codec in _CODECS}


def by_code(code: int) -> Codec | None:
    """Return the codec of a number on the wire; None if there is none."""
    return _BY_CODE.get(code)


def by_name(name: str) -> Codec:
    """Return the codec of a name in a plan; `topk:0.01` gives the share of the values that are kept.

    Raises:
        ValueError: There is no such codec.
    """
    base, colon, share = name.partition(":")
    if base == "topk" and colon:
        return TopK(_share(share))
    if name not in _BY_NAME:
        raise ValueError(f"no such codec: {name!r}; there are {', '.join(_BY_NAME)} and topk:SHARE")
    return _BY_NAME[name]


def rounded(codec: Codec, values: Tensor) -> Tensor:
    """Return a copy of the values as a receiver decodes them. An empty tensor stays empty."""
    return values.clone() if codec is PLAIN or not len(values) else codec.decode(codec.encode(values), len(values))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"topk keeps a share above 0 and below 1 of the values, not {text!r}; topk:0.01, for example")
    return share
