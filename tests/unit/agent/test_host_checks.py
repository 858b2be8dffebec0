"""Tests of ``virtcloud doctor --host``: each result describes the host, and no check raises an error."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from virtcloud.agent import host_checks
from virtcloud.agent.host_checks import HostCheck, check_host
from virtcloud.agent.network import kernel
from virtcloud.cli import main

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")


@pytest.fixture
def sysctls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of br_netfilter's sysctls, which are all 0."""
    folder = tmp_path / "sys/bridge"
    folder.mkdir(parents=True)
    for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables"):
        (folder / name).write_text("0\n")
    monkeypatch.setattr(kernel, "SYSCTL", tmp_path / "sys")
    return folder


@pytest.fixture
def config(tmp_path: Path, sysctls: Path) -> Path:
    """Return the settings of an agent whose SBF does not answer."""
    (tmp_path / "images/busybox/rootfs").mkdir(parents=True)
    (tmp_path / "images/busybox/image.yaml").write_text("kind: lxc\n")
    places = {one: str(tmp_path / one) for one in ("images", "state", "jobs", "socket")}
    lines = {"element": "brno-h1", "sbf": "unix:///nowhere/sbf.sock", **places}
    path = tmp_path / "agent.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    return path


Find = Callable[[str, str], HostCheck]


@pytest.fixture
def find(config: Path) -> Find:
    def look(group: str, name: str) -> HostCheck:
        return next(one for one in check_host(config) if one.group == group and one.name.startswith(name))

    return look


@needs_root
def test_kernel_features_are_checked(find: Find) -> None:
    found = find("kernel", "802.1Q")
    assert found.ok or found.observation.startswith("the kernel refused to create VLAN 2 on vctry0")


def test_a_packet_filter_that_gets_bridged_frames_is_found(find: Find, sysctls: Path) -> None:
    (sysctls / "bridge-nf-call-ip6tables").write_text("1\n")
    found = find("kernel", "bridged frames")
    assert (found.ok, found.required, found.observation) == (False, True, "net.bridge.bridge-nf-call-ip6tables set")
    assert found.remedy.startswith("sysctl -w net.bridge.bridge-nf-call-ip6tables=0;")


def test_a_packet_filter_that_the_settings_accept_is_no_fault(find: Find, sysctls: Path, config: Path) -> None:
    (sysctls / "bridge-nf-call-iptables").write_text("1\n")
    config.write_text(config.read_text() + 'bridged_frames_filtered = "accept"\n')
    found = find("kernel", "bridged frames")
    assert (found.ok, found.observation) == (True, "net.bridge.bridge-nf-call-iptables set (accepted by the settings)")


def test_a_malformed_image_is_named_and_blocks_no_other(find: Find, tmp_path: Path) -> None:
    (tmp_path / "images/other").mkdir()
    (tmp_path / "images/other/image.yaml").write_text("kind: qcow2\n")
    found = find("folders", "image other")
    assert (found.ok, found.required) == (False, False)
    assert "kind: expected 'lxc' or 'qemu', got 'qcow2'" in found.observation


def test_a_folder_of_images_that_is_not_there_is_found(find: Find, config: Path) -> None:
    config.write_text(config.read_text().replace("/images", "/gone"))
    assert not find("folders", "images").ok


def test_too_little_room_for_guests_disks_is_found(find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "MIN_FREE_GIB", 1 << 30)
    assert not find("folders", "state").ok


def test_an_sbf_that_does_not_answer_is_found(find: Find) -> None:
    found = find("sbf", "unix:///nowhere/sbf.sock")
    assert (found.ok, found.observation.partition(":")[0]) == (False, "SBF does not answer at unix")


def test_a_libvirt_that_does_not_answer_is_found(find: Find, config: Path) -> None:
    config.write_text(config.read_text() + '[hypervisors]\nqemu = "qemu+unix:///system?socket=/nowhere"\n')
    found = find("libvirt", "qemu at")
    assert (found.ok, found.required) == (False, True)


def test_an_agent_that_listens_is_found(find: Find, tmp_path: Path) -> None:
    assert not find("agent", "running").ok
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "socket"))
        agent.listen()
        assert find("agent", "running").ok


def test_unreadable_settings_are_a_failed_check(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["doctor", "--host", "--config", str(tmp_path / "gone.toml")])
    assert (done.exit_code, "Traceback" in done.output) == (1, False)
    assert f"NO   settings: {tmp_path}/gone.toml: cannot be read" in done.output
    assert done.output.splitlines()[-1].startswith("this host is not ready for clusters: ")


def test_json_has_every_check_and_the_verdict(config: Path) -> None:
    done = CliRunner().invoke(main, ["doctor", "--host", "--json", "--config", str(config)])
    output = json.loads(done.output)
    assert (done.exit_code, output["healthy"]) == (1, False)
    assert {one["group"] for one in output["checks"]} == {
        "rights",
        "settings",
        "python",
        "folders",
        "kernel",
        "sbf",
        "agent",
    }
