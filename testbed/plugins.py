"""Policies and forms of traces from users' files and from installed packages' entry points.

`./mine.py` names a file that registers one policy, or that has the function `read` of a form. Any other name that the
project does not define is looked up among the entry points of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from testbed.lazy import is_file, plugin
from testbed.planning import Policy, PolicyError, make_policy
from testbed.planning.policy import REGISTRY, is_own
from testbed.trace.csv import check_values
from testbed.trace.trace import Trace, TraceError

GROUP, FORMS = "testbed.policies", "testbed.traces"

#: The option of the policy `auto` that names further policies to ask.
ALSO = "also"

#: File → the name of the policy that it registered.
_LOADED: dict[Path, str] = {}


def policy_named(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy of a name, a file or an entry point. PolicyError: it does not exist or can't be loaded."""
    given = dict(options or {})
    if ALSO in given:
        if not isinstance(given[ALSO], str | list | tuple):
            rule = f"policy {name}: {ALSO} must be the name of a policy or a list of names, and is {given[ALSO]!r}"
            raise PolicyError(rule, field=ALSO, given=given[ALSO])
        also = [given[ALSO]] if isinstance(given[ALSO], str) else given[ALSO]
        given[ALSO] = tuple(_registered(str(other)) for other in also)
    return make_policy(_registered(name), given)


def form_named(name: str) -> Callable[[str], Trace]:
    """Return the function that parses a text into a trace: `read` in a file, or an entry point.

    Raises:
        TraceError: The function does not exist or can't be loaded. The function raises no other errors either.
    """
    try:
        if is_file(name):
            read = getattr(plugin(Path(name).resolve()), "read", None)
        else:
            read = next((entry.load() for entry in entry_points(group=FORMS, name=name)), None)
    except (Exception, SystemExit) as error:
        raise TraceError(f"{name} can't be loaded: {_placed(error)}", rule="not-loaded") from error
    if not callable(read):
        wrong = "has no function `read(text)`" if is_file(name) else f"is not an entry point of {FORMS}"
        raise TraceError(f"{name} {wrong}; name a form's file, ./NAME.py, or its entry point", rule="no-form")

    def traced(text: str) -> Trace:
        try:
            trace = read(text)
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(f"the form {name} raised {_placed(error)}", rule="form-raised") from error
        if not isinstance(trace, Trace):
            raise TraceError(f"the form {name} returned a {type(trace).__name__}, not a Trace", rule="form-returned")
        try:
            check_values(trace)
        except TraceError as error:
            raise error.located(f"the form {name} returned a wrong value") from None
        return trace

    return traced


def refusal(policy: Policy, error: Exception) -> str:
    """Return the text of an error that a policy raised, with its place. Re-raises errors of the project's policies."""
    if is_own(policy) and not isinstance(error, ValueError):
        raise error
    return str(error) if isinstance(error, PolicyError) else f"policy {policy.name} raised {_placed(error)}"


@contextmanager
def as_policy_errors(policy: Policy) -> Iterator[None]:
    """Within this context, raise a plug-in policy's own errors as PolicyError, with their place in the plug-in."""
    try:
        yield
    except PolicyError:
        raise
    except Exception as error:
        if is_own(policy):
            raise
        raise PolicyError(refusal(policy, error), rule="policy-raised") from error


def _registered(name: str) -> str:
    if is_file(name):
        file = Path(name).resolve()
        if file not in _LOADED:
            if not file.is_file():
                raise PolicyError(f"{file}: the file does not exist; check the path", rule="no-file", file=file)
            _LOADED[file] = _registered_by(str(file), lambda: plugin(file))
        return _LOADED[file]
    if name not in REGISTRY:
        for entry in entry_points(group=GROUP, name=name):
            registered = _registered_by(f"the entry point {entry.value}", entry.load)
            if registered != name:
                rule = f"registers {registered!r}; write @register({name!r})"
                raise PolicyError(f"the entry point {entry.value} {rule}", rule="entry-point", given=name)
    return name


def _registered_by(what: str, load: Callable[[], object]) -> str:
    """Return the name of the one policy that `load` registers. PolicyError for none, several, or a taken name."""
    before = dict(REGISTRY)
    try:
        load()
    except (Exception, SystemExit) as error:
        REGISTRY.clear()
        REGISTRY.update(before)
        raise PolicyError(f"{what} can't be loaded: {_placed(error)}", rule="not-loaded") from error
    names = [name for name, policy in REGISTRY.items() if before.get(name) is not policy]
    wrong = "registers no policy" if not names else f"registers {', '.join(names)}, more than one" * (len(names) > 1)
    if taken := [name for name in names if name in before]:
        wrong = f"registers {taken[0]!r}, the name of another policy"
    if wrong:
        REGISTRY.clear()
        REGISTRY.update(before)
        raise PolicyError(f"{what} {wrong}; write @register('a_name_of_its_own') above one class", rule="registered")
    return names[0]


def _placed(error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}, line {error.lineno}"
    return f"{type(error).__name__}: {error} ({place})"
