from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from testbed.emulation.network import device, names
from testbed.emulation.network.names import Names, hosts_text, sources_text, without_proxies
from testbed.emulation.network.namespace import Namespace, inside
from testbed.emulation.network.netlink import Netlink

PARIS, TOKYO = {"paris-w0": "10.0.0.1"}, {"tokyo-w0": "10.0.1.1"}

#: Prints its own name, what each of the words resolves to (forward, then the reverse of that), and the errors.
ASK = """
import json, socket, sys
def asked(look, *words):
    try:
        return look(*words)
    except OSError as error:
        return type(error).__name__ if error.errno != socket.EAI_NONAME else "not known"
found = {"own": socket.gethostname()}
for name in sys.argv[1:]:
    address = asked(socket.gethostbyname, name)
    mapped = asked(socket.getnameinfo, ("::ffff:" + address, 0), socket.NI_NAMEREQD)
    back = [asked(socket.gethostbyaddr, address)[0], mapped[0]]
    listened_at = {each[4][0] for each in asked(socket.getaddrinfo, name, 0)} if address[0].isdigit() else set()
    found[name] = [*listened_at, *back] if listened_at else address
print(json.dumps(found))
"""


@pytest.mark.pure
def test_each_worker_is_found_by_its_name_and_by_its_address_in_both_families() -> None:
    lines = [line.split() for line in hosts_text(PARIS | TOKYO).splitlines()]
    named = {"localhost": "127.0.0.1"} | PARIS | TOKYO
    assert sorted(lines) == sorted(
        line for name, address in named.items() for line in ([address, name], [f"::ffff:{address}", f"{name}."])
    )


@pytest.mark.pure
@pytest.mark.parametrize("sources", ["files dns", "mymachines resolve [!UNAVAIL=return] files myhostname dns"])
def test_hosts_are_asked_for_in_the_worker_s_own_files(sources: str) -> None:
    own = f"passwd: files systemd\nhosts:   {sources}\nnetworks: files\n"
    assert sources_text(own) == "passwd: files systemd\nhosts: files\nnetworks: files\n"
    assert sources_text("passwd: files") == "passwd: files\nhosts: files\n"


@pytest.mark.pure
def test_the_files_stay_the_same_ones_as_names_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has the file mounted that was there as it started."""
    monkeypatch.setattr(names, "ETC", tmp_path / "etc")
    written = Names(tmp_path)
    assert written.mounts() == {}
    written.write(PARIS)
    seen = {where: file.stat().st_ino for where, file in written.mounts().items()}
    assert sorted(where.rpartition("/")[2] for where in seen) == ["hosts", "nsswitch.conf", "resolv.conf"]
    (sources,) = (file for where, file in written.mounts().items() if where.endswith("nsswitch.conf"))
    assert "hosts: files" in sources.read_text().splitlines()
    for addresses in (PARIS | TOKYO, TOKYO):
        written.write(addresses)
        assert {where: file.stat().st_ino for where, file in written.mounts().items()} == seen
        assert (tmp_path / ".names/hosts").read_text() == hosts_text(addresses)


@pytest.mark.pure
def test_programs_of_this_machine_are_told_of_no_proxy() -> None:
    told = {"HTTP_PROXY": "a", "https_proxy": "b", "ALL_PROXY": "c", "no_proxy": "d", "PATH": "/bin"}
    assert without_proxies(told) == {"PATH": "/bin"}


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with closing(Namespace()) as namespace, closing(Netlink(namespace.holder)) as netlink:
        netlink.apply(device.up(netlink.index("lo")))
        yield namespace


@pytest.mark.system
def test_a_program_of_this_machine_has_the_worker_s_name_and_the_network_s_names(
    tmp_path: Path, namespace: Namespace
) -> None:
    before = Path("/etc/hosts").read_text()
    written = Names(tmp_path)
    written.write(PARIS | TOKYO)

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        written.take_on("paris-w0", "testbed.test")
        command = [sys.executable, "-c", ASK, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True)

    found = json.loads(inside(namespace.path, lambda: ask("paris-w0", "tokyo-w0", "localhost", "example.org")).stdout)
    assert found == {
        "own": "paris-w0",
        "paris-w0": ["10.0.0.1", "paris-w0", "paris-w0."],
        "tokyo-w0": ["10.0.1.1", "tokyo-w0", "tokyo-w0."],
        "localhost": ["127.0.0.1", "localhost", "localhost."],
        "example.org": "not known",
    }
    assert Path("/etc/hosts").read_text() == before
