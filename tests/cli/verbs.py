"""All verbs that the command line has, each with a command line that is right but for what a test makes wrong.

The verbs and their parameters are read from the command line itself, so that a new verb is tried too: a parameter that
names a path gets a file, and any other that is needed gets its value from VALUES, or a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer
from typer.testing import CliRunner, Result

from testbed.cli import app
from testbed.errors import BAD_INPUT

ROOT = Path(__file__).resolve().parents[2]

#: A network of this name is never up.
NAME = f"none-{os.getpid()}"
#: What parameters that name no path get, where a verb needs them.
VALUES = {
    **dict.fromkeys(("low", "high", "mean", "rate", "state"), "10mbit"),
    **{"seed": "1", "dwell": "5s", "policy": "mst", "policies": "mst", "model_bytes": "1000000", "members": "one"},
    **{"kind": "experiment", "name": NAME, "host": "paris-w0", "worker": "paris-w0", "site": "paris"},
    **{"link": "paris->tokyo", "delay": "5ms"},
}
#: What verbs are given beside what they need: those that take everything away are for one network alone.
ALSO = {"network clean": ("name",), "network down": ("name",), "plan": ("model_bytes",), "link set": ("delay",)}
ALSO |= {"trace generate markov": ("dwell",), "topology import": ("delay",)}
#: Parameters that name what a verb writes. Any other path is read.
WRITTEN = {"target", "png", "folder", "files of launch", "files of network up"}
#: The files of `readable` that paths get by the parameter's name, or by that and the verb's.
FILES = {
    **{"experiment": "experiment.yaml", "topology": "topology.yaml", "file": "trace.csv", "files": "trace.csv"},
    **{"run": "run", "runs": "run", "baseline": "run/summary.json", "graph": "graph.gml", "view": "view.json"},
    **{
        "last": "plan.json",
        "hosts_file": "hosts.yaml",
        "file of sweep": "sweep.yaml",
        "file of cluster up": "none.yaml",
    },
    **{"files of trace import pensieve": "pensieve.log", "files of launch": ".", "files of network up": "."},
    **{"run of view": "none", "file of check": "run", "run of trace convert": "run"},
}
#: Those that only count beside others.
BESIDE = {"hosts_file": ("--hosts", "all"), "run of trace convert": ("--link", "toronto->tokyo")}


@dataclass(frozen=True)
class Verb:
    """A verb of the command line with its parameters, by their names."""

    words: tuple[str, ...]
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def paths(self) -> list[str]:
        """The parameters that name files or folders."""
        return [name for name, each in self.parameters.items() if "Path" in str(each.type_descriptor.annotation)]

    def by_name(self, table: Mapping[str, Any], parameter: str) -> Any:
        """What a table has for this verb's parameter, or for any verb's of that name."""
        return table.get(f"{parameter} of {self.name}", table.get(parameter))

    def is_written(self, parameter: str) -> bool:
        return parameter in WRITTEN or f"{parameter} of {self.name}" in WRITTEN

    def line(self, readable: Path, given: Mapping[str, Path] = MappingProxyType({})) -> list[str]:
        """A command line in which all is right but what is `given`."""
        arguments, options = [], []
        also = ("topology", *ALSO.get(self.name, ()))
        for name, parameter in self.parameters.items():
            if not (parameter.required or name in given or name in also) or name == "command":
                continue
            if name == "topology" and "view" in given:
                continue
            if name in self.paths:
                value = str(given.get(name, readable / (self.by_name(FILES, name) or f"out-{name}")))
                if self.is_written(name) and name not in given:
                    value = {"target": "out.yaml" if self.name == "topology import" else "out.csv"}.get(name, "out")
            else:
                value = str(readable / "form.py") if name == "form" else VALUES.get(name, "word")
            if parameter.param_type_name == "argument":
                arguments.append(value)
            else:
                options += [parameter.opts[0], value] if value else [parameter.opts[0]]
            options += self.by_name(BESIDE, name) or () if name in given else ()
        if self.name == "trace convert":
            arguments = [*(arguments if "run" not in given else []), "out.csv"]
        end = ["--", "true"] if self.name in ("launch", "network exec") else []
        return [*self.words, *options, *arguments, *end]

    def __str__(self) -> str:
        return "-".join(self.words)


def verbs_of(command: Any, words: tuple[str, ...] = ()) -> Iterator[Verb]:
    if inner := getattr(command, "commands", None):
        for word, each in inner.items():
            if each.hidden:  # an older form of another verb
                continue
            yield from verbs_of(each, (*words, word))
    else:
        yield Verb(words, {each.name: each for each in command.params if each.name != "help"})


VERBS = list(verbs_of(typer.main.get_command(app)))
INPUTS = [(verb, path) for verb in VERBS for path in verb.paths if not verb.is_written(path)]
OUTPUTS = [(verb, path) for verb in VERBS for path in verb.paths if verb.is_written(path) and path != "files"]


def tried(*words: str) -> Result:
    """Call a verb. Nothing may end it but words: no traceback, and no error that the testbed does not know."""
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert "the testbed does not know this error" not in " ".join(result.output.split()), result.output
    if result.exit_code:
        assert result.output.strip(), "why it ended is said"
    return result


def assert_named(result: Result, file: Path | str) -> None:
    """A file that is wrong is bad input, and named."""
    assert result.exit_code == BAD_INPUT, (result.exit_code, result.output)
    assert Path(file).name in "".join(result.stderr.split()), result.stderr
