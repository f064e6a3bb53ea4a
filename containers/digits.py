"""Write scikit-learn's digits as files that a worker reads with the standard library and torch alone.

    python containers/digits.py DIRECTORY

`images.f32`: 1,797 images of 8 × 8 pixels as little-endian float32, scaled to [0, 1].
`labels.i64`: their 1,797 labels, 0 to 9, as little-endian int64.
`digits.json`: `{"images": {"file", "dtype", "shape"}, "labels": {...}}`, so that a reader need not know these numbers:

    field = json.loads((directory / "digits.json").read_text())["images"]
    data = bytearray((directory / field["file"]).read_bytes())
    images = torch.frombuffer(data, dtype=getattr(torch, field["dtype"])).reshape(field["shape"])
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sklearn.datasets import load_digits

#: The largest value of a pixel in the original files.
BRIGHTEST = 16


def bake(directory: Path) -> None:
    """Write the three files into a directory, which is created if it does not exist."""
    digits = load_digits()
    arrays = {
        "images": ("images.f32", (digits.images / BRIGHTEST).astype("<f4")),
        "labels": ("labels.i64", digits.target.astype("<i8")),
    }
    directory.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, (file, array) in arrays.items():
        (directory / file).write_bytes(array.tobytes())
        index[name] = {"file": file, "dtype": array.dtype.name, "shape": array.shape}
    (directory / "digits.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    bake(Path(sys.argv[1]))
