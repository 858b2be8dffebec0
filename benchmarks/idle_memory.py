"""The memory and processor time of an idle service with 1,002 elements and 4,000 active clusters.

The benchmark first fills an SQLite database through the service's store. Then ``sbf serve`` starts with this database,
answers a few calls, and remains idle.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.installation import request, serving, sqlite, topology
from benchmarks.measurement import Measurement
from sbf_service.bootstrap import SbfService, build_service
from sbf_service.settings import ServiceSettings
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.elements.confirmations import confirm_revision
from sbf_service.store.elements.elements import make_element_views
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.vlans.pools import put_pool
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.element_views import Pool
from virtcloud.model.topology import Topology

SITES, CLUSTERS = 334, 4000
IDLE_S = 10.0


def run() -> Iterator[Measurement]:
    """Fill the database, start the service, call the service, wait, and measure."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _fill(folder)
        with serving(folder) as sbf:
            yield Measurement("from listening until ready", sbf.ready_within(), "s")
            for path in ("/v1/elements", "/v1/sites/s1", "/v1/clusters/c1"):
                sbf.call("GET", path)
            used = sbf.processor_s()
            time.sleep(IDLE_S)
            busy = (sbf.processor_s() - used) / IDLE_S
            yield Measurement("memory of an idle service, 1,002 elements, 4,000 clusters", sbf.memory_mb(), "MB", 300)
            yield Measurement("processor time of an idle service", 100 * busy, "% of one core")
            sbf.call("GET", "/v1/clusters")
            yield Measurement("memory after a list of all clusters", sbf.memory_mb(), "MB")


def _fill(folder: Path) -> None:
    settings = ServiceSettings.model_validate({"database": sqlite(folder), "replica": "bench"})
    service = build_service(settings)
    service.prepare()
    _put_topology(service)
    for number in range(CLUSTERS):
        hosts = (f"s{number % SITES + 1}-h1", f"s{(number + 1) % SITES + 1}-h{1 + number % 2}")
        cluster_request = ClusterRequest.model_validate(request(*hosts))
        put_cluster(service.store, f"c{number}", cluster_request, service.reserved, "bench")
    _confirm_all(service)
    service.store.close()


def _put_topology(service: SbfService) -> None:
    document = topology(["127.0.0.1:1"] * SITES)
    with service.store.change() as unit:
        put_topology(unit, Topology.model_validate(document))
    for number in range(1, SITES + 1):
        with service.store.change() as unit:
            put_pool(unit, f"s{number}", Pool.model_validate({"vlans": "2-1001,1006-4094"}), service.reserved)


def _confirm_all(service: SbfService) -> None:
    with service.store.read() as unit:
        wanted = [(element.name, element.wanted_revision) for element in make_element_views(unit)]
    for element, revision in wanted:
        with service.store.change() as unit:
            confirm_revision(unit, element, revision, timedelta(minutes=1))
