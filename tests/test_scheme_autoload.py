"""The entry point by which PyTorch loads a scheme; tests/controller/test_machines.py runs it installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from testbed import scheme_autoload
from testbed.emulation.containers.image import WORKER_CODE

pytestmark = pytest.mark.pure

PROJECT = Path(scheme_autoload.__file__).parents[1] / "pyproject.toml"


def test_workers_have_all_that_pytorch_is_to_call() -> None:
    """An entry point without its module would make every `import torch` fail."""
    entries = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["torch.backends"]
    assert entries["testbed_scheme"] == "testbed.scheme_autoload:load"
    files = [f"{entry.partition(':')[0].removeprefix('testbed.')}.py" for entry in entries.values()]
    assert set(files) <= set(WORKER_CODE)


def test_a_text_that_names_no_scheme_ends_the_script_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TESTBED_SCHEME", "diloco:every=0")
    with pytest.raises(SystemExit) as ended:
        scheme_autoload.load()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "TESTBED_SCHEME=diloco:every=0: every: is 0; write instead: at least 1\n"
