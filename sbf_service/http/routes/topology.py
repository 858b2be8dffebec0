"""The topology: read, replace and dry-run the whole topology, or one site's part of the topology."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import combinations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.domain.wanted import find_edge_transports
from sbf_service.drivers.contract import EdgeCapabilities
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, describe_site
from sbf_service.http.auth.caller import Caller
from sbf_service.http.entity_tags import make_etag, matches, not_modified
from sbf_service.http.operations import IfMatch, check_if_match, hash_document
from sbf_service.http.problems import problem_responses
from sbf_service.http.topology_bodies import TopologyOperation, answer_topology
from sbf_service.reconcile.sessions import Platforms
from sbf_service.reconcile.setting_dry_run import SettingDryRun
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from sbf_service.store.topology.topology import FormerTopology, change_topology
from sbf_service.store.topology.topology import put_topology as replace_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.element import Device, Edge, kind_of
from virtcloud.model.errors import BadInput, Forbidden
from virtcloud.model.site import SitePart, find_foreign_credentials, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.topology_parts import replace_site_part
from virtcloud.model.transport import TransportKind
from virtcloud.model.validation_errors import explain_validation_error, list_validation_errors
from virtcloud.model.values import Name

NEEDS_LOOPBACK = frozenset({TransportKind.VPLS, TransportKind.EVPN})

router = APIRouter(route_class=TopologyOperation)


@router.put("/v1/topology", tags=["topology"], response_model=Topology, responses=problem_responses(409, 412, 422, 428))
def put_topology(
    topology: Topology, caller: CurrentCaller, service: CurrentService, response: Response, if_match: IfMatch = None
) -> Response:
    """Replace the topology: sites, elements, links and transports."""
    caller.require(Action.SET_TOPOLOGY)
    check_device_support(topology, topology.sites, service.platforms, service.settings.credentials)

    def make(former: FormerTopology) -> Topology:
        wanted = former.share_parts(topology)
        if former.topology is not None and former.topology != wanted:
            check_if_match(if_match, former.version, "the topology")
        return wanted

    response.headers["etag"] = make_etag(change_topology(service.store, make, who=caller.who))
    return answer_topology(topology, response)


@router.get("/v1/topology", tags=["topology"], response_model=Topology, responses=problem_responses(404))
def get_topology(caller: CurrentCaller, service: CurrentService, response: Response, request: Request) -> Response:
    """Return the topology; `ETag` is its version."""
    caller.require(Action.READ_TOPOLOGY)
    with service.store.read() as unit:
        version = read_topology_version(unit)
        response.headers["etag"] = make_etag(version)
        if version is not None and matches(request.headers.get("if-none-match"), make_etag(version)):
            return not_modified(response.headers)  # without reading the topology, which may have megabytes
        topology = read_topology(unit)
    return answer_topology(topology, response)


@router.post("/v1/topology/dry-run", tags=["topology"], responses=problem_responses(409, 422, 503))
async def preview_topology(topology: Topology, caller: CurrentCaller, service: CurrentService) -> ChangeDryRun:
    """Read the switches and edges that a new topology concerns, and return the necessary changes; apply none."""
    caller.require(Action.SET_TOPOLOGY)
    caller.count_device_read()
    await run_in_threadpool(
        check_device_support, topology, topology.sites, service.platforms, service.settings.credentials
    )
    return await dry_run_setting(service, partial(replace_topology, topology=topology))


@router.get("/v1/sites/{name}/topology", tags=["sites"], responses=problem_responses(404, 422))
def get_site_topology(name: Name, caller: CurrentCaller, service: CurrentService, response: Response) -> SitePart:
    """Return a site's part of the topology; `ETag` is its version."""
    caller.require(Action.READ_TOPOLOGY)
    with service.store.read() as unit:
        part = site_part_of(read_topology(unit), name)
    response.headers["etag"] = make_etag(hash_document(part))
    return part


@router.put("/v1/sites/{name}/topology", tags=["sites"], responses=problem_responses(404, 409, 412, 422, 428))
def put_site_topology(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    part: SitePart,
    caller: CurrentCaller,
    service: CurrentService,
    response: Response,
    if_match: IfMatch = None,
) -> SitePart:
    """Replace a site's part of the topology; other sites are not changed."""
    _authorize_part(caller, name, part)

    def make(former: FormerTopology) -> Topology:
        topology = former.require()
        before = site_part_of(topology, name)
        if before == part:
            return topology
        check_if_match(if_match, hash_document(before), f"the topology of site {name}")
        return former.share_parts(_replace_part(topology, service, caller, part))

    change_topology(service.store, make, who=caller.who)
    response.headers["etag"] = make_etag(hash_document(part))
    return part


@router.post("/v1/sites/{name}/topology/dry-run", tags=["sites"], responses=problem_responses(404, 409, 422, 503))
async def preview_site_topology(
    name: Name, part: SitePart, caller: CurrentCaller, service: CurrentService
) -> ChangeDryRun:
    """Read the switches and edges that a site's new part concerns, and return the necessary changes; apply none."""
    _authorize_part(caller, name, part)
    caller.count_device_read()

    def change(unit: Unit) -> None:
        replace_topology(unit, _replace_part(read_topology(unit), service, caller, part))

    return await dry_run_setting(service, change)


async def dry_run_setting(service: SbfService, change: Callable[[Unit], None]) -> ChangeDryRun:
    """Return what ``change`` would change on devices.

    Roll the transaction of ``change`` back, and read the affected devices without changing them.

    Raise the errors of ``change``, and ServiceBusy if no thread is free.
    """
    dry_run = SettingDryRun(service.store, service.scheduler, service.device_threads)
    return await dry_run.preview(await run_in_threadpool(dry_run.plan, change))


def check_device_support(
    topology: Topology, sites: Iterable[Site], platforms: Platforms, credentials: Collection[str]
) -> None:
    """Raise BadInput for the first device of these sites that SBF cannot configure as the topology requires.

    ``credentials`` are the names of the credentials in the service's settings.
    """
    for site in sites:
        _check_access_links(topology, site, platforms)
        for device in site.devices:
            _check_credential(device, credentials)
            if device.address is None and platforms.needs_address(device):
                raise BadInput(
                    f"{kind_of(device)} {device.name}: expected the key 'address' with the address to which SBF "
                    "connects, got none"
                )
        for edge in site.edges:
            for fault in _find_edge_faults(topology, edge, platforms.of_edge(edge).capabilities):
                raise BadInput(f"edge {edge.name}: {fault}")


def _check_access_links(topology: Topology, site: Site, platforms: Platforms) -> None:
    without = [one for one in site.switches if not platforms.of_switch(one).capabilities.access]
    if not without or not topology.access_ports:
        return  # the grouping of a large topology's links by site takes much longer than this check
    links = (*topology.links_by_site.get(site.name, ()), *topology.links_between)
    access_links = {end.element: link for link in links if link.access for end in link.ends}
    for switch in without:
        if (link := access_links.get(switch.name)) is not None:
            raise BadInput(
                f"access link {link.a} to {link.b}: expected a platform with access links, got {switch.platform}"
            )


def _check_credential(device: Device, credentials: Collection[str]) -> None:
    if device.credential is not None and device.credential not in credentials:
        known = ", ".join(sorted(credentials)) or "none"
        raise BadInput(
            f"{kind_of(device)} {device.name}: expected a credential of the service's settings ({known}), "
            f"got {device.credential}"
        )


def _find_edge_faults(topology: Topology, edge: Edge, capabilities: EdgeCapabilities) -> Iterator[str]:
    transports, kinds = find_edge_transports(topology, edge.name), capabilities.kinds
    for transport in transports:
        label = f"transport {transport.name} of kind {transport.kind}"
        if transport.kind not in kinds:
            yield f"expected a transport that {edge.platform} supports ({', '.join(sorted(kinds))}), got {label}"
        if transport.kind in NEEDS_LOOPBACK and edge.loopback is None:
            yield f"expected the loopback that the other edges of {label} connect to, got none"
        if transport.kind is TransportKind.QINQ and edge.core_port is None:
            yield f"expected the core_port that carries the service VLANs of {label}, got none"
    for transport, other in combinations(transports, 2):
        both = transport.find_common_service_ids(other)
        if both and not capabilities.services_by_kind:
            yield (
                f"expected different service IDs in transports {transport.name} and {other.name}, because services of "
                f"{edge.platform} are named after their IDs only, got {both} in both: change the range of one transport"
            )


def _authorize_part(caller: Caller, name: Name, part: SitePart) -> None:
    caller.require(Action.SET_SITE, describe_site(name))
    if part.site.name != name:
        raise BadInput(f"site.name: expected {name}, the site in the URL, got {part.site.name}")


def _replace_part(topology: Topology, service: SbfService, caller: Caller, part: SitePart) -> Topology:
    _authorize_credentials(caller, topology, part)
    try:
        wanted = replace_site_part(topology, part)
    except ValidationError as error:
        raise BadInput("\n".join(map(explain_validation_error, list_validation_errors(error)))) from error
    check_device_support(wanted, [part.site], service.platforms, service.settings.credentials)
    return wanted


def _authorize_credentials(caller: Caller, topology: Topology, part: SitePart) -> None:
    """Check the credentials of new devices, and of devices whose address, credential or platform changes.

    A site administrator may set only a credential that devices of the site use already and devices of other sites do
    not use. Raise Forbidden for any other credential.
    """
    foreign = find_foreign_credentials(topology, part)
    if foreign and not is_allowed(caller.principal, Action.SET_TOPOLOGY):
        listed = ", ".join(f"{credential} for {device}" for device, credential in foreign.items())
        raise Forbidden(
            f"{caller.principal} may not set credential {listed}: expected, for a new or changed device, a credential "
            f"that devices of site {part.site.name} use already and devices of other sites do not use; ask an operator "
            "to set any other credential"
        )
