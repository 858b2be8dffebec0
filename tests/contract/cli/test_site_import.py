"""Tests of ``virtcloud site import`` on emulated switches. The command changes no switch."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from support.emulators import EMULATED_PLATFORMS, emulate
from support.emulators.lldp_output import LldpPeer
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.survey import survey_site
from virtcloud.cli import main
from virtcloud.model.errors import BadInput
from virtcloud.model.site import SitePart
from virtcloud.model.site_survey import SiteSurvey, SurveyRequest
from virtcloud.model.vlans import VlanSet

Completed = CompletedProcess[str]
ANSWER_S = 5


def write_secrets(folder: Path, switch: EmulatedSwitch) -> dict[str, object]:
    (folder / "password").write_text(f"{switch.password}\n", encoding="utf-8")
    (folder / "enable").write_text(f"{switch.secret}\n", encoding="utf-8")
    sources = {key: {"file": str(folder / key)} for key in ("password", "enable")}
    return {"username": switch.username, **sources}


def describe(folder: Path, switches: Mapping[str, EmulatedSwitch], **more: object) -> str:
    credentials = {"viewer": write_secrets(folder, next(iter(switches.values())))}
    entries = [
        {"name": name, "address": switch.address, "platform": switch.platform, "credential": "viewer"}
        for name, switch in switches.items()
    ]
    return yaml.safe_dump({"site": "ostrava", "switches": entries, "credentials": credentials, **more})


def survey(text: str, **options: object) -> SiteSurvey:
    return survey_site(SurveyRequest(text=text, source="site.yaml", timeout_s=ANSWER_S, **options))


@pytest.fixture
def site_import(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Completed]:
    """Return a function that writes a site file and runs the command in this process.

    The drivers of the switches run in a child process.
    """

    def run(text: str, *arguments: object) -> Completed:
        file = tmp_path / "site.yaml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit) as end:
            main(["site", "import", str(file), "--timeout", str(ANSWER_S), *map(str, arguments)])
        output = capfd.readouterr()
        return Completed([], int(end.value.code or 0), output.out, output.err)

    return run


@pytest.mark.parametrize("platform", EMULATED_PLATFORMS)
def test_a_survey_sends_no_configuration_command(platform: str, tmp_path: Path) -> None:
    with emulate(platform) as switch:
        switch.occupy(vlans={20: "offices"}, trunks={switch.port_names[0]: [20]})
        recorder, before, startup = switch.record_changes(), switch.running_config(), switch.config_of(switch.startup)
        found = survey(describe(tmp_path, {"sw1": switch}))
        assert found.faults == ()
        assert 20 in {vlan.vlan for vlan in found.vlans}
        assert 20 not in found.free
        assert recorder.changes == []
        assert (switch.running_config(), switch.config_of(switch.startup), switch.saves) == (before, startup, 0)


def two_switches(stack: ExitStack) -> tuple[EmulatedSwitch, EmulatedSwitch]:
    """Return two linked switches of different vendors. A host is connected to the first."""
    first, second = (stack.enter_context(emulate(platform)) for platform in ("cisco_ios", "arista_eos"))
    a, b, c = first.port_names[:3]
    x = second.port_names[0]
    first.peers = {a: LldpPeer("sw2.example.org", x, x), b: LldpPeer("node1", "02:00:00:00:00:01", "eth0")}
    first.peers[c] = LldpPeer("printer", "1")
    second.peers = {x: LldpPeer("sw1", "Gi1/0/1")}
    first.occupy(vlans={20: "offices", 30: "staff"}, access={c: 20})
    second.occupy(vlans={20: "labs"}, trunks={x: [20, 40]})
    return first, second


def test_both_ends_of_a_cable_make_one_link(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = two_switches(stack)
        found = survey(describe(tmp_path, {"sw1": first, "sw2": second}, hosts=["node*"]))
    links = {frozenset((link.a, link.b)) for link in found.draft.links}
    assert links == {
        frozenset(("sw1:GigabitEthernet1/0/1", "sw2:Ethernet1")),
        frozenset(("sw1:GigabitEthernet1/0/2", "node1:eth0")),
    }
    assert [(other.name, other.port) for other in found.others] == [("printer", "GigabitEthernet1/0/3")]


def test_vlans_are_listed_with_names_and_ports_of_all_switches(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = two_switches(stack)
        found = survey(describe(tmp_path, {"sw1": first, "sw2": second}))
    vlans = {int(vlan.vlan): vlan for vlan in found.vlans}
    assert vlans[20].names == {"sw1": "offices", "sw2": "labs"}
    assert vlans[20].ports == {"sw1": ("GigabitEthernet1/0/3",), "sw2": ("Ethernet1",)}
    assert vlans[40].ports == {"sw2": ("Ethernet1",)}
    assert "VLAN 20 has different names: 'offices' on sw1, 'labs' on sw2" in "\n".join(found.notes)


def test_the_proposed_pool_avoids_every_vlan_in_use(tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        switch.occupy(vlans={150: "offices"}, trunks={switch.port_names[0]: [230]})
        found = survey(describe(tmp_path, {"sw1": switch}), pool_size=60)
    assert found.pool == VlanSet.parse("151-210")
    assert not found.free & [1, 150, 230, 1002, 1006]


def test_an_unreachable_switch_does_not_prevent_other_switches_results(
    site_import: Callable[..., Completed], tmp_path: Path
) -> None:
    with emulate("cisco_ios") as switch:
        switch.occupy(vlans={20: "offices"})
        document = yaml.safe_load(describe(tmp_path, {"sw1": switch}))
        lost = {"name": "sw2", "address": "127.0.0.1:1", "platform": "cisco_ios", "credential": "viewer"}
        document["switches"].append(lost)
        ended = site_import(yaml.safe_dump(document))
    assert ended.returncode == 1
    assert "site ostrava: read 1 of 2 switches" in ended.stdout
    assert "offices" in ended.stdout
    assert (
        "check the address 127.0.0.1:1, the platform cisco_ios, the credential viewer, and the network to the switch"
        in ended.stderr
    )
    assert "SBF tries again" not in ended.stderr
    assert "the VLANs of sw2 are unknown" in ended.stdout


def test_without_a_reading_no_pool_is_proposed(site_import: Callable[..., Completed], tmp_path: Path) -> None:
    lost = {"name": "sw1", "address": "127.0.0.1:1", "platform": "cisco_ios", "credential": "viewer"}
    document = {"site": "ostrava", "switches": [lost], "credentials": {"viewer": {"username": "x"}}}
    ended = site_import(yaml.safe_dump(document), "--write", tmp_path / "draft.yaml")
    assert "no VLAN was read" in ended.stderr
    assert "free VLAN IDs: none\nproposed pool: none\n" in ended.stdout
    assert not (tmp_path / "draft.yaml").exists()
    assert "no draft was written, because no switch could be read" in ended.stdout
    assert "LLDP shows no cable" not in ended.stdout


def test_odd_characters_of_a_neighbours_name_are_replaced(tmp_path: Path) -> None:
    with emulate("arista_eos") as switch:
        switch.peers = {switch.port_names[0]: LldpPeer("printer\u202e", "1\u202e")}
        (other,) = survey(describe(tmp_path, {"sw1": switch})).others
    assert (other.name, other.neighbour_port) == ("printer\ufffd", "1\ufffd")


def test_a_wrong_platform_is_named_in_the_error(tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        document = yaml.safe_load(describe(tmp_path, {"sw1": switch}))
        document["switches"][0]["platform"] = "hp_comware"
        request = SurveyRequest(text=yaml.safe_dump(document), source="site.yaml", timeout_s=1)
        (fault,) = survey_site(request).faults
    assert "the platform hp_comware, the credential viewer, and the network" in fault


@pytest.mark.parametrize(
    ("secret", "fault"),
    [
        ("password", "refuses the login of 'admin': check the credential"),
        ("enable", "refuses the privileged mode: check the credential's 'enable'"),
    ],
)
def test_a_refused_login_does_not_blame_the_platform(secret: str, fault: str, tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        text = describe(tmp_path, {"sw1": switch})
        (tmp_path / secret).write_text("wrong\n", encoding="utf-8")
        assert survey(text).faults == (f"switch sw1 ({switch.address}) {fault}",)


def test_a_switch_without_lldp_is_named_with_the_remedy(tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        found = survey(describe(tmp_path, {"sw1": switch}))
    assert found.draft.site.switches == ()
    assert "switch sw1 is not in the draft, because LLDP shows no cable of this switch: enable LLDP" in found.notes[0]


def test_odd_characters_of_a_vlan_name_are_replaced(tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        switch.occupy(vlans={20: "of\u00a0fices\u202e"})
        found = survey(describe(tmp_path, {"sw1": switch}))
    (name,) = next(vlan.names for vlan in found.vlans if vlan.vlan == 20).values()
    assert name.isprintable()


def test_a_port_in_other_use_is_named_with_its_use(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = two_switches(stack)
        found = survey(describe(tmp_path, {"sw1": first, "sw2": second}))
    assert (
        "port sw2:Ethernet1 is a trunk with VLAN 20,40: SBF changes the port only after its adoption "
        "(virtcloud element adopt sw2 Ethernet1)"
    ) in found.notes


def test_the_draft_is_accepted_by_topology_check(
    site_import: Callable[..., Completed], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft.yaml"
    with ExitStack() as stack:
        first, second = two_switches(stack)
        text = describe(tmp_path, {"sw1": first, "sw2": second}, hosts=["node*"])
        ended = site_import(text, "--write", draft)
    assert ended.returncode == 0, ended.stderr
    assert "nothing was changed" in ended.stdout
    part = SitePart.model_validate(yaml.safe_load(draft.read_text(encoding="utf-8")))
    assert [switch.name for switch in part.site.switches] == ["sw1", "sw2"]
    with pytest.raises(SystemExit) as end:
        main(["topology", "check", str(draft)])
    assert (end.value.code, capfd.readouterr().out) == (0, "topology ostrava: 1 site, 3 elements, 2 links\n")


def test_json_contains_the_whole_survey(site_import: Callable[..., Completed], tmp_path: Path) -> None:
    with emulate("cisco_ios") as switch:
        ended = site_import(describe(tmp_path, {"sw1": switch}), "--json")
    assert SiteSurvey.model_validate(json.loads(ended.stdout)).site == "ostrava"


SWITCH = {"name": "sw1", "address": "192.0.2.1", "platform": "cisco_ios", "credential": "viewer"}


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ([], "site.yaml:2: switches: expected at least 1 item"),
        ([SWITCH, {**SWITCH, "name": "sw2"}], "got 192.0.2.1 for sw1 and sw2: correct the address, or list the switch"),
        ([SWITCH, {**SWITCH, "address": "192.0.2.2"}], "expected each switch to have its own name, got sw1 twice"),
        ([{**SWITCH, "platform": "cisco"}], "switch sw1: expected a known platform (aris"),
        ([{**SWITCH, "platform": "simulated"}], "switch sw1: platform simulated exists only in 'virtcloud up'"),
        ([{**SWITCH, "credential": "admin"}], "switch sw1: expected a known credential (viewer), got admin: add it to"),
        ([{**SWITCH, "port": "Gi1"}], "switches.0.port: unknown key; check its spelling"),
    ],
)
def test_bad_input_contacts_no_switch(switches: list[object], message: str) -> None:
    text = yaml.safe_dump(
        {"site": "ostrava", "switches": switches, "credentials": {"viewer": {"username": "x"}}}, sort_keys=False
    )
    with pytest.raises(BadInput) as raised:
        survey(text)
    assert message in str(raised.value)


def test_an_existing_draft_is_not_overwritten(site_import: Callable[..., Completed], tmp_path: Path) -> None:
    (tmp_path / "draft.yaml").write_text("mine", encoding="utf-8")
    ended = site_import("site: ostrava", "--write", tmp_path / "draft.yaml")
    assert ended.returncode == 2
    assert "the file exists; name another file, or remove it" in ended.stderr


def test_each_error_of_a_file_begins_with_the_command(site_import: Callable[..., Completed], tmp_path: Path) -> None:
    ended = site_import("x: 1")
    assert ended.returncode == 2
    assert [line.partition(" ")[0] for line in ended.stderr.splitlines()] == ["virtcloud:"] * 3
    assert site_import("").stderr.endswith(", got an empty document\n")


def test_a_file_in_another_encoding_is_bad_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.yaml").write_bytes("site: jičín".encode("iso8859-2"))
    with pytest.raises(SystemExit) as end:
        main(["site", "import", str(tmp_path / "latin.yaml")])
    assert end.value.code == 2
    assert "latin.yaml:1: expected YAML in UTF-8, got other bytes" in capfd.readouterr().err
