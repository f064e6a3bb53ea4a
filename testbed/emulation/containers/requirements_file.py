"""A requirements file as pip reads it, with every file and folder that it names.

An image of such a file is found by the content of all of them: `-r` and `-c` lead to other files, and `./project`, `-e
.` and `file:` to projects and archives. A relative path is relative to the folder of the file that has it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from testbed.spec.errors import Fault, SpecError
from testbed.spec.load import holds
from testbed.trace.text import hash_of_file, text_of

#: The largest file: `pip freeze` of a thousand packages with their hashes.
MOST_BYTES = 2**20

#: Options whose value is a file or folder, with the short form of each.
OPTIONS = {"--requirement": "-r", "--constraint": "-c", "--editable": "-e", "--find-links": "-f"}
OPTIONS |= {short: short for short in OPTIONS.values()}

ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

#: As in pip: a `#` begins a comment at the start of a line or after a space, and `${NAME}` is a variable.
COMMENT = re.compile(r"(?:^|\s+)#.*$")
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
#: `name[extras] @ file:…` (PEP 508).
DIRECT = re.compile(r"[\w.-]+\s*(?P<extras>\[[^\]]*\])?\s*@\s*(?P<url>file:\S+)\s*$")
#: `name @ https:…`, with or without extras.
ELSEWHERE = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@")
EXTRAS = re.compile(r"(?P<path>.+?)(?P<extras>\[[^\]]*\])$")
#: The options by which pip asks for a hash of each package.
HASHED = re.compile(r"(?:^|\s)--(?:hash|require-hashes)\b")

#: Folders of a project that are not part of its package: history, environments, caches.
HISTORY = {".git", ".hg", ".svn"}
SKIPPED = HISTORY | {".venv", "venv", ".tox", ".nox", "__pycache__", "node_modules"}
SKIPPED |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"}

#: The words by which a project names a tool that takes its version from the history.
VERSIONED = re.compile(rb"scm|vcs|pbr|versioneer|dunamai")

#: Builds a wheel of a project's folder, beside other files, and returns the wheel's path.
MakeWheel = Callable[[Path], Path]


@dataclass(frozen=True, slots=True)
class Named:
    """A file or folder that a line names: the kind of line, the path, and the text that pip gets after the path."""

    kind: str
    path: Path
    #: Extras and a marker.
    rest: str = ""
    #: The line's other options, each after a space. They do not go with the wheel of a project.
    options: str = ""


@dataclass(frozen=True, slots=True)
class RequirementsFile:
    """A requirements file with everything that it names. `read` checks that all of it exists."""

    path: Path
    #: The text of each file by its resolved path; the first is the file itself.
    texts: Mapping[Path, str]
    #: The paths that lines name, by the file and the line's number.
    named: Mapping[tuple[Path, int], Named]

    @classmethod
    def read(cls, file: Path) -> RequirementsFile:
        """Read a file and the files that it leads to.

        Raises:
            SpecError: A file is missing or not text, or the files include each other; names the file and the line.
        """
        texts: dict[Path, str] = {}
        named: dict[tuple[Path, int], Named] = {}
        _follow(file.resolve(), (), texts, named)
        return cls(file, texts, named)

    @property
    def is_hashed(self) -> bool:
        """True if pip accepts only packages with hashes, since a line has a hash or `--require-hashes`."""
        return any(HASHED.search(line) for text in self.texts.values() for _, line in logical_lines(text))

    def digests(self, ignored: Path) -> Iterator[str]:
        """Yield what an image of the file depends on, without the folder `ignored`.

        That is each file's text, and the content of its projects, archives and folders.
        """
        yield from self.texts.values()
        for each in self.named.values():
            if each.kind == "-f":
                yield _listing(each.path)
            elif each.kind in ("-e", "path"):
                yield _digest(each.path, ignored)

    def files(self, ignored: Path) -> Iterator[Path]:
        """Yield the file itself, and every file of this machine that it leads to, without the folder `ignored`."""
        yield from self.texts
        for each in self.named.values():
            if each.kind in ("-f", "-e", "path"):
                yield from _files_of(each.path, ignored)

    def write(self, folder: Path, wheel_of: MakeWheel) -> Path:
        """Write files for pip into a folder, with absolute paths, and wheels in place of projects; return the first."""
        places = {path: folder / f"{number}-{path.name}" for number, path in enumerate(self.texts)}
        for path, text in self.texts.items():
            lines = [self._line(path, number, line, places, wheel_of) for number, line in logical_lines(text)]
            places[path].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return next(iter(places.values()))

    def _line(self, path: Path, number: int, line: str, places: Mapping[Path, Path], wheel_of: MakeWheel) -> str:
        found = self.named.get((path, number))
        if found is None:
            return line
        if found.kind in ("-r", "-c", "-f"):
            return f"{found.kind} {shlex.quote(str(places.get(found.path, found.path)))}{found.options}"
        if found.path.is_dir():
            return f"{wheel_of(found.path)}{found.rest}"
        return f"{found.path}{found.rest}{found.options}"


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file that are not empty, each with the number of its first line.

    A backslash at the end of a line joins the next line to it. Comments are removed.
    """
    begin, joined = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        joined += line
        if line.endswith("\\") and not COMMENT.match(line):
            joined = joined[:-1]
            continue
        if said := COMMENT.sub("", joined).strip():
            yield begin, said
        begin, joined = number + 1, ""


def copy_project(project: Path, target: Path, ignored: Path) -> None:
    """Copy a project's folder, because a build leaves files beside the user's sources.

    Relative links that lead out of the folder lead to the same places in the copy. Sockets and pipes are left out. The
    history is copied where the project takes its version from it.
    """
    files = [project / name for name in ("pyproject.toml", "setup.cfg", "setup.py")]
    kept = HISTORY if any(VERSIONED.search(each.read_bytes()) for each in files if each.is_file()) else set()

    def left_out(folder: str, names: list[str]) -> set[str]:
        skipped = _skipped(Path(folder), names, ignored) - kept
        return skipped | {name for name in names if not _is_copied(Path(folder, name).lstat().st_mode)}

    shutil.copytree(project, target, symlinks=True, ignore=left_out)
    for folder, folders, names in os.walk(target):
        for link in (each for name in (*folders, *names) if (each := Path(folder, name)).is_symlink()):
            original = project / link.relative_to(target)
            if not link.readlink().is_absolute() and not original.resolve().is_relative_to(project.resolve()):
                link.unlink()
                link.symlink_to(original.resolve())


def _is_copied(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _follow(file: Path, above: tuple[Path, ...], texts: dict[Path, str], named: dict[tuple[Path, int], Named]) -> None:
    if file in texts:
        return
    try:
        text = texts[file] = text_of(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(file, [Fault("file", f"cannot be read: {why}", "a text file, a requirement a line")]) from None
    for number, line in logical_lines(text):
        found = _named(line, file, number)
        if found is None:
            continue
        named[file, number] = found
        if found.kind in ("-r", "-c"):
            chain = (*above, file)
            if found.path in chain:
                circle = " → ".join(each.name for each in (*chain[chain.index(found.path) :], found.path))
                raise _fault(file, number, found.kind, f"the files include each other: {circle}", "one line removed")
            _follow(found.path, chain, texts, named)


def _named(line: str, file: Path, number: int) -> Named | None:
    """Return the local path that a line names, or None. Raises SpecError if it does not exist."""
    kind, value, rest, options = _path_in(line, file, number)
    if not value or _is_elsewhere(value):
        return None
    if value.startswith("file:"):
        value = unquote(urlsplit(value).path)
    path = (file.parent / VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), value)).resolve()
    written = line if len(line) <= 60 else f"{line[:59]}…"
    if kind in ("-r", "-c"):
        if not holds(path.is_file):
            raise _fault(file, number, kind, f"`{written}`: there is no file {path}", "a file that exists")
    elif kind == "-f":
        return Named(kind, path, options=options) if holds(path.exists) else None  # pip ignores a missing folder
    elif holds(path.is_dir):
        if not any((path / each).is_file() for each in ("pyproject.toml", "setup.py")):
            rule = f"`{written}` is not a project: {path} has neither pyproject.toml nor setup.py"
            raise _fault(file, number, kind, rule, f"a project's folder; paths are relative to {file.parent}")
    elif not holds(path.is_file):
        rule = f"`{written}`: {path} does not exist"
        raise _fault(file, number, kind, rule, f"a project's folder or an archive; relative to {file.parent}")
    return Named(kind, path, rest, options)


def _path_in(line: str, file: Path, number: int) -> tuple[str, str, str, str]:
    """Return the kind of a line, the path or URL that it may name, its extras with its marker, and its other options.

    A line of `-r` or `-c` has no other options, since pip ignores them there.
    """
    if line.startswith("-"):
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise _fault(file, number, "line", f"cannot be split into words: {error}", "quotes in pairs") from None
        for at, word in enumerate(words):
            name, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
            if name in OPTIONS:
                others = words[:at] + words[at + (1 if value else 2) :]
                value = value or (words[at + 1] if at + 1 < len(words) else "")
                kind = OPTIONS[name]
                if kind != "-e":
                    options = "".join(f" {shlex.quote(other)}" for other in others) if kind == "-f" else ""
                    return kind, value, "", options
                path, extras = _without_extras(value.partition("#")[0].rstrip(";"))
                return kind, path, f"{extras}{_marker(line)}", ""
        return "", "", "", ""
    requirement = re.split(r"\s--?\w", line, maxsplit=1)[0]
    options = line[len(requirement) :]
    requirement = requirement.strip()
    said, after = re.split(r"\s;|;\s", requirement, maxsplit=1)[0], _marker(requirement)
    if direct := DIRECT.fullmatch(said.strip()):
        return "path", direct["url"].partition("#")[0], f"{direct['extras'] or ''}{after}", options
    value, extras = _without_extras(said.strip())
    is_local = value.startswith((".", "file:")) or "/" in value or value.lower().endswith(ARCHIVES)
    if is_local and not ELSEWHERE.match(value):
        return "path", value, f"{extras}{after}", options
    return "", "", "", ""


def _marker(line: str) -> str:
    """Return a line's environment marker (` ; python_version < "3.12"`), to be put after a path; empty without one."""
    said = re.split(r"\s;|;\s", line, maxsplit=1)[1:]
    return f" ; {said[0].strip()}" if said else ""


def _without_extras(text: str) -> tuple[str, str]:
    parts = EXTRAS.fullmatch(text)
    return (parts["path"], parts["extras"]) if parts else (text, "")


def _is_elsewhere(value: str) -> bool:
    """Return whether a value is a URL of another machine or of a repository."""
    scheme = urlsplit(value).scheme
    return bool(scheme) and scheme != "file"


def _fault(file: Path, line: int, name: str, problem: str, remedy: str) -> SpecError:
    return SpecError(file, [Fault(name, problem, remedy, line)])


def _digest(path: Path, ignored: Path) -> str:
    """Return a digest of an archive, or of a project's folder (its files by name)."""
    if path.is_file():
        return hash_of_file(path)
    digest = hashlib.sha256()
    for file in _files_of(path, ignored):
        digest.update(f"{file.relative_to(path)}\0{hash_of_file(file)}\0".encode())
    return digest.hexdigest()


def _files_of(path: Path, ignored: Path) -> Iterator[Path]:
    """Yield an archive, or the files of a folder, folder by folder."""
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        skipped = _skipped(Path(folder), folders, ignored)
        folders[:] = sorted(name for name in folders if name not in skipped)
        yield from (file for name in sorted(files) if (file := Path(folder, name)).is_file())


def _skipped(folder: Path, names: list[str], ignored: Path) -> set[str]:
    return {name for name in names if name in SKIPPED or name.endswith(".egg-info") or folder / name == ignored}


def _listing(path: Path) -> str:
    """Return a text that changes with a folder of packages: names, sizes and times."""
    entries = sorted(path.iterdir()) if path.is_dir() else [path]
    return "\n".join(f"{each.name} {each.stat().st_size} {each.stat().st_mtime_ns}" for each in entries)
