"""Tests of the import from an emulated NetBox. ``test_up.py`` has a test of the commands with a real SBF."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from support.programs.http_answers import HttpAnswer
from support.programs.netbox_emulator import TOKEN, TOKEN_V2, EmulatedNetBox, serve_netbox
from support.programs.real_sbf import running_sbf
from support.sbf_fakes.world import three_sites

from virtcloud.cli import main
from virtcloud.client.sbf import SbfClient
from virtcloud.model.element import Host, Switch
from virtcloud.model.errors import BadInput, ServiceUnreachable
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.yaml_document import read_document
from virtcloud.netbox import reading
from virtcloud.netbox.merging import NetBoxMerge, merge
from virtcloud.netbox.reading import read_netbox
from virtcloud.netbox.settings import NetBoxFile
from virtcloud.netbox.translation import NetBoxTranslation, translate


@pytest.fixture
def netbox() -> Iterator[EmulatedNetBox]:
    """A NetBox with two switches and a host at Ostrava. Each page of its lists contains at most two objects."""
    with serve_netbox(page=2) as netbox:
        site = netbox.add_site("ostrava")
        first = netbox.add_device(
            site, "OSTRAVA-SW1.example.org", "access-switch", platform="cisco-ios", address="192.0.2.10/24"
        )
        second = netbox.add_device(site, "ostrava-sw2", "access-switch", platform="eos", address="2001:db8::2/64")
        host = netbox.add_device(site, "node1", "server")
        uplink, port, peer, eth0 = (
            netbox.add_interface(device, name)
            for device, name in ((first, "Te1/1/1"), (first, "Gi1/0/1"), (second, "Ethernet1"), (host, "eth0"))
        )
        netbox.connect(uplink, peer)
        netbox.connect(port, eth0, by_panel=True)
        group = netbox.add_group(site, [100, 119], [200, 204])
        netbox.add_vlan(110, group=group)
        netbox.add_vlan(111, group=group, status="reserved")
        netbox.add_vlan(300, site=site, tags=("virtcloud",))
        yield netbox


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    return tmp_path / "token"


def settings(netbox: EmulatedNetBox, token: Path | None, **more: object) -> NetBoxFile:
    fields = {
        "url": netbox.url,
        "token_file": token and str(token),
        "sites": ["ostrava"],
        "switch_roles": ["access-switch"],
        "host_roles": ["server"],
        "platforms": {"eos": "arista_eos"},
        "credential": "switches",
    }
    return NetBoxFile.model_validate({**fields, **more})


def read(netbox: EmulatedNetBox, token: Path, **more: object) -> NetBoxTranslation:
    file = settings(netbox, token, **more)
    return translate(file, read_netbox(file))


def imported(
    netbox: EmulatedNetBox, token: Path, former: Topology | None = None, *, prune: bool = False
) -> NetBoxMerge:
    return merge(read(netbox, token), former, prune=prune)


def test_cables_of_all_pages_become_links(netbox: EmulatedNetBox, token_file: Path) -> None:
    links = imported(netbox, token_file).topology.links
    assert {(link.a, link.b) for link in links} == {
        ("ostrava-sw1:Te1/1/1", "ostrava-sw2:Ethernet1"),
        ("node1:eth0", "ostrava-sw1:Gi1/0/1"),
    }


def test_nothing_is_written_to_netbox(netbox: EmulatedNetBox, token_file: Path) -> None:
    imported(netbox, token_file)
    assert len(netbox.requests) > 5
    assert all(request.startswith("GET ") for request in netbox.requests)


def test_devices_become_switches_and_hosts_by_their_roles(netbox: EmulatedNetBox, token_file: Path) -> None:
    (site,) = imported(netbox, token_file).topology.sites
    assert site.switches[0] == Switch(
        name=Name("ostrava-sw1"),
        ports=("Gi1/0/1", "Te1/1/1"),
        platform="cisco_ios",
        address="192.0.2.10",
        credential=Name("switches"),
    )
    assert (site.switches[1].platform, site.switches[1].address) == ("arista_eos", "2001:db8::2")
    assert site.hosts == (Host(name=Name("node1"), ports=("eth0",)),)


def test_the_pool_excludes_used_vlans_of_a_group(netbox: EmulatedNetBox, token_file: Path) -> None:
    assert imported(netbox, token_file).pools == {"ostrava": VlanSet.parse("100-109,111-119,200-204,300")}


def test_the_pool_excludes_used_vlans_of_groups_without_the_tag(netbox: EmulatedNetBox, token_file: Path) -> None:
    office = netbox.add_group(1, [100, 400], name="office", tags=())
    netbox.add_vlan(115, group=office)
    netbox.add_vlan(116, group=office, status="deprecated")
    netbox.add_vlan(310, group=office, tags=("virtcloud",))
    assert imported(netbox, token_file).pools == {"ostrava": VlanSet.parse("100-109,111-114,116-119,200-204,300,310")}


def test_vlans_of_another_sites_groups_stay_in_the_pool(netbox: EmulatedNetBox, token_file: Path) -> None:
    praha = netbox.add_group(netbox.add_site("praha"), [100, 400])
    netbox.add_vlan(115, group=praha)
    assert imported(netbox, token_file).pools == {"ostrava": VlanSet.parse("100-109,111-119,200-204,300")}


def test_vlans_of_many_groups_are_read_in_several_requests(
    netbox: EmulatedNetBox, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH", 2)
    for vid in (201, 202, 203):
        netbox.add_vlan(vid, group=netbox.add_group(1, [vid, vid], name=f"office-{vid}", tags=()))
    assert imported(netbox, token_file).pools == {"ostrava": VlanSet.parse("100-109,111-119,200,204,300")}


def test_a_site_that_returns_gets_the_pool_of_netbox(tmp_path: Path, token_file: Path) -> None:
    """SBF keeps the pool of a site that leaves the topology."""
    file = tmp_path / "netbox.yaml"
    with serve_netbox() as netbox, running_sbf() as url, SbfClient(url) as sbf:
        netbox.add_device(netbox.add_site("ostrava"), "node1", "server")
        netbox.slugs.add("access-switch")
        group = netbox.add_group(1, [100, 119])
        file.write_text(yaml.safe_dump(settings(netbox, token_file).model_dump(mode="json")), encoding="utf-8")
        runner = CliRunner(env={"VIRTCLOUD_URL": url})
        first = runner.invoke(main, ["netbox", "import", str(file), "--yes"])
        assert (first.exit_code, str(sbf.pool("ostrava").vlans)) == (0, "100-119"), first.output
        topology, version = sbf.versioned_topology()
        other = topology.sites[0].model_copy(update={"name": Name("praha"), "hosts": ()})
        sbf.put_topology(topology.model_copy(update={"sites": (other,)}), version)
        netbox.rows["groups"][group]["vid_ranges"] = [[150, 159]]
        again = runner.invoke(main, ["netbox", "import", str(file), "--yes"])
        assert (again.exit_code, str(sbf.pool("ostrava").vlans)) == (0, "150-159"), again.output
        assert runner.invoke(main, ["netbox", "diff", str(file)]).output.endswith("NetBox and SBF agree\n")


def test_a_group_of_an_older_netbox_has_one_range(netbox: EmulatedNetBox, token_file: Path) -> None:
    (group,) = netbox.rows["groups"].values()
    del group["vid_ranges"]
    group |= {"min_vid": 100, "max_vid": 112}
    assert imported(netbox, token_file).pools == {"ostrava": VlanSet.parse("100-109,111-112,300")}


def test_an_aggregate_is_one_link_with_its_members(netbox: EmulatedNetBox, token_file: Path) -> None:
    first, second, *_ = netbox.rows["devices"]
    bundles = [netbox.add_interface(first, "Po1"), netbox.add_interface(second, "Port-Channel1")]
    for number in (2, 3):
        a = netbox.add_interface(first, f"Gi1/0/{number}", lag=bundles[0])
        netbox.connect(a, netbox.add_interface(second, f"Ethernet{number}", lag=bundles[1]))
    topology = imported(netbox, token_file).topology
    assert next(link for link in topology.links if "Po" in link.a.port).b == "ostrava-sw2:Port-Channel1"
    assert topology.element("ostrava-sw1").aggregates == {"Po1": ("Gi1/0/2", "Gi1/0/3")}


def test_devices_without_the_tag_are_ignored(netbox: EmulatedNetBox, token_file: Path) -> None:
    netbox.add_device(1, "office-printer", "server", tags=())
    assert "office-printer" not in imported(netbox, token_file).topology.elements


def test_custom_fields_override_name_and_platform(netbox: EmulatedNetBox, token_file: Path) -> None:
    device = next(iter(netbox.rows["devices"].values()))
    device["custom_fields"] = {
        "virtcloud_name": "core1",
        "virtcloud_platform": "cisco_nxos",
        "virtcloud_credential": "x",
    }
    switch = imported(netbox, token_file).topology.element("core1")
    assert isinstance(switch, Switch)
    assert (switch.platform, switch.credential) == ("cisco_nxos", "x")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("9th floor", "got '9th floor': rename it, or set its custom field virtcloud_name"),
        (None, "got '': rename it, or set its custom field virtcloud_name"),
        ("node1.other.example.org", "also has the name node1: set virtcloud_name of one device"),
    ],
)
def test_an_unusable_name_is_reported_and_skipped(
    netbox: EmulatedNetBox, token_file: Path, name: str | None, problem: str
) -> None:
    netbox.add_device(1, name, "server")
    merged = imported(netbox, token_file)
    assert problem in "\n".join(merged.notes)
    assert len(merged.topology.elements) == 3


def test_parts_of_the_topology_unknown_to_netbox_stay(netbox: EmulatedNetBox, token_file: Path) -> None:
    former = imported(netbox, token_file).topology
    document = former.model_dump(mode="json")
    document["transports"] = [{"name": "core", "kind": "qinq", "s_tag": 2000}]
    document["sites"][0]["attachments"] = [{"transport": "core", "port": "ostrava-sw2:uplink"}]
    document["sites"][0]["switches"][1] |= {"ports": ["Ethernet1", "uplink"], "credential": "mine"}
    document["sites"][0]["hosts"][0]["hypervisors"] = ["qemu"]
    document["links"][0]["latency_ms"] = 2
    document["sites"] += three_sites().model_dump(mode="json")["sites"][:1]
    document["links"] += [link for link in three_sites().model_dump(mode="json")["links"] if "brno" in link["a"]]
    changed = Topology.model_validate(document)
    assert imported(netbox, token_file, changed).topology == changed


def test_an_attachment_at_a_member_of_an_aggregate_is_refused(netbox: EmulatedNetBox, token_file: Path) -> None:
    document = imported(netbox, token_file).topology.model_dump(mode="json")
    document["transports"] = [{"name": "core", "kind": "qinq", "s_tag": 2000}]
    document["sites"][0]["attachments"] = [{"transport": "core", "port": "ostrava-sw2:uplink"}]
    document["sites"][0]["switches"][1]["ports"] = ["Ethernet1", "uplink"]
    first, second, _ = netbox.rows["devices"]
    bundles = [netbox.add_interface(first, "Po1"), netbox.add_interface(second, "Port-Channel1")]
    member = netbox.add_interface(first, "Gi1/0/2", lag=bundles[0])
    netbox.connect(member, netbox.add_interface(second, "uplink", lag=bundles[1]))
    expected = "port ostrava-sw2:uplink: expected no member of an aggregate among the managed ports\ncorrect NetBox or"
    with pytest.raises(BadInput, match=expected):
        imported(netbox, token_file, Topology.model_validate(document))


def test_a_moved_cable_replaces_the_former_link(netbox: EmulatedNetBox, token_file: Path) -> None:
    former = imported(netbox, token_file).topology
    second, host = list(netbox.rows["devices"])[1:3]
    interface = next(row["id"] for row in netbox.rows["interfaces"].values() if row["name"] == "eth0")
    assert netbox.rows["interfaces"][interface]["device"]["id"] == host
    netbox.rows["interfaces"] = {key: row for key, row in netbox.rows["interfaces"].items() if row["name"] != "Gi1/0/1"}
    netbox.connect(interface, netbox.add_interface(second, "Ethernet7"))
    topology = imported(netbox, token_file, former).topology
    assert topology.peers["node1:eth0"] == "ostrava-sw2:Ethernet7"
    assert topology.element("ostrava-sw1").ports == ("Te1/1/1",)


def test_elements_that_netbox_lacks_are_removed_only_on_request(netbox: EmulatedNetBox, token_file: Path) -> None:
    former = imported(netbox, token_file).topology
    host = next(key for key, row in netbox.rows["devices"].items() if row["name"] == "node1")
    del netbox.rows["devices"][host]
    stays = imported(netbox, token_file, former)
    assert "node1 is not in NetBox: SBF keeps the element" in stays.notes
    assert "node1" in stays.topology.elements
    assert "node1" not in imported(netbox, token_file, former, prune=True).topology.elements


def test_a_moved_device_leaves_its_former_site(netbox: EmulatedNetBox, token_file: Path) -> None:
    sites = {"sites": ["ostrava", "brno"]}
    brno = netbox.add_site("brno")
    former = merge(read(netbox, token_file, **sites), None).topology
    switch = next(row for row in netbox.rows["devices"].values() if row["name"] == "ostrava-sw2")
    switch["site"] = netbox.rows["sites"][brno]
    moved = merge(read(netbox, token_file, **sites), former)
    assert "ostrava-sw2 moves from site ostrava to site brno, as in NetBox" in moved.notes
    assert {site.name: [each.name for each in site.switches] for site in moved.topology.sites} == {
        "ostrava": ["ostrava-sw1"],
        "brno": ["ostrava-sw2"],
    }


def test_a_device_with_another_role_becomes_another_element(netbox: EmulatedNetBox, token_file: Path) -> None:
    former = imported(netbox, token_file).topology
    devices = {row["name"]: row for row in netbox.rows["devices"].values()}
    server, switch = devices["node1"], devices["ostrava-sw2"]
    server["role"], switch["role"] = switch["role"], server["role"]
    server["platform"] = switch["platform"]
    (site,) = imported(netbox, token_file, former).topology.sites
    assert [element.name for element in site.switches] == ["ostrava-sw1", "node1"]
    assert [element.name for element in site.hosts] == ["ostrava-sw2"]


def test_a_missing_permission_names_the_list_and_the_token(netbox: EmulatedNetBox, token_file: Path) -> None:
    netbox.denied = {"interfaces"}
    expected = (
        r"refuses to list interfaces \(You do not have permission.*check token_file .*permission to view interfaces"
    )
    with pytest.raises(BadInput, match=expected):
        read(netbox, token_file)


def test_an_invalid_token_is_not_shown(netbox: EmulatedNetBox, token_file: Path) -> None:
    token_file.write_text("f" * 40, encoding="utf-8")
    with pytest.raises(BadInput, match=r"refuses to list sites \(Invalid v1 token\)") as raised:
        read(netbox, token_file)
    assert "ffff" not in str(raised.value)


def test_a_token_of_version_2_is_accepted(netbox: EmulatedNetBox, token_file: Path) -> None:
    token_file.write_text(TOKEN_V2, encoding="utf-8")
    assert imported(netbox, token_file).pools


def test_an_unknown_role_is_reported_with_netboxs_message(netbox: EmulatedNetBox, token_file: Path) -> None:
    with pytest.raises(
        BadInput, match=r"\(role: Select a valid choice. tor is not one.*check the slugs of tag and roles"
    ):
        read(netbox, token_file, switch_roles=["tor"])


def test_members_of_a_virtual_chassis_are_one_switch(netbox: EmulatedNetBox, token_file: Path) -> None:
    first, second, host = netbox.rows["devices"]
    chassis = {"id": 1, "name": "stack1", "master": {"id": first}}
    for device in (first, second):
        netbox.rows["devices"][device]["virtual_chassis"] = chassis
    netbox.connect(netbox.add_interface(second, "Gi2/0/1"), netbox.add_interface(host, "eth1"))
    topology = imported(netbox, token_file).topology
    assert [switch.name for switch in topology.sites[0].switches] == ["ostrava-sw1"]
    assert topology.peers["node1:eth1"] == "ostrava-sw1:Gi2/0/1"


def test_a_breakout_cable_is_named_and_becomes_no_link(netbox: EmulatedNetBox, token_file: Path) -> None:
    first, _, host = netbox.rows["devices"]
    shared = netbox.add_interface(first, "Gi1/0/30")
    for name in ("eth8", "eth9"):
        netbox.connect(netbox.add_interface(host, name), shared)
    merged = imported(netbox, token_file)
    expected = "port ostrava-sw1:Gi1/0/30: expected a cable to one port, found node1:eth8, node1:eth9"
    assert expected in "\n".join(merged.notes)
    assert len(merged.topology.links) == 2


def test_an_unknown_site_names_the_slug(netbox: EmulatedNetBox, token_file: Path) -> None:
    with pytest.raises(BadInput, match="found no liberec: check the slugs"):
        read(netbox, token_file, sites=["ostrava", "liberec"])


def test_a_broken_netbox_is_unreachable(netbox: EmulatedNetBox, token_file: Path) -> None:
    netbox.broken = 502
    with pytest.raises(ServiceUnreachable, match="answered 502 to the list of sites"):
        read(netbox, token_file)
    netbox.broken = 200
    with pytest.raises(BadInput, match="got an answer that is no JSON: check the url"):
        read(netbox, token_file)


def test_a_missing_token_file_is_named_with_the_cause(netbox: EmulatedNetBox) -> None:
    with pytest.raises(BadInput, match=r"^token_file /nowhere/token: cannot be read: No such file or directory$"):
        read(netbox, Path("/nowhere/token"))


def test_a_netbox_that_is_down_is_unreachable(token_file: Path) -> None:
    with serve_netbox() as netbox:
        pass
    with pytest.raises(ServiceUnreachable, match=r"does not answer: Connection refused: check the url"):
        read(netbox, token_file)


def test_a_list_that_changes_between_its_pages_is_refused(
    netbox: EmulatedNetBox, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first page was read, one of its devices is deleted. Later devices then move up.

    The second page therefore lacks a device.
    """
    list_rows = netbox._list

    def list_and_delete(path: str, kind: str, query: dict[str, list[str]]) -> HttpAnswer:
        answer = list_rows(path, kind, query)
        if kind == "devices" and len(netbox.rows[kind]) == 3:
            del netbox.rows[kind][min(netbox.rows[kind])]
        return answer

    monkeypatch.setattr(netbox, "_list", list_and_delete)
    with pytest.raises(ServiceUnreachable, match="expected 3 devices, got 2: the list changed between two pages"):
        read(netbox, token_file)


def test_a_login_in_netrc_does_not_replace_the_token(
    netbox: EmulatedNetBox, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = token_file.with_name("netrc")
    netrc.write_text("default login anonymous password guest\n", encoding="ascii")
    monkeypatch.setenv("NETRC", str(netrc))
    assert read(netbox, token_file).devices


def test_the_machines_authorities_are_trusted_by_default(
    netbox: EmulatedNetBox, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ssl.get_default_verify_paths()._replace(cafile="/of/the/machine.pem")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: machine)
    with pytest.raises(ServiceUnreachable, match=r"does not answer: .* /of/the/machine\.pem: check the url, ca_file"):
        read(netbox, token_file, url="https://127.0.0.1:1")


def test_the_environments_authorities_do_not_replace_ca_file(
    netbox: EmulatedNetBox, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that ``ca_file`` names is missing. The HTTP library reports this before it connects to NetBox."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/of/the/environment.pem")
    with pytest.raises(ServiceUnreachable, match=r"does not answer: .* /of/netbox\.pem: check the url, ca_file"):
        read(netbox, token_file, url="https://127.0.0.1:1", ca_file="/of/netbox.pem")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "http://netbox.example.org"}, "expected an address with https"),
        ({"switch_roles": []}, "expected at least one role of switches"),
        ({"host_roles": ["access-switch"]}, "got access-switch in both lists"),
        ({"sites": []}, "expected at least 1 item"),
    ],
)
def test_a_wrong_setting_is_refused(netbox: EmulatedNetBox, change: dict[str, object], message: str) -> None:
    text = yaml.safe_dump(settings(netbox, None).model_dump(mode="json") | change)
    with pytest.raises(BadInput, match=message):
        read_document(text, "netbox.yaml", NetBoxFile)
