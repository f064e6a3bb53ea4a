"""Models of the files that users write: an unknown field is an error, and each error says what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import Source

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

#: Two values as a YAML list.
Pair = Annotated[tuple[T, T], Field(strict=False)]

#: The JSON Schema of a link in a file: `paris->tokyo`, `paris-tokyo` or [paris, tokyo].
LINK_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}]
}


class Strict(BaseModel):
    """A model that refuses unknown fields, naming the known ones, and converts no types: `"3"` is not a number.

    The text below a field is the field's description in the JSON Schema (testbed.spec.schemas).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"is not a mapping | some of {', '.join(sorted(cls.model_fields))}")
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
        return f"perhaps `{close[0]}`; the known fields: {', '.join(known)}" if close else f"one of {', '.join(known)}"


def misfit(field: str, rule: str, remedy: str) -> PydanticCustomError:
    """Return a validator's error for `field`, a path below the validated value: `rule` is broken; write `remedy`."""
    return PydanticCustomError("misfit", "{rule}", {"field": field, "rule": rule, "remedy": remedy})


def validate(model: type[M], value: Mapping[str, Any], file: Path, overrides: Mapping[str, str] | None = None) -> M:
    """Return the value of a file, validated by `model`.

    Args:
        model: The model of this kind of file.
        value: The file's value, with the overrides.
        file: The file, for errors.
        overrides: Texts of the command line by the dotted paths of fields.

    Raises:
        SpecError: The value is wrong; has a fault for each wrong field.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        source = Source(file, overrides)
        faults = [_fault(path, detail, source) for path, detail in _without_branches(error.errors())]
        raise SpecError(file, source.located(faults)) from None


#: Names that pydantic adds to the path of a field for the branches of a union.
BRANCH = re.compile(
    r"(?:function-\w+|lax-or-strict|is-instance|literal|list|dict|tuple)\[.*\]|constrained-(?:str|int|float)"
)


def _without_branches(details: Sequence[ErrorDetails]) -> Iterator[tuple[list[str], ErrorDetails]]:
    """Yield each error with its path in the file, without the names of a union's branches.

    Only the branch counts whose first error lies deepest in the value. If every branch refuses the value itself, one
    error lists what each branch expects.
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
    """Split the place of pydantic's error into the path to its first union, the path beyond, and the union's branch."""
    before: list[str] = []
    beyond: list[str] = []
    branch = ""
    for part in loc:
        # pydantic adds this part where a mapping's key, and not its value, breaks a rule.
        if part == "[key]":
            continue
        if isinstance(part, str) and BRANCH.fullmatch(part):
            branch = branch or part
        else:
            (beyond if branch else before).append(str(part) or "''")
    return (before, beyond), branch


#: Pydantic's type of error → what to write instead.
REMEDIES = {
    "missing": "this field; it is required",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a word",
    "string_too_short": "a word",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "tuple_type": "a list of two, such as [a, b]",
    "too_short": "at least 1 entry",
    "too_long": "a list of two, such as [a, b]",
}
#: The patterns of names, in words.
_NAME = "small letters, digits and dashes, at most {} of them, a letter or digit first"
PATTERNS = {
    r"^[a-z0-9][a-z0-9-]{0,30}$": _NAME.format(31),
    r"^[a-z0-9][a-z0-9-]{0,40}$": _NAME.format(41),
    r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$": f"{_NAME.format(32)}, no dash last",
    r"^[a-z_][a-z0-9_.-]{0,31}$": "a user's name: small letters, digits, dashes and underscores, a letter first",
    r"^[A-Za-z0-9_./+-]+$": "a path of ASCII letters, digits, dashes, dots and underscores",
}
#: A number that YAML reads as a text, because the number has no point or its exponent has no sign.
EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")

#: The name of a limit in pydantic's errors → the words before the limit in the remedy.
LIMITS = {
    "min_length": "at least this many characters:",
    "max_length": "at most this many characters:",
    "gt": "a number above",
    "ge": "at least",
    "lt": "a number below",
    "le": "at most",
    "pattern": "to match",
}


#: Words that YAML 1.1 reads as true or false, where people may mean the word.
WORDS = frozenset({"yes", "no", "on", "off", "y", "n"})


def _fault(path: list[str], detail: ErrorDetails, source: Source) -> Fault:
    kind, message, context = detail["type"], detail["msg"], detail.get("ctx", {})
    if kind == "unknown_field":
        return Fault(".".join([*path, context["name"] or "''"]), "the field is unknown", message)
    if kind == "misfit":
        return Fault(".".join([*path, context["field"]]), context["rule"], context["remedy"])
    message = message.removeprefix("Value error, ")
    rule, bar, remedy = message.partition(" | ")
    field, value = ".".join(path), detail["input"]
    written = source.text_at(field, value)
    if not bar or kind != "value_error":
        limits = [f"{words} {context[name]}" for name, words in LIMITS.items() if name in context]
        remedy = (
            remedy
            or PATTERNS.get(context.get("pattern", ""))
            or REMEDIES.get(kind)
            or " ".join(limits)
            or f"one of {context.get('expected', 'the documented values')}"
        )
        if kind == "string_pattern_mismatch" and context.get("pattern") in PATTERNS:
            rule = "the name does not match the pattern of such names"
            remedy += f" (to match {context['pattern']})"
        rule = f"{rule[0].lower()}{rule[1:]} (got {written or _shown(value)})"
        rule = "the field is missing" if kind == "missing" else rule
    elif written is not None:
        rule = rule.replace(_shown(value), written, 1)
    if written is not None and (kind == "string_type" or (kind == "value_error" and written.lower() in WORDS)):
        remedy += f'; the word "{written}" in quotes'
    if kind == "float_type" and isinstance(value, str) and EXPONENT.fullmatch(value):
        remedy += f", in YAML {float(value):.1e} with a point and a sign"
    return Fault(field or "file", rule, remedy)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # Python refuses to convert an integer of thousands of digits to text
        return "a value too large to show"
