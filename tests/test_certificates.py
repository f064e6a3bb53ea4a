"""The certificates that `testbed certificates` makes, and how TLS judges them and others."""

from __future__ import annotations

import shutil
import socket
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from typer.testing import CliRunner

from testbed import certificates
from testbed.certificates import CertificateError, make_certificates, make_host_certificates
from testbed.cli import BAD_INPUT, app
from testbed.sockets import AUTHORITY, CERTIFICATE, KEY, Tls, TlsError, peer_name
from tests.waiting import PATIENCE_S


def made(folder: Path, *members: str) -> list[str]:
    return [path.name for path in make_certificates(folder, members)]


def seen_names(calls: Tls, answers: Tls) -> tuple[str, str]:
    """Return the names that each end of a connection sees of the other. Raises OSError if an end refuses."""
    one, other = socket.socketpair()
    with closing(answers.accepted(other)) as answering, closing(calls.opened(one)) as calling:
        for end in (answering, calling):
            end.settimeout(PATIENCE_S)

        def answer() -> str:
            try:
                answering.do_handshake()
                answering.sendall(b"!")
            finally:
                with suppress(OSError):
                    socket.socket.shutdown(answering, socket.SHUT_WR)
            return peer_name(answering)

        with ThreadPoolExecutor(1) as pool:
            caller = pool.submit(answer)
            try:
                calling.do_handshake()
                assert calling.recv(1) == b"!"
            except BaseException:
                socket.socket.shutdown(calling, socket.SHUT_RDWR)
                raise
            return peer_name(calling), caller.result()


@pytest.mark.local
def test_each_end_knows_the_other_by_name(tmp_path: Path) -> None:
    made(tmp_path, "Paris", "paris_2")
    assert seen_names(Tls(tmp_path / "Paris"), Tls(tmp_path / "paris_2")) == ("paris_2", "Paris")
    assert seen_names(Tls(tmp_path / "paris_2"), Tls(tmp_path / "controller")) == ("controller", "paris_2")


@pytest.mark.local
def test_a_certificate_of_another_authority_is_refused_in_both_directions(tmp_path: Path) -> None:
    for authority in ("one", "other"):
        made(tmp_path / authority, "paris")
    ours, theirs = Tls(tmp_path / "one" / "paris"), Tls(tmp_path / "other" / "paris")
    for calls, answers in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ssl.SSLError):
            seen_names(calls, answers)


@pytest.mark.local
def test_a_connection_without_a_certificate_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "paris")
    nobody = Tls(tmp_path / "paris")
    nobody.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.client.check_hostname = False
    nobody.client.verify_mode = ssl.CERT_NONE
    with pytest.raises((OSError, AssertionError)):
        seen_names(nobody, Tls(tmp_path / "paris"))


@pytest.mark.local
def test_an_authority_makes_those_that_are_missing_and_changes_none(tmp_path: Path) -> None:
    assert made(tmp_path, "paris") == ["controller", "paris"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert made(tmp_path, "paris", "tokyo") == ["tokyo"]
    assert {path: path.read_bytes() for path in before} == before
    assert seen_names(Tls(tmp_path / "paris"), Tls(tmp_path / "tokyo")) == ("tokyo", "paris")


@pytest.mark.pure
def test_nobody_else_can_read_a_key(tmp_path: Path) -> None:
    made(tmp_path, "paris")
    keys = [tmp_path / "authority.key", tmp_path / "paris" / KEY, tmp_path / "controller" / KEY]
    assert {stat.filemode(path.stat().st_mode) for path in keys} == {"-rw-------"}
    assert not [path for path in tmp_path.rglob("*.pem") if path not in keys and "PRIVATE" in path.read_text()]
    keys[1].chmod(0o640)
    with pytest.raises(TlsError, match=f"chmod 600 {keys[1]}"):
        Tls(tmp_path / "paris")


@pytest.mark.pure
@pytest.mark.parametrize("missing", [AUTHORITY, CERTIFICATE, KEY])
def test_an_invalid_folder_says_what_belongs_in_it(tmp_path: Path, missing: str) -> None:
    made(tmp_path, "paris")
    (tmp_path / "paris" / missing).unlink()
    with pytest.raises(TlsError, match="`testbed certificates`"):
        Tls(tmp_path / "paris")


@pytest.mark.pure
@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "a" * 65])
def test_an_invalid_name_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError) as caught:
        made(tmp_path / "new", "paris", name)
    assert (caught.value.field, caught.value.given) == ("member", name)
    assert not (tmp_path / "new").exists()


@pytest.mark.local
def test_a_name_that_no_member_has_is_bad_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["certificates", str(tmp_path), "paris", "a/b"])
    assert (result.exit_code, result.stdout) == (BAD_INPUT, "")
    assert "'a/b' is not a member's name" in result.stderr


@pytest.mark.pure
def test_no_member_goes_by_the_controllers_name(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="controller"):
        made(tmp_path, "controller")


@pytest.mark.pure
def test_an_authority_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    for authority in ("one", "other"):
        made(tmp_path / authority, "paris")
    key = tmp_path / "one" / "authority.key"
    key.write_bytes((tmp_path / "other" / "authority.key").read_bytes())
    with pytest.raises(CertificateError, match=r"authority\.key"):
        made(tmp_path / "one", "tokyo")
    key.write_text("torn")
    with pytest.raises(CertificateError, match="one"):
        made(tmp_path / "one", "tokyo")


@pytest.mark.pure
@pytest.mark.parametrize("lost", [[AUTHORITY], [AUTHORITY, "authority.key"]])
def test_a_lost_authority_is_not_replaced_beside_its_certificates(tmp_path: Path, lost: list[str]) -> None:
    made(tmp_path, "paris")
    for name in lost:
        (tmp_path / name).unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CertificateError, match=AUTHORITY):
        made(tmp_path, "paris", "tokyo")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.pure
def test_a_certificate_of_a_replaced_authority_is_said_before_any_is_made(tmp_path: Path) -> None:
    for authority in ("one", "other"):
        made(tmp_path / authority, "paris", "quito")
    folder = tmp_path / "one"
    for name in (AUTHORITY, "authority.key"):
        (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CertificateError, match=f"{folder / 'controller'} {folder / 'paris'} {folder / 'quito'},"):
        made(folder, "tokyo", "paris")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    for name in ("controller", "paris", "quito"):
        shutil.rmtree(folder / name)
    assert made(folder, "tokyo", "paris", "paris") == ["controller", "tokyo", "paris"]


@pytest.mark.pure
def test_the_verb_says_what_it_made_and_where_it_goes(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["certificates", str(tmp_path / "tls"), "paris", "tokyo"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[:3] == [str(tmp_path / "tls" / name) for name in ("controller", "paris", "tokyo")]
    assert "authority.key here" in done.output
    again = CliRunner().invoke(app, ["certificates", str(tmp_path / "tls"), "controller"])
    assert again.exit_code == 2 and "controller" in again.stderr


@pytest.mark.pure
def test_a_host_s_certificate_is_for_its_address_and_of_the_hosts_authority_alone() -> None:
    one, other = make_host_certificates({"a": "10.0.0.1", "b": "10.0.0.2"}), make_host_certificates({"a": "10.0.0.1"})
    certificate = x509.load_pem_x509_certificate(one["a"][CERTIFICATE].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert one["a"][AUTHORITY] == one["b"][AUTHORITY] != other["a"][AUTHORITY]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(one["b"][AUTHORITY].encode()))
    with pytest.raises(InvalidSignature):
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(other["a"][AUTHORITY].encode()))


@pytest.mark.local
def test_an_expired_certificate_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as past:
        past.setattr(certificates, "VALID", timedelta(seconds=-1))
        made(tmp_path, "paris", "tokyo")
    assert made(tmp_path, "paris") == ["controller", "paris"]
    assert made(tmp_path, "paris") == []
    assert seen_names(Tls(tmp_path / "paris"), Tls(tmp_path / "controller")) == ("controller", "paris")


@pytest.mark.local
def test_a_certificate_that_expires_soon_is_made_again_and_its_copies_stay_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as past:
        past.setattr(certificates, "VALID", timedelta(days=29))
        made(tmp_path, "paris")
    shutil.copytree(tmp_path / "paris", tmp_path / "copy")
    assert made(tmp_path, "paris") == ["controller", "paris"]
    shutil.move(tmp_path / "copy", copied := tmp_path.parent / f"{tmp_path.name}-copy")
    assert seen_names(Tls(copied), Tls(tmp_path / "controller")) == ("controller", "paris")
