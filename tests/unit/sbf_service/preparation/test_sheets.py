from typing import Any

import pytest

from sbf_service.drivers.registry import EDGE_PLATFORMS, SWITCH_PLATFORMS
from sbf_service.preparation.platforms import PLATFORMS
from sbf_service.preparation.sheets import BackboneDevice, make_sheets
from sbf_service.preparation.templates import PLACEHOLDERS, fill_templates
from virtcloud.model.errors import BadInput, Conflict, NotFound
from virtcloud.model.site import PreparationSheet, PreparationSide
from virtcloud.model.topology import Topology
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

POOL = VlanSet.parse("100-149,160")


def site(name: str, *attachments: dict[str, str]) -> dict[str, object]:
    number = {"brno": 1, "praha": 2}[name]
    edge = {"name": f"{name}-pe1", "platform": "linux_edge", "ports": ["ac"], "core_port": "core"}
    return {
        "name": name,
        "attachments": attachments,
        "switches": [{"name": f"{name}-sw1", "platform": "cisco_ios", "ports": ["Gi1/0/1", "Gi1/0/24"]}],
        "edges": [{**edge, "loopback": f"10.255.0.{number}"}],
    }


def topology(kind: dict[str, object], port: str) -> Topology:
    sites = [site(name, {"transport": "core", "port": f"{name}-{port}"}) for name in ("brno", "praha")]
    links = [{"a": f"{name}-sw1:Gi1/0/1", "b": f"{name}-pe1:ac"} for name in ("brno", "praha")]
    return Topology.model_validate(
        {"name": "two", "transports": [{"name": "core", **kind}], "sites": sites, "links": links}
    )


QINQ = topology({"kind": "qinq", "s_tag": 2000}, "sw1:Gi1/0/24")
DIRECT = topology({"kind": "direct"}, "sw1:Gi1/0/24")
EVPN = topology({"kind": "evpn", "asn": 65000, "vnis": "10000-10999"}, "pe1:ac")
S_TAGS = topology({"kind": "qinq", "s_tags": "2000-2099"}, "pe1:ac")


def sheets(two_sites: Topology, **options: Any) -> tuple[PreparationSheet, PreparationSheet]:
    uplink, backbone = make_sheets(two_sites, two_sites.site("brno"), POOL, BackboneDevice(**options)).sheets
    assert (uplink.side, backbone.side) == (PreparationSide.SITE, PreparationSide.BACKBONE)
    return uplink, backbone


def test_the_uplink_is_an_empty_trunk_with_a_larger_mtu() -> None:
    uplink, _ = sheets(QINQ)
    assert (uplink.device, uplink.platform) == ("brno-sw1:Gi1/0/24", "cisco_ios")
    assert uplink.lines == (
        "configure terminal",
        "interface Gi1/0/24",
        "switchport",
        "switchport trunk allowed vlan none",
        "exit",
        "interface Gi1/0/24",
        "switchport trunk encapsulation dot1q",
        "switchport mode trunk",
        "exit",
        "system mtu 1504",
        "end",
        "write memory",
    )
    lines = "'switchport' and 'switchport trunk encapsulation dot1q'"
    note = f"Some models refuse {lines}: continue with the next line."
    assert note in uplink.notes


def test_the_backbones_port_is_a_tunnel_into_the_service_vlan() -> None:
    _, backbone = sheets(QINQ, platform="cisco_nxos", port="Ethernet1/7", core_port="Ethernet1/49")
    assert backbone.lines == (
        "configure terminal",
        "vlan 2000",
        "name virtcloud-core",
        "exit",
        "interface Ethernet1/7",
        "description virtcloud brno",
        "switchport",
        "switchport mode dot1q-tunnel",
        "switchport access vlan 2000",
        "spanning-tree bpdufilter enable",
        "mtu 9216",
        "no shutdown",
        "exit",
        "interface Ethernet1/49",
        "switchport trunk allowed vlan add 2000",
        "mtu 9216",
        "end",
        "copy running-config startup-config",
    )
    assert backbone.to_fill == {}


def test_unknown_values_are_in_angle_brackets_and_listed() -> None:
    _, backbone = sheets(QINQ, platform="dell_force10")
    assert "member <port>" in backbone.lines
    assert backbone.to_fill == {
        "<port>": "the backbone's port that the site is attached to",
        "<core_port>": "the device's port towards the rest of the backbone",
    }


def test_the_sheet_warns_of_force10s_ethertype() -> None:
    _, backbone = sheets(QINQ, platform="dell_force10")
    assert any("0x9100" in note and "silently drops" in note for note in backbone.notes)


def test_a_procurve_is_refused_with_the_reason() -> None:
    with pytest.raises(Conflict, match="changing its QinQ mode reboots the switch and erases its configuration"):
        sheets(QINQ, platform="hp_procurve")


def test_without_a_platform_the_sheet_lists_requirements_and_platforms() -> None:
    _, backbone = sheets(QINQ)
    assert backbone.lines == ()
    assert "goes into the service VLAN 2000" in backbone.notes[0]
    assert "arista_eos, cisco_ios, cisco_nxos, dell_force10, hp_comware" in backbone.notes[1]


def test_a_dedicated_circuit_passes_the_pool_in_the_platforms_syntax() -> None:
    _, backbone = sheets(DIRECT, platform="hp_comware", port="Ten-GigabitEthernet1/0/1")
    assert "port trunk permit vlan 100 to 149 160" in backbone.lines
    assert not any("qinq" in line for line in backbone.lines)
    assert any("create the missing VLANs" in note for note in backbone.notes)


def test_an_evpn_edge_gets_sessions_with_all_other_edges() -> None:
    uplink, backbone = sheets(EVPN)
    assert uplink.device == "brno-sw1:Gi1/0/1"
    assert backbone.device == "provider edge brno-pe1"
    assert "ip address add 10.255.0.1/32 dev lo" in backbone.lines
    sessions = [line for line in backbone.lines if "neighbor 10." in line]
    assert sessions == ["  -c 'neighbor 10.255.0.2 peer-group virtcloud' \\"]
    assert backbone.to_fill == {"<core_port>": "the device's port towards the rest of the backbone"}


def make_ipv6_sheet(kind: dict[str, object], platform: str) -> PreparationSheet:
    document = topology(kind, "pe1:ac").model_dump(mode="json")
    document["sites"][0]["edges"][0] |= {"platform": platform, "loopback": "2001:db8:ffff::1"}
    two_sites = Topology.model_validate(document)
    return make_sheets(two_sites, two_sites.site("brno"), POOL, BackboneDevice(core_port="core9")).sheets[1]


def test_a_linux_edge_gets_its_ipv6_loopback_with_length_128() -> None:
    """With the prefix length 32, all IPv6 addresses of the backbone would be on the loopback interface."""
    sheet = make_ipv6_sheet(KINDS[TransportKind.EVPN], "linux_edge")
    assert "ip address add 2001:db8:ffff::1/128 dev lo" in sheet.lines
    assert "  -c 'neighbor virtcloud update-source 2001:db8:ffff::1' \\" in sheet.lines
    assert "  -c 'bgp router-id <router_id>' \\" in sheet.lines
    assert sheet.to_fill.keys() == {"<router_id>"}


@pytest.mark.parametrize(
    ("platform", "kind"),
    [
        (name, kind)
        for name, edge_platform in EDGE_PLATFORMS.items()
        for kind in sorted(edge_platform.capabilities.kinds & {TransportKind.VPLS, TransportKind.EVPN})
        if name != "linux_edge"
    ],
)
def test_other_edges_get_no_ipv6_loopback(platform: str, kind: TransportKind) -> None:
    sheet = make_ipv6_sheet(KINDS[kind], platform)
    assert not any("2001:db8:ffff::1" in line for line in sheet.lines)
    assert "<ipv4_loopback>" in sheet.to_fill


def test_an_edge_with_service_vlans_gets_its_core_port_only() -> None:
    _, backbone = sheets(S_TAGS)
    assert backbone.lines == ("ip link set core mtu 1508 up",)
    assert "the service VLANs 2000-2099 pass between all edges" in backbone.notes[0]


@pytest.mark.parametrize("platform", sorted(SWITCH_PLATFORMS))
def test_every_switch_platform_has_uplink_lines_or_a_note(platform: str) -> None:
    document = QINQ.model_dump(mode="json")
    document["sites"][0]["switches"][0]["platform"] = platform
    two_sites = Topology.model_validate(document)
    uplink = make_sheets(two_sites, two_sites.sites[0], POOL, BackboneDevice()).sheets[0]
    assert uplink.lines or any(f"SBF has no lines for {platform}" in note for note in uplink.notes)
    assert bool(uplink.lines) == (platform != "cisco_iosxr")


KINDS: dict[TransportKind, dict[str, object]] = {
    TransportKind.QINQ: {"kind": "qinq", "s_tags": "2000-2099"},
    TransportKind.VPLS: {"kind": "vpls", "asn": 65000, "vpn_ids": "10000-10999"},
    TransportKind.EVPN: {"kind": "evpn", "asn": 65000, "vnis": "10000-10999"},
}


@pytest.mark.parametrize(
    ("platform", "kind"),
    [
        (name, kind)
        for name, edge_platform in EDGE_PLATFORMS.items()
        for kind in sorted(edge_platform.capabilities.kinds)
    ],
)
def test_every_edge_platform_has_lines_for_its_transports(platform: str, kind: TransportKind) -> None:
    document = topology(KINDS[kind], "pe1:ac").model_dump(mode="json")
    for site_document in document["sites"]:
        site_document["edges"][0]["platform"] = platform
    two_sites = Topology.model_validate(document)
    backbone = make_sheets(two_sites, two_sites.site("brno"), POOL, BackboneDevice(core_port="core9")).sheets[1]
    assert backbone.lines
    assert backbone.to_fill == {}


def test_unknown_platforms_transports_and_unattached_sites_are_refused() -> None:
    with pytest.raises(BadInput, match=r"expected a platform of the backbone \(arista_eos, .*\), got cisco_catos"):
        sheets(QINQ, platform="cisco_catos")
    with pytest.raises(NotFound, match="transport vpls1 is not known; known transports: core"):
        sheets(QINQ, transport="vpls1")
    alone = QINQ.model_copy(update={"sites": (QINQ.sites[0].model_copy(update={"attachments": ()}),)})
    with pytest.raises(Conflict, match="site brno is not attached to any transport"):
        make_sheets(alone, alone.sites[0], POOL, BackboneDevice(transport=None))


def test_the_backbones_two_ports_must_differ() -> None:
    with pytest.raises(BadInput, match="core_port: expected a port other than `port`, got Te1/1/1 for both"):
        sheets(QINQ, platform="cisco_ios", port="Te1/1/1", core_port="Te1/1/1")


def test_a_backbone_platform_is_refused_at_edge_only_sites() -> None:
    with pytest.raises(
        BadInput, match=r"platform: expected none, because site brno is attached at provider edges only \("
    ):
        sheets(EVPN, platform="arista_eos")


def test_sheets_can_be_limited_to_one_transport() -> None:
    preparation = make_sheets(QINQ, QINQ.site("praha"), POOL, BackboneDevice(transport=Name("core")))
    assert preparation.sheets[0].device == "praha-sw1:Gi1/0/24"


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_placeholder_is_known_or_explained(name: str) -> None:
    """The rendering of an unknown placeholder would raise KeyError."""
    templates = PLATFORMS[name]
    texts = [templates.uplink, templates.tunnel, templates.passing, templates.services, templates.vpls, templates.evpn]
    known = {"site", "transport", "s_tag", "asn", "uplink", "ac"}
    for text in texts:
        assert fill_templates(text, dict.fromkeys(known, "x")).to_fill.keys() <= {
            f"<{placeholder}>" for placeholder in PLACEHOLDERS
        }


@pytest.mark.parametrize("name", PLATFORMS)
def test_no_template_allows_all_vlans(name: str) -> None:
    templates = PLATFORMS[name]
    for line in (*templates.uplink, *templates.tunnel, *templates.passing):
        assert "allowed vlan all" not in line
        assert not line.endswith("permit vlan all")


@pytest.mark.parametrize(
    "name", [name for name, words in PLATFORMS.items() if "switchport mode trunk" in words.passing]
)
def test_a_trunks_list_is_set_before_its_mode(name: str) -> None:
    """A trunk without a list would carry all VLANs for a short time."""
    passing = PLATFORMS[name].passing
    assert passing.index("switchport trunk allowed vlan {vlans}") < passing.index("switchport mode trunk")
