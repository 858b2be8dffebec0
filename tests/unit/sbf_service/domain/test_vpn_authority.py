from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import SecretBytes
from support.sbf_fakes.vpn_world import CSR

from sbf_service.domain.tls_crypt_keys import make_client_key, make_server_key
from sbf_service.domain.vpn_authority import (
    make_authority_certificate,
    make_device_certificate,
    make_vpn_server,
    parse_device_key,
)
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name
from virtcloud.model.vpn import VpnListener, VpnServer

SECRET, OTHER = SecretBytes(b"a" * 32), SecretBytes(b"b" * 32)
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ENDS = NOW + timedelta(hours=4)
LISTENER = VpnListener.model_validate({"address": "vpn.example.org"})


def server(name: str = "brno-gw", secret: SecretBytes = SECRET) -> VpnServer:
    return make_vpn_server(secret, Name(name), LISTENER)


def parse(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def device(secret: SecretBytes = SECRET) -> x509.Certificate:
    return parse(make_device_certificate(secret, "0f1e", parse_device_key(CSR), NOW, ENDS).text)


def purposes(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except InvalidSignature:
        return False
    return True


def test_all_certificates_are_signed_by_the_authority() -> None:
    authority = parse(make_authority_certificate(SECRET))
    certificates = (authority, parse(server().certificate), device())
    assert [is_signed_by(certificate, authority) for certificate in certificates] == [True, True, True]


def test_certificates_of_another_secret_have_another_authority() -> None:
    assert not is_signed_by(device(OTHER), parse(make_authority_certificate(SECRET)))


def test_a_device_cannot_be_a_server() -> None:
    assert purposes(device()) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_gateway_cannot_be_a_device() -> None:
    assert purposes(parse(server().certificate)) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_neither_gateways_nor_devices_sign_certificates() -> None:
    for certificate in (parse(server().certificate), device()):
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_devices_certificate_ends_with_the_lease() -> None:
    assert device().not_valid_after_utc == ENDS
    assert device().not_valid_before_utc < NOW


def test_the_request_does_not_change_the_subject_of_a_certificate() -> None:
    request = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    )
    csr = request.sign(ec.derive_private_key(3, ec.SECP256R1()), SHA256()).public_bytes(Encoding.PEM).decode()
    made = parse(make_device_certificate(SECRET, "0f1e", parse_device_key(csr), NOW, ENDS).text)
    assert made.subject.rfc4514_string() == "CN=0f1e"


def test_the_fingerprint_identifies_the_certificate() -> None:
    made = make_device_certificate(SECRET, "0f1e", parse_device_key(CSR), NOW, ENDS)
    assert made.fingerprint == parse(made.text).fingerprint(SHA256()).hex()


def test_the_same_secret_makes_the_same_documents() -> None:
    first = server()
    make_vpn_server.cache_clear()
    make_authority_certificate.cache_clear()
    assert server() == first


def test_gateways_have_different_keys() -> None:
    one, other = server(), server("brno-gw2")
    assert one.private_key != other.private_key
    assert one.tls_crypt_key != other.tls_crypt_key


def test_a_gateways_key_belongs_to_its_certificate() -> None:
    key = load_pem_private_key(server().private_key.get_secret_value().encode(), None)
    assert key.public_key() == parse(server().certificate).public_key()


def test_client_keys_differ_by_profile_and_gateway() -> None:
    keys = {make_client_key(SECRET, gateway, profile) for gateway in ("a", "b") for profile in ("1", "2")}
    assert len({*keys, make_server_key(SECRET, "a").get_secret_value()}) == 5


def test_short_keys_of_devices_are_refused() -> None:
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505 - the key is refused
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    with pytest.raises(BadInput, match="RSA with 2048 to 8192 bits"):
        parse_device_key(request.public_bytes(Encoding.PEM).decode())
