"""The verification of a cluster's paths: frames of full size between all pairs of its hosts."""

from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.path_verification import VERIFIABLE, judge_paths, list_hosts
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, authorize_in_unit
from sbf_service.http.auth.caller import Caller
from sbf_service.http.operations import Operation
from sbf_service.http.path_check import CheckedHost, ExchangeOutcome, PathCheck
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.http.session_relay import SessionRelay
from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.live_clusters import make_live_clusters
from sbf_service.store.elements.elements import make_element_view
from sbf_service.store.topology.current_topology import read_topology
from virtcloud.model.changes import ElementDifference
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import kind_of
from virtcloud.model.errors import Conflict, VirtcloudError
from virtcloud.model.path_check import ClusterVerification, PathResult, UnverifiedHost, VerifiedPath
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, VlanId

MAX_READ_DEVICES = 8

router = APIRouter(prefix="/v1/clusters", tags=["clusters"], route_class=Operation)


@router.post("/{key}/verify", responses=problem_responses(404, 409, 410, 422))
async def verify_cluster(
    key: KeyPath,
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> ClusterVerification:
    """Send packets of full size between all pairs of a cluster's hosts, and return the result of each pair.

    A packet of full size has the size of the cluster's MTU. The hosts exchange frames that no element fragments. The
    guests need no software. If nothing passes between two hosts, SBF reads the devices on the path. The call changes
    nothing and takes some seconds.
    """
    relay: SessionRelay = request.app.state.sessions
    check, topology, hosts = await run_in_threadpool(_prepare, service, caller, key, id, relay)
    with relay.count_check(caller.who):
        outcome = await check.run(hosts)
    names = tuple(outcome.ends)
    reports = {name: report for name, report in outcome.reports.items() if report.received}
    outcome.unverified += [_make_refused(name, outcome) for name in outcome.reports if name not in reports]
    paths = await run_in_threadpool(judge_paths, topology, check.cluster, names, reports)
    return ClusterVerification(
        key=key,
        id=check.cluster.id,
        mtu=outcome.size,
        mtus={name: end.mtu for name, end in outcome.ends.items()},
        paths=paths,
        unverified=tuple(outcome.unverified),
        notes=(
            *(f"host {name}: {report.error}" for name, report in reports.items() if report.error),
            *[note async for note in _explain(service, check, topology, paths)],
        ),
    )


def _prepare(
    service: SbfService, caller: Caller, key: ClusterKey, cluster_id: str | None, relay: SessionRelay
) -> tuple[PathCheck, Topology, tuple[CheckedHost, ...]]:
    caller.require_for_any(Action.VERIFY_CLUSTER, "cluster")
    with service.store.read() as unit:
        authorize_in_unit(unit, caller, Action.VERIFY_CLUSTER, key, cluster_id)
        row = require_cluster(unit, key, cluster_id)
        if row.state not in VERIFIABLE:
            over = row.state in LEAVING_STATES | ENDED_STATES
            remedy = "create the cluster again" if over else f"wait for it (virtcloud cluster wait {key})"
            raise Conflict(f"cluster {key} is {row.state}: expected an active or degraded cluster; {remedy}")
        caller.count_device_read()
        (cluster,) = make_live_clusters(unit, [row])
        topology = read_topology(unit)
        views = [make_element_view(unit, name) for name in list_hosts(cluster)]
    transport = None if cluster.transport is None else topology.transport(cluster.transport)
    hosts = tuple(CheckedHost(view.name, view.reachable, view.last_seen) for view in views)
    check = PathCheck(service, relay, caller.who, cluster, None if transport is None else transport.cluster_mtu)
    return check, topology, hosts


async def _explain(
    service: SbfService, check: PathCheck, topology: Topology, paths: Iterable[VerifiedPath]
) -> AsyncIterator[str]:
    """Yield the differences and failed readings of the devices on path sections where no frame passes."""
    lost = [path.section for path in paths if path.section and path.result is PathResult.NOTHING_PASSES]
    elements = dict.fromkeys(port.element for section in lost for port in section.ports)
    devices = [name for name in elements if kind_of(topology.element(name)) in DEVICE_KINDS]
    reader = OnDemandReader(service.store, service.scheduler)
    for name in devices[:MAX_READ_DEVICES]:
        try:
            difference = await service.device_threads.run(partial(reader.difference, name))
        except VirtcloudError as error:
            yield f"{name} cannot be read: {error}"
            continue
        for note in _describe(difference, check.cluster.vlans[topology.site_of[name].name]):
            yield f"{kind_of(topology.element(name))} {name}: {note}; SBF corrects this when it next reads the device"


def _describe(difference: ElementDifference, vlan: VlanId) -> Iterator[str]:
    switch, edge = difference.switch, difference.edge
    if switch is not None:
        missing = [port for port, vlans in switch.add.items() if vlan in vlans]
        if missing:
            yield f"VLAN {vlan} is missing on {', '.join(missing)}"
        elif vlan in switch.create:
            yield f"VLAN {vlan} does not exist"
    if edge is not None:
        for circuit in edge.add:
            if circuit.vlan == vlan:
                yield f"the circuit of VLAN {vlan} on {circuit.port} is missing"


def _make_refused(name: Name, outcome: ExchangeOutcome) -> UnverifiedHost:
    reason = outcome.reports[name].error or "its agent reported nothing"
    return UnverifiedHost(host=name, reason=reason)
