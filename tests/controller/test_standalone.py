"""Two programs and a controller over TCP, as on machines of their own: the example of docs/sync.md, word for word."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from subprocess import Popen

import pytest

from testbed import sync
from testbed.api.client import ApiClient, RequestFailed
from testbed.certificates import make_certificates
from testbed.controller import serve, standalone
from testbed.controller.run_records import LEAST_BYTES
from testbed.controller.service import ControllerService
from testbed.protocol import Job
from tests.controller.runs import mesh, spec_of
from tests.ports import free_port
from tests.program import ForkedProgram, preload, spawn
from tests.sync.proxy import Proxy
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.local

preload("testbed.controller.serve", "testbed.sync", "torch._dynamo")

GUIDE = Path(__file__).parents[2] / "docs" / "sync.md"


def answers(controller: ApiClient) -> bool:
    with suppress(RequestFailed):
        return bool(controller.status())
    return False


def of_controller(folder: Path, port: int, *others: str) -> list[str]:
    """Return the arguments of `python` that start a controller."""
    words = ["--members", "paris,tokyo", "--listen", f"127.0.0.1:{port}", "--secrets", str(folder / "secrets")]
    more = ["--model-bytes", "5000", "--codec", "int8", "--out", str(folder / "run")]
    return ["-m", "testbed.controller.standalone", *words, *more, *others]


@contextmanager
def controller(folder: Path, port: int, *others: str) -> Iterator[ForkedProgram]:
    """Run a controller, which SIGTERM must end as the context is left."""
    with ForkedProgram(*of_controller(folder, port, *others)) as served:
        yield served
        served.terminate()
        assert served.wait(PATIENCE_S) == 0, served.communicate()[1]


def of_member(folder: Path, name: str, address: str, identity: str) -> list[str]:
    """Return the arguments of `python` that run the folder's program, with the member's own `identity`."""
    return [str(folder / "train.py"), address, name, "127.0.0.1", str(folder / identity.format(name))]


def trained(*members: Popen[str] | ForkedProgram) -> set[str]:
    """Return the programs' last lines, once all have ended."""
    outputs = [member.communicate(timeout=PATIENCE_S) for member in members]
    assert not any(member.wait() for member in members), outputs
    return {out.splitlines()[-1] for out, _ in outputs}


@pytest.mark.long
def test_the_guide_s_program_trains_on_two_machines(tmp_path: Path) -> None:
    program = re.search(r"```python\n(# train\.py.*?)```", GUIDE.read_text(), re.DOTALL)
    assert program
    (tmp_path / "train.py").write_text(program[1])
    port = free_port()
    with ExitStack() as stack:
        served = stack.enter_context(spawn(*of_controller(tmp_path, port)))
        # The controller makes the tokens first of all.
        paris, tokyo = (
            of_member(tmp_path, name, f"tcp:127.0.0.1:{port}", "secrets/{}.token") for name in ("paris", "tokyo")
        )
        lines = trained(stack.enter_context(spawn(*paris)), stack.enter_context(ForkedProgram(*tokyo)))
        served.send_signal(signal.SIGTERM)
        assert served.wait(PATIENCE_S) == 0, served.communicate()[1]
    assert len(lines) == 1 and "parameters" in lines.pop()


def test_over_tls_two_machines_train_and_nothing_is_to_be_read_on_the_way(tmp_path: Path) -> None:
    """The guide's program, with the certificate in the token's place; the way to the controller is recorded."""
    assert [*make_certificates(tmp_path / "tls", ("paris", "tokyo"))]
    program = re.search(r"```python\n(# train\.py.*?)```", GUIDE.read_text(), re.DOTALL)
    assert program
    secured = program[1].replace("token=Path(token).read_text().strip()", "tls=token")
    assert secured != program[1]
    (tmp_path / "train.py").write_text(secured)
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(controller(tmp_path, port, "--tls", str(tmp_path / "tls" / "controller")))
        proxy = stack.enter_context(Proxy(lambda: ("127.0.0.1", port), 1))
        until(
            lambda: answers(ApiClient(tmp_path / "run" / "admin.sock", "the controller"))
        )  # and listens: a proxy does not try again
        programs = [
            of_member(tmp_path, name, "tcp:{}:{}".format(*proxy.address), "tls/{}") for name in ("paris", "tokyo")
        ]
        lines = trained(*(stack.enter_context(ForkedProgram(*words)) for words in programs))
    assert len(lines) == 1
    assert len(proxy.passed) > 10_000 and b"paris" not in proxy.passed
    assert sorted(file.name for file in (tmp_path / "secrets").iterdir()) == ["controller.key"], "no tokens are needed"


def test_over_tls_nobody_comes_in_with_another_s_certificate_or_none(tmp_path: Path) -> None:
    for authority in ("tls", "other"):
        assert [*make_certificates(tmp_path / authority, ("paris", "tokyo"))]
    port = free_port()
    with controller(tmp_path, port, "--tls", str(tmp_path / "tls" / "controller")):
        until((tmp_path / "run" / "admin.sock").exists)
        for folder, why in (
            ("tls/tokyo", "tokyo"),
            ("other/paris", "certificate verify failed"),
            (None, "--tls"),
        ):
            tls = tmp_path / folder if folder else None
            with pytest.raises(sync.SyncError, match=why):
                sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", timeout=PATIENCE_S, tls=tls)


def test_a_member_with_tls_is_told_that_the_controller_has_none(tmp_path: Path) -> None:
    assert [*make_certificates(tmp_path / "tls", ("paris", "tokyo"))]
    port = free_port()
    with controller(tmp_path, port):
        until((tmp_path / "run" / "admin.sock").exists)
        with pytest.raises(sync.SyncError) as caught:
            sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", timeout=PATIENCE_S, tls=tmp_path / "tls" / "paris")
        assert caught.value.rule == "tls"


def test_only_a_member_s_own_token_admits_as_that_member(tmp_path: Path) -> None:
    port = free_port()
    with controller(tmp_path, port) as served:
        tokens = tmp_path / "secrets"
        while not (tokens / "tokyo.token").exists():
            assert served.poll() is None, served.communicate()[1]
            time.sleep(0.02)
        for token in ("guessed", "", (tokens / "tokyo.token").read_text().strip()):
            with pytest.raises(sync.Stopped, match="paris"):
                sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", timeout=PATIENCE_S, token=token)
        assert stat.filemode(tokens.stat().st_mode) == "drwx------"
        assert {stat.filemode(file.stat().st_mode) for file in tokens.iterdir()} == {"-rw-------"}
        assert sorted(file.name for file in tokens.iterdir()) == ["controller.key", "paris.token", "tokyo.token"]
        served.terminate()
        assert served.wait(PATIENCE_S) == 0
        kept = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
        said = served.communicate()[1] + "".join(file.read_text() for file in kept)
        assert kept and not any(file.read_text().strip() in said for file in tokens.iterdir())


def test_a_controller_that_is_started_again_gives_out_the_same_tokens(tmp_path: Path) -> None:
    def told() -> dict[str, str]:
        with controller(tmp_path, free_port()) as served:
            while not (tmp_path / "run" / "admin.sock").exists():
                assert served.poll() is None, served.communicate()[1]
                time.sleep(0.02)
            served.terminate()
            assert " INFO waiting for 2 members" in served.communicate(timeout=PATIENCE_S)[1]
        return {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}

    assert told() == told()


@pytest.mark.parametrize(
    ("recorded", "quorum", "first"),
    [
        ({}, False, ""),
        ({"": "done"}, False, "2"),
        ({"": "failed"}, True, "2"),
        ({"": "waiting"}, False, ""),
        ({"": None}, True, ""),
        ({"": None}, False, "2"),
        ({"": "done", "2": None}, True, "2"),
        ({"": "done", "2": None}, False, "3"),
        ({"": "done", "2": "done", "10": "waiting"}, False, "10"),
        ({"": "done", "10": "done"}, False, "11"),
    ],
)
def test_a_controller_that_is_started_again_begins_with_a_training_that_is_not_over(
    tmp_path: Path, recorded: dict[str, str | None], quorum: bool, first: str
) -> None:
    """A training without a state has begun, and its controller was killed."""
    (tmp_path / "2026").mkdir()  # somebody else's
    for name, state in recorded.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "rounds.jsonl").touch()
        if state != "waiting":
            (tmp_path / name / "epochs.json").write_text('{"newest": 0}')
        if state is not None:
            (tmp_path / name / "final.json").write_text(json.dumps({"state": state}))
    words = ["--members", "a,b", "--listen", "127.0.0.1:0", "--model-bytes", "1", "--out", str(tmp_path)]
    args = standalone._parser().parse_args([*words, *(["--quorum", "1"] if quorum else [])])
    trainings = standalone._trainings(args, ["a", "b"], "secret")
    following = str(int(first or "1") + 1)
    assert [out for _, out in islice(trainings, 2)] == [tmp_path / first, tmp_path / following]


@pytest.mark.parametrize("text", ["", "[]", "{}", "3"])
def test_an_outcome_that_no_controller_wrote_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "final.json").write_text(text)
    args = standalone._parser().parse_args(
        ["--members", "a,b", "--listen", "127.0.0.1:0", "--model-bytes", "1", "--out", str(tmp_path)]
    )
    with pytest.raises(ValueError, match=rf"{tmp_path}/final\.json: .*--out"):
        next(standalone._trainings(args, ["a", "b"], "secret"))


def refused(*changed: str, start: Callable[..., Popen[str] | ForkedProgram] = ForkedProgram, code: int = 2) -> str:
    """Return the errors of a controller that ends with `code`."""
    words = ["--members", "a,b", "--listen", "127.0.0.1:7000", "--model-bytes", "1", "--out", "/nonexistent", *changed]
    with start("-m", "testbed.controller.standalone", *words) as program:
        _, errors = program.communicate(PATIENCE_S)
        assert program.wait() == code and "raceback" not in errors, errors
    return errors


def test_one_token_for_all_members_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    shared = tmp_path / "token"
    shared.write_text("of all members\n")
    said = refused("--token-file", str(shared))
    assert "DIR/NAME.token" in said
    assert "of all members" not in said


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "controller.key").write_text("hush\n")
    (tmp_path / "controller.key").chmod(0o644)
    assert f"chmod 600 {tmp_path}/controller.key" in refused("--secrets", str(tmp_path), start=spawn)


@pytest.mark.parametrize(
    ("code", "changed", "said"),
    [
        (2, "--listen 127.0.0.1:TAKEN", "127.0.0.1:TAKEN: Address already in use"),
        (2, "--listen 203.0.113.7:0", "203.0.113.7:0: Cannot assign requested address"),
        (2, "--listen nowhere.invalid:0", "nowhere.invalid:0: "),
        (2, "--listen a..b:0", "--listen a..b:0: "),
        (2, "--listen 127.0.0.1:70000", "65535"),
        (2, "--listening 0", "--listening 0: not a socket"),
        (2, "--listening 999", "--listening 999: not a socket"),
        (2, "--http TAKEN", "--http TAKEN"),
        (2, "--http 70000", "65535"),
        (2, "--secrets FILE", "FILE: a file or folder of that name is there already"),
        (2, "--secrets FOLDERS", "chmod 600 FOLDERS/controller.key"),
        (2, "--out FILE", "FILE: a file or folder of that name is there already"),
        (2, "--out FOLDERS", "FOLDERS/rounds.jsonl: it is a folder"),
        *((2, f"--round-timeout {text}", "seconds above 0") for text in ("0", "-1", "nan", "inf", "1e8", "2min")),
        (2, "--quorum 3", "the quorum 3 is above the number of members, 2"),
        (2, "--policy none", "no policy 'none'"),
        (2, "--codec none", "no codec 'none'; write instead: fp32, fp16"),
        (3, "--out /proc/sys/here", "/proc/sys/here: "),
    ],
)
def test_what_a_controller_can_t_use_ends_it_with_a_sentence(
    tmp_path: Path, code: int, changed: str, said: str
) -> None:
    (tmp_path / "file").touch()
    for name in ("controller.key", "rounds.jsonl"):
        (tmp_path / "folders" / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"TAKEN": str(taken.getsockname()[1]), "FILE": f"{tmp_path}/file", "FOLDERS": f"{tmp_path}/folders"}
        for name, its in names.items():
            changed, said = changed.replace(name, its), said.replace(name, its)
        usual = ["--listen", "127.0.0.1:0", "--secrets", f"{tmp_path}/secrets", "--out", f"{tmp_path}/out"]
        errors = refused(*usual, *changed.split(), code=code)
    assert said in errors and "pydantic" not in errors, errors


def test_a_second_controller_changes_nothing_in_the_directory_of_one_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with (out / "controller.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = refused("--listen", "127.0.0.1:0", "--secrets", str(tmp_path / "secrets"), "--out", str(out))
    assert f"--out {out}" in said
    assert [file.name for file in out.iterdir()] == ["controller.lock"]


@pytest.mark.parametrize(
    "address",
    ["tcp:host", "tcp::7000", "tcp:[]:7000", "tcp:host:port", "unix:", "host:7000", "tcp:h:99999", "tcp:a..b:1"],
)
def test_an_invalid_controller_address_is_refused(address: str) -> None:
    with pytest.raises(sync.SyncError, match=r"unix:/path/of/the.sock"):
        sync.join(address, "paris", "127.0.0.1", timeout=1)


def test_an_address_to_listen_on_is_checked(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "HOST:PORT" in refused("--secrets", str(tmp_path / "secrets"), "--listen", "7000", "--out", out)
    assert not any(tmp_path.iterdir())


def test_a_controller_that_records_in_a_temporary_folder_records_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    async def look(controller: ControllerService, *_: object) -> None:
        limits.append(controller._reports._most_bytes)
        controller.coordinator.close()
        controller._reports.close()

    monkeypatch.setattr(serve, "_serve", look)
    monkeypatch.setattr(serve, "_signalled", asyncio.Event)
    endpoints = serve.Endpoints(tmp_path / "control", tmp_path / "admin.sock", tmp_path / "http.key")
    spec = spec_of(mesh(), jobs=dict.fromkeys(mesh().names, Job(standalone.ENDLESS)))
    asyncio.run(serve.serve_attached(spec, endpoints, tmp_path / "out"))
    assert limits == [LEAST_BYTES]
