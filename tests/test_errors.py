"""Errors with fields: the fields survive a place in front of the text, and the way to another process."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess

import pytest

from testbed.emulation.containers.engine import EngineError, EngineGoneError, ForeignEngineError
from testbed.errors import CANNOT, NO_PROCESS, NO_TEMPORARY, ending_of
from testbed.plan import PlanError
from testbed.run.errors import CannotRun, RunFailed
from testbed.spec.errors import Fault, SpecError
from testbed.sync.errors import FrameError

pytestmark = pytest.mark.pure


def test_a_field_that_was_not_given_has_no_value() -> None:
    error = PlanError("no such codec", field="codec", given="fp8")
    assert (error.field, error.given, error.rule, error.member) == ("codec", "fp8", None, None)
    assert error.details == {"field": "codec", "given": "fp8"}


def test_an_error_with_its_place_keeps_its_fields() -> None:
    error = FrameError("cut", rule="cut", member="a").located("round 3", round=3)
    assert isinstance(error, FrameError) and str(error) == "round 3: cut"
    assert error.details == {"rule": "cut", "member": "a", "round": 3}


def test_an_error_of_another_process_has_its_fields() -> None:
    error = pickle.loads(pickle.dumps(FrameError("cut", rule="cut", member="a")))
    assert isinstance(error, FrameError) and (str(error), error.rule, error.member) == ("cut", "cut", "a")


@pytest.mark.parametrize(
    "error",
    [ForeignEngineError("0123456789abcdef", 7, "process 7 is not there"), EngineGoneError("connection reset")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_makes_its_own_text_has_it_in_another_process(error: EngineError) -> None:
    error.add_note("on north")
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert (str(there), vars(there)) == (str(error), vars(error))
    assert ending_of(there) == ending_of(error)


def raised_in_its_place(error: Exception, cause: Exception, hidden: bool) -> Exception:
    try:
        try:
            raise cause
        except Exception as first:
            raise error from None if hidden else first
    except Exception as caught:
        return caught


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        SpecError("a.gml", [Fault("file", "the file can't be read", "the path of a graph")]),
        CannotRun("no engine answers"),
        RunFailed("this machine failed"),
        ValueError("not foreseen"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_many_open_files_are_named_where_another_error_hides_them(
    number: int, hidden: bool, error: Exception
) -> None:
    cause = OSError(number, os.strerror(number), "a.gml")
    for each in (cause, raised_in_its_place(error, cause, hidden)):
        code, text = ending_of(each)
        assert code == CANNOT and "too many files are open" in text and len(text.splitlines()) == 1
        assert ("ulimit -n 65536" in text) is (number == errno.EMFILE)


def test_a_library_that_cannot_be_opened_for_too_many_files_names_the_limit() -> None:
    error = ImportError(f"libm.so.6: cannot open shared object file: {os.strerror(errno.EMFILE)}")
    assert ending_of(error)[0] == CANNOT and "ulimit -n 65536" in ending_of(error)[1]


def test_no_folder_for_temporary_files_is_the_machine_s_and_not_a_wrong_path() -> None:
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")
    assert ending_of(error) == (CANNOT, NO_TEMPORARY)


def test_a_process_or_thread_that_cannot_be_started_names_the_limit() -> None:
    assert ending_of(RuntimeError("can't start new thread")) == (CANNOT, NO_PROCESS)
    refused = compile("raise BlockingIOError(11, 'Resource temporarily unavailable')", subprocess.__file__, "exec")
    with pytest.raises(BlockingIOError) as raised:  # as from the fork in `subprocess`
        exec(refused)
    assert ending_of(raised.value) == (CANNOT, NO_PROCESS)
