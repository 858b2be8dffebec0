"""A host whose agent can be killed before each change, and whose disk, hypervisors and image servers can fail.

The agent's code is real, and so are the files of guests and images. Domains, interfaces and mounts are in memory.
"""

import shutil
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.fake_machine import FakeGroups, FakeKernel, FakeUplinkRecords
from support.guest_machine.checks import CACHE_BYTES, UNPACKED_BYTES, CheckedHost
from support.guest_machine.clusters import ClusterSbf
from support.guest_machine.hypervisors import HostHypervisor, MountedFolders, is_guest
from support.guest_machine.image_server import ImageServer
from support.guest_machine.interruptions import Interruptions, Killed, Turns
from support.hosts.container_images import write_container_image
from virtcloud.agent import log
from virtcloud.agent.guests import guest_disks, guest_files, image_cache, seed_images
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.guests.image_cache import CacheSettings, ImageCache
from virtcloud.agent.guests.image_fetch import ImageSources
from virtcloud.agent.guests.image_unpack import UnpackLimits
from virtcloud.agent.host_boot import HostBoot
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.element import Hypervisor


class NoWait(threading.Event):
    """An event whose method ``wait`` returns at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


class GuestHost(CheckedHost):
    """A host with an agent, and an SBF that sends wanted documents."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.folder, self.patch = folder, patch
        self.interruptions = Interruptions()
        self.turns = Turns(self.interruptions)
        self.now, self.boots = 0.0, 0
        self.kernel = FakeKernel()
        self.sbf = ClusterSbf()
        self.hypervisors = {kind: HostHypervisor(self, kind) for kind in (Hypervisor.LXC, Hypervisor.QEMU)}
        self.server = ImageServer(self.turns, self.interruptions)
        self.mounts = MountedFolders(self)
        self.free = 1 << 40
        self._make_images()
        self._replace()
        self.start_agent()

    def _make_images(self) -> None:
        self.images, self.state, self.logs = (self.folder / name for name in ("host images", "state", "logs"))
        for kind in Hypervisor:
            (self.logs / kind).mkdir(parents=True)
        write_container_image(self.images)
        (self.images / "kernel").mkdir()
        (self.images / "kernel/vmlinuz").touch()
        (self.images / "kernel/image.yaml").write_text("kind: qemu\nkernel: vmlinuz\n")
        (self.images / "golden").mkdir()
        (self.images / "golden/disk.raw").write_bytes(bytes(2000))
        (self.images / "golden/image.yaml").write_text("kind: qemu\ndisk: disk.raw\ndisk_format: raw\n")
        (self.folder / "boot_id").write_text("0")

    def _replace(self) -> None:
        self.patch.setattr(guest_files, "LIBVIRT_LOGS", self.logs)
        self.patch.setattr(guest_files, "LIBVIRT_LXC", self.logs)
        self.interruptions.guard_files(self.patch)
        self.mounts.replace_functions(self.patch)
        threads = SimpleNamespace(
            Thread=self.turns.make_thread, Semaphore=self.turns.make_semaphore, Lock=threading.Lock
        )
        self.patch.setattr(image_cache, "threading", threads)
        self.patch.setattr(image_cache, "unpack", self._unpack)
        self.patch.setattr(guest_disks, "_run", self._run_qemu_img)
        self.patch.setattr(guest_disks, "_find_program", lambda _over: "qemu-img")
        self.patch.setattr(seed_images, "render_iso", lambda data: repr(data).encode())
        self.patch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=self.free))
        self.patch.setattr(log, "exception", self._record_exception)

    def _record_exception(self, event: str, **fields: object) -> None:
        self.violations.append(f"{event}: {fields}\n{traceback.format_exc()}")

    def _unpack(self, _archive: Path, _format: object, folder: Path, _limits: object, _architecture: str) -> int:
        (folder / "sbin").mkdir()
        (folder / "sbin/init").write_bytes(bytes(UNPACKED_BYTES))
        return UNPACKED_BYTES

    def _run_qemu_img(self, *argv: str, **_options: object) -> str:
        """Create a disk as qemu-img does, with a header, and without data of a guest."""
        path = Path(argv[-2])
        path.write_bytes(b"")
        self.interruptions.tick(grows=True)
        with self.interruptions.paused():
            path.write_bytes(b"QFI\xfb" + bytes(1020))
        self.interruptions.tick()
        return ""

    def start_agent(self) -> None:
        settings = CacheSettings(
            self.state / "images", self.state / "guests", "x86_64", CACHE_BYTES, UnpackLimits(1 << 20)
        )
        sources = ImageSources(self.server.download, self.images)
        self.cache = ImageCache(
            settings, sources, lambda: None, lambda _seconds: self.turns.park("pause"), lambda: self.now
        )
        self.guests = LocalGuests(
            self.hypervisors,
            GuestSettings(self.images, self.state / "guests", "x86_64", stop_grace_s=0.2),
            lambda _seconds: None,
            cache=self.cache,
            groups=FakeGroups(),
        )
        host = LocalHost(SegmentInterfaces(self.kernel, FakeUplinkRecords()), self.guests)
        boot = HostBoot(self.state / "boot", self.folder / "boot_id")
        self.reconciler = HostReconciler(
            "h1", self.sbf, host, StopSignal(), ReconcileTiming(), NoWait(), boot=boot, clock=lambda: self.now
        )

    def reconcile(self) -> bool:
        """Reconcile once, and continue the fetches. If the agent was killed, restart the agent and return True."""
        self._run(self.reconciler.reconcile_once)
        self.late = dict.fromkeys(self.late, True)
        self._run(self.turns.settle)
        if not self.interruptions.is_dead:
            self.interruptions.plan(0)
            return False
        self.restart_agent()
        return True

    def _run(self, work: Callable[[], object]) -> None:
        self.interruptions.is_running = True
        with suppress(Killed):
            work()
        self.interruptions.is_running = False

    def proceed(self, *places: str) -> None:
        self._run(lambda: self.turns.resume(*places))
        self._run(self.turns.settle)

    def restart_agent(self) -> None:
        self.interruptions.is_dead = self.interruptions.is_running = True
        self.cloning, self.late = {}, {}
        while self.turns.resume("start", "slot", "server", "pause"):
            pass
        self.interruptions.is_dead = self.interruptions.is_running = False
        self.interruptions.plan(0)
        self.start_agent()

    def reboot(self) -> None:
        for hypervisor in self.hypervisors.values():
            hypervisor.fault = ""
            for domain in list(hypervisor.by_name.values()):
                if is_guest(domain):
                    hypervisor.end(domain.name)
        for path in reversed(list(self.mounts.contents)):
            self.mounts.unmount(path)
        fresh = FakeKernel()
        self.kernel.by_index = fresh.by_index
        self.boots += 1
        (self.folder / "boot_id").write_text(str(self.boots))
        self.restart_agent()
