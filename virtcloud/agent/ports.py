"""What the agent needs of the kernel and of a hypervisor, in our words; the adapters that do it are elsewhere."""

from dataclasses import dataclass
from typing import Any, Protocol

from virtcloud.agent.domain import Ownership


@dataclass(frozen=True, slots=True)
class Link:
    """An interface as the kernel shows it.

    ``parent`` and ``master`` are indices; ``quiet`` says that the host does not speak on it, ``addressed`` that the
    host has an address there that others may use.
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

    def hush(self, index: int, name: str, *, quiet: bool = True) -> None:
        """Keep the host itself from speaking on an interface, or let it speak again."""

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
