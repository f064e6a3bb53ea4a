"""Commented examples of the files that a user writes: an experiment, a topology, a scheme, a policy, a form of traces.

Each example runs unchanged. The other files in this folder are the templates, in which `$name` stands for the user's
name. Examples are written into the current folder, but in a checkout a scheme is added to the checkout's package.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from string import Template

from testbed.atomic_file import check_new, new_folder, write_text
from testbed.errors import BAD_INPUT

HERE = Path(__file__).parent
PACKAGE = HERE.parent

FILE_NAME, FILE_WORDS = r"[a-z0-9][a-z0-9-]{0,30}", "small letters, digits and dashes, at most 31"
MODULE_NAME = r"[a-z][a-z0-9_]{0,30}"
MODULE_WORDS = "small letters, digits and underscores, a letter first, at most 31"


class StartError(ValueError):
    """The example cannot be written; the text says why, and what to write instead."""

    exit_code = BAD_INPUT


def new_topology(name: str, folder: Path) -> list[Path]:
    """Write `topologies/NAME.yaml` in the folder. Raises FileExistsError, or StartError if the name is not allowed."""
    _check(name, FILE_NAME, FILE_WORDS)
    return _write({folder / "topologies" / f"{name}.yaml": _start("topology.yaml", name)})


def new_experiment(name: str, folder: Path) -> list[Path]:
    """Write `experiments/NAME.yaml`, and the topology of that name that it needs, unless there is one."""
    _check(name, FILE_NAME, FILE_WORDS)
    files = {folder / "experiments" / f"{name}.yaml": _start("experiment.yaml", name)}
    topology = folder / "topologies" / f"{name}.yaml"
    if not topology.exists():
        files[topology] = _start("topology.yaml", name)
    return _write(files)


def new_policy(name: str, folder: Path) -> list[Path]:
    """Write a commented policy, `NAME.py`, in the folder.

    Raises:
        FileExistsError: The file is there already.
        StartError: A policy of the project has the name.
    """
    from testbed.planning import policy_names  # slow to import, and of use here alone

    _check_class("policy", name, PACKAGE / "planning" / "policies", policy_names())
    return _write({folder / f"{name}.py": _start("policy.template", name)})


def new_form(name: str, folder: Path) -> list[Path]:
    """Write `NAME.py` in the folder: a commented reader of one form of trace files."""
    _check(name, MODULE_NAME, MODULE_WORDS)
    return _write({folder / f"{name}.py": _start("form.template", name)})


def new_scheme(name: str, folder: Path, package: Path = PACKAGE) -> list[Path]:
    """Write `NAME.py` in a folder, or where that is in a checkout, `schemes/NAME.py` and its line in the schemes' list.

    Args:
        name: The scheme's name.
        folder: The current folder.
        package: The package that would get the scheme.

    Returns:
        The files that were written.

    Raises:
        FileExistsError: The file is there already.
        StartError: A scheme of the project has the name.
    """
    registry = package / "schemes" / "__init__.py"
    _check_class("scheme", name, package / "schemes", re.findall(r'"(\w+)"', registry.read_text(encoding="utf-8")))
    checkout = package.parent
    if not (checkout / "pyproject.toml").exists() or not folder.resolve().is_relative_to(checkout.resolve()):
        return _write({folder / f"{name}.py": _start("scheme.template", name, scheme=f"./{name}.py")})
    text = _with_line(registry, r"_NAMES = \(\n((?:    \"\w+\",\n)+)\)", f'    "{name}",\n')
    return _write({package / "schemes" / f"{name}.py": _start("scheme.template", name, scheme=name)}, {registry: text})


#: Kind → the function that writes an example of it, given a name and the current folder.
KINDS: Mapping[str, Callable[[str, Path], list[Path]]] = {
    "experiment": new_experiment,
    "topology": new_topology,
    "scheme": new_scheme,
    "policy": new_policy,
    "form": new_form,
}


def _start(file: str, name: str, **more: str) -> str:
    text = Template((HERE / file).read_text(encoding="utf-8"))
    return text.substitute(name=name, class_name=_class_name(name), **more)


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _check(name: str, pattern: str, remedy: str) -> None:
    if not re.fullmatch(pattern, name):
        raise StartError(f"a new file can't be named {name!r}\n    write instead: a name of {remedy}")


def _check_class(kind: str, name: str, room: Path, known: Collection[str]) -> None:
    """Raise StartError unless the name is free, and neither the name nor its class's (None) is a keyword of Python."""
    _check(name, MODULE_NAME, MODULE_WORDS)
    taken = name in known or (room / name).exists() or (room / f"{name}.py").exists()
    if taken or keyword.iskeyword(name) or keyword.iskeyword(_class_name(name)):
        raise StartError(
            f"{name!r} is a {kind} or a module of the project, or a keyword of Python\n"
            f"    write instead: a {kind} name that is not taken"
        )


def _with_line(file: Path, list_of: str, line: str) -> str:
    """Return the file's text with `line` added to the end of the list that the pattern `list_of` finds."""
    text = file.read_text(encoding="utf-8")
    found = re.search(list_of, text)
    if found is None:
        raise StartError(f"{file}: the list of names was not found\n    write instead: the line {line.strip()} by hand")
    return text[: found.end(1)] + line + text[found.end(1) :]


def _write(files: Mapping[Path, str], changed: Mapping[Path, str] | None = None) -> list[Path]:
    """Write new files, then the `changed` ones that name them. If one can't be written, the new ones are removed."""
    check_new(files)
    written: list[Path] = []
    with ExitStack() as folders:
        try:
            for file, text in {**files, **(changed or {})}.items():
                folders.enter_context(new_folder(file.parent))
                write_text(file, text)
                written.append(file)
        except OSError:
            for file in written:
                if file in files:
                    file.unlink(missing_ok=True)
            raise
    return written
