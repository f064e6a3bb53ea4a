"""How members train together: one file, or one folder, for each scheme, and a line here.

    with schemes.wrap(model, optimizer, scheme="diloco", every=32):     # any scheme with rounds
        ...                                                             # the training loop, unchanged

A scheme's module loads neither PyTorch nor planning, so that files with its options are read without them. It imports
PyTorch inside the functions that train, and planning inside `assign`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

from testbed.lazy import is_file, plugin
from testbed.plan import SchemeTraits
from testbed.schemes.scheme import Scheme

if TYPE_CHECKING:
    from testbed.schemes.wrapped import wrap as wrap

#: The schemes' modules in this package, in the order in which they are listed to users.
_NAMES = (
    "gradients",
    "auto",
    "local_sgd",
    "post_local_sgd",
    "des_loc",
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


def _declared(module: ModuleType) -> Scheme:
    """Return the scheme that a module declares. The scheme knows the module from then on."""
    scheme: Scheme = module.SCHEME
    return replace(scheme, module=module.__name__)


#: All schemes of the project by name.
SCHEMES: Mapping[str, Scheme] = {name: _declared(import_module(f"{__name__}.{name}")) for name in _NAMES}

#: The traits of the schemes that the controller may choose live, by name (see `auto`).
TRAITS: Mapping[str, SchemeTraits] = {name: its.traits for name, its in SCHEMES.items() if its.traits is not None}

#: The group of the entry points by which installed packages offer schemes.
_GROUP = "testbed.schemes"


#: The module of a scheme's file, which runs once.
_once = cache(plugin)


def named(name: str) -> Scheme:
    """Return the scheme of a name, of a file, `./mine.py`, or of an installed package's entry point.

    A file and an entry point are modules with a SCHEME and a function `build`.

    Raises:
        ValueError: There is no such scheme, or it can't be loaded.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    if is_file(name):
        return _plugged_in(name, lambda: _once(Path(name).resolve()))
    for entry in entry_points(group=_GROUP, name=name):
        return _plugged_in(entry.value, entry.load)
    raise ValueError(f"no such scheme: {name!r}; there are {', '.join(SCHEMES)}, or a file, ./mine.py")


def _plugged_in(origin: str, load: Callable[[], ModuleType]) -> Scheme:
    try:
        module = load()
        if isinstance(scheme := getattr(module, "SCHEME", None), Scheme):
            get_type_hints(scheme.options)  # raises where an annotation names what the module lacks
    except (Exception, SystemExit) as error:
        if is_file(origin) and not Path(origin).exists():
            raise ValueError(f"the scheme's file {origin} does not exist; check the path") from None
        raise ValueError(f"{origin} can't be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(scheme, Scheme) or not callable(getattr(module, "build", None)):
        raise ValueError(f"{origin} has no SCHEME, or no function build(options, training): docs/schemes.md")
    return _declared(module)


def __getattr__(name: str) -> Any:
    if name != "wrap":  # which loads PyTorch
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from testbed.schemes.wrapped import wrap

    return wrap


__all__ = ["SCHEMES", "TRAITS", "Scheme", "is_file", "named", "wrap"]
