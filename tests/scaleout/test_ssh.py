"""Commands over SSH, and the remedies for a connection that fails."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.run.errors import CannotRun
from testbed.scaleout.ssh import Ssh
from testbed.spec.hosts import Host, Hosts
from tests.waiting import until

#: The messages of OpenSSH 9.2.
UNKNOWN = (
    "No ED25519 host key is known for 10.0.0.1 and you have requested strict checking.\nHost key verification failed."
)
DENIED = "root@10.0.0.1: Permission denied (publickey)."
SILENT = "ssh: connect to host 10.0.0.1 port 22: Connection timed out"
NOT_FORWARDED = "Error: remote port forwarding failed for listen path /run/testbed/networks/a/s/0"


def ssh(**changed: object) -> Ssh:
    return Ssh("a", Host.model_validate({"address": "10.0.0.1", **changed}), Path("/keys/id"), Path("/keys/known"))


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    """Put an `ssh` that prints `said` and ends with `code` first on PATH."""
    file = folder / "ssh"
    file.write_text(f"#!/bin/sh\necho {shlex.quote(said)} >&2\nexit {code}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.pure
def test_a_key_that_is_not_known_is_never_taken_on_trust() -> None:
    command = ssh().command("true")
    assert {"StrictHostKeyChecking=yes", "BatchMode=yes", 'UserKnownHostsFile="/keys/known"'} <= set(command)


@pytest.mark.local
@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no SSH client")
def test_files_in_any_folder_reach_the_client(tmp_path: Path) -> None:
    folder = tmp_path / "my runs" / "100% mine"
    access = replace(ssh(), key=folder / "id", known_hosts=folder / "known")
    words = access.client()
    done = subprocess.run([words[0], "-G", "-F", "none", *words[1:]], capture_output=True, text=True, check=True)
    told = done.stdout.replace("%%", "%").splitlines()  # it shows one of the two before the client replaces tokens
    assert {f"userknownhostsfile {folder / 'known'}", f"identityfile {folder / 'id'}"} <= set(told)


@pytest.mark.pure
def test_a_user_without_root_goes_by_sudo_without_a_password() -> None:
    assert shlex.split(ssh(user="admin").command("id")[-1])[:2] == ["sudo", "-n"]
    assert shlex.split(ssh().command("id")[-1])[0] == "bash"


@pytest.mark.pure
def test_a_script_arrives_as_it_is() -> None:
    script = "echo \"a b\" 'c' $HOME; true"
    assert shlex.split(ssh().command(script)[-1])[-1].endswith(f"; {script}")


@pytest.mark.local
@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (UNKNOWN, "`ssh-keyscan 10.0.0.1`"),
        (DENIED, "`key`"),
        (SILENT, "on"),
        (NOT_FORWARDED, "AllowStreamLocalForwarding"),
    ],
)
def test_what_to_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, remedy: str) -> None:
    stand_in(tmp_path, monkeypatch, 255, said)
    with pytest.raises(CannotRun) as error:
        ssh().run("true")
    assert remedy in str(error.value)
    assert said.splitlines()[-1] in str(error.value)


@pytest.mark.local
def test_a_command_that_fails_there_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 3, "no room")
    with pytest.raises(CannotRun, match=r"^a: (?s:.*)no room"):
        ssh().run("true")


#: Called like ssh with a command that ends with its input.
FORWARDING = """#!/bin/sh
echo $$ > pid
echo "$@" > words
echo
exec cat
"""


@pytest.mark.local
def test_a_client_forwards_sockets_from_its_folder_until_the_context_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 0, "")
    (tmp_path / "ssh").write_text(FORWARDING)
    with ssh().forwarding({Path("/run/s/0"): Path("w0", "control.sock")}, tmp_path):
        client = Path("/proc", (tmp_path / "pid").read_text().strip())
        assert client.exists()
        words = (tmp_path / "words").read_text()
        assert "-R /run/s/0:./w0/control.sock root@10.0.0.1" in words
        assert "-o ClearAllForwardings=no" in words, "whatever the user's settings are"
    assert not client.exists()


@pytest.mark.local
def test_a_client_is_heard_where_many_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 0, "")
    (tmp_path / "ssh").write_text("#!/bin/sh\necho\nexec cat\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with ssh().forwarding({Path("/run/s/0"): Path("w0")}, tmp_path) as forwarding:
            assert forwarding.failure is None
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.local
def test_a_server_that_forwards_no_sockets_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 255, NOT_FORWARDED)
    with (
        pytest.raises(CannotRun, match=r"^a (?s:.*)AllowStreamLocalForwarding"),
        ssh().forwarding({Path("/run/testbed/networks/a/s/0"): Path("w0", "control.sock")}, tmp_path),
    ):
        pass


@pytest.mark.local
def test_a_client_that_ends_is_named_with_its_host_and_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 0, "")
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho\nread line < {tmp_path}/end\necho {SILENT!r} >&2\nexit 255\n")
    os.mkfifo(tmp_path / "end")
    with ssh().forwarding({Path("/run/s/0"): Path("w0")}, tmp_path) as forwarding:
        assert forwarding.failure is None
        (tmp_path / "end").write_text("now\n")
        until(lambda: forwarding.failure is not None)
        assert "sockets of a has ended" in (forwarding.failure or "")
        assert SILENT in (forwarding.failure or "")


@pytest.mark.local
@pytest.mark.parametrize("client", ["cat >&2", "exec cat >&2"], ids=["silent", "with its output closed"])
def test_a_server_that_answers_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    monkeypatch.setattr("testbed.scaleout.ssh.FORWARD_S", 0.5)
    monkeypatch.setattr("testbed.scaleout.ssh.END_S", 0.05)
    stand_in(tmp_path, monkeypatch, 0, "")
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{client}\n")
    with pytest.raises(CannotRun, match=r"^a: "), ssh().forwarding({Path("/run/s/0"): Path("w0")}, tmp_path):
        pass


@pytest.mark.pure
def test_a_key_named_from_the_hosts_file_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts.yaml").write_text("hosts: {a: {address: 10.0.0.1, key: keys/id}, b: {address: 10.0.0.2}}")
    assert Ssh.of(Hosts.load(Path("hosts.yaml")), "a").key == tmp_path / "keys/id"
