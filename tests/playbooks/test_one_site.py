"""Tests of the Ansible playbooks on machines with systemd. The tests run in order, from installation to removal."""

import copy
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.emulators.switch_device import PASSWORD
from support.installation import access_link
from support.installation.ansible_machines import Site, count_changes, make_newer_archive

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]  # with VIRTCLOUD_REQUIRE_LAB, a skip is a failure
CLI = "virtcloud --url unix:///run/virtcloud/sbf.sock"
ADDRESSES = {"sbf1": "10.99.0.11", "brno-h1": "10.99.0.12", "brno-gw": "10.99.0.13"}
TOPOLOGY = """
name: one-site
sites:
  - name: brno
    switches:
      - name: brno-sw1
        platform: cisco_ios
        address: SWITCH
        credential: site-brno
        ports: [GigabitEthernet1/0/1, GigabitEthernet1/0/2]
    hosts:
      - {name: brno-h1, ports: [data0]}
    gateways:
      - {name: brno-gw, ports: [host0], vpn: {address: 10.99.0.13}}
links:
  - {a: "brno-h1:data0", b: "brno-sw1:GigabitEthernet1/0/1", access: true}
  - {a: "brno-gw:host0", b: "brno-sw1:GigabitEthernet1/0/2"}
"""
# Checks that may fail here: the machines use the computer's kernel. This kernel may lack 802.1Q, and may pass bridged
# frames through the packet filter.
ACCEPTED = ["802.1Q interfaces, bridges, veth", "bridged frames stay out of the packet filter"]
SHOW_CREDENTIAL = "cat /etc/virtcloud/agent.token"
PROCESSES = "systemctl show --property=MainPID --value virtcloud-agent virtcloud-sbf | tr -d '\\n'"
END_THE_CERTIFICATE = (
    "cd /etc/virtcloud && openssl req -new -key sbf.key -subj /CN=sbf1 -addext subjectAltName=DNS:sbf1 | "
    "openssl x509 -req -CA authority.crt -CAkey authority.key -days 3 -copy_extensions copy -out sbf.crt 2>/dev/null"
)


@pytest.fixture(scope="module")
def described(site: Site) -> Iterator[Site]:
    """The site with an inventory of SBF, one host, one gateway and a switch. Nothing is installed yet."""
    access_link.prepare_host(site, "brno-h1")
    topology = site.folder / "topology.yaml"
    sbf: dict[str, object] = {
        "sbf_topology": str(topology),
        "sbf_pools": {"brno": "100-199"},
        "sbf_settings": access_link.SETTINGS,
        "sbf_files": access_link.write_secrets(site),
    }
    groups: dict[str, tuple[str, dict[str, object]]] = {
        "sbf": ("sbf1", sbf),
        "guest_hosts": ("brno-h1", {"agent_accepted_faults": ACCEPTED, "agent_settings": access_link.AGENT_SETTINGS}),
        "gateways": ("brno-gw", {"agent_accepted_faults": ACCEPTED}),
    }
    for group, (name, variables) in groups.items():
        site.inventory[group] = {"hosts": {name: {"ansible_host": ADDRESSES[name], **variables}}}
    with access_link.running_switch(site) as switch:
        topology.write_text(TOPOLOGY.replace("SWITCH", switch))
        yield site


@pytest.fixture(scope="module")
def installed(described: Site) -> Site:
    """Run ``site.yml`` four times, and kill each run at a different task. Then run ``site.yml`` to the end."""
    for task in (
        "certificate : Write the request",
        "program : Install the Python packages",
        "sbf : Install the service",
        "sbf : Set the pools",
    ):
        described.kill_at("site.yml", task)
    play = described.play("site.yml")
    assert play.returncode == 0, play.stdout[-6000:] + play.stderr
    return described


@dataclass(frozen=True)
class Change:
    """The observations of one run of ``site.yml`` that makes three changes.

    The fixture :func:`change` prepares the three changes: it adds a setting of brno-h1 to the inventory, deletes the
    token of brno-gw, and replaces SBF's certificate by a certificate that expires soon. ``checked`` is the same run in
    check mode. ``processes`` and ``tokens`` are pairs of values before and after the run. ``processes`` contains the
    process IDs of the services by machine. ``tokens`` contains the token of the gateway's agent.
    """

    site: Site
    checked: subprocess.CompletedProcess[str]
    settings_after_check: str
    play: subprocess.CompletedProcess[str]
    processes: tuple[dict[str, str], dict[str, str]]
    tokens: tuple[str, str]


@pytest.fixture(scope="module")
def change(installed: Site) -> Change:
    """Prepare the three changes. Run ``site.yml`` in check mode, then without check mode. Return the observations."""
    token = installed.read("brno-gw", SHOW_CREDENTIAL).strip()
    installed.read("brno-gw", "rm /etc/virtcloud/agent.token")
    installed.read("sbf1", END_THE_CERTIFICATE)
    installed.inventory["guest_hosts"]["hosts"]["brno-h1"]["agent_settings"] += "[timing]\ncheck = 45\n"
    before = {machine: installed.read(machine, PROCESSES) for machine in ADDRESSES}
    checked = installed.play("site.yml", "--check", "--diff")
    settings = installed.read("brno-h1", "cat /etc/virtcloud/agent.toml")
    play = installed.play("site.yml", "--diff", "-vvv")
    after = {machine: installed.read(machine, PROCESSES) for machine in ADDRESSES}
    new = installed.read("brno-gw", SHOW_CREDENTIAL).strip()
    return Change(installed, checked, settings, play, (before, after), (token, new))


def list_elements(site: Site) -> dict[str, dict[str, object]]:
    return {element["name"]: element for element in json.loads(site.read("sbf1", f"{CLI} element list --json"))}


def test_check_mode_installs_nothing(described: Site) -> None:
    changes = count_changes(described.play("site.yml", "--check", "--diff"))
    assert [machine for machine in ADDRESSES if not changes[machine]] == []
    for machine in ADDRESSES:
        assert described.read(machine, "ls /opt; ls -d /etc/virtcloud 2>/dev/null || true") == ""


def test_agents_of_hosts_and_gateways_reach_sbf(installed: Site) -> None:
    elements = list_elements(installed)
    assert {name for name, element in elements.items() if element["last_seen"]} >= {"brno-h1", "brno-gw"}


def test_topology_and_pools_are_loaded(installed: Site) -> None:
    assert installed.read("sbf1", f"{CLI} pool show brno").split() == ["100-199"]
    assert set(list_elements(installed)) == {"brno-h1", "brno-gw", "brno-sw1"}


def test_guests_of_the_first_cluster_reach_each_other(installed: Site) -> None:
    access_link.add_image(installed, "sbf1", CLI)
    with access_link.agent_with_containers(installed, "brno-h1"):
        installed.read("sbf1", f"{CLI} cluster create first --host brno-h1 --guests-per-host 2 --image busybox")
        guest = "nsenter --target $(pgrep -f '^/bin/sh /sbin/init' | head -1) --mount --net --root"
        pings = [f"{guest} /bin/busybox ping -c 1 -w 20 10.0.0.{number}" for number in (1, 2)]
        installed.read("brno-h1", " && ".join(pings))
        installed.read("sbf1", f"{CLI} cluster delete first --yes")
        assert installed.read("brno-h1", "virsh --connect lxc:///system list --all --name").split() == []


def test_a_second_run_changes_nothing(installed: Site) -> None:
    assert set(count_changes(installed.play("site.yml")).values()) == {0}


def test_only_one_account_can_read_each_secret(installed: Site) -> None:
    modes = "stat -c '%n %a %U' /etc/virtcloud/*"
    sbf = {row.split()[0].rpartition("/")[2]: row.split()[1:] for row in installed.read("sbf1", modes).splitlines()}
    assert [sbf[name] for name in ("authority.key", "sbf.key", "site-brno.password")] == [
        ["600", "root"],
        ["600", "virtcloud"],
        ["600", "virtcloud"],
    ]
    assert "/etc/virtcloud/agent.token 600 root" in installed.read("brno-h1", modes).splitlines()


def test_the_output_contains_no_secret(change: Change) -> None:
    former, new = change.tokens
    assert count_changes(change.play)["brno-gw"] == 2
    output = change.play.stdout + change.play.stderr
    assert (former in output, new in output, PASSWORD in output, new == former) == (False,) * 4


def test_check_mode_shows_a_changed_setting(change: Change) -> None:
    assert "+check = 45" in change.checked.stdout
    assert "check = 45" not in change.settings_after_check


def test_check_mode_names_the_machines_that_change(change: Change) -> None:
    checked, done = count_changes(change.checked), count_changes(change.play)
    assert {name for name in done if done[name]} == {name for name in checked if checked[name]} == set(ADDRESSES)


def test_a_changed_setting_restarts_only_its_agent(change: Change) -> None:
    before, after = change.processes
    assert {machine for machine in before if before[machine] != after[machine]} == {"brno-h1"}


def test_a_certificate_that_expires_soon_is_renewed(change: Change) -> None:
    assert count_changes(change.play)["sbf1"] == 2
    change.site.read("sbf1", "openssl x509 -in /etc/virtcloud/sbf.crt -noout -checkend 31536000")
    presented = "openssl s_client -connect sbf1:8800 </dev/null 2>/dev/null | openssl x509 -noout -checkend 31536000"
    change.site.read("brno-h1", presented)


def test_an_upgrade_keeps_the_tokens_and_runs_the_new_version(installed: Site) -> None:
    token = installed.read("brno-h1", SHOW_CREDENTIAL)
    variables = installed.inventory["all"]["vars"]
    variables["program_archive"] = str(make_newer_archive(Path(variables["program_archive"]), installed.folder))
    before = installed.read("brno-h1", "readlink /opt/virtcloud")
    installed.kill_at("site.yml", "sbf : Install the service")  # the service still runs the former version
    changes = count_changes(installed.play("site.yml"))
    assert [name for name in ADDRESSES if not changes[name]] == []
    assert installed.read("brno-h1", "readlink /opt/virtcloud") != before
    for machine, unit in (("sbf1", "virtcloud-sbf"), ("brno-h1", "virtcloud-agent")):
        maps = f"/proc/$(systemctl show --property=MainPID --value {unit})/maps"
        installed.read(machine, f"grep -q $(readlink /opt/virtcloud)/lib {maps}")
    assert installed.read("brno-h1", SHOW_CREDENTIAL) == token


def test_the_error_names_an_element_outside_the_topology(installed: Site) -> None:
    right = copy.deepcopy(installed.inventory["guest_hosts"])
    installed.inventory["guest_hosts"]["hosts"]["brno-h1"].update(agent_accepted_faults=[], agent_element="brno-h9")
    play = installed.play("site.yml", "--limit", "localhost,brno-h1")
    installed.inventory["guest_hosts"] = right
    assert play.returncode != 0
    assert "brno-h9" in play.stdout + play.stderr


def test_uninstalling_is_refused_while_sbf_does_not_answer(installed: Site) -> None:
    installed.read("sbf1", "systemctl stop virtcloud-sbf")
    play = installed.play("uninstall.yml")
    installed.read("sbf1", "systemctl start virtcloud-sbf")
    assert "Start SBF (systemctl start virtcloud-sbf)" in play.stdout
    assert installed.read("brno-h1", "systemctl is-enabled virtcloud-agent") == "enabled\n"


def test_uninstalling_leaves_nothing(installed: Site) -> None:
    count_changes(installed.play("uninstall.yml", "-e", "uninstall_data=true"))
    for machine in ADDRESSES:
        files = "find / -xdev -iname '*virtcloud*'; getent passwd virtcloud"
        rest = f"{files}; pgrep -a -x 'openvpn|virtcloud|sbf'; nft list tables | grep virtcloud; true"
        assert installed.read(machine, rest) == ""
