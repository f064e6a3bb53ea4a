"""Tests of the public names: `python -m tests.test_public_names` writes them again after a change that is meant."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.test_imports import ARROWS

PACKAGES = ("testbed", "testbed.sync", "testbed.sync.gossip", "testbed.schemes", "testbed.schemes.hop")

#: The public names, with the signatures of functions and of classes' public methods.
KEPT = Path(__file__).with_name("public_names.txt")


def public_names() -> str:
    """Return a line for each public name of the packages, and for each public member of a public class."""
    return "".join(f"{line}\n" for package in PACKAGES for line in lines_of(import_module(package)))


def lines_of(package: ModuleType) -> Iterator[str]:
    """Yield the lines of one package."""
    for name in sorted(package.__all__):
        value, path = getattr(package, name), f"{package.__name__}.{name}"
        if inspect.isclass(value) and issubclass(value, Exception):
            yield f"{path}: an error"
        elif inspect.isclass(value):
            yield f"{path}{parameters_of(value)}"
            yield from (f"    {line}" for line in members_of(value))
        elif callable(value):
            yield f"{path}{parameters_of(value)}"
        else:
            yield f"{path}: {type(value).__name__}"


def members_of(cls: type) -> Iterator[str]:
    """Yield the lines of a class's public members, those of bases in the testbed among them."""
    own = {name for base in cls.__mro__ if base.__module__.split(".")[0] == "testbed" for name in vars(base)}
    for name in sorted(name for name in own if not name.startswith("_")):
        value = inspect.getattr_static(cls, name)
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        yield f".{name}{parameters_of(function)}" if inspect.isfunction(function) else f".{name}"


def parameters_of(function: Any) -> str:
    """Return the parameters of a function or class with their defaults, without types."""
    empty = inspect.Parameter.empty
    return str(
        inspect.Signature(
            [
                parameter.replace(
                    annotation=empty, default=empty if parameter.default is empty else _Written(parameter.default)
                )
                for parameter in inspect.signature(function).parameters.values()
            ]
        )
    )


class _Written:
    """A default, as a reader sees it: a function or class by its name, another object without an address."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        named: str = getattr(self._value, "__name__", None) or repr(self._value)
        return f"{type(self._value).__name__}()" if " at 0x" in named else named


@pytest.mark.local
def test_public_names_change_on_purpose_alone() -> None:
    """Local, since modules that it loads read the clock as they are loaded."""
    assert public_names() == KEPT.read_text(), "write them again by `python -m tests.test_public_names`"


@pytest.mark.pure
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_defines_no_other_public_name(package: str) -> None:
    module = import_module(package)
    assert module.__file__
    defined = set()
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    assert {name for name in defined if not name.startswith("_")} <= {*module.__all__}


@pytest.mark.local
def test_the_synchronization_library_loads_no_room_above_it() -> None:
    program = (
        "import sys; from testbed import sync; from testbed.sync import gossip\n"
        "for package in (sync, gossip): [getattr(package, name) for name in package.__all__]\n"
        "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('testbed.')}))"
    )
    alone = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # PyTorch would load what installed packages offer
    done = subprocess.run([sys.executable, "-c", program], env=alone, capture_output=True, text=True, check=True)
    below = {"sync"}
    while more := {target for room in below for target in ARROWS[room]} - below:
        below |= more
    assert {*done.stdout.split()} <= below


if __name__ == "__main__":
    KEPT.write_text(public_names())
