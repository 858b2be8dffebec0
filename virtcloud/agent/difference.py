"""The steps that turn the observed state of a host into its wanted state. Pure.

Removals come before creations. So a VLAN ID passes to another cluster only after the old segment is removed. The bridge
and the filters are created before guests are started. A cluster without a difference has no step. One step replaces the
filters of all guests, and one step replaces the packet filter of all links to the outside.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256

from virtcloud.agent.file_servers.nfs_difference import find_file_server_changes, find_unwanted_file_servers
from virtcloud.agent.gateway.namespace_difference import find_namespace_changes, find_unwanted_namespaces
from virtcloud.agent.gateway.outside_difference import find_outside_changes
from virtcloud.agent.gateway.ssh_difference import find_sshd_changes
from virtcloud.agent.gateway.vpn_difference import (
    find_port_changes,
    find_server_starts,
    find_vpn_removals,
    list_device_ports,
)
from virtcloud.agent.guests.peer_files import hash_peer_files, render_peer_files
from virtcloud.agent.host_services.server_difference import find_server_changes, find_unwanted_servers
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filters import FilteredPort, GuestPort, list_elements
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedGuest, ObservedHost, ObservedSegment
from virtcloud.agent.steps import (
    BuildSegment,
    FilterGuests,
    RemoveSegment,
    StartGuest,
    Step,
    StopGuests,
    WritePeerFiles,
)
from virtcloud.model.values import Name
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment


def compute_difference(wanted: HostWanted, observed: ObservedHost) -> list[Step]:
    """Return the steps that turn the observed state into the wanted state."""
    filters = [] if observed.filters is None else _filter_changes(wanted, observed.filters, observed.segments)
    servers = find_unwanted_servers(wanted.segments, observed.servers)
    vpn = find_vpn_removals(wanted, observed.vpn)
    files = find_unwanted_file_servers(wanted.segments, observed.file_servers)
    namespaces = find_unwanted_namespaces(wanted.segments, observed.namespaces)
    outside = find_outside_changes(wanted.segments, observed.outside)
    starts = [*find_server_starts(wanted, observed.vpn), *find_sshd_changes(wanted, observed.sshd)]
    return [
        *vpn,
        *files,
        *namespaces,
        *servers,
        *_removals(wanted, observed),
        *filters,
        *outside,
        *starts,
        *_creations(wanted, observed),
    ]


def digest(segment: Segment, guest: GuestWanted) -> str:
    """Return a digest of the guest's spec, uplink, VLAN ID and number of resets.

    When a guest starts, the digest is stored in the guest's domain. If the digest of the wanted guest differs from the
    stored digest, the agent restarts the guest. So a reset restarts the guest exactly once. The digest does not depend
    on the seed, because an upgrade from an agent without seeds must not restart guests.
    """
    attachment = f"{segment.port}{'@' if segment.untagged else '.'}{segment.vlan}"
    spec = guest.model_dump_json(exclude_none=True, exclude={"power", "seed"})
    return sha256(f"{attachment} {spec}".encode()).hexdigest()[:16]


def _removals(wanted: HostWanted, observed: ObservedHost) -> Iterator[Step]:
    known = {(segment.id, guest.name) for segment, guest in _guests(wanted.segments)}
    powered_off = _map_powered_off(wanted)
    networks = {segment.id for segment in wanted.segments}
    clusters = {segment.cluster for segment in observed.segments} | {guest.cluster for guest in observed.guests}
    for cluster in sorted(clusters):
        guests = [
            observed_guest.guest
            for observed_guest in observed.guests
            if observed_guest.cluster == cluster and not _is_wanted_guest(observed_guest, wanted)
        ]
        kept = tuple(sorted(guest for guest in guests if (cluster, guest) in known))
        if unwanted := tuple(sorted(set(guests) - set(kept))):
            yield StopGuests(cluster, unwanted, only_leaving=cluster in networks)
        if restarted := tuple(guest for guest in kept if (cluster, guest) not in powered_off):
            yield StopGuests(cluster, restarted, restarted)
        for owner in sorted({powered_off[cluster, guest] for guest in kept if (cluster, guest) in powered_off}):
            off = tuple(guest for guest in kept if powered_off.get((cluster, guest)) == owner)
            yield StopGuests(cluster, off, off, powered_off=owner)
        for segment in observed.segments:
            if segment.cluster == cluster and not _is_wanted_segment(segment, wanted):
                yield RemoveSegment(cluster, segment.vlan, files_stay=not cluster or cluster in networks)


def _map_powered_off(wanted: HostWanted) -> dict[tuple[str, str], str]:
    """Return the IDs of the clusters of guests with the power "off", by network ID and name of the guest."""
    return {
        (segment.id, guest.name): guest.cluster or segment.id
        for segment, guest in _guests(wanted.segments)
        if guest.power is not None
    }


def list_unstopped(wanted: HostWanted, observed: ObservedHost) -> dict[str, tuple[Name, ...]]:
    """Return the names of guests with the power "off" that still have a domain on the host, by their cluster's ID."""
    found, powered_off = dict[str, tuple[Name, ...]](), _map_powered_off(wanted)
    for network, guest in sorted((guest.cluster, guest.guest) for guest in observed.guests):
        if owner := powered_off.get((network, guest)):
            found[owner] = (*found.get(owner, ()), Name(guest))
    return found


def _filter_changes(
    wanted: HostWanted, observed: ObservedFilters, segments: Iterable[ObservedSegment]
) -> Iterator[FilterGuests]:
    ports: dict[str, set[FilteredPort]] = {}
    for segment in wanted.segments:
        of_segment: set[FilteredPort] = {*_guest_ports(segment)} | {*list_device_ports(segment, wanted)}
        if of_segment:
            ports[segment.id] = of_segment
    all_ports = tuple(sorted(set().union(*ports.values()), key=lambda port: port.port))
    elements = observed.elements
    unfiltered = [cluster for cluster in ports if observed.faults or not list_elements(ports[cluster]) <= elements]
    if not unfiltered and elements != list_elements(all_ports):
        unfiltered = [""]
    present = {name for segment in segments for name in segment.mtus if names.is_guest_port(name)}
    former = tuple(sorted(present - {port.port for port in all_ports}))
    for cluster in unfiltered:
        yield FilterGuests(cluster, all_ports, observed.faults, former)


def _guest_ports(segment: Segment) -> set[GuestPort]:
    return {
        GuestPort(
            names.guest_port_name(segment.id, guest.name, segment.vlan),
            None if segment.filters == "open" else guest.mac,
            guest.addresses if segment.filters == "addresses" else None,
            segment.serves,
            served=bool(segment.host_services),
        )
        for guest in segment.guests
    }


def _creations(wanted: HostWanted, observed: ObservedHost) -> Iterator[Step]:
    kept = {
        (segment.cluster, segment.vlan): segment for segment in observed.segments if _is_wanted_segment(segment, wanted)
    }
    faults = {(segment.cluster, segment.vlan): segment.faults for segment in observed.segments}
    running = {
        (observed_guest.cluster, observed_guest.guest): observed_guest
        for observed_guest in observed.guests
        if _is_wanted_guest(observed_guest, wanted)
    }
    for segment in wanted.segments:
        cluster_and_vlan = segment.id, segment.vlan
        yield from _segment_changes(segment, kept.get(cluster_and_vlan), faults.get(cluster_and_vlan, ()))
        yield from find_server_changes(segment, observed.servers)
        yield from find_port_changes(segment, wanted, observed.vpn)
        yield from find_namespace_changes(segment, observed.namespaces)
        yield from find_file_server_changes(segment, observed.file_servers)
        for guest in segment.guests:
            if (segment.id, guest.name) not in running and guest.power is None:
                yield StartGuest(segment, guest)
            elif _has_other_peers(segment, guest, running.get((segment.id, guest.name))):
                yield WritePeerFiles(segment, guest)


def _segment_changes(
    segment: Segment, existing: ObservedSegment | None, faults: tuple[str, ...]
) -> Iterator[BuildSegment]:
    mtu_faults = _find_mtu_faults(segment, existing) if existing else {}
    others = faults + (tuple(_find_job_faults(segment, existing)) if existing else ())
    if existing is None or others or mtu_faults:
        harmless = existing is not None and set(others) <= set(existing.renamed)
        harmless = harmless and all(map(names.is_guest_port, mtu_faults))
        yield BuildSegment(segment, (*others, *mtu_faults.values()), only_harmless=harmless)


def _has_other_peers(segment: Segment, guest: GuestWanted, observed: ObservedGuest | None) -> bool:
    if observed is None or observed.peers is None or guest.seed is None:
        return False
    return observed.peers != hash_peer_files(render_peer_files(segment, guest))


def expected_mtu(segment: Segment, uplink_mtu: int) -> int:
    """Return the MTU of a segment's interfaces: the cluster's MTU, but at most the uplink's MTU."""
    return uplink_mtu if segment.mtu is None else min(segment.mtu, uplink_mtu)


def _find_mtu_faults(segment: Segment, observed: ObservedSegment) -> dict[str, str]:
    if observed.uplink_mtu is None:
        return {}
    expected = expected_mtu(segment, observed.uplink_mtu)
    reason = f"{segment.port} has {expected}" if segment.mtu is None else f"expected {expected}"
    return {
        name: f"{name} has MTU {mtu}, {reason}"
        for name, mtu in observed.mtus.items()
        if mtu != expected and (segment.mtu is not None or not names.is_guest_port(name))
    }


def list_job_ports(segment: Segment) -> set[str]:
    """Return the names that the ports of relays may have in a network."""
    keys = (segment.key, *segment.members.values(), names.SESSIONS_PREFIX + segment.id)
    return {names.job_port_name(key, segment.vlan) for key in keys}


def _find_job_faults(segment: Segment, observed: ObservedSegment) -> Iterator[str]:
    for name in sorted(set(observed.job_ports) - list_job_ports(segment)):
        yield f"{name} is the port of a job whose cluster has left the network"


def _is_wanted_segment(observed: ObservedSegment, wanted: HostWanted) -> bool:
    """Return whether a segment is wanted. A segment without its tagged interface counts as on the wanted uplink."""
    cluster_and_vlan = observed.cluster, observed.vlan
    uplinks = {
        (segment.port, segment.untagged)
        for segment in wanted.segments
        if (segment.id, segment.vlan) == cluster_and_vlan
    }
    return any(untagged == observed.untagged and observed.port in {None, port} for port, untagged in uplinks)


def _is_wanted_guest(observed: ObservedGuest, wanted: HostWanted) -> bool:
    return observed.running and any(
        (segment.id, guest.name) == (observed.cluster, observed.guest)
        and guest.power is None
        and _equals_wanted(observed, segment, guest)
        for segment, guest in _guests(wanted.segments)
    )


def _equals_wanted(observed: ObservedGuest, segment: Segment, guest: GuestWanted) -> bool:
    """Return whether a guest was started with the wanted spec, and no reset was requested since its start.

    After SBF's database was restored from a backup, the wanted number of resets can be lower than the number at the
    start. A lower number is no reason for a restart.
    """
    starts = max(guest.starts or 0, observed.starts) or None
    return digest(segment, guest.model_copy(update={"starts": starts})) == observed.digest


def _guests(segments: Iterable[Segment]) -> Iterator[tuple[Segment, GuestWanted]]:
    return ((segment, guest) for segment in segments for guest in segment.guests)
