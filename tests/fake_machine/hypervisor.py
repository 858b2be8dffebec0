"""Domains in memory."""

from xml.etree import ElementTree as ET

from virtcloud.agent.domain import NAMESPACE, Ownership
from virtcloud.agent.ports import Domain
from virtcloud.model.errors import Refused


class FakeHypervisor:
    """Domains in memory.

    Those in ``stubborn`` do not end when asked, those in ``immortal`` cannot be destroyed; ``fault`` is raised by every
    call.
    """

    def __init__(self) -> None:
        """Begin with no domain."""
        self.by_name: dict[str, Domain] = {}
        self.started: list[str] = []
        self.destroyed: list[str] = []
        self.stubborn: set[str] = set()
        self.immortal: set[str] = set()
        self.fault: Exception | None = None
        self.kvm = False

    def _answer(self) -> None:
        if self.fault is not None:
            raise self.fault

    def domains(self) -> list[Domain]:
        """Give every domain."""
        self._answer()
        return list(self.by_name.values())

    def domain(self, name: str) -> Domain | None:
        """Give one."""
        self._answer()
        return self.by_name.get(name)

    def start(self, xml: str) -> None:
        """Start one."""
        self._answer()
        root = ET.fromstring(xml)  # noqa: S314 - our own
        name, owner = root.findtext("name"), root.find(f"metadata/{{{NAMESPACE}}}guest")
        assert name
        assert owner is not None
        self.started.append(xml)
        self.by_name[name] = Domain(name, running=True, owner=Ownership(**owner.attrib))

    def shut_down(self, name: str) -> None:
        """Ask it to end."""
        self._answer()
        if name not in self.stubborn:
            self.by_name.pop(name, None)

    def destroy(self, name: str) -> None:
        """End it."""
        self._answer()
        if name in self.immortal:
            raise Refused("Device or resource busy")
        if self.by_name.pop(name, None):
            self.destroyed.append(name)

    def accelerates(self) -> bool:
        """Say whether KVM is listed."""
        self._answer()
        return self.kvm
