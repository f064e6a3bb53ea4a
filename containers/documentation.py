"""Write the documentation in Debian's packages as one English text, which models of characters learn from.

    python containers/documentation.py DIRECTORY

`text.txt`: ASCII, the sources of the pages of PACKAGES one after the other, in the order of their paths. Characters
other than printable ASCII and new lines are left out.
`documentation.json`: `{"sha256", "characters", "packages": {name: {"version", "licence"}}}` of that text.

Packages are downloaded from the Debian mirror that apt knows and unpacked, not installed. A mirror's newer version of
a package may have another text: its SHA-256 is in the manifest of every run that learned from it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

#: The characters of the text: new lines and printable ASCII.
ALPHABET = frozenset("\n" + "".join(map(chr, range(ord(" "), ord("~") + 1))))


@dataclass(frozen=True, slots=True)
class Package:
    """A package, the sources of its pages, and their licence as its `copyright` says."""

    name: str
    pages: str
    licence: str


#: 11.0 and 2.9 million characters in Debian 12.
PACKAGES = (
    Package("python3.11-doc", "usr/share/doc/python3.11/html/_sources/**/*.rst.txt", "PSF-2.0, code samples also 0BSD"),
    Package("git-doc", "usr/share/doc/git-doc/**/*.txt", "GPL-2.0-only"),
)


def prepare(directory: Path) -> None:
    """Write both files into a directory, created if needed. Raises SystemExit, with the remedy, if apt fails."""
    parts, packages = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            unpacked = Path(scratch) / package.name
            archive = _downloaded(package.name, Path(scratch))
            _run(["dpkg-deb", "--extract", str(archive), str(unpacked)])
            version = _run(["dpkg-deb", "--field", str(archive), "Version"]).strip()
            pages = sorted(path for path in unpacked.glob(package.pages) if path.is_file())
            if not pages:
                raise SystemExit(f"{package.name} {version} has no {package.pages}: take Debian 12's (bookworm)")
            parts += [page.read_text(encoding="utf-8", errors="ignore") for page in pages]
            packages[package.name] = {"version": version, "licence": package.licence}
    text = "\n".join("".join(filter(ALPHABET.__contains__, part)) for part in parts).encode("ascii")
    directory.mkdir(parents=True, exist_ok=True)
    index = {"sha256": hashlib.sha256(text).hexdigest(), "characters": len(text), "packages": packages}
    with tempfile.TemporaryDirectory(dir=directory) as made:  # a full disk leaves both files as they were
        (Path(made) / "text.txt").write_bytes(text)
        (Path(made) / "documentation.json").write_text(json.dumps(index, indent=1) + "\n")
        for name in ("text.txt", "documentation.json"):  # with the index, the data set counts as prepared
            (Path(made) / name).replace(directory / name)


def _downloaded(package: str, folder: Path) -> Path:
    """Download a package's file, which apt checks against its index."""
    folder.chmod(0o755)  # apt downloads as a user of its own
    _run(["apt-get", "download", "--quiet", package], folder)
    (archive,) = folder.glob(f"{package}_*.deb")
    return archive


def _run(words: list[str], folder: Path | None = None) -> str:
    try:
        return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise SystemExit(
            f"{words[0]} is not installed: the documentation comes from Debian 12's packages, by apt and dpkg"
        ) from None
    except subprocess.CalledProcessError as error:
        remedy = "check that this machine is a Debian 12 that reaches its mirror, and run `apt-get update`"
        raise SystemExit(f"`{' '.join(words)}` failed: {error.stderr.strip()}\n{remedy}") from None


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
