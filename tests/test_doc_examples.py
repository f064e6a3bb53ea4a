"""The documentation's examples are right.

Commands exist, sections of files are read as files are, and programs that stand by themselves run to their end.
Examples that need root, a second machine or minutes are run elsewhere: docs/python.md by tests/test_result.py,
docs/scale.md by tests/run/sweep/test_sweep.py, docs/machines.md and docs/sync.md by tests/controller.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from testbed.cli import app
from testbed.planning import policy_names
from testbed.schemes import SCHEMES
from testbed.spec.experiment import Experiment, ExperimentFile
from testbed.spec.model import validate
from testbed.spec.topology import TopologyFile
from tests.ports import free_port
from tests.program import ForkedProgram, preload
from tests.spec.files import TOPOLOGY
from tests.waiting import PATIENCE_S

preload("testbed.schemes.hop", "testbed.planning", "testbed.sync.gossip.membership", "torch._dynamo")

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")

#: The beginning of a command in print: as it is typed in a checkout, as root or not.
BEGIN = re.compile(r"^(?:\$ )?(?:sudo )?(?:\.venv/bin/)?testbed (?=[a-z-])")

#: Placeholders in a page's commands.
LEFT_OUT = re.compile(r"…|\.\.\.|[A-Z]{3,}|\||\*")

#: The pages that explain algorithms.
EXPLAINED = ("policies.md", "schemes.md")


def commands_in_blocks() -> Iterator[tuple[str, str]]:
    """Yield (page, command) of our commands in blocks of code, whole."""
    for page in PAGES:
        for _, block in BLOCK.findall(page.read_text()):
            yield from ((page.name, line) for line in map(our_command, block.replace("\\\n", " ").split("\n")) if line)


def commands_in_sentences() -> Iterator[tuple[str, str]]:
    """Yield (page, command) of our commands in sentences, often in parts."""
    for page in PAGES:
        yield from (
            (page.name, line) for line in map(our_command, INLINE.findall(BLOCK.sub("", page.read_text()))) if line
        )


def our_command(line: str) -> str:
    """Return the words after `testbed`, if the line is a command of ours, else an empty string."""
    found = BEGIN.match(line)
    return line[found.end() :].split("   #")[0].split(" > ")[0].strip() if found else ""


#: The whole command line, made once: that takes 40 ms of a processor, and there are hundreds of commands.
whole = cache(lambda: get_command(app))


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that the words begin with, and the words after it. Raises KeyError for an unknown command."""
    command: Any = whole()
    while hasattr(command, "commands") and words and words[0].islower() and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.pure
@pytest.mark.parametrize(("page", "line"), sorted({*commands_in_blocks(), *commands_in_sentences()}))
def test_verbs_and_options_are_ones_that_there_are(page: str, line: str) -> None:
    command, words = command_of(shlex.split(line))
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    ours = words[: words.index("--")] if "--" in words else words
    asked = {word.split("=")[0] for word in ours if word.startswith("--") and not LEFT_OUT.search(word)}
    assert asked <= {*known, "--help"} or hasattr(command, "commands")  # of a group whose verb is left out


@pytest.mark.pure
@pytest.mark.parametrize(("page", "line"), sorted(set(commands_in_blocks())))
def test_commands_can_be_typed_as_they_are(page: str, line: str) -> None:
    command, words = command_of(shlex.split(line))
    if not LEFT_OUT.search(line):
        command.make_context("testbed", words)


def sections() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each YAML mapping of a page."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text()):
            value = yaml.safe_load(block) if language == "yaml" else None
            if isinstance(value, dict):
                yield page.name, value


@pytest.mark.pure
@pytest.mark.parametrize(("page", "value"), list(sections()), ids=lambda value: value if isinstance(value, str) else "")
def test_sections_of_files_are_read_as_files_are(page: str, value: dict[str, Any]) -> None:
    if value.keys() <= TopologyFile.model_fields.keys():
        validate(TopologyFile, {**TOPOLOGY, **value}, Path(page))
    elif value.keys() <= ExperimentFile.model_fields.keys():
        optimizer = {"optimizer": {"name": "muon"}} if value.get("sync", {}).get("strategy") == "muloco" else {}
        train = value.get("train", {})
        if "command" not in train:
            train = {"model": "cnn", "rounds": 4, **optimizer, **train}  # a page shows what it is about
        validate(ExperimentFile, {"name": "example", "topology": "x.yaml", **value, "train": train}, Path(page))


@pytest.mark.pure
@pytest.mark.parametrize(
    "value",
    [value for _, value in sections() if {"name", "topology"} <= value.keys()],
    ids=lambda value: value["name"],
)
def test_whole_experiments_fit_the_topologies_that_they_name(value: dict[str, Any], tmp_path: Path) -> None:
    """Links, sites and workers of the events are the topology's."""
    (tmp_path / "experiments").mkdir()
    for folder in ("topologies", "traces", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    file = tmp_path / "experiments" / "example.yaml"
    file.write_text(yaml.safe_dump(value))
    assert Experiment.load(file).name == value["name"]


@pytest.mark.local
@pytest.mark.parametrize(("page", "file"), [("sync.md", "average.py"), ("schemes.md", "hop.py")])
def test_members_that_gossip_train_in_two_processes(page: str, file: str, tmp_path: Path) -> None:
    program = re.search(rf"```python\n(# {re.escape(file)}:.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert program
    (tmp_path / file).write_text(program[1])
    addresses = [f"{name}=127.0.0.1:{free_port()}" for name in ("paris", "tokyo")]
    with ExitStack() as stack:
        members = [
            stack.enter_context(ForkedProgram(str(tmp_path / file), name, *addresses)) for name in ("paris", "tokyo")
        ]
        said = [member.communicate(timeout=PATIENCE_S) for member in members]
        assert not any(member.wait() for member in members), said
    assert all(float(output.removeprefix("furthest from 1: ")) < 0.1 for output, _ in said)


@pytest.mark.pure
@pytest.mark.parametrize("name", sorted({*policy_names(), *SCHEMES} - {"auto"}))
def test_each_algorithm_is_explained_with_its_source(name: str) -> None:
    """A table row begins with its name and has the source, or a page names both."""
    pages = [(ROOT / "docs" / page).read_text() for page in EXPLAINED]
    rows = [line.split("|") for text in pages for line in text.split("\n") if line.startswith("|")]
    told = [row for row in rows if f"`{name}`" in row[1] and len(row) > 3]
    sources = [re.search(r"\*Source:\*.*?\n\n", text, re.DOTALL) for text in pages]
    own = [found for found in sources if found and f"`{name}`" in found[0]]
    prose = [text for text in pages if re.search(rf"`{name}` \([^)]*(20\d\d|HFA)", text)]
    assert told or own or prose
