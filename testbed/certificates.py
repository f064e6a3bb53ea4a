"""Makes what machines show each other under TLS: an authority, and a certificate and its key for each name.

FOLDER/authority.key             what certificates are made with: it goes to no machine
FOLDER/authority.pem
FOLDER/NAME/authority.pem, certificate.pem, key.pem          for the machine of NAME, and no other
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testbed.atomic_file import write_text
from testbed.errors import BAD_INPUT
from testbed.schema import check_name
from testbed.tls import AUTHORITY, CERTIFICATE, CONTROLLER, KEY

#: The authority's own, which stays where it was made.
AUTHORITY_KEY = "authority.key"

#: A project's length. There is no list of revoked ones: who is not trusted any more has a year at most, or all get new
#: ones.
VALID = timedelta(days=365)
AUTHORITY_VALID = timedelta(days=3650)

#: Clocks of machines differ.
EARLIER = timedelta(minutes=5)


class CertificateError(ValueError):
    """What can't be made; the text says why, and what to write instead."""

    exit_code = BAD_INPUT


def make_certificates(folder: Path, members: Iterable[str]) -> Iterator[Path]:
    """The folders, one after the other as they are made, of the controller and the members that have none yet.

    An authority that is in `folder` makes them, or a new one. CertificateError when a name can't be one, or the
    authority can't be read; ProtocolError when a name is no member's; OSError when nothing can be written.
    """
    names = [CONTROLLER, *members]
    for name in names[1:]:
        check_name(name)
        if name == CONTROLLER:
            raise CertificateError(f"{name!r} is in the controller's own certificate: call the member otherwise")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(folder)
    for name in names:
        own = folder / name
        if (own / CERTIFICATE).exists():
            continue
        own.mkdir(mode=0o700, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        write_text(own / AUTHORITY, _pem(authority.certificate))
        write_text(own / KEY, _key_pem(key), mode=0o600)
        write_text(own / CERTIFICATE, _pem(authority.certify(name, key)))  # at last: so a folder that has it is whole
        yield own


def make_host_certificates(addresses: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """For each name a machine's files, by their names, out of a new authority that nobody keeps: with the machine's
    address in its certificate, by which others call it."""
    authority = _new_authority()
    made = {}
    for name, address in addresses.items():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _pem(authority.certify(name, key, x509.IPAddress(ip_address(address))))
        made[name] = {AUTHORITY: _pem(authority.certificate), CERTIFICATE: certificate, KEY: _key_pem(key)}
    return made


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certify(self, name: str, key: ec.EllipticCurvePrivateKey, *beside: x509.GeneralName) -> x509.Certificate:
        """A certificate for a machine, which it shows whether it calls or is called; of its name, and those beside."""
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(name, self.certificate.subject, key, VALID)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name), *beside]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        return builder.add_extension(uses, critical=True).sign(self.key, hashes.SHA256())


def _new_authority() -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("testbed authority", _named("testbed authority"), key, AUTHORITY_VALID)
    certifying = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _Authority(certifying.sign(key, hashes.SHA256()), key)


def _authority(folder: Path) -> _Authority:
    """The one that is there, or a new one."""
    own, key_file = folder / AUTHORITY, folder / AUTHORITY_KEY
    if not own.exists():
        made = _new_authority()
        write_text(key_file, _key_pem(made.key), mode=0o600)
        write_text(own, _pem(made.certificate))
        return made
    try:
        certificate = x509.load_pem_x509_certificate(own.read_bytes())
        loaded = load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"{folder}: the authority that is there can't be used: {error}. Name a folder that is not there yet for a "
            "new one, which makes certificates for all"
        ) from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise CertificateError(f"{key_file} is not the key of {own}: name a folder that is not there yet")
    return _Authority(certificate, loaded)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=_named(name),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - EARLIER,
        not_valid_after=now + valid,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
