"""Names are the field's, and no docstring, error or page has a sentence to read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import words

ROOT = Path(__file__).resolve().parents[1]

#: The words that are not said, and what is said instead of them.
INSTEAD: Mapping[str, tuple[str, ...]] = {
    "generation, membership change": ("era",),
    "abort, reconfigure, recovery": ("halt", "resume", "mend"),
    "message, message queue, message codec": ("letter", "post"),
    "gossip, neighbour, graph": ("circle",),
    "node configuration, assignment": ("place", "placement"),
    "participant, rendezvous": ("party", "meeting", "meet"),
    "prepare, promise, commit, abort": ("ask", "promised", "turn", "release", "course", "regraph"),
    "all-reduce engine": ("exchange",),
    "role in a tree": ("duty",),
    "channel": ("lane",),
    "transport settings": ("way",),
    "send pacing": ("ahead",),
    "adaptive timeout": ("patience",),
    "asynchronous executor": ("later",),
    "error-feedback residual, anchor": ("owed", "hold", "shown"),
    "round log, decision log, membership event, plan history, violation": (
        "book",
        "ledger",
        "passage",
        "succession",
        "breach",
    ),
}

#: Post-local SGD is an algorithm's published name (Lin et al. 2020).
PUBLISHED = ("post_local", "PostLocal")


def parts(name: str) -> list[str]:
    """Return the words of a name, in lower case: `RoundBook` and `round_book` give round, book."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def forms(word: str) -> tuple[str, ...]:
    """Return a word and its plural."""
    return word, f"{word[:-1]}ies" if word.endswith("y") and word != "way" else f"{word}s"


#: A word that is not said: what is said instead.
BETTER = {form: said for said, words in INSTEAD.items() for word in words for form in forms(word)}


def names(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield each module, folder and class, with its place."""
    for file in sorted(path for room in ("testbed", "benchmarks") for path in (root / room).rglob("*.py")):
        place = str(file.relative_to(root))
        yield place, file.parent.name if file.name == "__init__.py" else file.stem
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield f"{place}: {node.name}", node.name


def private(root: Path = ROOT) -> dict[str, str]:
    """Return the names with a word that is not used, each with the word to use."""
    return {
        place: better
        for place, name in names(root)
        if not name.startswith(PUBLISHED)
        for better in [next((BETTER[word] for word in parts(name) if word in BETTER), None)]
        if better is not None
    }


@pytest.mark.pure
def test_no_class_or_module_is_named_by_a_word_of_our_own() -> None:
    assert not {place: f"say {said}" for place, said in private().items()}


@pytest.mark.pure
def test_a_word_is_found_in_any_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "testbed" / "duties").mkdir(parents=True)
    (tmp_path / "testbed" / "duties" / "__init__.py").write_text("class _RoundBook: ...\nclass Booking: ...\n")
    (tmp_path / "testbed" / "post_local.py").write_text("class PostLocalSgd: ...\nclass HTTPPost: ...\n")
    assert private(tmp_path) == {
        "testbed/duties/__init__.py": "role in a tree",
        "testbed/duties/__init__.py: _RoundBook": "round log, decision log, membership event, plan history, violation",
        "testbed/post_local.py: HTTPPost": "message, message queue, message codec",
    }


# Sentences ----------------------------------------------------------------------------------------------------------

BAD_DOCSTRINGS = (
    "What a peer needs.",
    "Who takes part now.",
    "Whom to tell of a loss.",
    "Whether a member is gone.",
    "Of a round: its members.",
    "That of the last round.",
    "Those who take part now.",
    "Such as come later.",
    "It sends.",
    "So that nobody waits.",
    "In place of a file, its text.",
    "Return a member, whom nobody has seen.",
    "Start the program anew.",
    "Return so many rounds.",
    "Return the rounds that are to come.",
    "Return what the file says; the plan has it that a is the root.",
    "Raise SyncError where the sender is none that works.",
    "Let who waits go on: who comes later is told.",
)
GOOD_DOCSTRINGS = (
    "Return whether a member is gone.",
    "The members of the current generation.",
    "Send a message to a member.",
    "Wait until the round is over, or `timeout_s` has passed.",
    "The number of the last completed round.",
    "Itself: the group in force of a static run.",
    "Soft limits of the process.",
    "Offers a plan to the members.",
    "Return the plan, or None if there is none.",
    "Return how many members wait.",
    "A member that none of the others has seen.",
    "Items that are none of the above.",
    "Whole rounds only.",
    "Return `anew`, as the option is called.",
)
BAD_MESSAGES = (
    "what came is no message",
    "who comes without a token is refused",
    "whether it is there is not known",
    "of paris-w0: no room",
    "such a link is not there",
    "those members are gone",
)
GOOD_MESSAGES = (
    "paris->tokyo: no such link; there are paris->lima",
    "the controller closed the connection without a welcome",
    "it did not renew its lease for 12 s",
    "plan 3 (packing) adopted: rounds 1.45 s -> 0.65 s predicted",
    "no answer from the engine for 20 s",
)
BAD_SUBJECTS = (
    "What members say is kept",
    "Those that wait go on",
    "Start workers anew where they died",
    "So the test waits",
    "Of two builds one is made",
    "Tell a member whom nobody has seen",
    "Learn a plan's correction from rates of the same time, and the median over all plans too",
)
GOOD_SUBJECTS = (
    "Learn a plan's correction from rates of the same time",
    "Make layers of the controller's folders",
    "Estimate a link that was silent for hours",
)


@pytest.mark.pure
@pytest.mark.parametrize("text", BAD_DOCSTRINGS)
def test_a_docstring_with_such_a_sentence_is_found(text: str) -> None:
    assert [*words.of_docstring(text)]


@pytest.mark.pure
@pytest.mark.parametrize("text", GOOD_DOCSTRINGS)
def test_a_plain_docstring_is_let_by(text: str) -> None:
    assert [*words.of_docstring(text)] == []


@pytest.mark.pure
@pytest.mark.parametrize("text", BAD_MESSAGES)
def test_a_message_with_such_a_sentence_is_found(text: str) -> None:
    assert [*words.of_message(text)]


@pytest.mark.pure
@pytest.mark.parametrize("text", GOOD_MESSAGES)
def test_a_plain_message_is_let_by(text: str) -> None:
    assert [*words.of_message(text)] == []


@pytest.mark.pure
@pytest.mark.parametrize("text", BAD_SUBJECTS)
def test_a_subject_with_such_a_sentence_or_too_long_is_found(text: str) -> None:
    assert [*words.of_subject(text)]


@pytest.mark.pure
@pytest.mark.parametrize("text", GOOD_SUBJECTS)
def test_a_plain_subject_is_let_by(text: str) -> None:
    assert [*words.of_subject(text)] == []


@pytest.mark.pure
def test_docstrings_comments_and_messages_of_a_module_are_read_and_code_is_not() -> None:
    source = (
        '"""What it is."""\n'
        "x = 'what anew'  # begin anew\n"
        "def f():\n"
        "    '''Those that wait.'''\n"
        "    raise SyncError(f'what {x} says')\n"
        "log.warning('whom to tell')\n"
    )
    found = sorted((finding.line, finding.rule) for finding in words.of_python(source))
    assert found == [
        (1, "begins with What"),
        (2, "says anew"),
        (4, "begins with Those"),
        (5, "begins with what"),
        (6, "begins with whom"),
        (6, "says whom"),
    ]


@pytest.mark.pure
def test_code_on_a_page_is_not_read() -> None:
    assert [*words.of_markdown("`anew`\n```\nanew\n```\nbegin\n")] == []
    assert [finding.line for finding in words.of_markdown("```\nanew\n```\nbegin anew\n")] == [4]


@pytest.mark.pure
def test_no_file_has_such_a_sentence() -> None:
    files = {str(file.relative_to(ROOT)): file for file in words.files()}
    found = {name: [*map(str, words.of_file(file))] for name, file in files.items()}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.local
def test_no_subject_of_a_commit_has_one() -> None:
    assert {subject: [*words.of_subject(subject)] for subject in words.subjects() if [*words.of_subject(subject)]} == {}
