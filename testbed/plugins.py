"""Policies that are not the project's own: from a file, or from an installed package's entry point.

`./mine.py` names a file that registers one policy; another name that the project does not have is looked for among the
entry points of the group `testbed.policies`. Whatever is loaded enters the registry of policies.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from testbed.planning import Policy, PolicyError, make_policy
from testbed.planning.policy import REGISTRY, is_own

GROUP = "testbed.policies"

#: The option of `auto` that names policies which it asks beside the project's own.
ALSO = "also"

#: The names of the policies that files registered.
_LOADED: dict[Path, str] = {}


def is_file(name: str) -> bool:
    """Return whether a policy is named by its file."""
    return name.endswith(".py")


def policy_named(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy of a name, a file or an entry point. PolicyError where there is none, or it can't be loaded."""
    given = dict(options or {})
    if ALSO in given:
        also = [given[ALSO]] if isinstance(given[ALSO], str) else given[ALSO]
        given[ALSO] = tuple(_registered(str(other)) for other in also)
    return make_policy(_registered(name), given)


def refusal(policy: Policy, error: Exception) -> str:
    """Return what an error that a policy raised says, with its place. Re-raises an error of the project's own."""
    if is_own(policy) and not isinstance(error, ValueError):
        raise error
    return str(error) if isinstance(error, PolicyError) else f"policy {policy.name} raised {_placed(error)}"


def _registered(name: str) -> str:
    """Return the name in the registry of what is named, which is loaded first where it is not there."""
    if is_file(name):
        file = Path(name).resolve()
        if file not in _LOADED:
            _LOADED[file] = _load_file(file)
        return _LOADED[file]
    if name not in REGISTRY:
        for entry in entry_points(group=GROUP, name=name):
            registered = _registered_by(f"the entry point {entry.value}", entry.load)
            if registered != name:
                rule = f"registers {registered!r}; write @register({name!r})"
                raise PolicyError(f"the entry point {entry.value} {rule}", rule="entry-point", given=name)
    return name


def _load_file(file: Path) -> str:
    if not file.is_file():
        raise PolicyError(f"{file}: there is no such file", rule="no-file", file=file)
    module_spec = importlib.util.spec_from_file_location(f"testbed_plugin_{file.stem}_{len(_LOADED)}", file)
    assert module_spec is not None and module_spec.loader is not None
    module, loader = importlib.util.module_from_spec(module_spec), module_spec.loader

    def load() -> None:
        sys.modules[module.__name__] = module  # dataclasses look themselves up there
        sys.path.append(str(file.parent))  # for modules beside the file
        loader.exec_module(module)

    return _registered_by(str(file), load)


def _registered_by(what: str, load: Callable[[], object]) -> str:
    """Return the name of the one policy that `load` registers. PolicyError where it is not one, or has a taken name."""
    before = dict(REGISTRY)
    try:
        load()
    except (Exception, SystemExit) as error:
        REGISTRY.clear()
        REGISTRY.update(before)
        raise PolicyError(f"{what} can't be loaded: {_placed(error)}", rule="not-loaded") from error
    names = [name for name, policy in REGISTRY.items() if before.get(name) is not policy]
    wrong = "registers no policy" if not names else f"registers {', '.join(names)}: one a file" * (len(names) > 1)
    if taken := [name for name in names if name in before]:
        wrong = f"registers {taken[0]!r}, which another policy is called"
    if wrong:
        REGISTRY.clear()
        REGISTRY.update(before)
        raise PolicyError(f"{what} {wrong}; write @register('a_name_of_its_own') above one class", rule="registered")
    return names[0]


def _placed(error: BaseException) -> str:
    """Return an error with the file and line where it was raised."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}, line {error.lineno}"
    return f"{type(error).__name__}: {error} ({place})"
