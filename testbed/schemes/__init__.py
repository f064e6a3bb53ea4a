"""How members train together: a folder for each scheme, and a line here.

A scheme's options and what it can do are known without loading PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from testbed.schemes.scheme import Scheme

#: Folders of this package, in the order in which they are listed to users.
_FOLDERS = (
    "gradients",
    "auto",
    "local_sgd",
    "post_local_sgd",
    "diloco",
    "muloco",
    "hierarchical",
    "hybrid",
    "sparta",
    "loscar",
    "sparseloco",
    "hop",
    "dpsgd",
    "adpsgd",
    "prague",
    "netmax",
    "sgp",
    "fedasync",
    "staggered",
    "noloco",
    "decoupled_diloco",
    "halos",
)

#: All schemes by name.
SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme for scheme in (import_module(f"{__name__}.{folder}").SCHEME for folder in _FOLDERS)
}


def named(name: str) -> Scheme:
    """The scheme of that name; ValueError when there is none."""
    if name not in SCHEMES:
        raise ValueError(f"no such scheme: {name!r}; there are {', '.join(SCHEMES)}")
    return SCHEMES[name]


__all__ = ["SCHEMES", "Scheme", "named"]
