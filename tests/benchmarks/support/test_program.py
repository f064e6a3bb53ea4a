"""The codes and texts with which benchmarks end."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.support.program import run_program
from testbed.emulation.containers import documentation
from testbed.errors import BAD_INPUT, CANNOT, FAILED, DetailedError
from testbed.run.errors import CannotRun, RunFailed
from testbed.spec.errors import Fault, SpecError

WRONG = SpecError(Path("sweep.yaml"), [Fault("name", "is missing", "`name: mine`")])


def ended(error: Exception | None = None, code: int | None = None) -> object:
    def main() -> int | None:
        if error is not None:
            raise error
        return code

    with pytest.raises(SystemExit) as caught:
        run_program(main)
    return caught.value.code


@pytest.mark.pure
@pytest.mark.parametrize("code", [None, 0, FAILED])
def test_a_benchmark_ends_with_its_own_code(code: int | None) -> None:
    assert ended(code=code) == code


@pytest.mark.pure
@pytest.mark.parametrize(
    ("error", "code"),
    [(CannotRun("no engine; start one"), CANNOT), (RunFailed("it broke"), FAILED), (WRONG, BAD_INPUT)],
)
def test_an_error_with_a_code_is_a_sentence(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(error) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{error}\n")


@pytest.mark.pure
@pytest.mark.parametrize("error", [DetailedError("no code"), ZeroDivisionError()])
def test_an_error_without_a_code_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        run_program(Mock(side_effect=error))


@pytest.mark.local
@pytest.mark.parametrize(
    ("module", "words", "remedy"),
    [
        ("benchmarks.formulas", ["--quick"], "`make documentation`"),
        ("benchmarks.schemes", ["--quick", "--dataset", "documentation"], "`make documentation`"),
        ("benchmarks.frontier", ["--quick", "--simulated"], "`make documentation`"),
    ],
)
def test_a_benchmark_says_what_this_machine_lacks(
    module: str,
    words: list[str],
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(documentation, "DOCUMENTATION", tmp_path / "documentation")
    monkeypatch.setattr(sys, "argv", [module, *words])
    monkeypatch.delitem(sys.modules, module, raising=False)  # another test may have imported it
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert caught.value.code == CANNOT
    said = capsys.readouterr()
    assert said.out == ""
    assert remedy in said.err.splitlines()[-1]
