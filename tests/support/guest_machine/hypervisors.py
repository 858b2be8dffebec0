"""Mounts and hypervisors in memory. Guests have disks, interfaces and logs."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from support.fake_machine import FakeHypervisor
from virtcloud.agent.guests import mounts
from virtcloud.agent.guests.domains import GuestDomain
from virtcloud.agent.network import names
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unreachable

if TYPE_CHECKING:
    from support.guest_machine.host import GuestHost


class MountedFolders:
    """Mounts in memory. An unmount moves the files to another folder."""

    def __init__(self, host: "GuestHost") -> None:
        self._host = host
        self.contents: dict[Path, Path] = {}
        """For each mount point: the folder to which an unmount moves the files."""

    def replace_functions(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("list_mounts", "unmount", "mount_overlay", "mount_file_system", "create_file_system"):
            patch.setattr(mounts, name, getattr(self, name))
        patch.setattr(mounts, "mounted_with_shifted_owners", self.mounted_with_shifted_owners)

    def list_mounts(self, folder: Path) -> list[Path]:
        return [path for path in self.contents if path != folder and path.is_relative_to(folder)]

    def unmount(self, target: Path) -> None:
        self._host.interruptions.tick()
        if self._host.find_users(target):
            self._host.violations.append(f"{target} is unmounted while its guest runs")
        self._move(target, self.contents.pop(target))

    def mount_overlay(self, _lower: Path, upper: Path, _work: Path, target: Path, *_options: str) -> None:
        self._mount(upper, target)

    def mount_file_system(self, image: Path, target: Path) -> None:
        if len(image.read_bytes()) < 16:
            raise OSError(errno.EINVAL, "wrong fs type", str(image))
        content = self._host.folder / "file systems" / image.read_bytes()[:16].hex()
        content.mkdir(parents=True, exist_ok=True)
        self._mount(content, target)

    def create_file_system(self, image: Path, size_mb: int) -> None:
        with image.open("wb") as file:
            file.write(os.urandom(16))
            file.truncate(size_mb << 20)

    @contextmanager
    def mounted_with_shifted_owners(self, source: Path, _target: Path, _shift: int, _count: int) -> Iterator[None]:
        self._host.interruptions.tick()
        if not source.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(source))
        yield

    def _mount(self, content: Path, target: Path) -> None:
        self._host.interruptions.tick()
        assert target.is_dir()
        if target in self.contents:
            self._host.violations.append(f"{target} is mounted twice")
        self._move(content, target)
        self.contents[target] = content
        self._host.interruptions.tick()

    def _move(self, source: Path, target: Path) -> None:
        with self._host.interruptions.paused():
            target.mkdir(parents=True, exist_ok=True)
            for path in source.iterdir() if source.is_dir() else ():
                path.rename(target / path.name)


class HostHypervisor(FakeHypervisor):
    """A hypervisor whose guests have disks and interfaces.

    ``ending`` contains domains that have begun to shut down and still exist. ``fault`` is one of these values:

    - ``hang``: every call fails, as if libvirtd hung.
    - ``damaged``: domains cannot be listed.
    - ``refuse``: starts and forced stops are refused.
    - ``late``: starts and stops take effect although the calls fail.
    """

    def __init__(self, host: "GuestHost", kind: Hypervisor) -> None:
        super().__init__()
        self._host, self.kind, self.fault = host, kind, ""
        self.ending: set[str] = set()
        self.sources: dict[str, tuple[Path, ...]] = {}

    def _raise_error(self) -> None:
        self._host.interruptions.tick()
        if self.fault == "hang":
            raise Unreachable(f"libvirt ({self.kind}) did not answer")

    def _refuse(self) -> None:
        if self.fault == "refuse":
            raise Refused(f"libvirt ({self.kind}) could not do it: internal error")

    def _end_change(self) -> None:
        self._host.interruptions.tick()
        if self.fault == "late":
            raise Unreachable(f"libvirt ({self.kind}) did not answer within 60 s")

    def list_domains(self) -> list[GuestDomain]:
        if self.fault == "damaged":
            raise Refused(f"libvirt ({self.kind}) could not list domains: internal error")
        domains = super().list_domains()
        return [GuestDomain(one.name, one.running and one.name not in self.ending, one.owner) for one in domains]

    def find_domain(self, name: str) -> GuestDomain | None:
        self._raise_error()
        return next((one for one in FakeHypervisor.list_domains(self) if one.name == name), None)

    def start(self, xml: str) -> None:
        self._raise_error()
        self._refuse()
        root = ET.fromstring(xml)  # noqa: S314 - written by the agent
        name, port = root.findtext("name") or "", root.find("devices/interface/target")
        bridge = root.find("devices/interface/source")
        assert port is not None
        assert bridge is not None
        kernel, port_name = self._host.kernel, port.attrib["dev"]
        if name in self.by_name:
            raise Refused(f"operation failed: domain {name} already exists")
        if bridge.attrib["bridge"] not in kernel.names or port_name in kernel.names:
            raise Refused(f"cannot create the interface {port_name}")
        disks = [one for one in root.iterfind("devices/disk") if one.find("readonly") is None]
        folders = [one for one in root.iterfind("devices/filesystem[@type='mount']") if one.find("readonly") is None]
        sources = [source.attrib for one in (*disks, *folders) for source in one.iterfind("source")]
        paths = tuple(Path(one.get("file") or one["dir"]) for one in sources)
        for path in paths:
            if not path.exists() or (path.suffix == ".qcow2" and not path.read_bytes().startswith(b"QFI\xfb")):
                raise Refused(f"cannot use {path} as a disk")
        super().start(xml)
        kernel.put(name=port_name, kind="veth", master=kernel.interface(bridge.attrib["bridge"]).index)
        self.sources[name] = paths
        with self._host.interruptions.paused():
            (self._host.logs / self.kind / f"{name}.log").touch()
        self._host.use_disks(name, paths)
        self._end_change()

    def shut_down(self, name: str, *, systemd: bool = False) -> None:
        self._raise_error()
        self._host.check_stop(self, name)
        if name not in self.stubborn:
            self.end(name)
        self._end_change()

    def destroy(self, name: str) -> None:
        self._raise_error()
        if name in self.by_name:
            self._refuse()
        self._host.check_stop(self, name)
        self.end(name)
        self._end_change()

    def end(self, name: str) -> None:
        domain = self.by_name.pop(name, None)
        self.ending.discard(name)
        self.sources.pop(name, None)
        if domain and domain.owner:
            suffix = names.guest_port_name(domain.owner.cluster, domain.owner.guest, 1)[3:]
            for one in self._host.kernel.list_interfaces():
                if one.name.endswith(suffix):
                    self._host.kernel.delete(one.index)


def choose_kind(image: str) -> Hypervisor:
    return Hypervisor.LXC if image in {"busybox", "root1"} else Hypervisor.QEMU


def is_guest(domain: GuestDomain) -> bool:
    return domain.owner is not None and domain.name == names.domain_name(domain.owner.cluster, domain.owner.guest)
