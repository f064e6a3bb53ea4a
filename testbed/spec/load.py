"""Reading of YAML files, the kind of a file, and the line of a field."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from testbed.spec.errors import Fault, SpecError
from testbed.trace.text import text_of, unpacked_name

#: The most bytes of a file. A topology of 1,000 sites with ten links each has 0.45 MB, and is read in three seconds.
MOST_BYTES = 2**20
#: The most values of a file; that topology has a quarter of them. With aliases, ten lines can stand for a billion.
MOST_VALUES = 200_000

#: Numbers as people write them. YAML 1.1's numbers to the base 60 (`1:30`) and 8 (`010`) are read as texts, and so are
#: dates.
NUMBERS = (
    ("int", r"^(?:[-+]?(?:0|[1-9][0-9_]*)|[-+]?0b[0-1_]+|[-+]?0x[0-9a-fA-F_]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
)
TAG = "tag:yaml.org,2002:"
MERGE, TEXT = f"{TAG}merge", f"{TAG}str"


class Dumper(yaml.SafeDumper):
    """Quotes texts that would be read as numbers."""


class _Loader(yaml.SafeLoader):
    """YAML in which a key given twice is an error, not a silent overwrite, and every text can be printed.

    Keys are texts as in the file: `no` is Norway, not false. A mapping's own keys replace the keys that a merge key
    (`<<`) brings. An alias counts as all values that it stands for, since code that walks the values meets each.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values_in(node, {}) > MOST_VALUES:
            problem = f"the file holds over {MOST_VALUES} values, including repetitions by aliases"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if any("\ud800" <= letter <= "\udfff" for letter in str(value)):
            raise yaml.constructor.ConstructorError(None, None, "the text holds an unpaired surrogate", node.start_mark)
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the keys and values that merge keys bring into the mapping; before that, check its own keys."""
        if id(node) not in self._checked:
            self._checked.add(id(node))
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.style is None and key_node.tag != MERGE:
                key_node.tag = TEXT if key_node.tag.startswith(TAG) else key_node.tag
            key = key_node.value if key_node.tag == MERGE else self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "the key is not a plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the name {key!r} is a duplicate", key_node.start_mark
                )
            seen.add(key)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag.removeprefix(TAG) not in ("int", "float", "timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _form, _first in NUMBERS:
    for _class in (_Loader, Dumper):
        _class.add_implicit_resolver(f"{TAG}{_name}", re.compile(_form), list(_first))


def _values_in(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Return how many values a node stands for, with aliases written out.

    `known` has the counts of nodes by their identity; None while a node is being counted.
    """
    if id(node) not in known:
        known[id(node)] = None
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for each in inside for part in (each if isinstance(each, tuple) else (each,)))
        known[id(node)] = 1 + sum(_values_in(part, known) for part in parts)
    if (count := known[id(node)]) is None:
        raise yaml.constructor.ConstructorError(None, None, "the value holds itself", node.start_mark)
    return count


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    PyYAML itself raises other errors where a tag does not fit its value: `!!int ""`, `!!bool maybe`.

    Raises:
        yaml.YAMLError: The text is not valid YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise yaml.YAMLError(
            f"YAML can't read a value as the type of its tag or form, such as `!!int` or a date ({error})"
        ) from error


#: Kind of file → (fields that only this kind has, endings of its name, the verbs that take it).
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "an experiment": (("train", "topology"), (), "`testbed run`, `simulate` and `compare` take this one"),
    "a topology": (("sites",), (), "`testbed network up`, `network swap`, `launch` and `plan` take this one"),
    "a sweep": (("experiment", "axes"), (), "`testbed sweep` takes this one"),
    "a hosts file": (("hosts",), (), "`testbed cluster up` and `--hosts-file` take this one"),
    "a trace": ((), (".csv", ".up", ".down", ".mahimahi"), "`testbed trace show` takes this one"),
    "a program": ((), (".py", ".sh"), "`testbed launch TOPOLOGY -- python FILE` runs this one"),
}
RUN, RUN_USES = "a run's directory", "`testbed view`, `report`, `export` and `check` take this one"


def kind_of(value: Mapping[str, Any]) -> str | None:
    """Return the kind of the file that holds this mapping, by fields that no other kind has; None if there are none."""
    return next((kind for kind, (fields, _, _) in KINDS.items() if any(name in value for name in fields)), None)


def read_kind(file: Path, wanted: str) -> dict[str, Any]:
    """Return the mapping in a YAML file of the kind `wanted`. SpecError names the kind of a file of another kind."""
    try:
        value = read_yaml(file)
    except SpecError:
        found = next((kind for kind, (_, ends, _) in KINDS.items() if unpacked_name(file).suffix.lower() in ends), None)
        found = RUN if holds((file / "manifest.json").exists) else found
        if found is None or not holds(file.exists):
            raise
    else:
        found = kind_of(value)
        if found in (None, wanted) or any(name in value for name in KINDS[wanted][0]):
            return value
    uses = RUN_USES if found == RUN else KINDS[str(found)][2]
    rule = f"the file is {found}, and {wanted} is needed"
    raise SpecError(file, [Fault("file", rule, f"the path of {wanted}; {uses}")])


def holds(asked: Callable[[], bool]) -> bool:
    """Return the result of `asked`, a path's method such as `is_file`; False if the path is too long for a file."""
    try:
        return asked()
    except OSError:
        return False


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. SpecError: the file is missing, is not YAML, or has no mapping."""
    try:
        text = text_of(file, MOST_BYTES)
    except FileNotFoundError:
        raise SpecError(file, [Fault("file", "the file does not exist", "the path of a YAML file")]) from None
    except (OSError, ValueError) as error:  # ValueError: too long, no text, or a path that no file can have
        remedy = f"UTF-8 text, {MOST_BYTES >> 20} MiB of it at most"
        raise SpecError(file, [Fault("file", f"the file can't be read: {error}", remedy)]) from error
    try:
        value = parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        problem = error.problem or "the text is not YAML"
        remedy = "each name once" if "duplicate" in problem else "valid YAML here (check indentation, colons, brackets)"
        raise SpecError(file, [Fault(where, problem, remedy)]) from None
    except yaml.YAMLError as error:
        raise SpecError(file, [Fault("file", f"the file is not YAML: {error}", "plain, valid YAML")]) from None
    if not isinstance(value, dict):
        raise SpecError(file, [Fault("file", "the file holds no mapping", "`name: value` lines")])
    return value


def is_part(field: str, whole: str) -> bool:
    """Return whether a dotted field is the field `whole` or a part of it."""
    return f"{field}.".startswith(f"{whole}.")


class Source:
    """The text of a YAML file, in which the line and the written value of a field are found.

    A file that can't be read has no lines. The overrides are texts of the command line, by the dotted paths of the
    fields that they replace.
    """

    def __init__(self, file: Path, overrides: Mapping[str, str] | None = None) -> None:
        self._overrides = overrides or {}
        self._root: yaml.Node | None = None
        with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
            self._root = _Loader(text_of(file, MOST_BYTES)).get_single_node()

    def located(self, faults: Iterable[Fault]) -> list[Fault]:
        """Return the faults with the lines of those fields that the file has."""
        return [self._located(fault) for fault in faults]

    def _located(self, fault: Fault) -> Fault:
        if any(is_part(fault.field, key) for key in self._overrides):
            return fault
        found = self._find(fault.field)
        return fault if found is None else replace(fault, line=found[0])

    def text_at(self, field: str, value: object) -> str | None:
        """Return the text of a field whose value YAML reads otherwise than people do: `no` for False, `0x10` for 16."""
        if (text := self._overrides.get(field)) is None:
            found = self._find(field)
            if found is None or found[2] or not isinstance(found[1], yaml.ScalarNode) or found[1].style is not None:
                return None
            text = found[1].value
        try:
            return text if not isinstance(value, str) and parse_yaml(text) == value else None
        except yaml.YAMLError:
            return None

    def _find(self, field: str) -> tuple[int, yaml.Node, str] | None:
        """Return line and node of the longest prefix of a field's path in the file, and the rest of the path."""
        found: tuple[int, yaml.Node, str] | None = None
        node, rest = self._root, field
        while node is not None and rest:
            step = _step(node, rest)
            if step is None:
                break
            line, node, rest = step
            found = line, node, rest
        return found


def _step(node: yaml.Node, field: str) -> tuple[int, yaml.Node, str] | None:
    """Follow the first part of a dotted path from a node. Return the line, the node there, and the rest of the path."""
    if isinstance(node, yaml.SequenceNode):
        number, _, rest = field.partition(".")
        if number.isdecimal() and int(number) < len(node.value):
            part = node.value[int(number)]
            return part.start_mark.line + 1, part, rest
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and is_part(field, key.value):
                return key.start_mark.line + 1, value, field[len(key.value) + 1 :]
        for key, value in node.value:
            if key.tag == MERGE:
                for each in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    if (found := _step(each, field)) is not None:
                        return found
    return None
