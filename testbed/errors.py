"""Errors with fields, so that callers and tests need not parse the text; and the exit code for each error.

A class of errors that a user can cause has an `exit_code`. `ending_of` finds the code and the text for any error,
including the operating system's. An error without a code was not foreseen: its traceback goes into a log file.
"""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack

from testbed.lazy import PLUGIN
from testbed.resources import IS_CHECKOUT, SETUP
from testbed.sudo import give_back

#: Exit codes: something failed; bad input; this machine can't.
FAILED, BAD_INPUT, CANNOT = 1, 2, 3

#: Error number of the kernel → what is wrong with a file or folder that a user names, and what to do.
NAMED_WRONG = {
    errno.ENOENT: "there is no such file or folder; check the path",
    errno.EEXIST: "a file or folder of that name is there already; name another, or move it away",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENOTDIR: "a part of the path is not a folder; check the path",
    errno.ENAMETOOLONG: "the name is longer than a file's may be; name another",
    errno.ELOOP: "the symbolic links form a loop; name the file itself",
}
#: Error number of the kernel → what this machine can't do, and what to do.
NOT_HERE = {
    errno.EROFS: "the file system is read-only; run the command where you may write, or name another place",
    errno.ENOSPC: "the disk is full; make room on it",
    errno.EDQUOT: "the disk quota is used up; make room",
    errno.EFBIG: "the file is larger than the disk or a limit of this process (`ulimit -f`) allows",
    errno.EBUSY: "it is in use; end the program that uses it",
    errno.EACCES: "permission denied; run the command as a permitted user (sudo), or name another place",
    errno.EPERM: "not permitted; run the command as a permitted user (sudo), or name another place",
    errno.EIO: "the disk can't be read or written; see `dmesg`",
    errno.ESTALE: "the network file system has lost the file; mount the file system again",
    errno.EMFILE: "too many files are open; raise the limit (`ulimit -n 65536`)",
    errno.ENFILE: "too many files are open on this machine; end other programs",
    errno.ENOMEM: "no memory is left; end other programs",
}
#: The error numbers of too many open files. Clients and parsers may raise other errors in their place.
TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
#: Where the kernel shows its settings as files.
KERNELS = ("/proc/", "/sys/", "/dev/")
#: Package outside the base installation → the extra that installs the package.
EXTRAS = {
    **{"torch": "sync", "cryptography": "controller", "prometheus_client": "controller"},
    **{"pandas": "tables", "pyarrow": "parquet", "ray": "scaleout"},
}
#: The extras that set-up installs in a checkout.
INSTALLED = ("sync", "controller", "emulate", "tables")
DELETED_FOLDER = "the current folder was deleted; `cd` into one that is there"
#: A part of the text of `tempfile`'s own error. The error has the number of a missing file, and names no file.
TEMPORARY = "temporary directory"
#: The text of an error if `tempfile` finds no folder.
NO_TEMPORARY = (
    "no folder for temporary files can be written: the disk is full, or too many files are open; make room, or set "
    "TMPDIR"
)
#: The text of the interpreter's own error if the kernel makes no further thread.
NO_THREAD = "can't start new thread"
#: The words of `Path.resolve` before Python 3.13 about symbolic links that lead to themselves.
LINK_LOOP = "Symlink loop from "
#: The text of an error if the kernel makes no further process or thread.
NO_PROCESS = (
    "no further process or thread can be started; end other programs, or raise the limit (`ulimit -u`, the control "
    "group's pids.max)"
)

#: The most characters of an unforeseen error's own text that are printed.
MOST_QUOTED = 200


class Details(TypedDict, total=False):
    """The optional fields of a DetailedError, which say what the error is about, such as its file and line."""

    rule: str | None
    field: str | None
    given: object
    file: Path | str | None
    line: int | None
    member: str | None
    link: str | None
    host: str | None
    round: int | None
    epoch: int | None


class DetailedError(Exception):
    """An error with fields. A field that does not apply is None."""

    #: The exit code of the command line; None if such an error must not reach the command line.
    exit_code: ClassVar[int | None] = None
    #: The violated rule: a short identifier such as `unknown-member`, which stays when the text is rewritten.
    rule: str | None = None
    #: The name or dotted path of the value that breaks the rule.
    field: str | None = None
    #: The value that breaks the rule.
    given: object = None
    file: Path | str | None = None
    #: The number of the line or packet in the file, from 1.
    line: int | None = None
    member: str | None = None
    link: str | None = None
    host: str | None = None
    round: int | None = None
    epoch: int | None = None

    def __init__(self, text: object = "", **details: Unpack[Details]) -> None:
        super().__init__(text)
        vars(self).update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts from which pickle restores the error without a call of `__init__`.

        A subclass may make its text from other arguments than the text, which alone is kept in `args`.
        """
        return _restored, (type(self), self.args), vars(self)

    @property
    def details(self) -> dict[str, Any]:
        """The fields that apply, to pass them on to another error."""
        return {name: vars(self)[name] for name in Details.__annotations__ if name in vars(self)}

    def located(self, place: object, **details: Unpack[Details]) -> Self:
        """Return this error with `place` before its text, and with `details` added to its fields."""
        return type(self)(f"{place}: {self}", **{**self.details, **details})


def _restored(kind: type[DetailedError], args: tuple[Any, ...]) -> DetailedError:
    return kind.__new__(kind, *args)


def ending_of(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the text for an error. An error that was not foreseen is written into a log file."""
    if (cause := _too_many_open(error)) is not None:
        return CANNOT, NOT_HERE[cause]
    code = getattr(error, "exit_code", None)
    if code is not None:
        return int(code), in_full(error)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("testbed"):
        package = error.name.partition(".")[0]
        extra = EXTRAS.get(package, "emulate")
        way = f"pip install 'wan-testbed[{extra}]'"
        if package == "mininet" or (IS_CHECKOUT and extra in INSTALLED):  # Mininet is the distribution's package
            way = SETUP
        return CANNOT, f"the Python package {error.name} is not installed; `{way}` installs it"
    if isinstance(error, MemoryError):
        return CANNOT, NOT_HERE[errno.ENOMEM]
    if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        return CANNOT, NO_PROCESS
    if isinstance(error, RuntimeError) and str(error).startswith(LINK_LOOP):
        return BAD_INPUT, f"{str(error).removeprefix(LINK_LOOP)}: {NAMED_WRONG[errno.ELOOP]}"
    if isinstance(error, OSError) and (found := _of_the_system(error)) is not None:
        return found
    if (place := _place_in_plugin(error)) is not None:
        return BAD_INPUT, f"{place}: this plug-in raised {_in_one_line(error)}; mend the plug-in"
    return FAILED, unforeseen(error)


def in_full(error: BaseException) -> str:
    """Return the text of an error, and below it the errors that followed it."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def unforeseen(error: BaseException) -> str:
    """Write the traceback of an error into a log file. Return a line with the error and the file's path."""
    what = _in_one_line(error)
    try:
        where = f"the traceback is in {written_aside(''.join(traceback.format_exception(error)))}"
    except OSError as refused:
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = f"{frame[0].filename}:{frame[0].lineno}" if frame else "an unknown place"
        where = f"raised at {place} (no log file could be written: {refused.strerror or refused})"
    return f"the testbed does not know this error: {what}; {where}. Please report this line and the traceback"


def _in_one_line(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:MOST_QUOTED]}" if said else type(error).__name__


def _place_in_plugin(error: BaseException) -> str | None:
    """Return the place in a user's plug-in that raised an error; None if other code raised it."""
    *_, (frame, line) = [(None, 0), *traceback.walk_tb(error.__traceback__)]
    if frame is None or not str(frame.f_globals.get("__name__")).startswith(PLUGIN):
        return None
    return f"{frame.f_code.co_filename}, line {line}"


def written_aside(text: str) -> str:
    """Write a text into a new log file, below the command and the versions. Return the file's path."""
    head = f"{sys.argv}\nPython {platform.python_version()}, {platform.platform()}\n\n"
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
    with tempfile.NamedTemporaryFile("w", prefix="testbed-", suffix=".log", delete=False, **options) as log:
        log.write(head + text)
    give_back([Path(log.name)])
    return log.name


def _of_the_system(error: OSError) -> tuple[int, str] | None:
    """Return the exit code and the text for an error of the kernel; None if the error is not about files."""
    if error.errno is None:
        return (BAD_INPUT, in_full(error)) if isinstance(error, FileExistsError) else None
    if error.errno == errno.ENOENT and _is_folder_deleted():
        return BAD_INPUT, DELETED_FOLDER
    named = error.filename2 or error.filename
    place = os.fsdecode(named) if isinstance(named, (str, bytes, os.PathLike)) else None
    code, said = CANNOT, NOT_HERE.get(error.errno)
    if place is not None and error.errno in NAMED_WRONG:
        code, said = BAD_INPUT, NAMED_WRONG[error.errno]
        if _is_of_a_program(error):
            code, said = CANNOT, "the program is not installed; `testbed doctor` says what to install"
        elif place.startswith(KERNELS):
            code, said = CANNOT, "this machine's kernel does not have that; `testbed doctor` says what it can do"
    elif error.errno == errno.ENOENT and TEMPORARY in str(error.strerror):
        said = NO_TEMPORARY
    elif error.errno == errno.EAGAIN and _is_of_a_program(error):
        said = NO_PROCESS
    if said is None:
        return None
    text = said if place is None else f"{place}: {said}"
    return code, "\n".join([text, *getattr(error, "__notes__", ())])


def _too_many_open(error: BaseException) -> int | None:
    """Return the error number if too many open files caused an error, directly or as an earlier cause; else None."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, OSError) and cause.errno in TOO_MANY_OPEN:
            return cause.errno
        if isinstance(cause, ImportError) and os.strerror(errno.EMFILE) in str(cause):  # of a shared library
            return errno.EMFILE
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def _is_of_a_program(error: OSError) -> bool:
    """Return whether the error comes from starting a program: then its `filename` is the program's."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename == subprocess.__file__


def _is_folder_deleted() -> bool:
    try:
        Path.cwd()
    except OSError:
        return True
    return False
