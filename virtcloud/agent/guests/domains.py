"""The libvirt domains of guests: the metadata about a domain's guest, and a hypervisor's operations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree as ET

from virtcloud.agent.guests.rooted_files import GuestRoot

NAMESPACE = "urn:virtcloud:libvirt:1"
"""XML namespace of the metadata element that marks virtcloud's domains."""


@dataclass(frozen=True, slots=True)
class DomainOwnership:
    """The content of a domain's metadata element.

    The element names the guest and the guest's cluster. ``digest`` is the digest of the wanted state with which the
    guest was started. ``starts`` is the number of resets in this wanted state, which the element omits if it is 0.
    """

    cluster: str
    guest: str
    digest: str
    starts: int = 0


@dataclass(frozen=True, slots=True)
class GuestDomain:
    """A domain of a hypervisor. ``owner`` is None if virtcloud did not create the domain."""

    name: str
    running: bool
    owner: DomainOwnership | None = None


class HypervisorApi(Protocol):
    """The operations of a hypervisor that guests need."""

    def list_domains(self) -> list[GuestDomain]:
        """Return all domains."""

    def find_domain(self, name: str) -> GuestDomain | None:
        """Return the domain with this name, or None."""

    def start(self, xml: str) -> None:
        """Start a transient domain."""

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the MTU of a running container's interface. Do nothing for a virtual machine: its XML sets the MTU."""

    def shut_down(self, name: str, *, systemd: bool = False) -> None:
        """Request that a domain shuts down. The guest can ignore the request.

        ``systemd`` must be true if the domain is a container whose init is systemd, and false for all other domains.
        """

    def destroy(self, name: str) -> None:
        """Stop a domain immediately. Do nothing if the domain is absent."""

    def find_console(self, name: str) -> str | None:
        """Return the path of the terminal of a domain's console, or None if the domain or the terminal is missing."""

    def has_kvm(self) -> bool:
        """Return whether the hypervisor lists KVM among its capabilities."""

    def is_xen(self) -> bool:
        """Return whether the hypervisor is Xen."""


@dataclass(frozen=True, slots=True)
class DomainEnvironment:
    """Properties of the host that determine a domain's XML.

    ``folder`` is the guest's folder on the host. ``root`` is a container's root, or None for a virtual machine.
    ``group`` is the parent of a container's control group, or None if there is no such parent. ``shared``: all users of
    the host may read the image's disk. ``xen``: virtual machines run on Xen (``machine_devices.py``).
    """

    architecture: str
    folder: Path
    accelerated: bool = False
    confined: bool = True
    root: GuestRoot | None = None
    group: str | None = None
    shared: bool = False
    xen: bool = False


def parse_ownership(metadata: str) -> DomainOwnership:
    """Parse the metadata element. Raise KeyError, ValueError or ParseError if virtcloud did not write the element."""
    attributes = ET.fromstring(metadata).attrib  # noqa: S314 - written by libvirt
    starts = int(attributes.get("starts", 0))
    return DomainOwnership(attributes["cluster"], attributes["guest"], attributes["digest"], starts)
