"""The commands that ``site prepare`` prints for Linux, Open vSwitch and FRR work as printed."""

import json
import time

import pytest
from support.lab.capture import capturing

from sbf_service.preparation.sheets import BackboneDevice, make_sheets
from virtcloud.lab import Lab
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

pytestmark = pytest.mark.lab

TOPOLOGY = Topology.model_validate(
    {
        "name": "two",
        "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
        "sites": [
            {
                "name": name,
                "attachments": [{"transport": "core", "port": f"{name}-sw1:uplink"}],
                "switches": [{"name": f"{name}-sw1", "platform": "linux_bridge", "ports": ["p1", "uplink"]}],
            }
            for name in ("brno", "praha")
        ],
    }
)
BACKBONE = {"brno": ("linux-pe", "linux_bridge"), "praha": ("ovs-pe", "openvswitch")}
FULL_FRAME_OPTIONS = ("-M", "do", "-s", "1472")
"""Options of ping for packets of 1500 bytes that must not be fragmented."""


def run_lines(lab: Lab, node: str, *lines: str) -> None:
    lab.run(node, ["sh", "-e"], stdin="\n".join(lines), check=True)


def set_up(lab: Lab, site: str, address: str) -> None:
    """Run the printed commands. Then configure VLAN 100 on the switch and the host, as SBF and the agent do."""
    device, platform = BACKBONE[site]
    wanted = BackboneDevice(platform=platform, port="cust", core_port="core")
    switch_sheet, backbone_sheet = make_sheets(TOPOLOGY, TOPOLOGY.site(site), VlanSet.parse("100-109"), wanted).sheets
    assert backbone_sheet.to_fill == {}
    run_lines(lab, f"{site}-sw1", *switch_sheet.lines)
    run_lines(lab, device, *backbone_sheet.lines)
    run_lines(lab, f"{site}-sw1", *(f"bridge vlan add dev {port} vid 100" for port in ("p1", "uplink")))
    made = "ip link add link eth0 name eth0.100 type vlan id 100"
    run_lines(lab, f"{site}-h1", made, f"ip address add {address}/24 dev eth0.100", "ip link set eth0.100 up")


def test_the_printed_commands_let_double_tagged_full_frames_pass(prepared: Lab) -> None:
    set_up(prepared, "brno", "10.9.0.1")
    set_up(prepared, "praha", "10.9.0.2")
    with capturing(prepared, "linux-pe", "core", "vlan 2000 and greater 1500") as capture:
        pinged = prepared.run("brno-h1", ["ping", "-c", "8", "-i", "0.1", *FULL_FRAME_OPTIONS, "10.9.0.2"])
    frames = [line for line in capture.text.splitlines() if line]  # tcpdump ends with an empty line
    assert " 0% packet loss" in pinged.stdout, pinged.stdout
    assert len(frames) == 2 * 8
    for frame in frames:
        assert "ethertype 802.1Q-QinQ (0x88a8)" in frame
        assert "vlan 2000" in frame
        assert "ethertype 802.1Q (0x8100), vlan 100" in frame


def test_the_printed_uplink_carries_allowed_vlans_only(prepared: Lab) -> None:
    output = prepared.run("brno-sw1", ["bridge", "vlan", "show", "dev", "uplink"], check=True).stdout
    assert output.split() == ["port", "vlan-id", "uplink", "100"]


def sessions(lab: Lab, edge: str) -> dict[str, str]:
    done = lab.run(edge, ["vtysh", "-c", "show bgp l2vpn evpn summary json"], check=True)
    return {peer: one["state"] for peer, one in json.loads(done.stdout).get("peers", {}).items()}


def test_the_printed_lines_connect_all_provider_edges_by_bgp_evpn(prepared: Lab) -> None:
    topology = prepared.topology
    sites = [site for site in topology.sites if site.edges]
    for site in sites:
        (edge,) = site.edges
        run_lines(prepared, edge.name, "vtysh -c 'configure terminal' -c 'no router bgp 65000'")
        run_lines(prepared, edge.name, f"ip address del {edge.loopback}/32 dev lo")
    for site in sites:
        wanted = BackboneDevice(transport=Name("overlay"), core_port="overlay")
        backbone_sheet = make_sheets(topology, site, VlanSet(), wanted).sheets[-1]
        assert backbone_sheet.to_fill == {}
        run_lines(prepared, site.edges[0].name, *backbone_sheet.lines)
    deadline = time.monotonic() + 60
    while set((found := sessions(prepared, "brno-pe1")).values()) != {"Established"}:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    assert set(found) == {"10.255.0.2", "10.255.0.3"}
