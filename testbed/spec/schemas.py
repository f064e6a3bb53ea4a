"""JSON Schemas of topology and experiment files, by which editors complete fields and mark what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.schemes import SCHEMES
from testbed.spec.experiment import ExperimentFile
from testbed.spec.sync import SyncSection, model_of
from testbed.spec.topology import TopologyFile
from testbed.spec.units import INSIDE, written

NULL = {"type": "null"}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema() -> dict[str, Any]:
    """Return the schema of experiment files, in which the fields of `sync` follow from its strategy."""
    found = ExperimentFile.model_json_schema()
    found["properties"]["sync"] = {"anyOf": [_sync_schema(name, found["$defs"]) for name in SCHEMES]}
    found["$defs"].pop(SyncSection.__name__, None)
    return _schema(found)


def topology_schema() -> dict[str, Any]:
    """Return the schema of topology files."""
    return _schema(TopologyFile.model_json_schema())


def _sync_schema(strategy: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `sync` with this strategy, and add the definitions that it refers to."""
    model = model_of(SCHEMES[strategy])
    own = model.model_json_schema(ref_template=f"#/$defs/{strategy}.{{model}}")
    definitions.update({f"{strategy}.{name}": each for name, each in own.pop("$defs", {}).items()})
    own["properties"]["strategy"] = {"const": strategy}
    if strategy != SyncSection.model_fields["strategy"].default:
        own["required"] = [*own.get("required", ()), "strategy"]
    return own


def _schema(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, **_tidied(found)}


def _tidied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as files have the values.

    A quantity is a number in its model, and a word in a file: its default gets a unit, and its limits go. A field that
    may be left out is not null in a file.
    """
    found = {name: each for name, each in schema.items() if name not in ("title", INSIDE, *_left_out(schema))}
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


def _left_out(schema: Mapping[str, Any]) -> tuple[str, ...]:
    limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if INSIDE in schema else ()
    whole = schema.get("default", ...)
    return (*limits, "default") if whole is None or isinstance(whole, dict) else limits
