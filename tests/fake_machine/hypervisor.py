"""Domains in memory."""

from xml.etree import ElementTree as ET

from virtcloud.agent.domain import NAMESPACE, Ownership
from virtcloud.agent.ports import Domain


class FakeHypervisor:
    """Domains in memory. Those in ``stubborn`` do not end when asked."""

    def __init__(self) -> None:
        """Begin with no domain."""
        self.by_name: dict[str, Domain] = {}
        self.started: list[str] = []
        self.destroyed: list[str] = []
        self.stubborn: set[str] = set()
        self.kvm = False

    def domains(self) -> list[Domain]:
        """Give every domain."""
        return list(self.by_name.values())

    def domain(self, name: str) -> Domain | None:
        """Give one."""
        return self.by_name.get(name)

    def start(self, xml: str) -> None:
        """Start one."""
        root = ET.fromstring(xml)  # noqa: S314 - our own
        name, owner = root.findtext("name"), root.find(f"metadata/{{{NAMESPACE}}}guest")
        assert name
        assert owner is not None
        self.started.append(xml)
        self.by_name[name] = Domain(name, running=True, owner=Ownership(**owner.attrib))

    def shut_down(self, name: str) -> None:
        """Ask it to end."""
        if name not in self.stubborn:
            self.by_name.pop(name, None)

    def destroy(self, name: str) -> None:
        """End it."""
        if self.by_name.pop(name, None):
            self.destroyed.append(name)

    def accelerates(self) -> bool:
        """Say whether KVM is listed."""
        return self.kvm
