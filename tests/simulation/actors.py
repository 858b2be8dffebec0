"""Workers and agents, as generators: each yield is a place to crash, to be paused, or to let others act."""

from collections.abc import Iterator
from dataclasses import dataclass

from sbf_service.converge.task import KINDS
from sbf_service.drivers.driver import Managed
from sbf_service.drivers.edge import ManagedEdge
from sbf_service.edges import transports_at
from simulation.devices import Edge, Host, Switch
from simulation.store import MemoryStore
from virtcloud.model.element import Element, kind_of
from virtcloud.model.errors import ElementError, Unreachable
from virtcloud.model.wanted import HostWanted

Steps = Iterator[None]


@dataclass(frozen=True)
class Worker:
    """What ``sbf_service.converge.worker`` does, step by step. ``reads_back`` is false where a bug is planted."""

    store: MemoryStore
    device: Switch | Edge
    holder: str
    reads_back: bool = True

    def run(self) -> Steps:
        fence = self.store.take_lease(self.device.name, self.holder)
        if fence is None:
            return
        yield
        try:
            yield from self._converge(fence)
        except ElementError as error:
            yield
            if self._mine(fence):
                self.store.set_trouble(self.device.name, reachable=not isinstance(error, Unreachable))
            else:
                self.store.grow([self.device.name])
        yield
        self.store.give_up_lease(self.device.name, fence)

    def _converge(self, fence: int) -> Steps:
        name = self.device.name
        revision, confirmed, wanted = self.store.target(name)
        kept = self.store.kept(name)
        element = self.store.topology.element(name)
        kind = KINDS[kind_of(element)]
        managed = self._managed(element)
        yield
        carried, seen = self.device.read(managed), self.device.surprises
        difference = kind.difference(wanted, carried)
        yield
        if difference:
            kind.refuse_outside(name, managed, difference)
            if not self.store.keep_lease(name, fence):
                return
            if kind.has_drifted(kept, carried, confirmed < revision):
                self.store.set_back(name)
            self.device.unread = self.device.unread and not self._knows(fence, seen)
            yield
            for _line in self.device.apply(difference):
                if not self._mine(fence):
                    self.device.surprise()
                yield
            if self.reads_back:
                carried, seen = self.device.read(managed), self.device.surprises
                kind.refuse_leftover(name, wanted, carried)
            yield
        if self.store.keep_lease(name, fence):
            if self._knows(fence, seen):
                self.device.doubtful = self.device.unread = False
            self.store.confirm(name, revision)
        elif difference:
            self.store.grow([name])

    def _managed(self, element: Element) -> Managed | ManagedEdge:
        if isinstance(self.device, Edge):
            return ManagedEdge(element.ports, self.store.pool, transports_at(self.store.topology, element.name))
        return Managed(element.ports, self.store.pool)

    def _knows(self, fence: int, seen: int) -> bool:
        """Say whether what was read is what is there: nobody took over, and nothing happened since."""
        return self._mine(fence) and seen == self.device.surprises

    def _mine(self, fence: int) -> bool:
        return self.store.elements[self.device.name].fence == fence


@dataclass(frozen=True)
class Agent:
    """What an agent does: fetch, carry, confirm; after a restart it says first that it forgot."""

    store: MemoryStore
    host: Host

    def run(self) -> Steps:
        if self.host.doubtful:
            self.store.set_back(self.host.name)
            self.host.doubtful = False
            yield
        revision, _, wanted = self.store.target(self.host.name)
        assert isinstance(wanted, HostWanted)
        yield
        self.host.apply(wanted)
        yield
        if not self.host.doubtful:
            self.store.confirm(self.host.name, revision)
