"""Copies what a wheel needs beside the package into `testbed/share`; pyproject.toml has all else."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHARED = (
    "pyproject.toml",
    "requirements.lock",
    "setup.sh",
    "containers/*.Dockerfile",
    "containers/base.sh",
    "containers/digits.py",
    "containers/documentation.py",
    "examples/*.py",
    "experiments/*.yaml",
    "topologies/*.yaml",
    "traces/*/*",
)


class BuildWithShare(build_py):
    """Builds the package with the files that testbed/resources.py finds in `testbed/share`."""

    def run(self) -> None:
        """Build, with the files; an editable installation reads those of the checkout."""
        super().run()
        if self.editable_mode:
            return
        for pattern in SHARED:
            for file in sorted(Path().glob(pattern)):
                if file.is_file():
                    target = Path(self.build_lib, "testbed", "share", file)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, target)


setup(cmdclass={"build_py": BuildWithShare})
