"""Ansible's playbooks on machines with systemd. The tests run in the order of an installation's life."""

import copy
import json
from pathlib import Path

import pytest
from ansible_machines import Site, count_changes, make_newer_archive

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]  # VIRTCLOUD_REQUIRE_LAB forbids a skip
CLI = "virtcloud --url unix:///run/virtcloud/sbf.sock"


def list_elements(site: Site) -> dict[str, dict[str, object]]:
    """Return SBF's elements by name."""
    return {element["name"]: element for element in json.loads(site.read("sbf1", f"{CLI} element list --json"))}


def test_check_mode_installs_nothing(site: Site) -> None:
    changes = count_changes(site.play("site.yml", "--check", "--diff"))
    assert [machine for machine in ("sbf1", "brno-h1", "brno-gw") if not changes[machine]] == []
    for machine in ("sbf1", "brno-h1", "brno-gw"):
        assert site.read(machine, "ls /opt; ls -d /etc/virtcloud 2>/dev/null || true") == ""


def test_agents_of_hosts_and_gateways_reach_sbf(installed: Site) -> None:
    elements = list_elements(installed)
    assert {name for name, element in elements.items() if element["last_seen"]} == {"brno-h1", "brno-gw"}


def test_topology_and_pools_are_loaded(installed: Site) -> None:
    assert installed.read("sbf1", f"{CLI} pool show brno").split() == ["100-199"]
    assert set(list_elements(installed)) == {"brno-h1", "brno-gw", "brno-sw1"}


def test_a_second_run_changes_nothing(installed: Site) -> None:
    assert set(count_changes(installed.play("site.yml")).values()) == {0}


def test_secrets_have_one_reader(installed: Site) -> None:
    modes = "stat -c '%n %a %U' /etc/virtcloud/*"
    sbf = {row.split()[0].rpartition("/")[2]: row.split()[1:] for row in installed.read("sbf1", modes).splitlines()}
    assert [sbf[name] for name in ("authority.key", "sbf.key", "site-brno.password")] == [
        ["600", "root"],
        ["600", "virtcloud"],
        ["600", "virtcloud"],
    ]
    assert "/etc/virtcloud/agent.token 600 root" in installed.read("brno-h1", modes).splitlines()


def test_the_output_contains_no_secret(installed: Site) -> None:
    token = installed.read("brno-h1", "cat /etc/virtcloud/agent.token").strip()
    installed.read("brno-h1", "rm /etc/virtcloud/agent.token")
    play = installed.play("site.yml", "--limit", "sbf1,brno-h1", "--diff", "-vvv")
    assert count_changes(play)["brno-h1"] == 2
    new = installed.read("brno-h1", "cat /etc/virtcloud/agent.token").strip()
    output = play.stdout + play.stderr
    assert (token in output, new in output, "secret of the switch" in output, new == token) == (False,) * 4


def test_check_mode_shows_a_changed_setting(installed: Site) -> None:
    host = installed.inventory["guest_hosts"]["hosts"]["brno-h1"]
    host["agent_settings"] = "[timing]\ncheck = 45\n"
    play = installed.play("site.yml", "--check", "--diff")
    assert count_changes(play)["sbf1"] == 0
    assert "+check = 45" in play.stdout
    assert "check = 45" not in installed.read("brno-h1", "cat /etc/virtcloud/agent.toml")


def test_a_changed_setting_restarts_only_its_agent(installed: Site) -> None:
    process = "systemctl show --property=MainPID --value virtcloud-agent virtcloud-sbf | tr -d '\\n'"
    before = {machine: installed.read(machine, process) for machine in ("sbf1", "brno-h1", "brno-gw")}
    count_changes(installed.play("site.yml"))
    after = {machine: installed.read(machine, process) for machine in before}
    assert {machine for machine in before if before[machine] != after[machine]} == {"brno-h1"}


def test_an_ending_certificate_is_renewed(installed: Site) -> None:
    renew = (
        "cd /etc/virtcloud && openssl req -new -key sbf.key -subj /CN=sbf1 -addext subjectAltName=DNS:sbf1 | "
        "openssl x509 -req -CA authority.crt -CAkey authority.key -days 3 -copy_extensions copy "
        "-out sbf.crt 2>/dev/null"
    )
    installed.read("sbf1", renew)
    assert count_changes(installed.play("site.yml", "--limit", "sbf1"))["sbf1"] == 2
    installed.read("sbf1", "openssl x509 -in /etc/virtcloud/sbf.crt -noout -checkend 31536000")
    presented = "openssl s_client -connect sbf1:8800 </dev/null 2>/dev/null | openssl x509 -noout -checkend 31536000"
    installed.read("brno-h1", presented)


def test_an_upgrade_keeps_the_tokens_and_runs_the_new_version(installed: Site) -> None:
    token = installed.read("brno-h1", "cat /etc/virtcloud/agent.token")
    variables = installed.inventory["all"]["vars"]
    variables["program_archive"] = str(make_newer_archive(Path(variables["program_archive"])))
    before = installed.read("brno-h1", "readlink /opt/virtcloud")
    installed.kill_at("site.yml", "sbf : Install the service")  # after the switch, before the restart
    changes = count_changes(installed.play("site.yml"))
    assert [name for name in ("sbf1", "brno-h1", "brno-gw") if not changes[name]] == []
    assert installed.read("brno-h1", "readlink /opt/virtcloud") != before
    for machine, unit in (("sbf1", "virtcloud-sbf"), ("brno-h1", "virtcloud-agent")):
        maps = f"/proc/$(systemctl show --property=MainPID --value {unit})/maps"
        installed.read(machine, f"grep -q $(readlink /opt/virtcloud)/lib {maps}")
    assert installed.read("brno-h1", "cat /etc/virtcloud/agent.token") == token


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"all": {"vars": {"program_archive": "/nowhere.tar"}}},
            "/nowhere.tar does not exist on the machine that runs Ansible.",
        ),
        ({"guest_hosts": {"hosts": {"brno-h1": {"agent_accepted_faults": [], "agent_element": "brno-h9"}}}}, "brno-h9"),
    ],
    ids=["no archive", "unknown element"],
)
def test_a_wrong_inventory_is_explained(installed: Site, change: dict[str, dict[str, object]], message: str) -> None:
    right = copy.deepcopy(installed.inventory)
    try:
        for group, parts in change.items():
            for part, values in parts.items():
                if values:
                    merge(installed.inventory[group][part], values)
                else:
                    installed.inventory[group][part] = {}
        play = installed.play("site.yml")
    finally:
        installed.inventory.clear()
        installed.inventory.update(right)
    assert play.returncode != 0
    assert message in play.stdout + play.stderr


def merge(target: dict[str, object], values: object) -> None:
    """Change the values of a nested dictionary."""
    assert isinstance(values, dict)
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)  # type: ignore[arg-type]
        else:
            target[key] = value


def test_uninstalling_leaves_nothing(installed: Site) -> None:
    count_changes(installed.play("uninstall.yml", "-e", "uninstall_data=true"))
    for machine in ("sbf1", "brno-h1", "brno-gw"):
        files = "find / -xdev -iname '*virtcloud*'; getent passwd virtcloud"
        rest = f"{files}; pgrep -a -x 'openvpn|virtcloud|sbf'; nft list tables | grep virtcloud; true"
        assert installed.read(machine, rest) == ""
