"""A complete service with a database, fake devices, fake agents, and a clock that the test advances."""

import secrets
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path

from sqlalchemy import Engine, event, select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from sbf_service.bootstrap import SbfService, build_service
from sbf_service.domain.due_elements import is_due
from sbf_service.domain.idempotency import AttemptFence
from sbf_service.reconcile.device_statuses import read_device_statuses
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.settings import ServiceSettings
from sbf_service.store.clusters import clusters
from sbf_service.store.clusters.cluster_creation import PutResult, put_cluster
from sbf_service.store.elements import confirmations, elements
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import read_database_clock
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.transactions.network_scopes import find_cluster_scope, find_confirmation_scope
from sbf_service.store.users.tokens import create_token
from sbf_service.store.vlans.pools import make_site_view, put_pool
from support.migrated import create_sqlite
from support.sbf_fakes.edges import FakeEdges
from support.sbf_fakes.switches import FakeSwitches
from virtcloud.model.access import Role, TokenRequest
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element_views import ElementView, Pool, SiteView
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted

SITES = ("brno", "praha", "plzen")
STARTED = datetime(2026, 1, 1, tzinfo=UTC)

COMPILED: dict[str, Engine] = {}
"""The first engine for each kind of database. Later engines use the compiled statements of this engine."""


def share_compiled(engine: Engine) -> None:
    """Make ``engine`` use the compiled statements of this process's first engine, to save time."""
    first = COMPILED.get(engine.dialect.name)
    if first is not None:
        engine.dialect = engine.pool._dialect = first.dialect
        engine._compiled_cache = first._compiled_cache


def disable_synchronous_writes(connection: DBAPIConnection, _entry: object) -> None:
    """Disable the synchronous writes of SQLite: tests may kill a process, but cause no power loss."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


def site(name: str, hosts: int = 2) -> dict[str, object]:
    """Return a site with one switch, which has hosts at its ports p1…, and an uplink to the core."""
    ports = [f"p{number}" for number in range(1, hosts + 1)]
    return {
        "name": name,
        "attachments": [{"transport": "core", "port": f"{name}-sw1:uplink"}],
        "switches": [{"name": f"{name}-sw1", "platform": "fake", "ports": [*ports, "uplink"]}],
        "hosts": [{"name": f"{name}-h{number}", "ports": ["eth0"]} for number in range(1, hosts + 1)],
    }


def three_sites(**changes: object) -> Topology:
    """Return the topology of the VirtCloud paper: the sites Brno, Praha and Plzeň with two hosts each."""
    links = [{"a": f"{name}-h{n}:eth0", "b": f"{name}-sw1:p{n}"} for name in SITES for n in (1, 2)]
    document = {
        "name": "paper",
        "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
        "sites": [site(name) for name in SITES],
        "links": links,
    }
    return Topology.model_validate(document | changes)


FOUR = ("a", "b", "c", "d")
"""The sites of :func:`four_sites`. Two pairs of sites without a common site need at least four sites."""
BACKBONE = {"name": "core", "kind": "qinq", "s_tag": 2000}


def four_sites(transport: Mapping[str, object] = BACKBONE) -> Topology:
    """Return four sites with two hosts each, on one transport, with provider edges if the transport needs them."""
    at_edges = bool(transport.keys() & {"vpn_id", "vpn_ids", "vnis", "s_tags"})
    name_of_transport = str(transport["name"])
    links = [{"a": f"{name}-h{n}:eth0", "b": f"{name}-sw1:p{n}"} for name in FOUR for n in (1, 2)]
    links += [{"a": f"{name}-sw1:uplink", "b": f"{name}-pe1:ac"} for name in FOUR] if at_edges else []
    sites = [
        edge_site(name, name_of_transport, hosts=2)
        if at_edges
        else site(name) | {"attachments": [{"transport": name_of_transport, "port": f"{name}-sw1:uplink"}]}
        for name in FOUR
    ]
    return Topology.model_validate({"name": "four", "transports": [transport], "sites": sites, "links": links})


def edge_site(name: str, *transports: str, hosts: int = 1) -> dict[str, object]:
    """Return a site whose switch is linked to a provider edge. The edge attaches the site to ``transports``."""
    port = f"{name}-pe1:ac"
    return site(name, hosts) | {
        "attachments": [{"transport": transport, "port": port} for transport in transports],
        "edges": [
            {
                "name": f"{name}-pe1",
                "platform": "fake",
                "ports": ["ac"],
                "core_port": "core",
                "loopback": f"192.0.2.{(*SITES, *FOUR).index(name) + 1}",
            }
        ],
    }


EVPN = {"name": "evpn", "kind": "evpn", "vnis": "10100-10199", "asn": 65000}


def three_edges(*transports: Mapping[str, object], hosts: int = 1) -> Topology:
    """Return three sites with ``hosts`` hosts each, joined at provider edges by ``transports`` (default: EVPN)."""
    documents: tuple[Mapping[str, object], ...] = transports or (EVPN,)
    links = [{"a": f"{name}-h{n}:eth0", "b": f"{name}-sw1:p{n}"} for name in SITES for n in range(1, hosts + 1)]
    links += [{"a": f"{name}-sw1:uplink", "b": f"{name}-pe1:ac"} for name in SITES]
    names = [str(document["name"]) for document in documents]
    sites = [edge_site(name, *names, hosts=hosts) for name in SITES]
    return Topology.model_validate({"name": "edges", "transports": documents, "sites": sites, "links": links})


def spec(*hosts: str, owner: str = "alice", **changes: object) -> ClusterSpec:
    guests = [{"name": f"g{n}", "host": host, "image": "debian"} for n, host in enumerate(hosts, start=1)]
    return ClusterSpec.model_validate({"owner": owner, "guests": guests} | changes)


@dataclass
class FakeClock:
    """A clock that a test advances. If ``stands`` is False, the clock returns the time of the database."""

    now: datetime = STARTED
    stands: bool = True

    def __call__(self, session: Session) -> datetime:
        return self.now if self.stands else read_database_clock(session)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class MeetingClock:
    """The database's clock for two replicas. A replica that reads the clock waits until the other replica reads it.

    So two transactions are open at the same time. If a lock delays one transaction, the other waits only 0.3 s.
    """

    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=0.3))

    def __call__(self, session: Session) -> datetime:
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait()
        return read_database_clock(session)


@dataclass
class World:
    """The service with its fake devices and hosts. Workers and agents act only when the test calls them."""

    database: str
    timing: dict[str, float] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    switches: FakeSwitches = field(default_factory=FakeSwitches)
    edges: FakeEdges = field(default_factory=FakeEdges)
    dead_hosts: set[str] = field(default_factory=set)
    made: list[SbfService] = field(default_factory=list, repr=False)
    """Every service created on this database. Tests may replace ``service``, or use several services together."""

    def __post_init__(self) -> None:
        create_sqlite(self.database)
        self.service = self.restarted()
        self.service.prepare()
        COMPILED.setdefault(self.store.engine.dialect.name, self.store.engine)

    def restarted(self) -> SbfService:
        settings = ServiceSettings.model_validate({"database": self.database, "timing": self.timing, "replica": "one"})
        service = build_service(settings, self.switches.platform_of, self.clock, self.edges.platform_of)
        service.scheduler.sweep.suspended_after_s = inf  # tests run the sweep rarely
        share_compiled(service.store.engine)
        event.listen(service.store.engine, "connect", disable_synchronous_writes)
        self.made.append(service)
        return service

    def meeting_stores(self) -> tuple[Store, Store]:
        """Return the stores of two replicas, whose next changes overlap in time unless a lock delays one change."""
        clock = MeetingClock()
        return replace(self.service.store, clock=clock), replace(self.restarted().store, clock=clock)

    @property
    def store(self) -> Store:
        return self.service.store

    def close(self) -> None:
        """Wait until the service is idle. Then close the database connections of all services."""
        scheduler = self.service.scheduler
        if scheduler._thread is not None and scheduler._stopping:
            scheduler._thread.join(10)
        with scheduler._lock:
            assert scheduler._lock.wait_for(lambda: not scheduler._queue.busy, 10)
        for service in self.made:
            service.store.close()

    def furnish(self, pool: str = "100-139", topology: Topology | None = None) -> None:
        document = topology or three_sites()
        self.put_topology(document)
        self.put_pools({described.name: pool for described in document.sites})

    def put_topology(self, topology: Topology) -> None:
        with self.store.change() as unit:
            put_topology(unit, topology)

    def put_pool(self, name: str, pool: str) -> None:
        self.put_pools({name: pool})

    def put_pools(self, pools: Mapping[str, str]) -> None:
        with self.store.change() as unit:
            for name, pool in pools.items():
                put_pool(unit, name, Pool(vlans=VlanSet.parse(pool)), self.service.reserved)

    def put(self, key: str, wanted: ClusterSpec, attempt: int | None = None) -> PutResult:
        request = ClusterRequest(spec=wanted, attempt=attempt)
        sees = wanted.owner.__eq__
        return put_cluster(self.store, key, request, self.service.reserved, wanted.owner, sees=sees)

    def delete(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        fence = AttemptFence(attempt, owner)
        return self.store.change_scope(
            partial(find_cluster_scope, key=key),
            lambda unit: clusters.delete_cluster(unit, key, "ended by its user", fence),
        )

    def view(self, key: str) -> ClusterView:
        with self.store.read() as unit:
            return clusters.get_cluster(unit, key)

    def site(self, name: str) -> SiteView:
        with self.store.read() as unit:
            return make_site_view(unit, read_topology(unit).site(name), self.service.reserved)

    def converge(self, name: str) -> ReconcileOutcome:
        return self.service.scheduler.worker.reconcile(Name(name))

    def converge_switches(self) -> bool:
        """Reconcile every due device until its revision is confirmed or the reconciliation has failed once.

        Return whether a device was due.
        """
        due = self._due()
        for name in due:
            while self.converge(name) is ReconcileOutcome.OVERTAKEN:
                pass
        return bool(due)

    def confirm_hosts(self) -> bool:
        """Confirm the wanted state of every host whose agent runs. Omit confirmations that would change nothing.

        Return whether a confirmation was due.
        """
        with self.store.read() as unit:
            views = elements.make_element_views(unit)
        agents = [view for view in views if view.kind not in DEVICE_KINDS and view.name not in self.dead_hosts]
        due = [view for view in agents if not self._is_confirmed_now(view)]
        for view in due:
            self.confirm(view.name, view.wanted_revision)
        return bool(due)

    def _is_confirmed_now(self, view: ElementView) -> bool:
        confirms = view.confirmed_revision == view.wanted_revision and view.reachable and view.trouble is None
        return confirms and view.last_seen == self.clock.now

    def confirm(self, name: str, revision: int) -> None:
        self.store.change_scope(
            partial(find_confirmation_scope, name=name, revision=revision),
            lambda unit: confirmations.confirm_revision(unit, name, revision, self.service.settings.timing.drain),
            who=name,
        )

    def sweep(self) -> None:
        self.service.scheduler.sweep.run()

    def settle(self) -> None:
        """Run workers, agents and the deadline sweep twice, or three times if the second round had due work.

        The second round completes the transitions that the first sweep applied.
        """
        for repetition in range(3):
            was_due = self.converge_switches()
            was_due = self.confirm_hosts() or was_due
            self.sweep()
            if repetition and not was_due:
                break

    def wanted_of_host(self, name: str) -> HostWanted:
        with self.store.read() as unit:
            return elements.make_wanted_document(unit, name).wanted

    def topology(self) -> Topology:
        with self.store.read() as unit:
            return read_topology(unit)

    def element(self, name: str) -> ElementView:
        with self.store.read() as unit:
            return elements.make_element_view(unit, name)

    def token(self, role: Role, name: str, *sites: str, expires_in_s: float | None = None) -> str:
        wanted = {"name": name, "role": role, "sites": sites, "expires_in_s": expires_in_s}
        with self.store.change() as unit:
            return create_token(unit, TokenRequest.model_validate(wanted), secrets.token_bytes).token

    def audit(self, what: str | None = None) -> list[AuditRow]:
        with self.store.read() as unit:
            rows = unit.session.scalars(select(AuditRow).order_by(AuditRow.id)).all()
            unit.session.expunge_all()
        return [row for row in rows if what is None or row.what == what]

    def _due(self) -> list[str]:
        interval = timedelta(seconds=self.service.settings.timing.drift_interval)
        with self.store.read() as unit:
            return [
                status.name for status in read_device_statuses(unit, "nobody") if is_due(status, unit.now, interval)
            ]


def make_world(folder: Path, **timing: float) -> World:
    """Return a world on a new SQLite database in ``folder``, for tests that need no PostgreSQL."""
    return World(f"sqlite:///{folder / 'sbf.db'}", timing=timing)
