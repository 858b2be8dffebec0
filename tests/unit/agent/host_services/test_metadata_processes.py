import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hosts.metadata_world import LIMIT_S, World, make_runner, make_segment
from support.kernel.network_namespaces import Run

from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.model.errors import Refused

pytestmark = pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed")


@pytest.fixture
def in_world(in_namespace: Run, unshare: Callable[[], None]) -> Callable[..., Any]:
    return make_runner(in_namespace, unshare)


def test_changed_documents_replace_only_the_metadata_service(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        dnsmasq = world.pid("record.json")
        peers = [{"name": "m1", "cluster": "other", "addresses": ["10.0.0.9/24"]}]
        world.servers.ensure_server(make_segment(peers=peers))
        _, text = world.guests[0].fetch("/user-data")
        return "10.0.0.9 m1.other.internal" in text, world.read().faults, world.pid("record.json") == dnsmasq

    assert in_world(work) == (True, (), True)


def test_a_killed_service_is_observed_and_started_again(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        dnsmasq = world.pid("record.json")
        os.kill(world.pid(), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while not world.read().faults and time.monotonic() < deadline:
            time.sleep(0.02)
        faults = world.read().faults
        world.servers.ensure_server(make_segment())
        return faults, world.read().faults, world.guests[0].host_key(), world.pid("record.json") == dnsmasq

    assert in_world(work) == (("the metadata service has ended",), (), "key of n1 in c1", True)


def test_a_service_is_restarted_if_its_dnsmasq_was_killed(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        former = world.pid()
        os.kill(world.pid("record.json"), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while not world.read().faults and time.monotonic() < deadline:
            time.sleep(0.02)
        world.servers.ensure_server(make_segment())
        return world.read().faults, world.guests[0].host_key(), world.pid() == former

    assert in_world(work) == ((), "key of n1 in c1", False)


def test_a_restarted_agent_keeps_running_services(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid, other = world.pid(), DnsmasqServers(world.kernel, world.folder)
        observed = world.read(other)
        other.ensure_server(make_segment())
        return world.pid() == pid, observed.faults, observed == world.read(other)

    assert in_world(work) == (True, (), True)


def test_nothing_of_a_removed_service_remains(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid = world.pid()
        world.servers.ensure_no_server("c1")
        return list(world.folder.iterdir()), Path(f"/proc/{pid}/exe").exists()

    assert in_world(work) == ([], False)


def test_the_service_has_no_rights_and_an_unreadable_memory(in_world: Callable[..., Any]) -> None:
    """The services of all clusters run as one user. This user must not be able to read the memory of the services.

    Therefore the owner of the process's /proc/PID/environ is root, not the user of the process (proc(5)).
    """

    def work(world: World) -> object:
        process = Path(f"/proc/{world.pid()}")
        status = (process / "status").read_text()
        rights = [re.findall(rf"^{key}:\s*(\S+)", status, re.MULTILINE)[0] for key in ("CapPrm", "NoNewPrivs")]
        uids = set(re.findall(r"^Uid:\s*(.*)", status, re.MULTILINE)[0].split())
        stored = "".join(path.read_text() for path in (world.folder / "c1").iterdir())
        return rights, "0" in uids, (process / "environ").stat().st_uid, "key of" in stored

    assert in_world(work) == (["0" * 16, "1"], False, 0, False)


def test_a_host_without_filters_offers_no_metadata(tmp_path: Path) -> None:
    servers = DnsmasqServers(NO_KERNEL, tmp_path, "boot", has_filters=False)
    with pytest.raises(Refused, match=r"needs the filters of guests, .* turn off: set filters = \"strict\""):
        servers.ensure_server(make_segment())


NO_KERNEL: Any = None
