"""Tests of the NoCloud data of guests. Debian's cloud-init 22.4.2 accepts the generated documents (checked by hand)."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.hosts.seed_documents import CLUSTER_KEY, HOST_KEY, PUBLIC_KEY, SEED, seeded_guest, seeded_segment

from virtcloud.agent.guests.peer_files import render_peer_files
from virtcloud.agent.guests.seeds import NoCloudData, render_network_config, render_nocloud
from virtcloud.model.errors import Refused


def render(user_data: str | None = None, **changes: Any) -> NoCloudData:
    guest = seeded_guest(seed={**SEED, "user_data": user_data}, **changes)
    assert guest.seed
    segment = seeded_segment(guest)
    return render_nocloud(segment, guest, guest.seed, render_peer_files(segment, guest))


def read_user_data(user_data: str | None = None) -> dict[str, Any]:
    text = render(user_data)["user-data"]
    assert text.startswith("#cloud-config\n")
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def test_the_user_may_log_in_and_use_sudo() -> None:
    (user,) = read_user_data()["users"]
    assert (user["name"], user["ssh_authorized_keys"]) == ("alice", [f"{PUBLIC_KEY} alice@home"])
    assert (user["sudo"], user["lock_passwd"]) == ("ALL=(ALL) NOPASSWD:ALL", True)


def test_the_host_key_replaces_the_images_keys() -> None:
    document = read_user_data()
    assert (document["ssh_deletekeys"], document["ssh_keys"]) == (True, {"ed25519_private": HOST_KEY})


def test_only_the_user_can_read_the_clusters_key() -> None:
    (file,) = read_user_data()["write_files"]
    assert (file["path"], file["content"]) == ("/home/alice/.ssh/id_ed25519", CLUSTER_KEY)
    assert (file["owner"], file["permissions"], file["defer"]) == ("alice", "0600", True)


def test_boot_commands_write_the_names_of_peers(tmp_path: Path) -> None:
    for command in read_user_data()["bootcmd"]:
        subprocess.run(["sh", "-euc", command.replace("/etc", str(tmp_path))], check=True)  # noqa: S603, S607
    guest = seeded_guest()
    files = render_peer_files(seeded_segment(guest), guest)
    written = {name: (tmp_path / path).read_text() for name, path in PATHS.items()}
    assert written == files


PATHS = {
    "hosts": "hosts",
    "known_hosts": "ssh/ssh_known_hosts",
    "hostfile": "virtcloud/hostfile",
    "network-hostfile": "virtcloud/network-hostfile",
}


def test_the_interface_is_found_by_its_mac_address() -> None:
    assert yaml.safe_load(render()["network-config"]) == {
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": {"macaddress": "12:00:00:00:00:01"},
                "set-name": "eth0",
                "dhcp4": False,
                "dhcp6": False,
                "addresses": ["10.0.0.1/24", "fd00::1/64"],
            }
        },
    }


@pytest.mark.parametrize(("services", "static"), [((), ["0.0.0.0/0", "::/0"]), (("dhcp",), ["::/0"])])
def test_a_seed_has_the_default_routes_that_dhcp_lacks(services: tuple[str, ...], static: list[str]) -> None:
    guest = seeded_guest()
    routers = ["10.0.0.250/24", "fd00::250/64"]
    segment = seeded_segment(guest, router_addresses=routers, host_services=services)
    config = yaml.safe_load(render_network_config(segment, guest))["ethernets"]["eth0"]
    assert [route["to"] for route in config["routes"]] == static


def test_the_interface_has_the_networks_mtu() -> None:
    guest = seeded_guest()
    assert guest.seed
    data = render_nocloud(seeded_segment(guest, mtu=1450), guest, guest.seed, {})
    assert yaml.safe_load(data["network-config"])["ethernets"]["eth0"]["mtu"] == 1450


def test_members_with_equal_guests_have_different_instances() -> None:
    assert yaml.safe_load(render()["meta-data"]) == {"instance-id": "c1-n1", "local-hostname": "n1"}
    assert yaml.safe_load(render(cluster="c2")["meta-data"])["instance-id"] == "c2-n1"


def test_user_lists_are_appended_and_other_values_replace_generated_values() -> None:
    document = read_user_data(
        "#cloud-config\nssh_pwauth: true\nusers: [default]\npackages: [htop]\n"
        "write_files:\n- {path: /x, permissions: 0644, content: ž}\n"
    )
    assert (document["ssh_pwauth"], document["packages"]) == (True, ["htop"])
    assert [user if isinstance(user, str) else user["name"] for user in document["users"]] == ["alice", "default"]
    assert [(file["path"], file["content"]) for file in document["write_files"]][1:] == [("/x", "ž")]


@pytest.mark.parametrize(
    ("user_data", "message"),
    [
        (
            "#cloud-config\nusers: default\n",
            "guest n1: user_data: users: expected a list, got a single value in line 2",
        ),
        ("#cloud-config\nssh_keys: []\n", "guest n1: user_data: ssh_keys: expected a mapping, got a list in line 2"),
        ("#cloud-config\na: [\n", "guest n1: user_data: expected cloud-config"),
        ("#!/bin/sh\nreboot\n", "guest n1: user_data: expected cloud-config"),
        ("#cloud-config\na: " + "{a: " * 600, "guest n1: user_data: expected cloud-config"),
    ],
)
def test_other_user_data_is_refused(user_data: str, message: str) -> None:
    with pytest.raises(Refused) as refused:
        render(user_data)
    assert str(refused.value).startswith(message)
    assert "PRIVATE" not in str(refused.value)


@pytest.mark.timeout(20)
def test_aliases_and_merge_keys_are_not_expanded() -> None:
    """If the aliases were expanded, the construction of this document's values would not end in practice."""
    text = "#cloud-config\nx0: &x0 {a: 1}\n"
    text += "".join(f"x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 20)}]}}\n" for i in range(1, 60))
    assert text.count("*x") == render(text)["user-data"].count("*")
