"""Two programs and a controller over TCP, as on machines of their own: the example of docs/sync.md, word for word."""

from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from testbed import sync
from testbed.certificates import make_certificates
from tests.sync.proxy import Proxy
from tests.waiting import until

pytestmark = pytest.mark.unit

GUIDE = Path(__file__).parents[2] / "docs" / "sync.md"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(stack: ExitStack, *command: str) -> subprocess.Popen[str]:
    return stack.enter_context(
        subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )


def controller(stack: ExitStack, folder: Path, port: int, *others: str) -> subprocess.Popen[str]:
    words = ["--members", "paris,tokyo", "--listen", f"127.0.0.1:{port}", "--secrets", str(folder / "secrets")]
    more = ["--model-bytes", "5000", "--codec", "int8", "--out", str(folder / "run")]
    return start(stack, "-m", "testbed.controller.standalone", *words, *more, *others)


def trained(stack: ExitStack, folder: Path, address: str, identity: str) -> set[str]:
    """Both members run the program that is in the folder, each with its own `identity` there; what they say at last."""
    members = [
        start(stack, str(folder / "train.py"), address, name, "127.0.0.1", str(folder / identity.format(name)))
        for name in ("paris", "tokyo")
    ]
    outputs = [member.communicate(timeout=90) for member in members]
    assert [member.wait() for member in members] == [0, 0], outputs
    return {out.splitlines()[-1] for out, _ in outputs}


def test_the_guide_s_program_trains_on_two_machines(tmp_path: Path) -> None:
    program = re.search(r"```python\n(# train\.py.*?)```", GUIDE.read_text(), re.DOTALL)
    assert program
    (tmp_path / "train.py").write_text(program[1])
    port = free_port()
    with ExitStack() as stack:
        served = controller(stack, tmp_path, port)
        # The controller makes the tokens first of all.
        lines = trained(stack, tmp_path, f"tcp:127.0.0.1:{port}", "secrets/{}.token")
        served.send_signal(signal.SIGTERM)
        assert served.wait(20) == 0, served.communicate()[1]
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
        served = controller(stack, tmp_path, port, "--tls", str(tmp_path / "tls" / "controller"))
        proxy = stack.enter_context(Proxy(lambda: ("127.0.0.1", port), 1))
        until((tmp_path / "run" / "admin.sock").exists)
        lines = trained(stack, tmp_path, "tcp:{}:{}".format(*proxy.address), "tls/{}")
        served.send_signal(signal.SIGTERM)
        assert served.wait(20) == 0, served.communicate()[1]
    assert len(lines) == 1
    assert len(proxy.passed) > 10_000 and b"paris" not in proxy.passed
    assert sorted(file.name for file in (tmp_path / "secrets").iterdir()) == ["controller.key"], "no tokens are needed"


def test_over_tls_nobody_comes_in_with_another_s_certificate_or_none(tmp_path: Path) -> None:
    for authority in ("tls", "other"):
        assert [*make_certificates(tmp_path / authority, ("paris", "tokyo"))]
    port = free_port()
    with ExitStack() as stack:
        served = controller(stack, tmp_path, port, "--tls", str(tmp_path / "tls" / "controller"))
        until((tmp_path / "run" / "admin.sock").exists)
        for folder, why in (
            ("tls/tokyo", "with the certificate, of 'tokyo'"),
            ("other/paris", r"certificate verify failed.*\n?.*folders of one authority"),
            (None, "answered nothing, as one with --tls does to who comes without"),
        ):
            tls = tmp_path / folder if folder else None
            with pytest.raises(sync.SyncError, match=why):
                sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", patience_s=10, tls=tls)
        served.terminate()
        assert served.wait(20) == 0


def test_a_member_with_tls_is_told_that_the_controller_has_none(tmp_path: Path) -> None:
    assert [*make_certificates(tmp_path / "tls", ("paris", "tokyo"))]
    port = free_port()
    with ExitStack() as stack:
        served = controller(stack, tmp_path, port)
        until((tmp_path / "run" / "admin.sock").exists)
        with pytest.raises(
            sync.SyncError, match="are started with --tls, and folders of one authority, or none of them"
        ):
            sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", patience_s=10, tls=tmp_path / "tls" / "paris")
        served.terminate()
        assert served.wait(20) == 0


def test_only_who_has_a_member_s_own_token_is_let_in_as_that_member(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        served = controller(stack, tmp_path, port)
        tokens = tmp_path / "secrets"
        while not (tokens / "tokyo.token").exists():
            assert served.poll() is None, served.communicate()[1]
            time.sleep(0.02)
        for token in ("guessed", "", (tokens / "tokyo.token").read_text().strip()):
            with pytest.raises(sync.Stopped, match=r"hello as 'paris' does not have the token of 'paris'"):
                sync.join(f"tcp:127.0.0.1:{port}", "paris", "127.0.0.1", patience_s=30, token=token)
        assert stat.filemode(tokens.stat().st_mode) == "drwx------"
        assert {stat.filemode(file.stat().st_mode) for file in tokens.iterdir()} == {"-rw-------"}
        assert sorted(file.name for file in tokens.iterdir()) == ["controller.key", "paris.token", "tokyo.token"]
        served.terminate()
        assert served.wait(20) == 0
        kept = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
        said = served.communicate()[1] + "".join(file.read_text() for file in kept)
        assert kept and not any(file.read_text().strip() in said for file in tokens.iterdir())


def test_a_controller_that_is_started_again_gives_out_the_same_tokens(tmp_path: Path) -> None:
    def told() -> dict[str, str]:
        with ExitStack() as stack:
            served = controller(stack, tmp_path, free_port())
            while not (tmp_path / "run" / "admin.sock").exists():
                assert served.poll() is None, served.communicate()[1]
                time.sleep(0.02)
            served.terminate()
            assert served.wait(20) == 0
        return {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}

    assert told() == told()


def refused(*changed: str) -> str:
    """What a controller says that ends with 2."""
    words = ["--members", "a,b", "--listen", "127.0.0.1:7000", "--model-bytes", "1", "--out", "/nonexistent", *changed]
    command = [sys.executable, "-m", "testbed.controller.standalone", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_one_token_for_all_members_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    shared = tmp_path / "token"
    shared.write_text("of all members\n")
    said = refused("--token-file", str(shared))
    assert "one token for all members is not taken any more" in said and "DIR/NAME.token" in said
    assert "of all members" not in said


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "controller.key").write_text("hush\n")
    (tmp_path / "controller.key").chmod(0o644)
    assert f"chmod 600 {tmp_path}/controller.key" in refused("--secrets", str(tmp_path))


@pytest.mark.parametrize("address", ["tcp:host", "tcp::7000", "tcp:host:port", "unix:", "host:7000", "tcp:h:99999"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(sync.SyncError, match=r"write unix:/path/of/the.sock or tcp:host:port"):
        sync.join(address, "paris", "127.0.0.1", patience_s=1)


def test_an_address_to_listen_on_is_checked(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "HOST:PORT" in refused("--secrets", str(tmp_path / "secrets"), "--listen", "7000", "--out", out)
    assert "--secrets is missing" in refused()
