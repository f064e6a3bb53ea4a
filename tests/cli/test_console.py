"""Whatever is wrong around any verb that the command line has, it ends in words and with its exit code."""

from __future__ import annotations

import errno
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from testbed.cli.console import Verbs, quantity
from testbed.errors import BAD_INPUT, CANNOT, DELETED_FOLDER, FAILED, NAMED_WRONG, NOT_HERE, ending_of
from testbed.spec.units import Duration, Loss, Rate
from tests.cli.verbs import FILES, INPUTS, OUTPUTS, VERBS, Verb, assert_named, tried

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("own")]

#: The verbs that make a directory under runs/.
MAKERS = [verb for verb in VERBS if verb.name in ("launch", "run", "simulate", "compare", "sweep")]

BYTES = bytes(range(256)) * 8

#: The kinds of quantities, by the words that stand for them in `--help`.
QUANTITIES = {"TIME": Duration, "RATE": Rate, "SHARE": Loss}


@pytest.mark.parametrize("verb, path", INPUTS, ids=str)
@pytest.mark.parametrize("kind", ["binary", "folder", "missing", "unreadable", "empty"])
def test_an_unreadable_input_is_named(verb: Verb, path: str, kind: str, readable: Path, own: Path) -> None:
    if kind == "folder" and verb.by_name(FILES, path) in ("run", "none"):
        pytest.skip("a folder is what it takes")
    hostile = own.parent / f"hostile{Path(str(verb.by_name(FILES, path))).suffix}"
    if kind == "binary":
        hostile.write_bytes(BYTES)
    elif kind == "empty":
        hostile.write_bytes(b"")
    elif kind == "folder":
        hostile.mkdir()
    elif kind == "unreadable":  # root may read any file but those that the kernel does not let anybody read
        hostile.symlink_to("/proc/self/mem")
    assert_named(tried(*verb.line(readable, {path: hostile})), hostile)


def test_a_default_that_help_shows_is_what_a_user_may_write() -> None:
    shown = {
        (verb.name, name): parameter
        for verb in VERBS
        for name, parameter in verb.parameters.items()
        if parameter.metavar in QUANTITIES and isinstance(parameter.default, float)
    }
    assert {("check", "tolerance"), ("topology import", "rate"), ("trace generate uniform", "period")} <= shown.keys()
    for place, parameter in shown.items():
        assert quantity(QUANTITIES[parameter.metavar])(parameter.show_default) == parameter.default, place


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_a_current_folder_that_was_deleted_is_said(verb: Verb, readable: Path, own: Path) -> None:
    words = verb.line(readable)
    own.rmdir()
    result = tried(*words)
    assert (result.exit_code, " ".join(result.stderr.split())) == (BAD_INPUT, DELETED_FOLDER)


@pytest.mark.parametrize("verb, path", OUTPUTS, ids=str)
def test_a_file_in_the_place_of_a_folder_to_write_to_is_said(verb: Verb, path: str, readable: Path, own: Path) -> None:
    (own / "taken").write_text("a user's own")
    suffix = Path(verb.line(readable)[-1]).suffix or ".csv"
    result = tried(*verb.line(readable, {path: own / "taken" / f"inside{suffix}"}))
    assert result.exit_code == BAD_INPUT, result.output
    assert (own / "taken").read_text() == "a user's own"


@pytest.mark.parametrize("verb", MAKERS, ids=str)
def test_runs_that_is_a_file_is_left_alone(verb: Verb, readable: Path, own: Path) -> None:
    (own / "runs").write_text("a user's own")
    assert tried(*verb.line(readable)).exit_code == CANNOT
    assert (own / "runs").read_text() == "a user's own"
    assert not [each for each in own.iterdir() if each.name.startswith(".")]


class HalfEngine:
    """An engine that answers the first requests, as one without images and containers, and goes at the next."""

    def __init__(self, path: Path, answered: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, args=(answered,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):  # it may have gone
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self, answered: int) -> None:
        with self._listener, suppress(OSError):
            for _ in range(answered):
                connection, _ = self._listener.accept()
                with connection:
                    connection.sendall(self._answer(connection.recv(1 << 16).split(b" ")[1]))

    @staticmethod
    def _answer(path: bytes) -> bytes:
        body = b'{"ApiVersion": "1.41", "Version": "20.10"}' if path.endswith(b"/version") else b"[]"
        body = b"OK" if path.endswith(b"/_ping") else body
        head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


ON_ENGINE = [verb for verb in VERBS if verb.name in ("launch", "run", "up", "compare", "sweep", "clean", "doctor")]


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_an_engine_that_is_not_there_is_said(verb: Verb, readable: Path) -> None:
    result = tried(*verb.line(readable))
    assert result.exit_code in (0, BAD_INPUT, CANNOT), result.output
    if verb in ON_ENGINE:
        assert result.exit_code == CANNOT, result.output


@pytest.mark.parametrize("verb", ON_ENGINE, ids=str)
@pytest.mark.parametrize("answered", [1, 2, 3])
def test_an_engine_that_goes_in_between_is_said(verb: Verb, answered: int, readable: Path, own: Path) -> None:
    engine = HalfEngine(own.parent / "engine.sock", answered)
    try:
        code = tried(*verb.line(readable)).exit_code
        # It may have told all that these ask: that it is there, and has no containers.
        assert code == CANNOT or (code == 0 and verb.name in ("clean", "doctor"))
    finally:
        engine.close()


def test_an_error_that_nobody_foresaw_is_one_line_and_a_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @broken.command()
    def fall() -> None:
        raise AttributeError("a wall of\n" + "text " * 1000)

    broken.command("other")(lambda: None)
    result = CliRunner().invoke(broken, ["fall"])
    assert result.exit_code == FAILED
    (log,) = tmp_path.glob("testbed-*.log")
    assert str(log) in "".join(result.stderr.split())
    assert "AttributeError: a wall of text" in " ".join(result.stderr.split())
    assert len(result.stderr) < 600
    assert "Traceback" not in result.output and "Traceback" in log.read_text()


def test_an_error_that_nobody_foresaw_is_said_where_no_log_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    try:
        {}["x"]
    except KeyError as error:
        code, text = ending_of(error)
    assert code == FAILED
    assert "test_console.py:" in text and "No space left on device" in text and "\n" not in text


def link_to_itself(folder: Path) -> Path:
    (link := folder / "loop").symlink_to(link)
    return link


OF_THE_SYSTEM: list[tuple[Callable[[Path], object], int, str]] = [
    (lambda folder: (folder / "none").read_text(), BAD_INPUT, NAMED_WRONG[errno.ENOENT]),
    (lambda folder: folder.read_text(), BAD_INPUT, NAMED_WRONG[errno.EISDIR]),
    (lambda folder: (folder / ("x" * 300)).read_text(), BAD_INPUT, NAMED_WRONG[errno.ENAMETOOLONG]),
    (lambda folder: Path("/proc/sys/net/none").read_text(), CANNOT, "kernel"),
    (lambda folder: subprocess.run(["no-such-program"], check=False), CANNOT, "not installed"),
    (lambda folder: Path("/dev/full").write_text("x"), CANNOT, NOT_HERE[errno.ENOSPC]),
    (lambda folder: link_to_itself(folder).resolve(strict=True), BAD_INPUT, NAMED_WRONG[errno.ELOOP]),
]


@pytest.mark.parametrize("cause, code, words", OF_THE_SYSTEM)
def test_an_error_of_the_system_is_the_users_or_the_machines(
    cause: Callable[[Path], object], code: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises((OSError, RuntimeError)) as raised:
        cause(tmp_path)
    found, text = ending_of(raised.value)
    assert found == code
    assert words in text


def test_a_deleted_folder_is_named_for_what_it_is(own: Path) -> None:
    own.rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        Path("x").absolute()
    assert ending_of(raised.value) == (BAD_INPUT, DELETED_FOLDER)
