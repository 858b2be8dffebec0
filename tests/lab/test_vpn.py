"""A laptop joins clusters through the gateway of a real lab.

The laptop has a stock OpenVPN client and its user's profiles. Two clusters have identical addresses. The gateway
connects each device with exactly one cluster.
"""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.lab.capture import capturing
from support.lab.clusters import pings
from support.lab.vpn import GUEST, GUEST6, HOST, access, connected, find_addresses, make_profile, two_clusters

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import LAPTOP
from virtcloud.lab.demo.context import ABSENT_ADDRESS, ENTER_CONTAINER
from virtcloud.lab.laptop import CONNECTED, LaptopVpn
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

OFF_S = 5.0
"""The longest permitted time in seconds until a revoked device is cut off. On an idle machine, 1 s suffices.

If the gateway did not end the connection, the device would notice the revocation after 60 s (``keepalive``).
"""
LAST_REPLY = re.compile(r"^\[([0-9.]+)\] .*icmp_seq", re.MULTILINE)


@pytest.fixture(scope="module")
def clusters(client: SbfClient) -> Iterator[dict[str, ClusterView]]:
    with two_clusters(client, "vpn-a", "vpn-b") as views:
        yield views


@pytest.fixture(scope="module")
def laptop(lab: Lab, clusters: dict[str, ClusterView]) -> Iterator[LaptopVpn]:
    device = LaptopVpn(lab, "laptop")
    device.connect(make_profile(lab, "vpn-a", "laptop"))
    assert device.logs(CONNECTED), device.log
    yield device
    device.disconnect()


@pytest.fixture(scope="module")
def second(lab: Lab, clusters: dict[str, ClusterView]) -> Iterator[LaptopVpn]:
    with connected(lab, "vpn-a", "second") as device:
        yield device


@pytest.fixture(scope="module")
def other(lab: Lab, clusters: dict[str, ClusterView]) -> Iterator[LaptopVpn]:
    with connected(lab, "vpn-b", "other") as device:
        yield device


@pytest.mark.parametrize("address", [GUEST, GUEST6])
def test_a_stock_client_reaches_the_guest(laptop: LaptopVpn, address: str) -> None:
    code, output = laptop.run("ping", "-c", "2", "-W", "3", address)
    assert code == 0, output


def test_a_file_is_copied_from_a_guest(lab: Lab, laptop: LaptopVpn, client: SbfClient) -> None:
    known = render_known_hosts(client.peers("vpn-a").peers)
    for name, text in (("known", known), ("id", (lab.state.folder / "keys/user").read_text())):
        lab.run(LAPTOP, ("sh", "-c", f"umask 077; cat >/run/vpn/{name}"), stdin=text, check=True)
    options = [f"-o{option}" for option in ("UserKnownHostsFile=/run/vpn/known", "IdentityFile=/run/vpn/id")]
    code, output = laptop.run("scp", "-O", "-q", "-F", "none", *options, f"alice@{GUEST}:/etc/hosts", "/run/vpn/copied")
    assert code == 0, output
    assert GUEST in lab.run(LAPTOP, ("cat", "/run/vpn/copied"), check=True).stdout


def test_the_guest_reaches_the_laptop(lab: Lab, laptop: LaptopVpn, clusters: dict[str, ClusterView]) -> None:
    address = find_addresses(lab, "vpn-a", "laptop")[0].partition("/")[0]
    assert pings(lab, clusters["vpn-a"], 0, "-c", "2", "-W", "3", address)


def test_two_devices_of_a_cluster_reach_each_other(lab: Lab, laptop: LaptopVpn, second: LaptopVpn) -> None:
    address = find_addresses(lab, "vpn-a", "laptop")[0].partition("/")[0]
    code, output = second.run("ping", "-c", "2", "-W", "3", address)
    assert code == 0, output


def test_the_other_cluster_receives_no_frame(
    lab: Lab, laptop: LaptopVpn, other: LaptopVpn, clusters: dict[str, ClusterView]
) -> None:
    bridges = {key: f"br{view.vlans[Name('brno')]}" for key, view in clusters.items()}
    asked = f"arp and host {ABSENT_ADDRESS}"
    with (
        capturing(lab, HOST, bridges["vpn-a"], asked) as own,
        capturing(lab, HOST, bridges["vpn-b"], asked) as at_host,
        capturing(lab, LAPTOP, other.interface, asked, namespace=other.name) as at_device,
    ):
        laptop.run("ping", "-c", "2", "-W", "1", ABSENT_ADDRESS)
    assert [bool(capture.text.strip()) for capture in (own, at_host, at_device)] == [True, False, False]


def test_a_guest_reaches_no_service_of_the_gateway(
    lab: Lab, laptop: LaptopVpn, clusters: dict[str, ClusterView]
) -> None:
    """On the cluster's network, the gateway answers no ARP request for its own addresses."""
    for address, answers in ((GUEST, True), ("198.18.1.4", False), ("198.19.1.4", False)):
        request = ("busybox", "arping", "-c", "1", "-w", "1", "-I", laptop.interface, address)
        assert (laptop.run(*request)[0] == 0) is answers, address
    own = find_addresses(lab, "vpn-a", "laptop")[0].partition("/")[0]
    for address, answers in ((own, True), ("198.18.1.4", False), ("198.19.1.4", False)):
        (domain,) = (name for name in read_guests(lab, HOST) if clusters["vpn-a"].id in name)
        arping = ("/bin/arping", "-c", "1", "-w", "1", "-I", "eth0", address)
        assert (lab.run(HOST, ("sh", "-c", ENTER_CONTAINER, domain, *arping)).returncode == 0) is answers, address


def test_a_revoked_device_is_cut_off_at_once(lab: Lab, second: LaptopVpn) -> None:
    with ThreadPoolExecutor(1) as pool:
        series = pool.submit(second.run, "ping", "-D", "-i", "0.1", "-w", "8", GUEST)
        time.sleep(2)
        access(lab, "revoke", "vpn-a", "second")
        revoked = time.time()
    replies = [float(stamp) for stamp in LAST_REPLY.findall(series.result()[1])]
    assert replies, "no reply before the revocation"
    assert replies[-1] - revoked < OFF_S
    assert second.logs("this profile gives no access: it was revoked"), second.log
