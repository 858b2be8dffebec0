"""Workers and agents, as generators: each yield is a place to crash, to be paused, or to let others act."""

from collections.abc import Iterator
from dataclasses import dataclass

from sbf_service.converge.verdict import has_drifted, refuse_leftover, refuse_outside
from sbf_service.drivers.driver import Managed
from simulation.devices import Host, Switch
from simulation.store import MemoryStore
from virtcloud.model.errors import ElementError, Unreachable
from virtcloud.model.topology import Switch as SwitchElement
from virtcloud.model.wanted import HostWanted, SwitchWanted, switch_difference

Steps = Iterator[None]


@dataclass(frozen=True)
class Worker:
    """What ``sbf_service.converge.worker`` does, step by step. ``reads_back`` is false where a bug is planted."""

    store: MemoryStore
    switch: Switch
    holder: str
    reads_back: bool = True

    def run(self) -> Steps:
        fence = self.store.take_lease(self.switch.name, self.holder)
        if fence is None:
            return
        yield
        try:
            yield from self._converge(fence)
        except ElementError as error:
            yield
            if self._mine(fence):
                self.store.set_trouble(self.switch.name, reachable=not isinstance(error, Unreachable))
            else:
                self.store.grow([self.switch.name])
        yield
        self.store.give_up_lease(self.switch.name, fence)

    def _converge(self, fence: int) -> Steps:
        name = self.switch.name
        revision, confirmed, wanted = self.store.target(name)
        kept = self.store.kept(name)
        element = self.store.topology.element(name)
        assert isinstance(wanted, SwitchWanted)
        assert isinstance(kept, SwitchWanted)
        assert isinstance(element, SwitchElement)
        managed = Managed(element.ports, self.store.pool)
        yield
        carried, seen = self.switch.read(managed), self.switch.surprises
        difference = switch_difference(wanted, carried)
        yield
        if difference:
            refuse_outside(name, managed, difference)
            if not self.store.keep_lease(name, fence):
                return
            if has_drifted(kept, carried, behind=confirmed < revision):
                self.store.set_back(name)
            self.switch.unread = self.switch.unread and not self._knows(fence, seen)
            yield
            for _line in self.switch.apply(difference):
                if not self._mine(fence):
                    self.switch.surprise()
                yield
            if self.reads_back:
                carried, seen = self.switch.read(managed), self.switch.surprises
                refuse_leftover(name, wanted, carried)
            yield
        if self.store.keep_lease(name, fence):
            if self._knows(fence, seen):
                self.switch.doubtful = self.switch.unread = False
            self.store.confirm(name, revision)
        elif difference:
            self.store.grow([name])

    def _knows(self, fence: int, seen: int) -> bool:
        """Say whether what was read is what is there: nobody took over, and nothing happened since."""
        return self._mine(fence) and seen == self.switch.surprises

    def _mine(self, fence: int) -> bool:
        return self.store.elements[self.switch.name].fence == fence


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
