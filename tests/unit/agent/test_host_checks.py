"""Tests of the host's checks (``virtcloud doctor --host``). A failed check returns a result and raises no error."""

import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.hosts.container_images import write_container_image

from virtcloud.agent import host_checks
from virtcloud.agent.host_checks import HostCheck, check_host
from virtcloud.agent.network import kernel, libnftables
from virtcloud.cli import main
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import Refused
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted, WantedDocument

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")


@pytest.fixture
def sysctls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sys/bridge"
    folder.mkdir(parents=True)
    for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables"):
        (folder / name).write_text("0\n")
    monkeypatch.setattr(kernel, "SYSCTL", tmp_path / "sys")
    return folder


@pytest.fixture
def config(tmp_path: Path, sysctls: Path) -> Path:
    write_container_image(tmp_path / "images")
    paths = {name: str(tmp_path / name) for name in ("images", "state", "jobs", "socket")}
    lines = {"element": "brno-h1", "sbf": "unix:///nowhere/sbf.sock", **paths}
    path = tmp_path / "agent.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    return path


FindCheck = Callable[[str, str], HostCheck]


@pytest.fixture
def find_check(config: Path) -> FindCheck:
    def find_by_name(group: str, name: str) -> HostCheck:
        return next(check for check in check_host(config) if check.group == group and check.name.startswith(name))

    return find_by_name


@needs_root
def test_missing_kernel_features_are_reported(find_check: FindCheck) -> None:
    check = find_check("kernel", "802.1Q")
    assert check.ok or check.observation.startswith("the kernel refused to create VLAN 2 on vctry0")


def test_a_packet_filter_of_bridged_frames_fails_the_check(find_check: FindCheck, sysctls: Path) -> None:
    (sysctls / "bridge-nf-call-ip6tables").write_text("1\n")
    check = find_check("kernel", "bridged frames")
    assert (check.ok, check.required, check.observation) == (False, True, "net.bridge.bridge-nf-call-ip6tables set")
    assert check.remedy.startswith("sysctl -w net.bridge.bridge-nf-call-ip6tables=0;")


def test_a_packet_filter_that_the_settings_accept_passes(find_check: FindCheck, sysctls: Path, config: Path) -> None:
    (sysctls / "bridge-nf-call-iptables").write_text("1\n")
    config.write_text(config.read_text() + 'bridged_frames_filtered = "accept"\n')
    check = find_check("kernel", "bridged frames")
    assert (check.ok, check.observation) == (True, "net.bridge.bridge-nf-call-iptables set (accepted by the settings)")


@needs_root
def test_a_host_without_libnftables_fails_the_check(find_check: FindCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_check("kernel", "filters of guests").ok
    monkeypatch.setattr(libnftables, "LIBRARY", "libnowhere.so.1")
    check = find_check("kernel", "filters of guests")
    assert (check.ok, check.required) == (False, True)
    assert check.observation.startswith("the packet filter needs libnowhere.so.1, which is missing: apt-get install")


def test_filters_that_the_settings_turn_off_are_not_checked(find_check: FindCheck, config: Path) -> None:
    config.write_text(config.read_text() + '[guests]\nfilters = "off"\n')
    with pytest.raises(StopIteration):
        find_check("kernel", "filters of guests")


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(0, 0o775), (0, 0o757), (1000, 0o755)])
def test_a_state_folder_that_others_can_change_is_a_warning(
    find_check: FindCheck, tmp_path: Path, owner: int, mode: int
) -> None:
    (tmp_path / "state").mkdir()
    assert find_check("folders", "only root changes the state").ok
    os.chown(tmp_path / "state", owner, 0)
    (tmp_path / "state").chmod(mode)
    check = find_check("folders", "only root changes the state")
    assert (check.ok, check.required) == (False, False)
    assert check.observation.endswith(f"found user ID {owner}, mode {mode:04o}")


def test_a_malformed_image_is_named_and_not_required(find_check: FindCheck, tmp_path: Path) -> None:
    (tmp_path / "images/other").mkdir()
    (tmp_path / "images/other/image.yaml").write_text("kind: qcow2\n")
    check = find_check("folders", "image other")
    assert (check.ok, check.required) == (False, False)
    assert "kind: expected 'lxc' or 'qemu', got 'qcow2'" in check.observation


def test_a_missing_folder_of_images_fails_the_check(find_check: FindCheck, config: Path) -> None:
    config.write_text(config.read_text().replace("/images", "/gone"))
    assert not find_check("folders", "images").ok


def test_too_little_space_for_guests_disks_fails_the_check(
    find_check: FindCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_checks, "MIN_FREE_GIB", 1 << 30)
    assert not find_check("folders", "state").ok


def test_an_unreachable_sbf_fails_the_check(find_check: FindCheck) -> None:
    check = find_check("sbf", "unix:///nowhere/sbf.sock")
    assert (check.ok, check.observation.partition(":")[0]) == (False, "SBF does not answer at unix")


def test_an_sbf_that_stops_answering_fails_only_its_checks(
    find_check: FindCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedSbf(SbfClient):
        """An SBF that answers only the first request for the wanted document."""

        is_stopped = False

        def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
            if self.is_stopped:
                return super().wanted(element, after, wait)
            self.is_stopped = True
            return WantedDocument(element=Name(element), revision=7, confirmed_revision=6, wanted=HostWanted())

    monkeypatch.setattr(host_checks, "sbf_client", lambda *_: StoppedSbf("unix:///nowhere/sbf.sock"))
    assert find_check("sbf", "unix").observation == "element brno-h1: revision 7 wanted, 6 confirmed"
    assert not find_check("sbf", "clock").ok
    assert find_check("agent", "running")


def test_an_unreachable_libvirt_fails_the_check(find_check: FindCheck, config: Path) -> None:
    config.write_text(config.read_text() + '[hypervisors]\nqemu = "qemu+unix:///system?socket=/nowhere"\n')
    check = find_check("libvirt", "qemu at")
    assert (check.ok, check.required) == (False, True)


def test_the_remedy_for_libvirt_is_printed_once(config: Path) -> None:
    uris = {kind: f"{kind}+unix:///system?socket=/nowhere" for kind in ("qemu", "lxc")}
    config.write_text(config.read_text() + "[hypervisors]\n" + "".join(f'{kind} = "{uris[kind]}"\n' for kind in uris))
    lines = CliRunner().invoke(main, ["doctor", "--host", "--config", str(config)]).output.splitlines()
    first = next(number for number, line in enumerate(lines) if "libvirt: " in line)
    reason = "Failed to connect socket to '/nowhere': No such file or directory"
    assert lines[first : first + 3] == [
        *(f"NO   libvirt: {kind} at {uri}: libvirt does not answer at {uri}: {reason}" for kind, uri in uris.items()),
        "     -> install libvirt's drivers of these hypervisors, and start libvirtd (systemctl status libvirtd)",
    ]
    assert len([line for line in lines if "libvirtd" in line]) == 1


def test_a_listening_agent_passes_the_check(find_check: FindCheck, tmp_path: Path) -> None:
    assert not find_check("agent", "running").ok
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "socket"))
        agent.listen()
        assert find_check("agent", "running").ok


def test_unreadable_settings_are_a_failed_check(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--host", "--config", str(tmp_path / "gone.toml")])
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert f"NO   settings: {tmp_path}/gone.toml: cannot be read" in result.output
    assert result.output.splitlines()[-1].startswith("this host is not ready for clusters: ")


def test_json_contains_all_checks_and_the_result(config: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--host", "--json", "--config", str(config)])
    output = json.loads(result.output)
    assert (result.exit_code, output["healthy"]) == (1, False)
    assert {check["group"] for check in output["checks"]} == {
        "rights",
        "settings",
        "python",
        "folders",
        "kernel",
        "sbf",
        "agent",
    }


@pytest.mark.parametrize(("offset", "named"), [(timedelta(days=1), "behind"), (-timedelta(days=1), "ahead of")])
def test_a_clock_off_by_a_day_fails_the_check(offset: timedelta, named: str) -> None:
    class OtherClock(SbfClient):
        def clock(self) -> datetime:
            return datetime.now(UTC) + offset

    with pytest.raises(Refused, match=rf"86(399|40\d) s {named} SBF's"):
        host_checks._clock(OtherClock("unix:///nowhere/sbf.sock"))
