import re
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.lab.clusters import create, remove
from support.lab.vpn import access, connected, make_profile, two_clusters

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.laptop import CONNECTED, LaptopVpn
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

IMPATIENT = ("--hand-window", "6", "--connect-timeout", "6", "--connect-retry-max", "1")
"""Options of a client that tries each server of its profile only once, for at most 6 s."""
ENDED = "process exiting|Exiting due to"


def try_profiles(lab: Lab, profiles: dict[str, str]) -> dict[str, bool]:
    """Try profiles at the same time. Each client tries each server of its profile once.

    Return whether each client joined the network, by the name of the client's profile.
    """
    devices = {name: LaptopVpn(lab, name, namespace=True) for name in profiles}
    for name, device in devices.items():
        device.connect(profiles[name], *IMPATIENT)
    for device in devices.values():
        assert device.logs(f"{CONNECTED}|{ENDED}"), device.log
    joined = {name: CONNECTED in device.log for name, device in devices.items()}
    for device in devices.values():
        device.disconnect()
    return joined


def replace_block(profile: str, name: str, text: str) -> str:
    changed = re.sub(rf"<{name}>\n.*?</{name}>", f"<{name}>\n{text.strip()}\n</{name}>", profile, flags=re.DOTALL)
    assert changed != profile
    return changed


def read_block(profile: str, name: str) -> str:
    found = re.search(rf"<{name}>\n(.*?)</{name}>", profile, re.DOTALL)
    assert found, name
    return found[1]


def forge(profile: str) -> str:
    """Replace the certificate by a copy that another key has signed. The copy has the same names and extensions."""
    genuine = x509.load_pem_x509_certificate(read_block(profile, "cert").encode())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(genuine.issuer, genuine.subject, genuine.public_key(), genuine.serial_number)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
    for extension in genuine.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    forged = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return replace_block(profile, "cert", forged.public_bytes(serialization.Encoding.PEM).decode())


def edit(profile: str) -> str:
    """Extend the validity of the certificate by a year, without a new signature."""
    genuine = x509.load_pem_x509_certificate(read_block(profile, "cert").encode())
    end = genuine.not_valid_after_utc
    der = genuine.public_bytes(serialization.Encoding.DER)
    changed = der.replace(f"{end:%y%m%d%H%M%SZ}".encode(), f"{end.replace(year=end.year + 1):%y%m%d%H%M%SZ}".encode())
    assert changed != der
    text = "\n".join(re.findall(".{1,64}", b64encode(changed).decode()))
    return replace_block(profile, "cert", f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----")


def use_a_password(profile: str) -> str:
    without = re.sub(r"<(cert|key)>\n.*?</\1>\n", "", profile, flags=re.DOTALL)
    return f"{without}\n<auth-user-pass>\nalice\nalice\n</auth-user-pass>\n"


@pytest.fixture(scope="module")
def clusters(client: SbfClient) -> Iterator[dict[str, ClusterView]]:
    with two_clusters(client, "guarded") as views:
        yield views


@pytest.fixture(scope="module")
def genuine(lab: Lab, clusters: dict[str, ClusterView]) -> str:
    return make_profile(lab, "guarded", "genuine")


@pytest.fixture(scope="module")
def joined(lab: Lab, client: SbfClient, genuine: str) -> Iterator[dict[str, bool]]:
    """Try the profiles of the following tests. Map each profile's name to whether its client joined the network.

    The certificate of ``expired`` ends with the first lease of cluster ``brief``. The fixture extends the lease, so the
    grant of profile ``expired`` stays valid.
    """
    create(client, "brief", spec := ClusterSpec(owner="alice", hosts=("brno-h1",), vpn=True, lease_s=15))
    profiles = {
        "expired": make_profile(lab, "brief", "expired"),
        "revoked": make_profile(lab, "guarded", "revoked"),
        "replaced": make_profile(lab, "guarded", "replaced"),
    }
    client.extend_lease("brief", 600)
    access(lab, "revoke", "guarded", "revoked")
    profiles |= {"again": make_profile(lab, "guarded", "replaced"), "renewed": make_profile(lab, "brief", "renewed")}
    profiles |= {change.__name__: change(genuine) for change in (forge, edit, use_a_password)}
    time.sleep(spec.lease_s)
    yield try_profiles(lab, profiles | {"genuine": genuine})
    remove(client, "brief")


@pytest.mark.parametrize("name", ["genuine", "again", "renewed"])
def test_a_valid_profile_connects(joined: dict[str, bool], name: str) -> None:
    assert joined[name]


@pytest.mark.parametrize("name", ["expired", "revoked", "replaced", "forge", "edit", "use_a_password"])
def test_an_invalid_profile_is_refused(joined: dict[str, bool], name: str) -> None:
    assert not joined[name]


def test_the_second_use_of_a_profile_disconnects_the_first_device(lab: Lab, genuine: str) -> None:
    first, second = (LaptopVpn(lab, name, namespace=True) for name in ("original", "copy"))
    first.connect(genuine)
    assert first.logs(CONNECTED), first.log
    first.move_interface()
    second.connect(genuine)
    assert second.logs(CONNECTED), second.log
    assert first.logs(ENDED), first.log
    assert ENDED not in second.log
    second.disconnect()
    first.disconnect()


def test_a_draining_cluster_admits_no_device(lab: Lab, client: SbfClient, genuine: str) -> None:
    with connected(lab, "guarded", "present") as device:
        lab.run("brno-sw1", ["ip", "link", "set", "mgmt0", "down"], check=True)
        try:
            client.delete_cluster("guarded")
            assert device.logs(ENDED), device.log
            assert client.cluster("guarded").state is ClusterState.DRAINING
            assert try_profiles(lab, {"late": genuine}) == {"late": False}
        finally:
            lab.run("brno-sw1", ["ip", "link", "set", "mgmt0", "up"], check=True)
