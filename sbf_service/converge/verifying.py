"""Reading the neighbours of a site's switches, all at once, because somebody asks whether the cables are right."""

import time
from dataclasses import dataclass, field
from threading import Lock, Thread

from sbf_service.cables import compare
from sbf_service.converge.converger import Converger
from sbf_service.converge.sessions import PlatformOf
from sbf_service.drivers.driver import ReadsNeighbours
from sbf_service.log import get_log
from sbf_service.neighbour import Neighbour
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Store
from virtcloud.model.cables import SiteCables
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, Refused, VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

log = get_log(__name__)

LIMIT_S = 60.0
"""A switch that has not answered by then is left out; the others' answers do not wait for it."""


@dataclass(slots=True)
class _Answers:
    """What the switches answered so far; written by a thread for each of them."""

    heard: dict[Name, tuple[Neighbour, ...]] = field(default_factory=dict)
    unread: dict[Name, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def taken(self) -> tuple[dict[Name, tuple[Neighbour, ...]], dict[Name, str]]:
        """Give what is there now; what comes later changes nothing of it."""
        with self.lock:
            return dict(self.heard), dict(self.unread)


@dataclass(frozen=True, slots=True)
class Verifying:
    """Compares a site's cables with its topology; reads switches beside the converger, never at the same time."""

    store: Store
    converger: Converger
    platform_of: PlatformOf
    limit_s: float = LIMIT_S

    def site(self, name: Name) -> SiteCables:
        """Ask every switch of a site whom it hears. Raises NotFound; what a switch says of trouble is in the answer."""
        with self.store.read() as unit:
            topology, now = read_topology(unit), unit.now
        site = topology.site(name)
        heard, unread = self._ask(site.switches)
        cables = compare(topology, site, heard, lambda element, port: self._form(topology, element, port))
        return SiteCables(site=name, at=now, cables=cables, unread=unread)

    def _form(self, topology: Topology, element: Name, port: str) -> str:
        found = topology.element(element)
        return self.platform_of(found).port(port) if isinstance(found, Switch) else port.strip()

    def _ask(self, switches: tuple[Switch, ...]) -> tuple[dict[Name, tuple[Neighbour, ...]], dict[Name, str]]:
        answers, until = _Answers(), time.monotonic() + self.limit_s
        threads = [
            Thread(target=self._take, args=(one, answers), name=f"verify-{one.name}", daemon=True) for one in switches
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0, until - time.monotonic()))
        heard, unread = answers.taken()
        late = {one.name for one in switches} - set(heard) - set(unread)
        return heard, unread | {name: f"switch {name} has not answered for {self.limit_s:g} s" for name in sorted(late)}

    def _take(self, switch: Switch, answers: _Answers) -> None:
        try:
            found, why = self._neighbours(switch), ""
        except VirtcloudError as error:
            found, why = (), str(error)
        except Exception as error:  # noqa: BLE001 - a fault of one driver must not hide the others' answers
            log.fault("verify_fault", error, element=switch.name)
            found, why = (
                (),
                f"switch {switch.name}: a fault in the service, which is in its log: {type(error).__name__}",
            )
        with answers.lock:
            if why:
                answers.unread[switch.name] = why
            else:
                answers.heard[switch.name] = found

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
