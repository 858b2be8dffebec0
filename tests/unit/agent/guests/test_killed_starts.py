"""Test of an agent that is killed while several guests start. The next agent starts each missing guest once."""

import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.fake_machine import FakeElementApi, FakeGroups, FakeHypervisor, FakeKernel, FakeUplinkRecords
from support.hosts.container_images import write_container_image
from support.kernel.network_namespaces import Run

from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.element import Hypervisor
from virtcloud.model.wanted import Segment

GUESTS = ("g1", "g2", "g3", "g4", "g5", "g6")


class RecordedHypervisor(FakeHypervisor):
    """A hypervisor whose domains are files in ``folder``, so that the domains remain when the agent is killed.

    The agent is killed during the start with number ``kill_at`` (0: never). If ``early``, the agent is killed before
    the domain is created, otherwise afterwards.
    """

    def __init__(self, folder: Path, kill_at: int = 0, *, early: bool = False) -> None:
        super().__init__()
        self.folder, self.kill_at, self.early, self.starts = folder, kill_at, early, count(1)
        folder.mkdir(exist_ok=True)
        for file in folder.iterdir():
            super().start(file.read_text())
        self.started.clear()

    def start(self, xml: str) -> None:
        is_last = next(self.starts) == self.kill_at
        if is_last and self.early:
            os.kill(os.getpid(), signal.SIGKILL)
        name = str(ET.fromstring(xml).findtext("name"))  # noqa: S314 - written by the agent
        new = self.folder.with_name(f"new-{name}")
        new.write_text(xml)
        new.rename(self.folder / name)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        super().start(xml)


def make_reconciler(folder: Path, service: FakeElementApi, hypervisor: RecordedHypervisor) -> HostReconciler:
    settings = GuestSettings(folder, folder / "guests", "x86_64", stop_grace_s=0)
    guests = LocalGuests({Hypervisor.LXC: hypervisor}, settings, lambda _: None, groups=FakeGroups())
    host = LocalHost(SegmentInterfaces(FakeKernel(), FakeUplinkRecords()), guests)
    return HostReconciler("h1", service, host, StopSignal(), ReconcileTiming(retry_first_s=0), starts_at_once=3)


@pytest.mark.parametrize(("kill_at", "early"), [(1, True), (3, False), (5, True)])
def test_all_guests_run_after_a_kill_during_their_starts(
    tmp_path: Path, make_segment: Callable[..., Segment], with_mounts: Run, kill_at: int, early: bool
) -> None:
    write_container_image(tmp_path)
    service = FakeElementApi()
    service.want(make_segment("a", 100, GUESTS))

    def check() -> None:
        process = os.fork()
        if process == 0:
            killed = RecordedHypervisor(tmp_path / "domains", kill_at, early=early)
            make_reconciler(tmp_path, service, killed).reconcile_once()
            os._exit(0)
        assert os.waitpid(process, 0)[1] == signal.SIGKILL
        hypervisor = RecordedHypervisor(tmp_path / "domains")
        remaining = sorted({f"vc-a-{guest}" for guest in GUESTS} - hypervisor.by_name.keys())
        make_reconciler(tmp_path, service, hypervisor).reconcile_once()
        assert service.reports == [("confirmed", 1)]
        assert sorted(str(ET.fromstring(xml).findtext("name")) for xml in hypervisor.started) == remaining  # noqa: S314 - written by the agent
        assert hypervisor.destroyed == []
        shifts = [(tmp_path / f"guests/vc-a-{guest}/ids").read_text() for guest in GUESTS]
        assert len(set(shifts)) == len(GUESTS)

    with_mounts(check)
