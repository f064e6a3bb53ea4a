"""Certificates for mutual TLS: an authority, and a certificate with its key for each name.

FOLDER/authority.key             the key that signs certificates; it goes to no machine
FOLDER/authority.pem
FOLDER/NAME/authority.pem, certificate.pem, key.pem          for the machine NAME alone
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testbed.atomic_file import new_folder, write_text
from testbed.errors import BAD_INPUT, DetailedError
from testbed.schema import ProtocolError, check_name
from testbed.sockets import AUTHORITY, CERTIFICATE, CONTROLLER, KEY

#: The file of the authority's key, which stays where it was made.
AUTHORITY_KEY = "authority.key"

#: How long certificates are valid. There is no list of revoked ones: a certificate that is no longer trusted is valid
#: for a year at most, unless all machines get new ones.
VALID = timedelta(days=365)
AUTHORITY_VALID = timedelta(days=3650)

#: A certificate is made again this long before it expires: a training that begins then may last longer.
RENEWED = timedelta(days=30)

#: How long before now certificates become valid, since the clocks of machines differ.
EARLIER = timedelta(minutes=5)


class CertificateError(DetailedError, ValueError):
    """A certificate that can't be made; the text says why, and what to write instead."""

    exit_code = BAD_INPUT


def make_certificates(folder: Path, members: Iterable[str]) -> Iterator[Path]:
    """Make a folder for the controller and for each member that has none yet, and yield each once it is made.

    A certificate that has expired, or expires within RENEWED, is made again. Copies of it stay valid until it expires.

    The authority in `folder` signs the certificates; if there is none, a new authority is made.

    Raises:
        CertificateError: A name is not allowed for a member, or is the controller's; or the authority can't be read,
            or its certificate is missing where `folder` has certificates by it, or another authority signed one.
        OSError: The files can't be written.
    """
    names = [CONTROLLER, *members]
    for name in names[1:]:
        try:
            check_name(name)
        except ProtocolError as error:
            raise CertificateError(str(error), **error.details) from None
        if name == CONTROLLER:
            raise CertificateError(f"the controller's certificate has the name {name!r}; give the member another name")
    with new_folder(folder, 0o700):
        authority = _authority(folder)
        valid = {file.parent: one for file in sorted(folder.glob(f"*/{CERTIFICATE}")) if (one := _unexpired(file))}
        if foreign := [own for own, certificate in valid.items() if not authority.has_signed(certificate)]:
            listed = " ".join(map(str, foreign))
            raise CertificateError(
                f"{folder / AUTHORITY} did not sign the certificates in {listed}, so their machines would refuse those "
                "that it signs. Put the earlier authority back with its key, or remove these folders, name their "
                "members here, and copy what is made to their machines"
            )
        for name in dict.fromkeys(names):
            own = folder / name
            if own in valid:
                continue
            with new_folder(own, 0o700):
                for file, text in authority.files(name).items():
                    write_text(own / file, text, mode=0o600 if file == KEY else 0o666)
            yield own


def make_host_certificates(addresses: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return name → the texts of a machine's files by file name, signed by a new authority whose key is not kept.

    `addresses` maps names to the IP addresses at which other machines connect; the certificates contain them.
    """
    authority = _new_authority()
    return {name: authority.files(name, x509.IPAddress(ip_address(each))) for name, each in addresses.items()}


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def has_signed(self, certificate: x509.Certificate) -> bool:
        """Return whether this authority signed a certificate."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def files(self, name: str, *beside: x509.GeneralName) -> dict[str, str]:
        """Return the texts of a machine's files by file name. The certificate is last: a folder with it is complete.

        The certificate is for both ends of a connection, with the machine's name and the names `beside` it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(name, self.certificate.subject, key, VALID)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name), *beside]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        certificate = builder.add_extension(uses, critical=True).sign(self.key, hashes.SHA256())
        return {AUTHORITY: _pem(self.certificate), KEY: _key_pem(key), CERTIFICATE: _pem(certificate)}


def _new_authority() -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("testbed authority", _named("testbed authority"), key, AUTHORITY_VALID)
    certifying = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _Authority(certifying.sign(key, hashes.SHA256()), key)


def _authority(folder: Path) -> _Authority:
    own, key_file = folder / AUTHORITY, folder / AUTHORITY_KEY
    if not own.exists():
        if signed := sorted(folder.glob(f"*/{CERTIFICATE}")):
            raise CertificateError(
                f"{own} is missing, and the authority in it signed {signed[0]}. Put {own} and {key_file} back, or name "
                "a new folder, and give all machines certificates of the new authority"
            )
        made = _new_authority()
        write_text(key_file, _key_pem(made.key), mode=0o600)
        write_text(own, _pem(made.certificate))
        return made
    try:
        certificate = x509.load_pem_x509_certificate(own.read_bytes())
        loaded = load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"{folder}: its authority can't be used: {error}. Name a new folder, and give all machines certificates of "
            "the new authority"
        ) from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise CertificateError(f"{key_file} is not the key of {own}; name a new folder")
    return _Authority(certificate, loaded)


def _unexpired(file: Path) -> x509.Certificate | None:
    """Return the certificate in a file; None if the file holds none, or the certificate expires within RENEWED."""
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError:
        return None
    return found if found.not_valid_after_utc > datetime.now(UTC) + RENEWED else None


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
