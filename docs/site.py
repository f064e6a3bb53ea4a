"""Writes the pages that `make docs` makes a site of: this folder's, and a reference made from the program itself.

    python docs/site.py TARGET

commands      from Typer, as `testbed --help` has them
files         from the models that read them, with the JSON Schemas that editors use
API           from the application, as its OpenAPI document has it
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

#: A link from a page to what is beside the documentation: `[examples/run.ipynb](../examples/run.ipynb)`.
OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]*)(?:#[^)]*)?\)")

API = """\
Each request with its body and its answer. [Over HTTP](../python.md#over-http) explains how to use them."""

OLDER = "`--help` does not list these forms. Scripts may go on using them; they do the same."

FILES = """\
A topology and an experiment, field by field; what they mean stands in [topology](../topology.md) and
[experiment](../experiment.md). Editors complete them by [a schema of topologies](topology.schema.json) and [one of
experiments](experiment.schema.json), which `testbed schema` prints too ([setup](../setup.md))."""


class BrokenLink(Exception):
    """A page links to a file that is not in the checkout."""


def write(target: Path) -> None:
    """Write all pages, pictures and schemas into a folder, in the place of what is there.

    Raises:
        BrokenLink: A page links to a file that is not there.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in target.rglob("*.md"):
        folder = DOCS / page.relative_to(target).parent
        page.write_text(OUTSIDE.sub(lambda link, folder=folder: _named(link, folder), page.read_text()))
    for name, content in reference().items():
        file = target / "reference" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)


def reference() -> dict[str, str]:
    """Return the pages of the reference, and the schemas, by file name."""
    sys.path.insert(0, str(ROOT))
    from testbed.api.app import make_app
    from testbed.planning import named_policies
    from testbed.spec.schemas import experiment_schema, topology_schema

    schemas = {"topology": topology_schema(), "experiment": experiment_schema(named_policies())}
    pages = {"commands.md": commands(), "files.md": fields(schemas)}
    pages["api.md"] = requests(make_app(None, None).openapi())  # the same over whatever runs
    return pages | {f"{kind}.schema.json": json.dumps(schema, indent=1) for kind, schema in schemas.items()}


def _named(link: re.Match[str], folder: Path) -> str:
    """Return the name of the file of the checkout that a link leads to: it is no part of the site."""
    text, file = link[1], (folder / link[2]).resolve()
    if file.is_relative_to(DOCS):
        return link[0]
    if not file.exists():
        raise BrokenLink(f"{folder.relative_to(ROOT)}: [{text}]({link[2]}) leads to {file}, which is not there")
    name = str(file.relative_to(ROOT))
    return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"


def commands() -> str:
    """Return each command with its arguments and options."""
    made = subprocess.run(
        [sys.executable, "-m", "typer", "testbed.cli", "utils", "docs", "--name", "testbed"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    pages = made.stdout.replace("# `testbed`", "# Commands", 1)
    # The lines with an example each keep their form.
    examples = re.compile(r"\n\n\n((?:\S.* {3}testbed .*\n)+)")
    pages = examples.sub(lambda lines: f"\n\n```text\n{html.unescape(lines[1])}```\n", pages, count=1)
    return f"{pages.rstrip()}\n\n{older_forms()}"


def older_forms() -> str:
    """Return the section on the older forms of commands."""
    from testbed.cli import ALIASES

    forms = {name: f"{newer} …" for name, (newer, _) in ALIASES.items()}
    forms |= {"link LINK --rate R": "link set LINK --rate R", "link LINK --down": "link down LINK"}
    forms |= {"link LINK --up": "link up LINK"}
    rows = [f"| `testbed {older}` | `testbed {newer}` |" for older, newer in forms.items()]
    return "\n".join(("## Older forms", "", OLDER, "", "| older form | is now |", "|---|---|", *rows, ""))


def requests(document: Mapping[str, Any]) -> str:
    """Return each path with its requests and answers, and the values that these are made of."""
    rows = ["| request | does | body | answer | refused with |", "|---|---|---|---|---|"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            refused = ", ".join(sorted(status for status in answers if status >= "400"))
            body = _content(operation.get("requestBody", {}))
            does, answer = _in_a_cell(operation), _content(answers["200"])
            rows.append(f"| `{method.upper()} {path}` | {does} | {body} | {answer} | {refused} |")
    parts = ["# API", API, "\n".join(rows)]
    for name, schema in document["components"]["schemas"].items():
        parts += [f"## {name}", *_section(schema)]
    return "\n\n".join(parts) + "\n"


def _content(of: Mapping[str, Any]) -> str:
    """Return the kind of value that a body or an answer holds."""
    schema = of.get("content", {}).get("application/json", {}).get("schema")
    return _kind(schema).replace("a section: ", "") if schema else ""


def fields(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return each kind of file with its sections, and their fields."""
    parts = ["# Files", FILES]
    for kind, schema in schemas.items():
        parts += [f"## {kind.capitalize()}", *_section(schema)]
        for name, section in schema["$defs"].items():
            if section.get("properties"):
                parts += [f"### {kind}: {name}", *_section(section)]
    for section in schemas["experiment"]["properties"]["sync"]["anyOf"]:
        if "const" not in section["properties"]["strategy"]:  # a scheme from a file
            continue
        parts += [f"### experiment: sync, strategy {section['properties']['strategy']['const']}", *_section(section)]
    return "\n\n".join(parts) + "\n"


def _section(schema: Mapping[str, Any]) -> Iterator[str]:
    if words := schema.get("description"):
        yield words
    rows = []
    for name, field in schema.get("properties", {}).items():
        needed = "needed" if name in schema.get("required", ()) else _code(field.get("default"))
        rows.append(f"| `{name}` | {_in_a_cell(field)} | {_kind(field)} | {needed} |")
    if rows:
        yield "\n".join(("| field | is | value | by default |", "|---|---|---|---|", *rows))


def _in_a_cell(described: Mapping[str, Any]) -> str:
    """Return the description of a field or a request, on one line of a table."""
    return " ".join(described.get("description", "").split()).replace("|", "\\|")


def _code(value: Any) -> str:
    return "" if value is None or value == "" else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _kind(field: Mapping[str, Any]) -> str:
    """Return the values that a field may have, in words that fit a table."""
    if any("strategy" in each.get("properties", ()) for each in field.get("anyOf", ())):
        return "a section, by its strategy"
    if "anyOf" in field:
        return ", or ".join(dict.fromkeys(_kind(each) for each in field["anyOf"]))
    if "$ref" in field:
        return f"a section: {field['$ref'].rpartition('/')[2]}"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{each}`" for each in field.get("enum", [field.get("const")]))
    if "examples" in field:
        return "such as " + ", ".join(f"`{each}`" for each in field["examples"])
    if field.get("type") == "array":
        return f"a list: {_kind(field['items'])}" if "items" in field else "a list of two"
    if field.get("type") == "object":
        inner = field.get("additionalProperties")
        return f"by name: {_kind(inner)}" if isinstance(inner, Mapping) else "a section"
    limits = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    told = [f"{words} {field[name]:g}" for name, words in limits.items() if name in field]
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "`true` or `false`", "string": "a word"}
    return " ".join([kinds.get(field.get("type", ""), "anything"), ", ".join(told)]).strip()


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]))
    except BrokenLink as error:
        sys.exit(str(error))
