"""Reading YAML files into validated models, and every way that can fail into a SpecError."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

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


class _Loader(yaml.SafeLoader):
    """YAML in which a key given twice is an error, not a silent overwrite, and every text can be printed.

    An alias counts as all that it stands for: what reads the values meets them one by one.
    """

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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate name {key!r}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


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


def validate(model: type[M], value: Mapping[str, Any], file: Path) -> M:
    """The value as the model; SpecError with a fault for each thing that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise SpecError(file, [_fault(detail) for detail in error.errors()]) from None


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
    "too_long": "a list of two, such as [a, b]",
}
#: Rules with a limit in them: how the remedy words it.
LIMITS = {
    "min_length": "at least this many characters:",
    "gt": "a number above",
    "ge": "at least",
    "lt": "a number below",
    "le": "at most",
    "pattern": "to match",
}


def _fault(detail: ErrorDetails) -> Fault:
    # pydantic ends the place of a key that breaks a rule itself with this.
    path = [str(part) or "''" for part in detail["loc"] if part != "[key]"]
    kind, message, context = detail["type"], detail["msg"], detail.get("ctx", {})
    if kind == "unknown_field":
        return Fault(".".join([*path, context["name"] or "''"]), "unknown field", message)
    if kind == "misfit":
        return Fault(".".join([*path, context["field"]]), context["rule"], context["remedy"])
    message = message.removeprefix("Value error, ")
    rule, bar, remedy = message.partition(" | ")
    if not bar:
        limits = [f"{words} {context[name]}" for name, words in LIMITS.items() if name in context]
        remedy = REMEDIES.get(kind) or " ".join(limits) or f"one of {context.get('expected', 'what the guide names')}"
        rule = f"{rule[0].lower()}{rule[1:]} (got {_shown(detail['input'])})" if kind != "missing" else "is missing"
    return Fault(".".join(path) or "file", rule, remedy)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # Python does not write out a whole number of thousands of digits
        return "a value too large to show"
