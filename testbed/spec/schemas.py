"""JSON Schemas of topology and experiment files, with which editors complete fields and mark errors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise, takewhile
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from testbed.schemes import SCHEMES
from testbed.spec.experiment import ExperimentFile
from testbed.spec.model import Strict
from testbed.spec.sync import SyncSection, model_of
from testbed.spec.topology import TopologyFile
from testbed.spec.units import INSIDE, written

NULL = {"type": "null"}
#: The schema of `sync` with a scheme from a file, whose options are not known here.
SCHEME_FILE = {
    "description": "How members train together, by a scheme of your own. Its options are further fields.",
    "type": "object",
    "properties": {"strategy": {"type": "string", "pattern": r"\.py$"}},
    "required": ["strategy"],
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema(policies: Mapping[str, type] | None = None) -> dict[str, Any]:
    """Return the schema of experiment files, in which the fields of `sync` follow from its strategy.

    The fields of a policy's dataclass are its options under `sync.options`.
    """
    found = _described(ExperimentFile.model_json_schema(), ExperimentFile)
    sections = [_sync_schema(name, found["$defs"]) for name in SCHEMES]
    found["properties"]["sync"] = {"anyOf": [*sections, SCHEME_FILE]}
    found["$defs"].pop(SyncSection.__name__, None)
    if policies:
        found["$defs"].update({f"policy.{name}": _options_schema(policy) for name, policy in policies.items()})
        found["$defs"]["policies"] = {"allOf": [_if_policy(name) for name in policies]}
        for section in sections:
            if "policy" in section["properties"]:
                section["allOf"] = [{"$ref": "#/$defs/policies"}]
    return _schema(found)


def topology_schema() -> dict[str, Any]:
    """Return the schema of topology files."""
    return _schema(_described(TopologyFile.model_json_schema(), TopologyFile))


def _sync_schema(strategy: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `sync` with this strategy, and add the definitions that it refers to."""
    model = model_of(SCHEMES[strategy])
    own = model.model_json_schema(ref_template=f"#/$defs/{strategy}.{{model}}")
    parts = own.pop("$defs", {})
    definitions.update({f"{strategy}.{name}": each for name, each in parts.items()})
    _describe(own, SyncSection)
    _describe_options(own, SCHEMES[strategy].options)
    for options in _sections_of(SCHEMES[strategy].options):
        _describe_options(parts[options.__name__], options)
    own["properties"]["strategy"] = {"description": own["properties"]["strategy"]["description"], "const": strategy}
    if strategy != SyncSection.model_fields["strategy"].default:
        own["required"] = [*own.get("required", ()), "strategy"]
    return own


def _options_schema(policy: type) -> dict[str, Any]:
    own = TypeAdapter(policy).json_schema()
    own.setdefault("properties", {})
    own["additionalProperties"] = False
    own["description"] = f"Options of the policy {policy.name}."  # type: ignore[attr-defined]
    _describe_options(own, policy)
    return own


def _if_policy(name: str) -> dict[str, Any]:
    """Return the schema of a section `sync` whose options are those of a policy, if the section names the policy."""
    named = {"properties": {"policy": {"const": name}}, "required": ["policy"]}
    return {"if": named, "then": {"properties": {"options": {"$ref": f"#/$defs/policy.{name}"}}}}


def _sections_of(options: type) -> Iterator[type]:
    for hint in get_type_hints(options).values():
        yield from (each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each))


def _describe_options(schema: dict[str, Any], options: type) -> None:
    """Add the `#:` comments above a dataclass's fields to its schema. A field that is declared again keeps its own."""
    for base in reversed([base for base in options.__mro__ if is_dataclass(base)]):
        source = inspect.getsource(base)
        lines = [line.strip() for line in source.splitlines()]
        (declared,) = ast.parse(source).body
        for field in declared.body if isinstance(declared, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign):
                above = [*takewhile(lambda line: line.startswith("#: "), reversed(lines[: field.lineno - 1]))]
                if above and (own := schema["properties"].get(ast.unparse(field.target))) is not None:
                    own["description"] = "\n".join(line.removeprefix("#: ") for line in reversed(above))


def _described(schema: dict[str, Any], model: type[Strict]) -> dict[str, Any]:
    models = {each.__name__: each for each in _models(Strict)}
    for name, part in ((model.__name__, schema), *schema["$defs"].items()):
        if name in models:
            _describe(part, models[name])
    return schema


def _models(base: type[Strict]) -> Iterator[type[Strict]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _describe(schema: dict[str, Any], model: type[Strict]) -> None:
    """Add the texts below a model's fields to its schema.

    pydantic's own `use_attribute_docstrings` does so as each model is made, which takes 0.1 s of every verb.
    """
    for base in (base for base in model.__mro__ if issubclass(base, Strict)):
        (source,) = ast.parse(inspect.getsource(base)).body
        for field, text in pairwise(source.body if isinstance(source, ast.ClassDef) else ()):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                words = inspect.cleandoc(str(text.value.value))
                schema["properties"].get(ast.unparse(field.target), {})["description"] = words


def _schema(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, **_tidied(found)}


def _tidied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's schema, changed to describe values as users write them in files.

    A quantity is a number in its model, and a text with a unit in a file: its default gets a unit. A field that may be
    omitted is not null in a file.
    """
    default = schema.get("default", ...)
    left_out = ("title", INSIDE, *(("default",) if default is None or isinstance(default, dict) else ()))
    found = {name: each for name, each in schema.items() if name not in left_out}
    if isinstance(found.get("default"), float) and INSIDE in schema:
        found["default"] = written(found["default"], schema[INSIDE])
    for name, each in found.items():
        if name in ("properties", "$defs"):
            found[name] = {key: _tidied(inner) for key, inner in each.items()}
        elif isinstance(each, Mapping) and name != "default":
            found[name] = _tidied(each)
        elif name in ("anyOf", "prefixItems"):
            found[name] = [_tidied(one) for one in each if one != NULL]
    if len(found.get("anyOf", ())) == 1:
        found |= found.pop("anyOf")[0]
    return found
