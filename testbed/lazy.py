"""Public names of a package, and users' plug-ins, which are loaded when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

#: How the names of plug-ins' modules begin.
PLUGIN = "testbed_plugin_"
#: Their last parts, since two folders may have a file of one name.
_numbers = count()


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    Args:
        package: The package's `__name__`.
        modules: Public name → the module that defines it.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return load, lambda: sorted({*vars(sys.modules[package]), *modules})


def is_file(name: str) -> bool:
    """Return whether a plug-in is named by its file, and not by the name of a scheme, a policy or a form."""
    return name.endswith(".py")


def plugin(file: Path) -> ModuleType:
    """Run a plug-in's file as a module.

    Raises:
        UnicodeDecodeError: The file is not in UTF-8, in which runs keep its text.
        Exception: Whatever the file raises.
    """
    file.read_text(encoding="utf-8")
    spec = spec_from_file_location(f"{PLUGIN}{file.stem}_{next(_numbers)}", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look themselves up there
    sys.path.append(str(file.parent))  # for modules beside the file
    spec.loader.exec_module(module)
    return module
