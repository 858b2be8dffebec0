import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hosts.dnsmasq_world import LIMIT_S, World, make_runner, make_segment, resolve
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.host_services import dnsmasq_config, dnsmasq_servers
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.host_services.server_difference import ObservedServer, find_unwanted_servers
from virtcloud.model.errors import Refused

pytestmark = pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed")


@pytest.fixture
def in_world(in_namespace: Run) -> Callable[..., Any]:
    return make_runner(in_namespace)


def test_a_restarted_agent_keeps_running_servers(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid, other = world.pid(), DnsmasqServers(world.kernel, world.folder)
        observed = world.read(other)
        other.ensure_server(make_segment())
        return world.pid() == pid, observed[0].faults, observed == world.read(other)

    assert in_world(work, make_segment()) == (True, (), True)


def test_a_killed_server_is_observed_and_started_again(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        os.kill(world.pid(), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while len(world.faults()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        faults = world.faults()
        world.servers.ensure_server(make_segment())
        return faults, world.faults(), resolve(world.bridges[0].guest, "n2.demo.internal")

    expected = (("dnsmasq has ended", "vs100 is missing"), (), "10.0.0.6")
    assert in_world(work, make_segment()) == expected


def test_a_port_that_lost_its_isolation_is_corrected(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid = world.pid()
        for port in ("vs100", "eth0.100"):
            kernel_links.brport("set", index=kernel_links.find_index(port), isolated=0)
        faults = world.faults()
        world.servers.ensure_server(make_segment())
        return faults, world.faults(), world.pid() == pid

    expected = ("vs100 is not isolated", "eth0.100 is not isolated")
    assert in_world(work, make_segment()) == (expected, (), True)


def test_a_record_from_an_earlier_boot_is_no_running_server(in_world: Callable[..., Any]) -> None:
    """After a reboot, the recorded process ID may belong to any other process of the host."""

    def work(world: World) -> object:
        (other_boot,) = world.read(DnsmasqServers(world.kernel, world.folder, boot="another"))
        path = world.folder / "c1/record.json"
        path.write_text(re.sub('"pid":[0-9]+', f'"pid":{os.getpid()}', path.read_text()))
        return world.faults(), other_boot.faults

    assert in_world(work, make_segment()) == (("dnsmasq has ended",),) * 2


def test_nothing_of_a_removed_server_remains(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid = world.pid()
        world.servers.ensure_no_server("c1")
        world.servers.ensure_no_server("c1")
        interfaces = [interface.name for interface in world.kernel.list_interfaces()]
        return world.read(), list(world.folder.iterdir()), "vs100" in interfaces, is_running(pid)

    assert in_world(work, make_segment()) == ((), [], False, False)


def test_an_interrupted_removal_is_continued(in_world: Callable[..., Any]) -> None:
    """The agent was killed while it deleted the folder, after it had deleted the record."""

    def work(world: World) -> object:
        pid = world.pid()
        world.kernel.delete(kernel_links.find_index("vs100"))
        (world.folder / "c1/record.json").unlink()
        observed = world.read()
        for step in find_unwanted_servers((), observed):
            world.servers.apply(step)
        return observed, list(world.folder.iterdir()), is_running(pid)

    expected = ObservedServer("c1", None, faults=("the server's record is missing",))
    assert in_world(work, make_segment()) == ((expected,), [], False)


def test_dnsmasq_has_only_the_rights_that_it_needs(in_world: Callable[..., Any]) -> None:
    """The files of dnsmasq and their folder belong to root, so dnsmasq cannot change what the agent writes."""

    def work(world: World) -> object:
        status = Path(f"/proc/{world.pid()}/status").read_text()
        rights = [
            re.findall(rf"^{key}:\s*(\S+)", status, re.MULTILINE)[0] for key in ("CapPrm", "CapBnd", "NoNewPrivs")
        ]
        uids = set(re.findall(r"^Uid:\s*(.*)", status, re.MULTILINE)[0].split())
        folder = world.folder / "c1"
        owners = {(path.stat().st_uid, path.stat().st_mode & 0o022) for path in (folder, *folder.iterdir())}
        return rights, "0" in uids, owners

    caps = f"{1 << 10 | 1 << 12 | 1 << 13:016x}"  # CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW
    assert in_world(work, make_segment()) == ([caps, caps, "1"], False, {(0, 0)})


def test_a_refused_start_is_explained_and_leaves_nothing(
    in_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnsmasq_config, "_COMMON_LINES", ("nonsense=1",))

    def work(world: World) -> object:
        with pytest.raises(Refused, match=r"cannot start dnsmasq: .*bad option at line 1"):
            world.servers.ensure_server(make_segment())
        deadline = time.monotonic() + 10
        while "dnsmasq has ended" not in (observed := world.read()[0]).faults and time.monotonic() < deadline:
            time.sleep(0.01)  # dnsmasq prints its error some time before the process ends
        return observed, "vs100" in [interface.name for interface in world.kernel.list_interfaces()]

    expected = ObservedServer("c1", 100, "", "", ("dnsmasq has ended", "vs100 is missing"))
    assert in_world(work, make_segment(), serves=False) == (expected, False)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("SEARCH_PATH", "/nowhere", "the program dnsmasq, which is not"), ("USER", "nobodys", "this host has no user")],
)
def test_a_host_without_dnsmasq_names_the_package(
    in_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setattr(dnsmasq_servers, name, value)

    def work(world: World) -> None:
        with pytest.raises(Refused, match=rf"{reason}.*apt-get install dnsmasq-base"):
            world.servers.ensure_server(make_segment())

    in_world(work, make_segment(), serves=False)


def is_running(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"
