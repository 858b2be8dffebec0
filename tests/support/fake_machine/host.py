import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from virtcloud.agent.guests.control_groups import ContainerLimits
from virtcloud.agent.guests.domains import NAMESPACE, GuestDomain, parse_ownership
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.network.interfaces import HostIpSettings, KernelInterface, UplinkRecord
from virtcloud.model.errors import Refused

NEW_INTERFACE_IP = HostIpSettings(settings={"ipv6/addr_gen_mode": "0", "ipv6/disable_ipv6": "0"})
DISABLED_HOST_IP = HostIpSettings(settings={"ipv6/addr_gen_mode": "1", "ipv6/disable_ipv6": "1"})


class FakeKernel:
    """Interfaces in memory.

    ``deleted`` contains the names of deleted interfaces. ``changes`` counts the calls of `change`. ``set_sysctls``
    contains the active sysctls that pass bridged frames to the packet filter. ``ip_settings`` maps an interface's index
    to its settings in the host's IP stack.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, KernelInterface] = {}
        self.deleted: list[str] = []
        self.changes = 0
        self.set_sysctls: tuple[str, ...] = ()
        self.ip_settings: dict[int, HostIpSettings] = {}
        self.put(name="eth0", up=True)

    def put(self, **values: Any) -> int:
        index = max(self.by_index, default=0) + 1
        self.by_index[index] = KernelInterface(index=index, **values)
        return index

    def interface(self, name: str) -> KernelInterface:
        return next(interface for interface in self.by_index.values() if interface.name == name)

    @property
    def names(self) -> set[str]:
        return {interface.name for interface in self.by_index.values()}

    def list_interfaces(self) -> list[KernelInterface]:
        return list(self.by_index.values())

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        return self.put(name=name, kind="vlan", parent=parent.index, vlan=vlan, mtu=parent.mtu)

    def add_bridge(self, name: str) -> int:
        return self.put(name=name, kind="bridge")

    def change(self, index: int, **values: Any) -> None:
        self.changes += 1
        self.by_index[index] = replace(self.by_index[index], **values)

    def read_mtu(self, name: str) -> int | None:
        return self.interface(name).mtu if name in self.names else None

    def set_mtu(self, name: str, mtu: int) -> None:
        self.change(self.interface(name).index, mtu=mtu)

    def isolate(self, index: int) -> None:
        self.by_index[index] = replace(self.by_index[index], isolated=True)

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        return self.set_sysctls

    def disable_packet_filter(self, index: int) -> None:
        self.by_index[index] = replace(self.by_index[index], packet_filtered=False)

    def disable_host_ip(self, index: int, name: str) -> None:
        assert self.by_index[index].name == name
        self.by_index[index] = replace(self.by_index[index], host_ip_disabled=True)
        self.ip_settings[index] = DISABLED_HOST_IP

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        return self.ip_settings.get(self.interface(name).index, NEW_INTERFACE_IP) if name else NEW_INTERFACE_IP

    def restore_host_ip(self, index: int, name: str, former: HostIpSettings) -> None:
        assert self.by_index[index].name == name
        self.by_index[index] = replace(self.by_index[index], host_ip_disabled=former == DISABLED_HOST_IP)
        self.ip_settings[index] = former

    def delete(self, index: int) -> None:
        deleted = self.by_index.pop(index, None)
        if deleted:
            self.deleted.append(deleted.name)
        for port in self.by_index.values():
            if port.master == index:
                self.by_index[port.index] = replace(port, master=None)


class FakeUplinkRecords:
    """Records of uplinks in memory."""

    def __init__(self) -> None:
        self.by_name: dict[str, UplinkRecord] = {}

    def all(self) -> list[UplinkRecord]:
        return list(self.by_name.values())

    def record(self, record: UplinkRecord) -> None:
        self.by_name[record.uplink] = record

    def forget(self, uplink: str) -> None:
        self.by_name.pop(uplink, None)


class FakeHypervisor:
    """Domains in memory.

    Domains in ``stubborn`` ignore all requests to shut down. Domains in ``with_systemd`` obey only requests to systemd,
    and all other domains ignore requests to systemd. Domains in ``immortal`` cannot be destroyed. Domains in
    ``without_eth0`` are containers whose interface has another name. If ``error`` is set,
    every call except `is_xen` raises this error.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, GuestDomain] = {}
        self.started: list[str] = []
        self.destroyed: list[str] = []
        self.stubborn: set[str] = set()
        self.with_systemd: set[str] = set()
        self.mtus: dict[str, int] = {}
        self.without_eth0: set[str] = set()
        self.immortal: set[str] = set()
        self.error: Exception | None = None
        self.kvm = False

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def list_domains(self) -> list[GuestDomain]:
        self._raise_error()
        return list(self.by_name.values())

    def find_domain(self, name: str) -> GuestDomain | None:
        self._raise_error()
        return self.by_name.get(name)

    def start(self, xml: str) -> None:
        self._raise_error()
        root = ET.fromstring(xml)  # noqa: S314 - written by the agent
        name, owner = root.findtext("name"), root.find(f"metadata/{{{NAMESPACE}}}guest")
        assert name
        assert owner is not None
        self.started.append(xml)
        self.by_name[name] = GuestDomain(
            name, running=True, owner=parse_ownership(ET.tostring(owner, encoding="unicode"))
        )

    def set_mtu(self, name: str, mtu: int) -> None:
        self._raise_error()
        if name in self.without_eth0:
            raise Refused(f"cannot set MTU {mtu} of eth0 in container {name}: No such device")
        self.mtus[name] = mtu

    def shut_down(self, name: str, *, systemd: bool = False) -> None:
        self._raise_error()
        if name not in self.stubborn and systemd is (name in self.with_systemd):
            self.by_name.pop(name, None)

    def destroy(self, name: str) -> None:
        self._raise_error()
        if name in self.immortal:
            raise Refused("Device or resource busy")
        if self.by_name.pop(name, None):
            self.destroyed.append(name)

    def find_console(self, name: str) -> str | None:
        """Return None: no domain has a terminal."""
        self._raise_error()
        return None

    def is_xen(self) -> bool:
        return False

    def has_kvm(self) -> bool:
        self._raise_error()
        return self.kvm


class FakeMounts:
    """Replaces mounts: records which folders are mounted. The size of these folders is not limited."""

    def __init__(self) -> None:
        self.mounted_paths: set[Path] = set()

    def mounted(self, path: Path) -> bool:
        return path in self.mounted_paths

    def mount(self, path: Path, size: int, files: int) -> None:
        assert not list(path.iterdir())
        self.mounted_paths.add(path)

    def unmount(self, path: Path) -> None:
        self.mounted_paths.remove(path)
        shutil.rmtree(path)
        path.mkdir()


class FakeGroups:
    """Control groups in memory. ``start`` identifies the present start of each container."""

    def __init__(self) -> None:
        self.limits: dict[str, ContainerLimits] = {}
        self.start = "101 5000"
        self.limited: list[str] = []

    def ensure(self, domain: str, limits: ContainerLimits) -> str | None:
        self.limits[domain] = limits
        return f"/virtcloud.partition/{domain}.partition"

    def limit_started(self, domain: str, pids: int, former: str) -> str:
        if self.start != former:
            self.limited.append(f"{domain} {pids}")
        return self.start

    def ensure_none(self, domain: str) -> None:
        self.limits.pop(domain, None)


class FakeRoots:
    """Root file systems of guests as plain folders without mounts. ``folder`` contains a folder for each guest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, domain: str) -> GuestRoot | None:
        path = self._folder / domain / "root"
        return GuestRoot(path, 1 << 28) if path.exists() else None

    def ensure(self, domain: str, image: Path, size_mb: int | None = None) -> GuestRoot:
        path = self._folder / domain / "root"
        path.mkdir(exist_ok=True)
        return GuestRoot(path, 1 << 28)

    def ensure_none(self, domain: str) -> None:
        """Do nothing: ``GuestFiles`` removes the guest's folder, which contains the root file system."""
