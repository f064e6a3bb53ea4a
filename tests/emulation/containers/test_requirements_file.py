"""Whatever a requirements file names counts: it is found by an image's key, and it is there, or named by its line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.emulation.containers.requirements_file import RequirementsFile, copy_project, logical_lines
from testbed.errors import BAD_INPUT
from testbed.spec.errors import SpecError

pytestmark = pytest.mark.local


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with all that a requirements file may name: files in a folder of their own, a project, archives."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("tqdm\n-r deep.txt\n")
    (tmp_path / "more" / "deep.txt").write_text("six\n")
    (tmp_path / "more" / "limits.txt").write_text("six<2\n")
    for project in (tmp_path / "project", tmp_path / "more" / "near", tmp_path):
        project.mkdir(exist_ok=True)
        (project / "pyproject.toml").write_text("[project]\nname = 'project'\nversion = '1'\n")
        (project / "module.py").write_text("VALUE = 1\n")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a-1-py3-none-any.whl").write_bytes(b"a wheel")
    return tmp_path


def key(folder: Path, text: str) -> tuple[str, ...]:
    file = folder / "more" / "requirements.txt"
    file.write_text(text)
    return tuple(RequirementsFile.read(file).digests(folder / "runs"))


#: A line → the file whose content it depends on.
NAMES = {
    "-r base.txt": "more/base.txt",
    "-rbase.txt": "more/base.txt",
    "--requirement base.txt": "more/base.txt",
    "--requirement=base.txt": "more/base.txt",
    "-r base.txt  # and then its own": "more/deep.txt",
    "-r ./base.txt": "more/deep.txt",
    "-r \\\n  base.txt": "more/deep.txt",
    "-c limits.txt": "more/limits.txt",
    "--constraint=limits.txt": "more/limits.txt",
    "--pre -c limits.txt": "more/limits.txt",
    "-e ..": "module.py",
    "-e ../project[extra]": "project/module.py",
    "--editable=../project": "project/module.py",
    "./near": "more/near/module.py",
    "../project": "project/module.py",
    "../project[extra] ; python_version > '3'": "project/module.py",
    "near/": "more/near/module.py",
    "file:../project": "project/module.py",
    "file:///FOLDER/project": "project/module.py",
    "project @ file:///FOLDER/project": "project/module.py",
    "project[extra] @ file:///FOLDER/project#egg=project": "project/module.py",
    "../wheels/a-1-py3-none-any.whl": "wheels/a-1-py3-none-any.whl",
    "${BELOW}/base.txt": "",
    "-r ${BELOW}/base.txt": "more/deep.txt",
    "--find-links ../wheels": "wheels/a-1-py3-none-any.whl",
}


@pytest.mark.parametrize("line", [line for line in NAMES if NAMES[line]])
def test_what_a_line_names_counts(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELOW", str(folder / "more"))
    text = f"numpy\n{line.replace('FOLDER', str(folder).strip('/'))}\n"
    before = key(folder, text)
    assert key(folder, text) == before
    named = folder / NAMES[line]
    named.write_bytes(named.read_bytes() + b"# more\n")
    assert key(folder, text) != before


@pytest.mark.parametrize(
    "line",
    [
        *("six==1.16.0", "six[extra]>=1 ; python_version > '3'", "# -r none.txt", "six  # -r none.txt", "--pre"),
        *("six @ https://example.org/six.whl", "git+https://example.org/x.git@main", "https://example.org/x.zip"),
        *("-e git+https://example.org/x.git", "-r https://example.org/x.txt", "--index-url https://example.org/simple"),
        "six==1.16.0 --hash=sha256:aa",
    ],
)
def test_a_line_that_names_nothing_of_this_machine_needs_nothing_of_it(line: str, folder: Path) -> None:
    found = RequirementsFile.read(_written(folder, line))
    assert dict(found.named) == {}
    assert found.write(folder / "wheels", _no_wheel).read_text().strip() == line.partition("#")[0].strip()


def _written(folder: Path, text: str) -> Path:
    file = folder / "requirements.txt"
    file.write_text(f"{text}\n")
    return file


def _no_wheel(project: Path) -> Path:
    raise AssertionError(f"{project} was built")


@pytest.mark.parametrize(
    "line",
    ["-r none.txt", "-c none.txt", "-e none", "./none", "file:none", "x @ file:///none", "none.whl", "-r wheels"],
)
def test_what_is_not_there_is_named_by_file_and_line(line: str, folder: Path) -> None:
    (folder / "base.txt").write_text(f"six\n\n{line}\n")
    with pytest.raises(SpecError) as raised:
        RequirementsFile.read(_written(folder, "-r base.txt"))
    assert raised.value.file == folder / "base.txt"
    assert [fault.line for fault in raised.value.faults] == [3]
    assert raised.value.exit_code == BAD_INPUT


@pytest.mark.parametrize("line", ["-e wheels", "./wheels"])
def test_a_folder_that_is_no_project_is_named_by_its_line(line: str, folder: Path) -> None:
    with pytest.raises(SpecError) as raised:
        RequirementsFile.read(_written(folder, line))
    assert raised.value.faults[0].line == 1
    assert "pyproject.toml" in raised.value.faults[0].problem


@pytest.mark.parametrize("option", ["-r", "-c"])
def test_files_that_lead_in_a_circle_are_named(option: str, folder: Path) -> None:
    (folder / "more" / "deep.txt").write_text(f"six\n{option} ../requirements.txt\n")
    with pytest.raises(SpecError) as raised:
        RequirementsFile.read(_written(folder, "-r more/base.txt"))
    assert raised.value.file == folder / "more" / "deep.txt"
    assert raised.value.faults[0].line == 2
    assert "requirements.txt → base.txt → deep.txt → requirements.txt" in raised.value.faults[0].problem


def test_one_file_by_two_ways_is_no_circle(folder: Path) -> None:
    found = RequirementsFile.read(_written(folder, "-r more/base.txt\n-r more/deep.txt\n-c more/deep.txt"))
    assert [path.name for path in found.texts] == ["requirements.txt", "base.txt", "deep.txt"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_files_are_read_in_any_encoding_and_written_in_one(encoding: str, folder: Path) -> None:
    (folder / "more" / "base.txt").write_bytes("six\r\n-r deep.txt\r\n".encode(encoding))
    first = RequirementsFile.read(_written(folder, "-r more/base.txt")).write(folder / "wheels", _no_wheel)
    assert (second := Path(first.read_text().removeprefix("-r ").strip())).is_absolute()
    assert second.read_text().splitlines()[0] == "six"


def test_a_binary_file_is_bad_input(folder: Path) -> None:
    (folder / "more" / "base.txt").write_bytes(bytes(range(256)))
    with pytest.raises(SpecError) as raised:
        RequirementsFile.read(_written(folder, "-r more/base.txt"))
    assert raised.value.file == folder / "more" / "base.txt"


def test_pip_is_given_wheels_of_projects_by_absolute_paths(folder: Path) -> None:
    made = []

    def wheel_of(project: Path) -> Path:
        made.append(project)
        return folder / f"{project.name}.whl"

    text = "-e project[extra] ; python_version > '3'\nmore/near\nproject @ file:project\nwheels/a-1-py3-none-any.whl[b]"
    first = RequirementsFile.read(_written(folder, text)).write(folder / "wheels", wheel_of)
    assert first.read_text().splitlines() == [
        f"{folder}/project.whl[extra] ; python_version > '3'",
        f"{folder}/near.whl",
        f"{folder}/project.whl",
        f"{folder}/wheels/a-1-py3-none-any.whl[b]",
    ]
    assert made == [folder / "project", folder / "more" / "near", folder / "project"]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("--no-index --find-links wheels", "-f FOLDER/wheels --no-index"),
        ("--find-links=wheels --pre", "-f FOLDER/wheels --pre"),
        ("-fwheels -i 'https://example.org/a b'", "-f FOLDER/wheels -i 'https://example.org/a b'"),
        ("wheels/a-1-py3-none-any.whl \\\n  --hash=sha256:aa", "FOLDER/wheels/a-1-py3-none-any.whl --hash=sha256:aa"),
        ("a @ file:wheels/a-1-py3-none-any.whl --hash=sha256:a", "FOLDER/wheels/a-1-py3-none-any.whl --hash=sha256:a"),
    ],
)
def test_pip_is_given_the_other_options_of_a_line(line: str, written: str, folder: Path) -> None:
    first = RequirementsFile.read(_written(folder, line)).write(folder / "more", _no_wheel)
    assert first.read_text().strip() == written.replace("FOLDER", str(folder))


#: What is written in a project's folder and makes no package.
BESIDE: dict[str, Callable[[Path], Path]] = {
    "runs": lambda project: project / "runs" / "two-20260101-000000" / "manifest.json",
    "history": lambda project: project / ".git" / "index",
    "caches": lambda project: project / "__pycache__" / "module.pyc",
    "environments": lambda project: project / ".venv" / "bin" / "python",
    "metadata": lambda project: project / "project.egg-info" / "PKG-INFO",
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_makes_no_package_counts_for_nothing_and_is_not_copied(what: str, folder: Path) -> None:
    project = folder / "project"
    file = _written(folder, "-e project")
    before = tuple(RequirementsFile.read(file).digests(project / "runs"))
    beside = BESIDE[what](project)
    beside.parent.mkdir(parents=True)
    beside.write_text("x")
    assert tuple(RequirementsFile.read(file).digests(project / "runs")) == before
    copy_project(project, folder / "copy", project / "runs")
    assert {path.name for path in (folder / "copy").iterdir()} == {"pyproject.toml", "module.py"}


@pytest.mark.parametrize(("tool", "copied"), [("setuptools-scm", True), ("flit", False)])
def test_the_history_is_copied_where_it_has_the_version(tool: str, copied: bool, folder: Path) -> None:
    project = folder / "project"
    (project / "pyproject.toml").write_text(f'[build-system]\nrequires = ["{tool}"]\n')
    (project / ".git").mkdir()
    copy_project(project, folder / "copy", project / "runs")
    assert (folder / "copy" / ".git").exists() is copied


def test_a_copy_has_the_links_of_the_project_and_no_sockets(folder: Path) -> None:
    project = folder / "project"
    (folder / "README.md").write_text("about")
    (project / "README.md").symlink_to("../README.md")
    (project / "here.py").symlink_to("module.py")
    os.mkfifo(project / "pipe")
    copy_project(project, folder / "below" / "copy", project / "runs")
    copy = folder / "below" / "copy"
    assert (copy / "README.md").read_text() == "about"
    assert (copy / "here.py").readlink() == Path("module.py")
    assert not (copy / "pipe").exists()


def test_lines_are_counted_as_they_stand_in_the_file() -> None:
    text = "# first\nsix \\\n  --hash=sha256:aa\n\ntqdm # x\n# y \\\nnumpy\n"
    assert list(logical_lines(text)) == [(2, "six   --hash=sha256:aa"), (5, "tqdm"), (7, "numpy")]
