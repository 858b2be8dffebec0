"""The measured operations, on a service in this process.

The service's switches are fakes. The benchmark itself makes the calls of an agent.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from sqlalchemy import update
from support.sbf_fakes.switches import FakeSwitches

from benchmarks.scale.costs import CostCounter, ServerProcesses
from benchmarks.scale.sizes import InstallationSize, name_host, name_site
from sbf_service.bootstrap import SbfService, build_service
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.settings import ServiceSettings
from sbf_service.store.clusters import clusters
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.clusters.cluster_dry_run import dry_run_cluster
from sbf_service.store.clusters.cluster_lists import ClusterFilter, read_cluster_page
from sbf_service.store.elements import confirmations, elements
from sbf_service.store.elements.observed_state import parse_observed_ports
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.maintenance.audit_log import AuditFilter, read_entry_page
from sbf_service.store.pages import Page, PagePart, read_all_pages
from sbf_service.store.store import Store
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.vlans.pools import read_site_page
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.element import ElementKind
from virtcloud.model.site import SitePart, site_part_of
from virtcloud.model.topology_parts import replace_site_part
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView

Operation = Callable[[], object]
PAGE = 5


@dataclass
class MeasuredService:
    """A service in this process, on a database that :mod:`benchmarks.scale.filling` has filled."""

    database: str
    size: InstallationSize
    counts_steps: bool = False
    switches: FakeSwitches = field(default_factory=FakeSwitches)
    numbers: Iterator[int] = field(default_factory=count)
    created: list[ClusterKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Build the service. Its scheduler starts no threads."""
        timing = {"agent_silence": 86400, "drift_interval": 86400}
        settings = ServiceSettings.model_validate({"database": self.database, "replica": "one", "timing": timing})
        self.service: SbfService = build_service(settings, self.switches.platform_of)
        self.counter = CostCounter(self.service.store.engine, steps=self.counts_steps)
        self.service.scheduler.spawn = lambda _work, _name: None

    @property
    def store(self) -> Store:
        """The service's store."""
        return self.service.store

    @property
    def operations(self) -> dict[str, Operation]:
        """The operations by name. Earlier operations create the rows that later operations need."""
        return {
            "look of the reconciler": self.look,
            "sweep": self.sweep,
            "dry run": self.dry_run,
            "claim": self.claim,
            "poll": self.poll,
            "confirm (host)": self.confirm_host,
            "reconcile (switch)": self.reconcile_switch,
            "delete": self.delete,
            "confirm (removal)": self.confirm_host,
            "element": self.show_element,
            "cluster": self.show_cluster,
            "page of clusters": self.read_cluster_page,
            "page of the clusters of a site": self.read_page_of_site,
            "page of ended clusters": self.read_ended_page,
            "page of elements": self.read_element_page,
            "page of sites": self.read_site_page,
            "page of the audit log": self.read_audit_page,
        }

    @property
    def whole_operations(self) -> Mapping[str, Operation]:
        """The operations whose answer or input contains the whole installation."""
        return {"list of clusters": self.list_clusters, "change of one site": self.change_site}

    def _next_request(self) -> tuple[ClusterKey, ClusterRequest]:
        number = next(self.numbers)
        sites = self.size.regions.pair_sites(7 * number)
        hosts = tuple(Name(name_host(site, number % self.size.hosts)) for site in sites)
        spec = ClusterSpec(owner=f"n{number % 50}", hosts=hosts, deadline_s=3600, lease_s=86400)
        return ClusterKey(f"new{number}"), ClusterRequest(spec=spec)

    def claim(self) -> object:
        """Create a cluster over two sites."""
        key, request = self._next_request()
        result = put_cluster(self.store, key, request, self.service.reserved, request.spec.owner)
        self.created.append(key)
        return result

    def dry_run(self) -> object:
        """Compute a dry run of a cluster over two sites."""
        key, request = self._next_request()
        with self.store.read() as unit:
            return dry_run_cluster(unit, key, request, self.service.reserved)

    def delete(self) -> None:
        """Delete the oldest cluster that this object created."""
        with self.store.change(who="bench") as unit:
            clusters.delete_cluster(unit, self.created.pop(0), "ended by the benchmark")

    def poll(self) -> object:
        """Read the wanted document of a host."""
        return self._read_wanted(next(self.numbers))

    def _read_wanted(self, number: int) -> object:
        name = name_host(number % self.size.sites, number % self.size.hosts)
        with self.store.read() as unit:
            return elements.make_wanted_document(unit, name)

    def confirm_host(self) -> None:
        """Confirm the wanted revision of a host that has not confirmed this revision.

        If all hosts have confirmed their wanted revisions, confirm the first host's revision again.
        """
        name = self._find_behind("host") or name_host(0, 0)
        with self.counter.measure(self.server), self.store.change(who=name) as unit:
            revision = require_element(unit, name).wanted_revision
            confirmations.confirm_revision(unit, name, revision, timedelta(minutes=30))

    server: ServerProcesses | None = None
    """The processes of the database server, whose processor time counts too."""

    def reconcile_switch(self) -> None:
        """Reconcile a switch that has not confirmed its wanted revision.

        If all switches have confirmed their wanted revisions, reconcile the first switch again.
        """
        name = self._find_behind("switch") or f"{name_site(0)}-sw1"
        with self.store.read() as unit:
            ports = parse_observed_ports(require_element(unit, name)) or {}
        self.switches[name].ports = {str(port): set(map(int, vlans)) for port, vlans in ports.items()}
        with self.counter.measure(self.server):
            outcome = self.service.scheduler.worker.reconcile(Name(name))
        if outcome is not ReconcileOutcome.CONFIRMED:
            raise AssertionError(f"{name}: expected a confirmed revision, got {outcome.name}")

    def _find_behind(self, kind: str) -> str | None:
        with self.store.engine.connect() as connection:
            return connection.exec_driver_sql(
                f"SELECT name FROM elements WHERE confirmed_revision < wanted_revision AND kind = '{kind}' LIMIT 1"  # noqa: S608 - constants
            ).scalar()

    def look(self) -> None:
        """Run one round of the scheduler, without the sweep."""
        self.service.scheduler._start_due()  # noqa: SLF001 - the measured part
        self.service.scheduler._queue.busy.clear()  # noqa: SLF001

    def sweep(self) -> None:
        """Run the deadline sweep."""
        self.service.scheduler.sweep.run()

    def show_element(self) -> object:
        """Read the view of an element."""
        with self.store.read() as unit:
            return elements.make_element_view(unit, name_host(next(self.numbers) % self.size.sites, 0))

    def show_cluster(self) -> object:
        """Read the view of a cluster."""
        number = next(self.numbers) % self.size.live
        with self.store.read() as unit:
            return clusters.get_cluster(unit, f"c{number:06}")

    def list_clusters(self) -> object:
        """List all live clusters."""

        def read(part: PagePart) -> Page[ClusterView]:
            with self.store.read() as unit:
                return read_cluster_page(unit, ClusterFilter(), part)

        return list(read_all_pages(read))

    def _read_page(self, selected: ClusterFilter, *, newest_first: bool = False) -> None:
        with self.store.read() as unit:
            first = read_cluster_page(unit, selected, PagePart(PAGE), newest_first=newest_first)
            read_cluster_page(unit, selected, PagePart(PAGE, first.cursor), newest_first=newest_first)

    def read_cluster_page(self) -> None:
        """Read two pages of the live clusters."""
        self._read_page(ClusterFilter())

    def read_page_of_site(self) -> None:
        """Read two pages of the live clusters of one site."""
        self._read_page(ClusterFilter(site=Name(name_site(1))))

    def read_ended_page(self) -> None:
        """Read two pages of all clusters, the newest first."""
        self._read_page(ClusterFilter(ended=True), newest_first=True)

    def read_element_page(self) -> None:
        """Read two pages of the hosts."""
        selected = elements.ElementFilter(kind=ElementKind.HOST)
        with self.store.read() as unit:
            first = elements.read_element_page(unit, selected, PagePart(PAGE))
            elements.read_element_page(unit, selected, PagePart(PAGE, first.cursor))

    def read_site_page(self) -> None:
        """Read two pages of the sites."""
        with self.store.read() as unit:
            first = read_site_page(unit, PagePart(2), self.service.reserved)
            read_site_page(unit, PagePart(2, first.cursor), self.service.reserved)

    def read_audit_page(self) -> None:
        """Read two pages of a user's audit entries, and two pages of an element's audit entries of the last hour."""
        with self.store.read() as unit:
            for selected in (
                AuditFilter(who="n1"),
                AuditFilter(element=name_host(0, 0), since=unit.now - timedelta(hours=1)),
            ):
                first = read_entry_page(unit, selected, PagePart(PAGE), newest_first=True)
                read_entry_page(unit, selected, PagePart(PAGE, first.cursor), newest_first=True)

    def change_site(self) -> None:
        """Change one host of one site, with the steps of the API call."""
        number = next(self.numbers)
        with self.store.change(who="bench") as unit:
            topology = read_topology(unit)
            part = site_part_of(topology, name_site(number % self.size.sites))
            first = part.site.hosts[0]
            changed = first.model_copy(update={"open_filters": not first.open_filters})
            site = part.site.model_copy(update={"hosts": (changed, *part.site.hosts[1:])})
            put_topology(unit, replace_site_part(topology, SitePart(site=site, links=part.links)))

    def settle(self) -> None:
        """Confirm every element, and record that no device is due to be read."""
        while self._find_behind("host"):
            self.confirm_host()
        while self._find_behind("switch"):
            self.reconcile_switch()
        with self.store.change_row() as unit:
            unit.session.execute(update(ElementRow).values(checked_at=unit.now + timedelta(hours=1)))

    def finish(self) -> None:
        """Close the database."""
        self.store.close()


MEASURES_ITSELF = frozenset({"confirm (host)", "confirm (removal)", "reconcile (switch)"})
"""The operations that call the counter themselves, so that their costs do not include the search for an element."""
