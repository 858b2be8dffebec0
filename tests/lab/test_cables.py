import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import yaml
from click.testing import CliRunner

from virtcloud.cli import main
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import SWITCH_ACCOUNT, device_addresses
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec
from virtcloud.model.cluster import ClusterState as Life
from virtcloud.model.site import CableState, SiteCables
from virtcloud.model.site_survey import SiteSurvey

pytestmark = pytest.mark.lab

NODES = ("brno-sw1", "brno-sw2", "brno-h1", "brno-h2")
LIMIT_S = 40.0
SEND_LLDP = """
import socket
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("v1", 0))
mac = bytes.fromhex("020000000099")
tlvs = b"\\x02\\x07\\x04" + mac + b"\\x04\\x05\\x05fake" + b"\\x06\\x02\\x00\\x78" + b"\\x0a\\x05rogue" + b"\\x00\\x00"
out.send(bytes.fromhex("0180c200000e") + mac + b"\\x88\\xcc" + tlvs.ljust(46, b"\\0"))
out.send(b"\\xff" * 6 + mac + b"\\x88\\xb5" + b"the-end".ljust(46, b"\\0"))
"""
CAPTURE_LLDP = """
import socket
capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
capture.bind(("p1", 0))
capture.settimeout(30)
print("ready", flush=True)
while b"the-end" not in (frame := capture.recv(2000)):
    if b"rogue" in frame:
        print("LLDP of a guest")
print("the end")
"""


@pytest.fixture
def client(cabled: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{cabled.sbf_socket}") as client:
        yield client


def check_cables_until(lab: Lab, client: SbfClient, until: Callable[[SiteCables], bool]) -> SiteCables:
    """Repeat the cable check until ``until(result)`` returns True. LLDP daemons send frames at unpredictable times."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        for node in NODES:
            lab.run(node, ["lldpcli", "update"])
        result = client.check_cables("brno")
        if until(result):
            return result
        assert time.monotonic() < deadline, result


def cable_states(result: SiteCables) -> dict[str, str]:
    return {str(one.a): str(one.state) for one in result.cables}


ALL_RIGHT = {"brno-h1:eth0": "right", "brno-h2:eth0": "right", "brno-sw1:trunk": "right"}


def test_every_cable_matches_the_topology(cabled: Lab, client: SbfClient) -> None:
    result = check_cables_until(
        cabled, client, lambda result: CableState.UNKNOWN not in {one.state for one in result.cables}
    )
    assert (cable_states(result), result.unread) == (ALL_RIGHT, {})


@pytest.fixture
def foreign_vlan(cabled: Lab) -> Iterator[int]:
    cabled.run("brno-sw1", ["bridge", "vlan", "add", "dev", "p3", "vid", "77"], check=True)
    yield 77
    cabled.run("brno-sw1", ["bridge", "vlan", "del", "dev", "p3", "vid", "77"], check=True)


def read_bridges(lab: Lab) -> list[str]:
    commands = (["bridge", "vlan", "show"], ["ip", "-brief", "link"])
    return [lab.run(switch, command).stdout for switch in ("brno-sw1", "brno-sw2") for command in commands]


def test_site_import_finds_cables_and_vlans_without_changing_switches(
    cabled: Lab, client: SbfClient, foreign_vlan: int
) -> None:
    check_cables_until(cabled, client, lambda result: cable_states(result) == ALL_RIGHT)
    keys = cabled.state.folder / "keys"
    login = {"username": SWITCH_ACCOUNT, "key_file": str(keys / "switch"), "known_hosts": str(keys / "known_hosts")}
    switches = [
        {"name": str(name), "address": str(address), "platform": "linux_bridge", "credential": "lab"}
        for name, address in device_addresses(cabled.topology).items()
    ]
    site = {"site": "brno", "switches": switches, "hosts": ["brno-h*"], "credentials": {"lab": login}}
    before = read_bridges(cabled)
    command = [sys.executable, "-m", "virtcloud.cli", "site", "import", "-", "--json"]
    ended = cabled.run("station", command, stdin=yaml.safe_dump(site), check=True)
    assert read_bridges(cabled) == before
    survey = SiteSurvey.model_validate_json(ended.stdout)
    drafted = {frozenset((link.a, link.b)) for link in survey.draft.links}
    assert drafted == {frozenset((link.a, link.b)) for link in cabled.topology.links}
    (vlan,) = (vlan for vlan in survey.vlans if vlan.vlan == foreign_vlan)
    assert vlan.ports == {"brno-sw1": ("p3",)}
    assert foreign_vlan not in survey.free


@contextmanager
def swapped_cables(lab: Lab, switch: str, port: str, to: str) -> Iterator[None]:
    names = ((port, "pulled"), (to, port), ("pulled", to))
    swap = " && ".join(
        [*(f"ip link set {one} down" for one in (port, to)), *(f"ip link set {a} name {b}" for a, b in names)]
        + [f"ip link set {one} up" for one in (port, to)]
    )
    lab.run(switch, ["sh", "-c", swap], check=True)
    try:
        yield
    finally:
        lab.run(switch, ["sh", "-c", swap], check=True)


def test_a_moved_cable_is_reported_with_its_new_port(cabled: Lab, client: SbfClient) -> None:
    with swapped_cables(cabled, "brno-sw1", "p1", "p3"):
        result = check_cables_until(cabled, client, lambda result: bool(result.wrong))
        output = CliRunner().invoke(main, ["--url", f"unix://{cabled.sbf_socket}", "site", "verify", "brno"])
    assert output.exit_code == 1
    assert output.stdout.splitlines() == [
        "wrong: brno-h1:eth0 - brno-sw1:p1: connected elsewhere: move the cable, or correct the topology",
        "  brno-h1:eth0 is seen at brno-sw1:p3",
        "site brno: cables: 2 right, 1 wrong, 0 unknown",
    ]
    assert cable_states(result) == {**ALL_RIGHT, "brno-h1:eth0": "elsewhere"}
    assert result.wrong[0].b == "brno-sw1:p1"
    assert result.wrong[0].found == ("brno-h1:eth0 is seen at brno-sw1:p3",)
    check_cables_until(cabled, client, lambda result: cable_states(result) == ALL_RIGHT)


def test_a_switch_without_lldp_affects_no_other_cable(cabled: Lab, client: SbfClient) -> None:
    daemon = cabled.service("brno-sw2", "lldpd")
    daemon.stop()
    try:
        result = check_cables_until(cabled, client, lambda result: bool(result.unread))
    finally:
        daemon.start()
    assert cable_states(result)["brno-h1:eth0"] == "right"
    assert list(result.unread) == ["brno-sw2"]
    assert "check that lldpd runs on the switch" in result.unread["brno-sw2"]


def test_lldp_frames_of_guests_never_leave_the_host(cabled: Lab, client: SbfClient) -> None:
    """A bridge forwards no frame to 01:80:c2:00:00:0e (IEEE 802.1Q, table 8-1).

    After each LLDP frame, the test sends a broadcast frame, which passes the bridge and ends the capture.
    """
    client.put_cluster("talk", ClusterRequest(spec=ClusterSpec.model_validate({"owner": "eva", "hosts": ["brno-h1"]})))
    until(client, lambda state: state is Life.ACTIVE)
    vlan = client.cluster("talk").vlans["brno"]
    lines = f"ip link add v0 type veth peer v1 && ip link set v0 master br{vlan} up && ip link set v1 up"
    cabled.run("brno-h1", ["sh", "-c", lines], check=True)
    with ThreadPoolExecutor(1) as pool:
        captured = pool.submit(cabled.run, "brno-sw1", [sys.executable, "-c", CAPTURE_LLDP])
        while not captured.done():
            cabled.run("brno-h1", [sys.executable, "-c", SEND_LLDP], check=True)
    assert captured.result().stdout.split("\n") == ["ready", "the end", ""]
    cabled.run("brno-h1", ["ip", "link", "del", "v0"], check=True)
    client.delete_cluster("talk")
    until(client, lambda state: state in ENDED_STATES)


def until(client: SbfClient, reached: Callable[[Life], bool]) -> None:
    view = client.cluster("talk")
    deadline = time.monotonic() + LIMIT_S
    while not reached(view.state):
        assert time.monotonic() < deadline, view
        view = client.cluster("talk", after=view.version, wait=5)
