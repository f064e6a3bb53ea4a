"""Reading YAML files into validated models, and every way that can fail into a SpecError."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from testbed.spec.errors import Fault, SpecError
from testbed.trace.text import text_of

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """A model in which an unknown field is an error that names the known ones, and `"3"` or `yes` is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping | some of {', '.join(sorted(cls.model_fields))}")
        for name in value:
            if name not in cls.model_fields:
                raise PydanticCustomError(
                    "unknown_field", "{remedy}", {"name": str(name), "remedy": cls._nearest(name)}
                )
        return value

    @classmethod
    def _nearest(cls, name: object) -> str:
        known = sorted(cls.model_fields)
        close = difflib.get_close_matches(str(name), known, n=1)
        return f"`{close[0]}`, perhaps; known here: {', '.join(known)}" if close else f"one of {', '.join(known)}"


def misfit(field: str, rule: str, remedy: str) -> PydanticCustomError:
    """What a validator raises about a field that lies further down than itself."""
    return PydanticCustomError("misfit", "{rule}", {"field": field, "rule": rule, "remedy": remedy})


#: A topology of 1,000 sites with ten links each has 0.45 MB, and is read in three seconds.
MOST_BYTES = 2**20
#: … and has a quarter of these values. With aliases, ten lines say a billion of them.
MOST_VALUES = 200_000

#: Two names as a YAML list.
Pair = Annotated[tuple[T, T], Field(strict=False)]


#: Numbers as people write them: without those to the base 60 (`1:30`) and 8 (`010`) of YAML 1.1. Such words, and dates,
#: are texts.
NUMBERS = (
    ("int", r"^(?:[-+]?(?:0|[1-9][0-9_]*)|[-+]?0b[0-1_]+|[-+]?0x[0-9a-fA-F_]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
)
TAG = "tag:yaml.org,2002:"
MERGE, TEXT = f"{TAG}merge", f"{TAG}str"


class _Loader(yaml.SafeLoader):
    """YAML in which a key given twice is an error, not a silent overwrite, and every text can be printed.

    Keys are texts as they stand in the file: `no` is Norway. What a merge key (`<<`) brings gives way to the mapping's
    own keys. An alias counts as all that it stands for: what reads the values meets them one by one.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values_in(node, {}) > MOST_VALUES:
            problem = f"holds over {MOST_VALUES} values, those that aliases repeat included"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if any("\ud800" <= letter <= "\udfff" for letter in str(value)):
            raise yaml.constructor.ConstructorError(None, None, "holds half a character", node.start_mark)
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what merge keys bring into the mapping; before that, check its own keys."""
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
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate name {key!r}", key_node.start_mark)
            seen.add(key)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag.removeprefix(TAG) not in ("int", "float", "timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _form, _first in NUMBERS:
    _Loader.add_implicit_resolver(f"{TAG}{_name}", re.compile(_form), list(_first))


def _values_in(node: yaml.Node, known: dict[int, int | None]) -> int:
    """How many values a node stands for, aliases written out. `known` has those that were counted, None meanwhile."""
    if id(node) not in known:
        known[id(node)] = None
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for each in inside for part in (each if isinstance(each, tuple) else (each,)))
        known[id(node)] = 1 + sum(_values_in(part, known) for part in parts)
    if (count := known[id(node)]) is None:
        raise yaml.constructor.ConstructorError(None, None, "holds itself", node.start_mark)
    return count


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; yaml.YAMLError for every way in which it is none.

    PyYAML itself lets other errors through where a tag does not fit its value: `!!int ""`, `!!bool maybe`.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise yaml.YAMLError(f"a value does not fit its type ({error})") from error


#: The kinds of files of ours → the fields that only that kind has, the endings of its name, and what takes it.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "an experiment": (("train", "topology"), (), "`testbed run`, `simulate` and `compare` take this one"),
    "a topology": (("sites",), (), "`testbed up`, `launch`, `swap` and `plan` take this one"),
    "a sweep": (("experiment", "axes"), (), "`testbed sweep` takes this one"),
    "a hosts file": (("hosts",), (), "`testbed cluster up` and `--hosts-file` take this one"),
    "a trace": (
        (),
        (".csv", ".up", ".down", ".mahimahi"),
        "`testbed trace show` takes this one",
    ),
    "a program": ((), (".py", ".sh"), "`testbed launch TOPOLOGY -- python FILE` runs this one"),
}
RUN, RUN_USES = "a run's directory", "`testbed view`, `report`, `export` and `check` take this one"


def kind_of(value: Mapping[str, Any]) -> str | None:
    """Return the kind of file that has such a mapping, by the fields that no other kind has."""
    return next((kind for kind, (fields, _, _) in KINDS.items() if any(name in value for name in fields)), None)


def read_kind(file: Path, wanted: str) -> dict[str, Any]:
    """Return the mapping in a YAML file of the kind `wanted`. SpecError says which other kind the file is of."""
    try:
        value = read_yaml(file)
    except SpecError:
        found = next((kind for kind, (_, ends, _) in KINDS.items() if file.suffix.lower() in ends), None)
        found = RUN if (file / "manifest.json").exists() else found
        if found is None or not file.exists():
            raise
    else:
        found = kind_of(value)
        if found in (None, wanted) or any(name in value for name in KINDS[wanted][0]):
            return value
    uses = RUN_USES if found == RUN else KINDS[str(found)][2]
    rule = f"is {found}, where {wanted} is expected"
    raise SpecError(file, [Fault("file", rule, f"the path of {wanted}; {uses}")])


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; SpecError when it is missing, no YAML, or no mapping."""
    try:
        text = text_of(file, MOST_BYTES)
    except FileNotFoundError:
        raise SpecError(file, [Fault("file", "does not exist", "the path of a YAML file")]) from None
    except (OSError, ValueError) as error:  # ValueError: too long, no UTF-8, or no path
        raise SpecError(file, [Fault("file", f"cannot be read: {error}", "a UTF-8 text file")]) from error
    try:
        value = parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        problem = error.problem or "is not YAML"
        remedy = "each name once" if "duplicate" in problem else "valid YAML here (check indentation, colons, brackets)"
        raise SpecError(file, [Fault(where, problem, remedy)]) from None
    except yaml.YAMLError as error:
        raise SpecError(file, [Fault("file", f"is not YAML: {error}", "plain, valid YAML")]) from None
    if not isinstance(value, dict):
        raise SpecError(file, [Fault("file", "holds no mapping", "`name: value` lines")])
    return value


def validate(model: type[M], value: Mapping[str, Any], file: Path, overrides: Mapping[str, str] | None = None) -> M:
    """The value as the model; SpecError with a fault for each thing that is wrong.

    `overrides` are the texts that the command line has for fields, instead of the file's.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        source = Source.of(file, overrides)
        faults = [_fault(path, detail, source) for path, detail in _without_branches(error.errors())]
        raise SpecError(file, source.located(faults)) from None


class Source:
    """A YAML file as it is written, to say where a field stands and what stands there."""

    def __init__(self, root: yaml.Node | None, overrides: Mapping[str, str]) -> None:
        self._root = root
        self._overrides = overrides

    @classmethod
    def of(cls, file: Path, overrides: Mapping[str, str] | None = None) -> Source:
        """The file as it is now, and what the command line says instead; without lines where it can't be read."""
        try:
            return cls(_Loader(text_of(file, MOST_BYTES)).get_single_node(), overrides or {})
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            return cls(None, overrides or {})

    def located(self, faults: Iterable[Fault]) -> list[Fault]:
        """The faults with the lines of their fields that the file says."""
        return [self._located(fault) for fault in faults]

    def _located(self, fault: Fault) -> Fault:
        if any(fault.field == key or fault.field.startswith(f"{key}.") for key in self._overrides):
            return fault
        found = self._find(fault.field)
        return fault if found is None else replace(fault, line=found[0])

    def said(self, field: str, value: object) -> str | None:
        """What stands there for this value, if it is a number or a word that is another one in YAML."""
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
        """The line of the field, its node, and what is left of the path where the file has only a part of it."""
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
    """The part of a node that a dotted path begins with: its line, its node, and the path's rest."""
    if isinstance(node, yaml.SequenceNode):
        number, _, rest = field.partition(".")
        if number.isdecimal() and int(number) < len(node.value):
            part = node.value[int(number)]
            return part.start_mark.line + 1, part, rest
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and (field == key.value or field.startswith(f"{key.value}.")):
                return key.start_mark.line + 1, value, field[len(key.value) + 1 :]
        for key, value in node.value:
            if key.tag == MERGE:
                for each in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    if (found := _step(each, field)) is not None:
                        return found
    return None


#: What pydantic calls the branches of a union, among the names of fields.
BRANCH = re.compile(
    r"(?:function-\w+|lax-or-strict|is-instance|literal|list|dict|tuple)\[.*\]|constrained-(?:str|int|float)"
)


def _without_branches(details: Sequence[ErrorDetails]) -> Iterator[tuple[list[str], ErrorDetails]]:
    """Yield each error with its path in the file.

    Of a union's branches, those that the value gets furthest in count. Where it gets nowhere in any of them, one error
    has what each of them wants.
    """
    groups: dict[tuple[tuple[str, ...], bool], list[tuple[list[str], str, ErrorDetails]]] = {}
    for detail in details:
        path, branch = _walked(detail["loc"])
        whole = [*path[0], *path[1]]
        groups.setdefault((tuple(path[0]), bool(branch)), []).append((whole, branch, detail))
    for (union, branched), found in groups.items():
        if not branched:
            yield from ((path, detail) for path, _, detail in found)
            continue
        furthest, kept, _ = max(found, key=lambda each: len(each[0]))
        if len(furthest) > len(union):
            yield from ((path, detail) for path, branch, detail in found if branch == kept)
            continue
        right = [each for each in found if not each[2]["type"].endswith(("_type", "literal_error"))] or found
        wanted = [REMEDIES.get(detail["type"]) or detail["msg"] for _, _, detail in right]
        first = right[0][2]
        message = f"{first['msg']} | {', or '.join(wanted)}" if len(wanted) > 1 else first["msg"]
        yield right[0][0], cast(ErrorDetails, {**first, "msg": message})


def _walked(loc: Sequence[int | str]) -> tuple[tuple[list[str], list[str]], str]:
    """A place of pydantic's: the path to its first union, the path beyond, and the union's branch."""
    before: list[str] = []
    beyond: list[str] = []
    branch = ""
    for part in loc:
        # pydantic ends the place of a key that breaks a rule itself with this.
        if part == "[key]":
            continue
        if isinstance(part, str) and BRANCH.fullmatch(part):
            branch = branch or part
        else:
            (beyond if branch else before).append(str(part) or "''")
    return (before, beyond), branch


#: What pydantic's own rules mean to a user who wants to know what to write.
REMEDIES = {
    "missing": "this field; it is required",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a word",
    "string_too_short": "a word",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "tuple_type": "a list of two, such as [a, b]",
    "too_short": "at least 1 entry",
    "too_long": "a list of two, such as [a, b]",
}
#: The forms that names have, in words.
_NAME = "small letters, digits and dashes, at most {} of them, a letter or digit first"
PATTERNS = {
    r"^[a-z0-9][a-z0-9-]{0,30}$": _NAME.format(31),
    r"^[a-z0-9][a-z0-9-]{0,40}$": _NAME.format(41),
    r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$": f"{_NAME.format(32)}, no dash last",
    r"^[a-z_][a-z0-9_.-]{0,31}$": "a user's name: small letters, digits, dashes and underscores, a letter first",
    r"^[A-Za-z0-9_./+-]+$": "a path of ASCII letters, digits, dashes, dots and underscores",
}
#: A number that YAML takes for a text, since it has no point or its exponent no sign.
EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")

#: Rules with a limit in them: how the remedy words it.
LIMITS = {
    "min_length": "at least this many characters:",
    "gt": "a number above",
    "ge": "at least",
    "lt": "a number below",
    "le": "at most",
    "pattern": "to match",
}


#: YAML 1.1's words for true and false that are words to people.
WORDS = frozenset({"yes", "no", "on", "off", "y", "n"})


def _fault(path: list[str], detail: ErrorDetails, source: Source) -> Fault:
    kind, message, context = detail["type"], detail["msg"], detail.get("ctx", {})
    if kind == "unknown_field":
        return Fault(".".join([*path, context["name"] or "''"]), "unknown field", message)
    if kind == "misfit":
        return Fault(".".join([*path, context["field"]]), context["rule"], context["remedy"])
    message = message.removeprefix("Value error, ")
    rule, bar, remedy = message.partition(" | ")
    field, value = ".".join(path), detail["input"]
    said = source.said(field, value)
    if not bar or kind != "value_error":
        limits = [f"{words} {context[name]}" for name, words in LIMITS.items() if name in context]
        remedy = (
            remedy
            or PATTERNS.get(context.get("pattern", ""))
            or REMEDIES.get(kind)
            or " ".join(limits)
            or f"one of {context.get('expected', 'what the guide names')}"
        )
        if kind == "string_pattern_mismatch" and context.get("pattern") in PATTERNS:
            rule, remedy = "does not match the pattern of such names", f"{remedy} (to match {context['pattern']})"
        rule = f"{rule[0].lower()}{rule[1:]} (got {said or _shown(value)})" if kind != "missing" else "is missing"
    elif said is not None:
        rule = rule.replace(_shown(value), said, 1)
    if said is not None and (kind == "string_type" or (kind == "value_error" and said.lower() in WORDS)):
        remedy += f'; the word "{said}" in quotes'
    if kind in ("float_type", "float_parsing") and isinstance(value, str) and EXPONENT.fullmatch(value):
        remedy += f", in YAML {float(value):.1e} with a point and a sign"
    return Fault(field or "file", rule, remedy)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # Python does not write out a whole number of thousands of digits
        return "a value too large to show"
