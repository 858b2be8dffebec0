"""What the agent needs of the kernel and of a hypervisor, in our words; the adapters that do it are elsewhere."""

from dataclasses import dataclass
from typing import Any, Protocol

from virtcloud.agent.domain import Ownership
from virtcloud.model.document import Document


@dataclass(frozen=True, slots=True)
class Link:
    """An interface as the kernel shows it.

    ``parent`` and ``master`` are indices; ``quiet`` says that the host does not speak on it, ``addressed`` that the
    host has an address there that others may use, ``filtered`` that a bridge hands its frames to the host's packet
    filter by an option of its own.
    """

    index: int
    name: str
    kind: str | None = None
    alias: str | None = None
    parent: int | None = None
    master: int | None = None
    vlan: int | None = None
    mtu: int = 1500
    up: bool = False
    quiet: bool = False
    addressed: bool = False
    filtered: bool = False


class Voice(Document):
    """How the host speaks on an interface.

    ``settings`` are values of sysctls by their names (``ipv6/addr_gen_mode``), ``addresses`` the link-local IPv6
    addresses with their prefix lengths.
    """

    settings: dict[str, str]
    addresses: tuple[str, ...] = ()


class Found(Document):
    """What an interface of the host was like before the segment of ``cluster`` took it.

    ``index`` and ``boot`` identify the interface: its name may come back after a reboot, or after it was made anew.
    """

    uplink: str
    index: int
    cluster: str
    vlan: int
    voice: Voice
    boot: str = ""


class FoundUplinks(Protocol):
    """The records of interfaces that were taken, on disk."""

    def all(self) -> list[Found]:
        """Return the records of this boot."""

    def record(self, found: Found) -> None:
        """Write a record, replacing the interface's former one. Raise Refused when it cannot be written."""

    def forget(self, uplink: str) -> None:
        """Remove a record; none is success."""


class Kernel(Protocol):
    """What the segments need of the kernel."""

    def links(self) -> list[Link]:
        """Give all interfaces."""

    def add_vlan(self, name: str, parent: Link, vlan: int) -> int:
        """Create an 802.1q interface, down, and give its index."""

    def add_bridge(self, name: str) -> int:
        """Create a bridge, down, without spanning tree and multicast snooping, and give its index."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up``."""

    def filters(self) -> tuple[str, ...]:
        """Return the sysctls by which all bridges hand their frames to the host's packet filter."""

    def unfilter(self, index: int) -> None:
        """Reset the options by which a bridge hands its frames to the host's packet filter."""

    def hush(self, index: int, name: str) -> None:
        """Stop the host itself from speaking on an interface."""

    def voice(self, name: str | None) -> Voice:
        """Read how the host speaks on an interface; with None, how it speaks on a new one."""

    def speak(self, index: int, name: str, voice: Voice) -> None:
        """Restore the host's own addresses and answers on an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface; one that is gone already is no error."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain; ``owner`` is None when it does not bear our mark."""

    name: str
    running: bool
    owner: Ownership | None = None


class Hypervisor(Protocol):
    """What the guests need of a hypervisor."""

    def domains(self) -> list[Domain]:
        """Give every domain."""

    def domain(self, name: str) -> Domain | None:
        """Give one domain, or None."""

    def start(self, xml: str) -> None:
        """Start a transient domain."""

    def shut_down(self, name: str) -> None:
        """Ask a domain to end; it may not listen."""

    def destroy(self, name: str) -> None:
        """End a domain; one that is gone already is no error."""

    def accelerates(self) -> bool:
        """Say whether it runs guests on the processor itself."""
