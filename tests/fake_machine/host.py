"""Interfaces, records of uplinks, domains and mounts in memory."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from virtcloud.agent.guests.domains import NAMESPACE, DomainOwnership, GuestDomain
from virtcloud.agent.network.interfaces import HostIpSettings, KernelInterface, UplinkRecord
from virtcloud.model.errors import Refused

FRESH = HostIpSettings(settings={"ipv6/addr_gen_mode": "0", "ipv6/disable_ipv6": "0"})
HUSHED = HostIpSettings(settings={"ipv6/addr_gen_mode": "1", "ipv6/disable_ipv6": "1"})


class FakeKernel:
    """Interfaces in memory. ``deleted`` contains the names of deleted interfaces."""

    def __init__(self) -> None:
        """Start with the uplink eth0."""
        self.by_index: dict[int, KernelInterface] = {}
        self.deleted: list[str] = []
        self.changes = 0
        self.filtering: tuple[str, ...] = ()
        self.voices: dict[int, HostIpSettings] = {}
        self.put(name="eth0", up=True)

    def put(self, **values: Any) -> int:  # noqa: ANN401 - a link's fields
        """Add an interface that virtcloud did not create; return its index."""
        index = max(self.by_index, default=0) + 1
        self.by_index[index] = KernelInterface(index=index, **values)
        return index

    def named(self, name: str) -> KernelInterface:
        """Return the interface with this name."""
        return next(link for link in self.by_index.values() if link.name == name)

    @property
    def names(self) -> set[str]:
        """Return the names of all interfaces."""
        return {link.name for link in self.by_index.values()}

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""
        return list(self.by_index.values())

    def add_vlan(self, name: str, parent: KernelInterface, vlan: int) -> int:
        """Create a tagged interface."""
        return self.put(name=name, kind="vlan", parent=parent.index, vlan=vlan, mtu=parent.mtu)

    def add_bridge(self, name: str) -> int:
        """Create a bridge."""
        return self.put(name=name, kind="bridge")

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - a link's fields
        """Change properties of an interface."""
        self.changes += 1
        self.by_index[index] = replace(self.by_index[index], **values)

    def packet_filter_sysctls(self) -> tuple[str, ...]:
        """Return the sysctls that are set."""
        return self.filtering

    def disable_packet_filter(self, index: int) -> None:
        """Reset the packet filter options of a bridge."""
        self.by_index[index] = replace(self.by_index[index], packet_filtered=False)

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""
        assert self.by_index[index].name == name
        self.by_index[index] = replace(self.by_index[index], host_ip_disabled=True)
        self.voices[index] = HUSHED

    def read_host_ip(self, name: str | None) -> HostIpSettings:
        """Return the configuration of an interface in the host's IP stack."""
        return self.voices.get(self.named(name).index, FRESH) if name else FRESH

    def restore_host_ip(self, index: int, name: str, voice: HostIpSettings) -> None:
        """Restore the configuration of an interface in the host's IP stack."""
        assert self.by_index[index].name == name
        self.by_index[index] = replace(self.by_index[index], host_ip_disabled=voice == HUSHED)
        self.voices[index] = voice

    def delete(self, index: int) -> None:
        """Delete an interface and detach its ports."""
        gone = self.by_index.pop(index, None)
        if gone:
            self.deleted.append(gone.name)
        for one in self.by_index.values():
            if one.master == index:
                self.by_index[one.index] = replace(one, master=None)


class FakeUplinkRecords:
    """Records in memory."""

    def __init__(self) -> None:
        """Start without records."""
        self.by_name: dict[str, UplinkRecord] = {}

    def all(self) -> list[UplinkRecord]:
        """Return all records."""
        return list(self.by_name.values())

    def record(self, found: UplinkRecord) -> None:
        """Store a record."""
        self.by_name[found.uplink] = found

    def forget(self, uplink: str) -> None:
        """Remove a record."""
        self.by_name.pop(uplink, None)


class FakeHypervisor:
    """Domains in memory.

    Domains in ``stubborn`` ignore requests to shut down. Domains in ``immortal`` cannot be destroyed. Every call raises
    ``fault``, if set.
    """

    def __init__(self) -> None:
        """Start without domains."""
        self.by_name: dict[str, GuestDomain] = {}
        self.started: list[str] = []
        self.destroyed: list[str] = []
        self.stubborn: set[str] = set()
        self.immortal: set[str] = set()
        self.fault: Exception | None = None
        self.kvm = False

    def _answer(self) -> None:
        if self.fault is not None:
            raise self.fault

    def list_domains(self) -> list[GuestDomain]:
        """Return all domains."""
        self._answer()
        return list(self.by_name.values())

    def find_domain(self, name: str) -> GuestDomain | None:
        """Return the domain with this name, or None."""
        self._answer()
        return self.by_name.get(name)

    def start(self, xml: str) -> None:
        """Start a domain."""
        self._answer()
        root = ET.fromstring(xml)  # noqa: S314 - our own
        name, owner = root.findtext("name"), root.find(f"metadata/{{{NAMESPACE}}}guest")
        assert name
        assert owner is not None
        self.started.append(xml)
        self.by_name[name] = GuestDomain(name, running=True, owner=DomainOwnership(**owner.attrib))

    def shut_down(self, name: str) -> None:
        """Request that a domain shuts down."""
        self._answer()
        if name not in self.stubborn:
            self.by_name.pop(name, None)

    def destroy(self, name: str) -> None:
        """Stop a domain."""
        self._answer()
        if name in self.immortal:
            raise Refused("Device or resource busy")
        if self.by_name.pop(name, None):
            self.destroyed.append(name)

    def has_kvm(self) -> bool:
        """Return whether KVM is listed."""
        self._answer()
        return self.kvm


class FakeMounts:
    """Folders that are recorded as mounted file systems, without limits."""

    def __init__(self) -> None:
        """Start without mounts."""
        self.places: set[Path] = set()

    def mounted(self, place: Path) -> bool:
        """Return whether a folder is mounted."""
        return place in self.places

    def mount(self, place: Path, size: int, files: int) -> None:
        """Record a mount."""
        assert not list(place.iterdir())
        self.places.add(place)

    def unmount(self, place: Path) -> None:
        """Record the unmount and empty the folder."""
        self.places.remove(place)
        shutil.rmtree(place)
        place.mkdir()
