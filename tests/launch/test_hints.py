"""Where the file system of a container differs from this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.launch.hints import (
    NEEDS_COMPILER,
    NO_FILES,
    NO_GPU_HERE,
    NO_INSTALLER,
    NO_INTERNET,
    NO_PROGRAMS,
    NO_ROOM,
    READ_ONLY,
    TOO_MANY,
    ContainerFiles,
    host_hints,
)

pytestmark = pytest.mark.pure

CRLF = "#!/bin/bash\r\necho hello\r\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, in the one where this process is; another script lies beside it."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    for path in ("project/train.py", "project/sub/run.sh", "project/a b.py", "elsewhere.py"):
        (tmp_path / path).write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    return folder


def test_a_path_inside_the_folder_is_given_as_the_container_has_it(project: Path) -> None:
    container_files = ContainerFiles(project)
    (project / "python").symlink_to("/usr/bin/python3")
    for word, seen in {
        f"{project}/train.py": "/work/train.py",
        f"{project.parent}/link/train.py": "/work/train.py",
        f"{project}": "/work",
        f"{project}/": "/work",
        f"{project}/sub/../a b.py": "/work/a b.py",
        f"--data={project}/sub": "--data=/work/sub",
        f"cd {project} && sh '{project}/sub/run.sh'; true": "cd /work && sh '/work/sub/run.sh'; true",
        f"{project}/python": "/work/python",
    }.items():
        assert container_files.translate([word]) == [seen]


def test_any_other_word_stays_as_it_is(project: Path) -> None:
    words = [
        "train.py",
        f"{project}/not-there.py",
        f"{project.parent}/elsewhere.py",
        f"{project}-2/train.py",
        "https://example.org/train.py",
        "/usr/bin/env",
        "/out/model.pt",
        "a/b",
        "",
    ]
    assert ContainerFiles(project).translate(words) == words
    inside = f"{project}/train.py"
    assert ContainerFiles(Path("/")).translate([inside, "/bin/sh"]) == [inside, "/bin/sh"], (
        "the container has a /bin of its own"
    )
    assert NO_FILES.translate([inside]) == [inside]


MISSING = {
    "Python": "python: can't open file '{}': [Errno 2] No such file or directory",
    "a Python program": "FileNotFoundError: [Errno 2] No such file or directory: '{}'",
    "bash": "bash: {}: No such file or directory",
    "dash": "sh: 1: {}: not found",
    "cat": "cat: {}: No such file or directory",
    "an engine": 'OCI runtime exec failed: exec failed: starting container process caused: exec: "{}": stat {}: no '
    "such file or directory: unknown",
}


@pytest.mark.parametrize("program", list(MISSING))
def test_a_file_outside_the_folder_is_named_with_the_border_and_the_way(project: Path, program: str) -> None:
    outside = project.parent / "elsewhere.py"
    (hint,) = ContainerFiles(project).hints(["x"], ["Traceback", MISSING[program].replace("{}", str(outside))])
    assert str(outside) in hint
    assert str(project) in hint
    assert "--files" in hint
    assert "--on-host" in hint
    (hint,) = NO_FILES.hints(["x"], [MISSING[program].replace("{}", str(outside))])
    assert "up with --files" in hint


def test_a_path_that_leads_out_of_the_folder_is_named_as_it_is_here(project: Path) -> None:
    (project / "data").symlink_to(project.parent / "elsewhere.py")
    for said in ("/work/../elsewhere.py", "/work/data"):
        (hint,) = ContainerFiles(project).hints(["python", "x"], [f"can't open file '{said}'"])
        assert str(project.parent / "elsewhere.py") in hint


def test_a_path_inside_that_a_program_has_of_its_own_is_named_as_the_container_has_it(project: Path) -> None:
    (hint,) = ContainerFiles(project).hints(
        ["x"], [f"FileNotFoundError: No such file or directory: '{project}/train.py'"]
    )
    assert hint == f"{project}/train.py is /work/train.py in a container"


def test_a_path_from_the_current_folder_is_told_from_one_of_files(project: Path) -> None:
    (hint,) = ContainerFiles(project / "sub").hints(
        ["python", "train.py"], ["can't open file '/work/train.py': [Errno 2]"]
    )
    assert "--files ." in hint


def test_what_is_nowhere_needs_no_word(project: Path) -> None:
    said = ["can't open file '/work/nowhere.py'", "No such file or directory: '/nowhere'", "sh: 1: /bin/foo: not found"]
    assert ContainerFiles(project).hints(["python", "nowhere.py"], said) == []
    assert ContainerFiles(project).hints(["python", "train.py"], ["ValueError: 3 is none of /usr, /tmp"]) == []


@pytest.mark.parametrize("folder", ["/library/project", "/libs"])
def test_a_folder_whose_name_only_begins_like_a_system_folder_is_the_user_s(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.launch.hints._is_there", lambda path: True)
    path = f"{folder}/train.py"
    assert ContainerFiles(Path(folder)).translate([path]) == ["/work/train.py"]
    elsewhere = ContainerFiles(Path("/elsewhere"))
    (hint,) = elsewhere.hints(["x"], [f"cat: {path}: No such file or directory"])
    assert path in hint
    for own in ("/lib/libc.so", "/lib64/libc.so"):
        assert elsewhere.hints(["x"], [f"cat: {own}: No such file or directory"]) == []


@pytest.mark.parametrize(
    "words", [["./run"], ["/work/run"], ["bash", "run"], ["bash", "-e", "run.sh"], ["sh", "run.sh"]]
)
def test_a_script_with_line_ends_of_windows_is_named(project: Path, words: list[str]) -> None:
    for name in ("run", "run.sh"):
        (project / name).write_text(CRLF, newline="")
    (hint,) = ContainerFiles(project).hints(words, ["run.sh: line 2: $'\\r': command not found"])
    assert "CRLF" in hint
    here = words[-1].replace("/work", str(project))
    assert f"sed -i 's/\\r$//' {here}`" in hint


def test_line_ends_of_windows_are_no_fault_of_python_or_of_a_binary(project: Path) -> None:
    (project / "train.py").write_text("import torch\r\n", newline="")
    (project / "binary").write_bytes(b"\x7fELF\0\r\n")
    assert ContainerFiles(project).hints(["python", "train.py"], ["ValueError"]) == []
    assert ContainerFiles(project).hints(["./binary"], ["ValueError"]) == []


def test_a_script_that_cannot_be_started_says_why(project: Path) -> None:
    failed = 'OCI runtime exec failed: exec failed: starting container process caused: exec: "./sub/run.sh": '
    (project / "sub/run.sh").chmod(0o644)
    (hint,) = ContainerFiles(project).hints(["./sub/run.sh"], [f"{failed}permission denied: unknown"])
    assert hint.endswith("chmod o+rx ./sub/run.sh")
    (project / "sub/run.sh").write_text("#!/usr/bin/fish -l\n")
    (hint,) = ContainerFiles(project).hints(["./sub/run.sh"], ["exec ./sub/run.sh: no such file or directory"])
    assert "/usr/bin/fish -l" in hint


def test_a_file_that_the_workers_user_may_not_read_is_named(project: Path) -> None:
    (project / "train.py").chmod(0o600)
    (hint,) = ContainerFiles(project).hints(
        ["python"], ["python: can't open file '/work/train.py': [Errno 13] Permission denied"]
    )
    assert f"chmod o+rX {project}/train.py" in hint
    assert ContainerFiles(project).hints(["python"], ["[Errno 13] Permission denied: '/work/sub/run.sh'"]) == []


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("OSError: /out/x.so: failed to map segment from shared object", NO_PROGRAMS),
        ("sh: 1: /dev/shm/t: Permission denied", NO_PROGRAMS),
        ("PermissionError: [Errno 13] Permission denied: '/out/t'", NO_PROGRAMS),
        ("OSError: [Errno 30] Read-only file system: 'checkpoint.pt'", READ_ONLY),
        ("OSError: [Errno 28] No space left on device", NO_ROOM),
        ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in", NEEDS_COMPILER),
        ("error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory", NEEDS_COMPILER),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'g++'", NEEDS_COMPILER),
        ("sh: 1: gcc: not found", NEEDS_COMPILER),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", NO_INTERNET),
        ("socket.gaierror: [Errno -2] Name or service not known", NO_INTERNET),
        ("Error: getaddrinfo ENOTFOUND registry.npmjs.org", NO_INTERNET),
        ("dial tcp: lookup proxy.golang.org: no such host", NO_INTERNET),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", NO_INTERNET),
        ("curl: (6) Could not resolve host: github.com", NO_INTERNET),
        ("git: not found", NO_INTERNET),
        ("bash: line 1: pip: command not found", NO_INSTALLER),
        ("/usr/bin/python: No module named pip", NO_INSTALLER),
        ("sh: 1: apt-get: not found", NO_INSTALLER),
        ("RuntimeError: can't start new thread", TOO_MANY),
        ("bash: fork: retry: Resource temporarily unavailable", TOO_MANY),
        ("AssertionError: Torch not compiled with CUDA enabled", NO_GPU_HERE),
        ("RuntimeError: Found no NVIDIA driver on your system.", NO_GPU_HERE),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", NO_ROOM),
    ],
)
def test_each_other_border_has_its_line(project: Path, said: str, hint: str) -> None:
    assert ContainerFiles(project).hints(["python", "train.py"], ["before", said, "after"]) == [hint]


def test_a_module_that_is_not_in_the_image_is_named(project: Path) -> None:
    (hint,) = ContainerFiles(project).hints(["python", "train.py"], ["ModuleNotFoundError: No module named 'tqdm'"])
    assert "tqdm" in hint
    assert "--image requirements.txt" in hint


@given(words=st.lists(st.text(max_size=9) | st.text("/abc\0", min_size=300, max_size=400), min_size=1, max_size=4))
def test_whatever_a_command_and_its_output_say_hints_are_no_error(words: list[str]) -> None:
    container_files = ContainerFiles(Path("/tmp"))
    said = [f"can't open file '{word}': No such file or directory; Permission denied: '/work/{word}'" for word in words]
    container_files.hints(words, said)
    assert len(container_files.translate(words)) == len(words)


def test_a_module_that_this_machine_has_not_is_named_with_both_ways() -> None:
    (hint,) = host_hints(["python3", "train.py"], ["Traceback", "ModuleNotFoundError: No module named 'tqdm.auto'"])
    assert "python3 has no tqdm:" in hint
    assert "--image requirements.txt" in hint
    assert list(host_hints(["python3", "train.py"], ["ValueError"])) == []
    said = "socket.gaierror: [Errno -2] Name or service not known"
    assert list(host_hints(["python3", "train.py"], [said])) == [NO_INTERNET]
