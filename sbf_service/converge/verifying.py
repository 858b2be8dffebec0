"""Reading the neighbours of a site's switches, all at once, because somebody asks whether the cables are right."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sbf_service.cables import compare
from sbf_service.converge.converger import Converger
from sbf_service.converge.readings import LIMIT_S, read_or_reason
from sbf_service.converge.sessions import PlatformOf
from sbf_service.drivers.driver import ReadsNeighbours
from sbf_service.neighbour import Neighbour
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Store
from sbf_service.threads import BoundedThreads
from virtcloud.model.cables import SiteCables
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, Refused
from virtcloud.model.topology import Site, Topology
from virtcloud.model.values import Name

Heard = Mapping[Name, tuple[Neighbour, ...]]
Unread = Mapping[Name, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The site whose cables are to be verified, as the topology has it at ``at``."""

    topology: Topology
    site: Site
    at: datetime
    platform_of: PlatformOf

    def compare(self, heard: Heard, unread: Unread) -> SiteCables:
        """Return the site's cables, compared with what its switches hear."""
        cables = compare(self.topology, self.site, heard, self._form)
        return SiteCables(site=self.site.name, at=self.at, cables=cables, unread=dict(unread))

    def _form(self, element: Name, port: str) -> str:
        found = self.topology.element(element)
        return self.platform_of(found).port(port) if isinstance(found, Switch) else port.strip()


@dataclass(frozen=True, slots=True)
class Verifying:
    """Compares a site's cables with its topology; reads switches beside the converger, never at the same time."""

    store: Store
    converger: Converger
    platform_of: PlatformOf
    threads: BoundedThreads
    limit_s: float = LIMIT_S

    def plan(self, name: Name) -> Plan:
        """Read a site. Raise NotFound."""
        with self.store.read() as unit:
            topology = read_topology(unit)
            return Plan(topology, topology.site(name), unit.now, self.platform_of)

    async def ask(self, plan: Plan) -> tuple[Heard, Unread]:
        """Ask every switch of the site whom it hears: as many at once as there are threads; no thread waits for them.

        Return what each heard, and why the others could not be read. Raise ServiceBusy when no thread is free now.
        """
        self.threads.require_one()
        switches = plan.site.switches
        found = await asyncio.gather(
            *(
                read_or_reason(self.threads, partial(self._neighbours, one), f"switch {one.name}", self.limit_s)
                for one in switches
            )
        )
        answers = {one.name: answer for one, answer in zip(switches, found, strict=True)}
        heard = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
        return heard, {name: answer for name, answer in answers.items() if isinstance(answer, str)}

    def _neighbours(self, switch: Switch) -> tuple[Neighbour, ...]:
        worker = self.converger.worker
        with self.converger.alone(switch.name), worker.leased(switch.name) as fence:
            if fence is None:
                raise Conflict(f"switch {switch.name} is being worked on by another replica: ask again")
            driver = worker.sessions.driver(switch)
            if not isinstance(driver, ReadsNeighbours):
                raise Refused(f"switch {switch.name}: SBF cannot read the neighbours of platform {switch.platform}")
            try:
                return driver.neighbours(tuple(member for port in switch.ports for member in switch.members(port)))
            except Exception:
                worker.sessions.drop(switch.name)
                raise
