"""The errors of images for programs that cannot be built."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

import docker
import pytest
from docker.errors import ImageNotFound

from testbed.emulation.containers import image, requirements
from testbed.emulation.containers import program_image as program_images
from testbed.emulation.containers.image import OUTPUT_TAIL_LINES, ImageError, tail
from testbed.emulation.containers.program_image import buildkit_hint, kept_versions, program_image
from testbed.emulation.containers.requirements_file import RequirementsFile
from testbed.spec.errors import SpecError

pytestmark = pytest.mark.pure

#: As pip 26 prints it, for a file that asks for another version than the image has.
CONFLICT = """Looking in indexes: https://pypi.org/simple
WARNING: Location 'file:///a/numpy/' is ignored: it is neither a file nor a directory.
Processing /opt/files/numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl
ERROR: Cannot install numpy==1.21.0 and numpy==2.4.6 because these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested numpy==2.4.6
    The user requested numpy==1.21.0
    stranger 1.0 depends on typing_extensions<4

Additionally, some packages in these conflicts have no matching distributions available for your environment:
    numpy

To fix this you could try to:
1. loosen the range of package versions you've specified
2. remove package versions to allow pip to attempt to solve the dependency conflict

ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/
"""


def test_pips_reason_for_a_conflict_is_quoted_whole() -> None:
    said = tail(CONFLICT)
    assert "The user requested numpy==1.21.0" in said
    assert said.splitlines()[0].strip().startswith("ERROR: Cannot install numpy==1.21.0")
    assert "WARNING" not in said
    assert "To fix this" not in said


def test_the_versions_that_the_image_keeps_are_named_in_a_conflict_alone() -> None:
    held = {"numpy": "2.4.6", "typing-extensions": "4.16.0", "torch": "2.13.0+cpu"}
    error = ImageError(f"pip ended with exit code 1:\n{tail(CONFLICT)}\ntorch ==2 is there")
    said = kept_versions(program_images._pip_output(error), held)
    assert "numpy 2.4.6, typing-extensions 4.16.0" in said
    assert "torch" not in said
    assert kept_versions("ERROR: No matching distribution found for numpy==1.0", held) == ""


def failure(said: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """Return the error of packages that pip can't download, where pip prints this."""
    file = folder / "requirements.txt"
    file.write_text("numpy==1.21.0\n")

    def command(_: list[str], remedy: str) -> None:
        raise ImageError(f"python3 ended with exit code 1:\n{tail(said)}\n{remedy}")

    monkeypatch.setattr(image, "command", command)
    with pytest.raises((SpecError, ImageError)) as caught:
        program_images._downloaded(RequirementsFile.read(file), "3.11", folder, {"torch": "2.13.0+cpu"})
    return caught.value


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (CONFLICT, "Cannot install numpy==1.21.0 and numpy==2.4.6"),
        ("ERROR: Double requirement given: numpy==2 (already in numpy==1, name='numpy')\n", "Double requirement"),
        ("ERROR: Invalid requirement: 'numpy = 2': Expected end\n    numpy = 2\n", "Invalid requirement: 'numpy = 2'"),
        (
            "ERROR: Could not find a version that satisfies the requirement numpy==99 (from versions: 1.0, 2.0)\n"
            "ERROR: No matching distribution found for numpy==99\n",
            "numpy==99 (from versions: 1.0",
        ),
    ],
)
def test_requirements_that_cannot_be_met_are_bad_input(
    said: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = failure(said, tmp_path, monkeypatch)
    assert isinstance(error, SpecError) and error.exit_code == 2
    assert error.file == tmp_path / "requirements.txt"
    assert reason in error.faults[0].problem and "`pip config list`" not in str(error)


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: Could not find a version that satisfies the requirement numpy (from versions: none)\n",
        "WARNING: Retrying\nERROR: No matching distribution found for numpy\n",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
    ],
)
def test_a_machine_that_reaches_no_index_is_no_bad_input(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = failure(said, tmp_path, monkeypatch)
    assert isinstance(error, ImageError) and error.exit_code == 3 and "`pip config list`" in str(error)


@pytest.mark.parametrize("hashed", ["six==1.16.0 --hash=sha256:aa", "--require-hashes", ""])
def test_the_packages_of_every_image_have_hashes_where_pip_asks_for_them(
    hashed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"tqdm  # --hash is for others\n{hashed}\n")
    commands: list[list[str]] = []
    monkeypatch.setattr(image, "command", lambda words, remedy: commands.append(words))
    assert program_images._downloaded(RequirementsFile.read(file), "3.11", tmp_path, {}) == []
    (words,) = commands
    files = [Path(words[at + 1]) for at, word in enumerate(words) if word == "--requirement"]
    pinned = {word.partition("==")[0] for word in words if "==" in word}
    if not hashed:
        assert len(files) == 1 and pinned == {"numpy", "pip"}
        return
    assert len(files) == 2 and not pinned
    packages = requirements.parse(files[1].read_text())
    assert packages.keys() == {"numpy", "pip"} and all(package.hashes for package in packages.values())


def test_a_folder_that_is_named_like_an_image_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer").mkdir()
    client = create_autospec(docker.DockerClient, instance=True)
    client.images.get.side_effect = ImageNotFound("no such image")

    def remedy(word: str) -> str:
        with pytest.raises(SpecError) as caught:
            program_image(client, word)
        return caught.value.faults[0].remedy

    assert "docker pull trainer" in remedy("trainer")
    assert "docker pull torch:2" in remedy("torch:2")
    (tmp_path / "trainer" / "Dockerfile").write_text("FROM scratch\n")
    assert remedy("trainer").startswith("./trainer,")


def test_warnings_make_no_room_for_nothing_but_errors() -> None:
    warnings = "WARNING: Retrying after connection broken\n" * OUTPUT_TAIL_LINES
    assert tail(f"ERROR: No matching distribution found for x\n{warnings}") == (
        "    ERROR: No matching distribution found for x"
    )
    assert tail(warnings).count("WARNING") == OUTPUT_TAIL_LINES, "they are all that there is"


NEEDS = [
    "RUN --mount=type=cache,target=/root/.cache pip install x",
    "run --mount=type=cache \\\n  pip install x",
    "COPY --link a /a",
    "COPY --from=build --chmod=755 a /a",
    "ADD --checksum=sha256:24 https://example.org/a /a",
    "RUN --network=none true",
    "RUN <<EOF\ntrue\nEOF",
    "RUN python3 <<'END'\nprint()\nEND",
    "COPY <<-EOF /a\nhello\nEOF",
    "FROM --platform=$BUILDPLATFORM python:3.12",
]


@pytest.mark.parametrize("line", NEEDS)
def test_what_needs_buildkit_is_named_with_the_way(line: str, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(f"FROM scratch\n{line}\nCMD true\n")
    hint = buildkit_hint(file)
    assert "needs BuildKit" in hint
    assert f"DOCKER_BUILDKIT=1 docker build -t NAME -f {file} {tmp_path}" in hint
    assert "--image NAME" in hint
    assert len(hint.strip().splitlines()) == 1


def test_any_other_line_needs_no_buildkit(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "# syntax=docker/dockerfile:1\n# RUN --mount=type=cache x\nFROM --platform=linux/amd64 a AS build\n"
        "RUN echo $((1 << 2)) --mount\nCOPY --from=build --chown=1:1 a /a\nRUN x \\\n  --link\n"
    )
    assert buildkit_hint(file) == ""
