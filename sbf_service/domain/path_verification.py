"""The check of a cluster's paths: the hosts, the pace, the result of each path, and the section with losses. Pure.

A path is an ordered list of ports: a frame leaves the first port, enters the second port, leaves the third port, and so
on. The section of a failed path is the part in which the frames are lost. It begins at the first port and ends at the
last port for which no other path shows that the port carries such frames.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Final, NamedTuple

from sbf_service.domain.paths import LiveCluster, find_pair_ports
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.path_check import MAX_HOSTS, FrameReport, PathResult, PathSection, ReceivedFrames, VerifiedPath
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortRef

VERIFIABLE: Final = frozenset({ClusterState.ACTIVE, ClusterState.DEGRADED})
"""The states in which SBF checks paths. In these states, every element has confirmed the cluster at least once."""
FRAME_OVERHEAD: Final = 64
"""The octets that one frame adds to its packet on a link, including the gap between frames; rounded up."""
BYTES_PER_S: Final = 10_000_000
"""The maximum octets per second of all hosts of a check together, because the same link can carry all frames."""
MIN_ROUND_S, MIN_SECONDS, ROUNDS = 0.25, 4.0, 4

HostPair = tuple[Name, Name]
Step = tuple[PortRef, bool]
"""A port, and whether the frame leaves the port."""


class CheckPace(NamedTuple):
    """``round_s``: the seconds of one round of frames. ``seconds``: the seconds of all rounds."""

    round_s: float
    seconds: float


def decide_pace(hosts: int, mtu: int) -> CheckPace:
    """Return the pace of a check: at least four rounds, so that a path does not fail because of a single lost frame."""
    octets = hosts * (hosts - 1) * (mtu + FRAME_OVERHEAD)
    round_s = max(MIN_ROUND_S, octets / BYTES_PER_S)
    return CheckPace(round_s, max(MIN_SECONDS, ROUNDS * round_s))


def list_hosts(cluster: LiveCluster) -> tuple[Name, ...]:
    """Return the hosts between which paths are checked.

    If the cluster has joined a network, include the hosts of the cluster that created the network. Raise Conflict if
    there are too many hosts.
    """
    hosts = tuple(dict.fromkeys((*cluster.spec.all_hosts, *cluster.network.spec.all_hosts)))
    if len(hosts) > MAX_HOSTS:
        raise Conflict(
            f"cluster {cluster.key} has {len(hosts)} hosts: expected at most {MAX_HOSTS} to verify the paths between "
            "all of them; use smaller clusters on the same hosts"
        )
    return hosts


def choose_size(cluster_mtu: int | None, mtus: Iterable[int]) -> int:
    """Return the size of full packets: the cluster's MTU, or else the smallest MTU of the bridges."""
    return min(mtus) if cluster_mtu is None else cluster_mtu


def judge_paths(
    topology: Topology, cluster: LiveCluster, hosts: Sequence[Name], reports: Mapping[Name, FrameReport]
) -> tuple[VerifiedPath, ...]:
    """Return the result of each path between the hosts that have reported.

    The number in a frame is the index of the sender in ``hosts``. A path from a host to itself means a loop: the host
    received its own broadcast frames.
    """
    received = {
        (hosts[frames.number], target): frames
        for target, report in reports.items()
        for frames in report.received
        if 0 <= frames.number < len(hosts)
    }
    reported = [host for host in hosts if host in reports]
    results = {pair: _judge(received.get(pair)) for pair in permutations(reported, 2)}
    sections = _find_sections(topology, cluster, results)
    loops = [host for host in reported if _is_looped(received.get((host, host)))]
    return (
        *(
            VerifiedPath(source=pair[0], target=pair[1], result=result, section=sections.get(pair))
            for pair, result in results.items()
        ),
        *(VerifiedPath(source=host, target=host, result=PathResult.DUPLICATES) for host in loops),
    )


def find_route(topology: Topology, cluster: LiveCluster, source: Name, target: Name) -> tuple[PortRef, ...]:
    """Return the ports on the path between two hosts, in order; an empty tuple if there is no path."""
    try:
        ports = find_pair_ports(topology, cluster, (source, target))
    except (Conflict, NotFound):
        return ()
    forward = tuple(_walk(topology, ports, source))
    if forward and forward[-1].element == target:
        return forward
    return (*forward, *reversed(tuple(_walk(topology, ports, target))))


def _walk(topology: Topology, ports: frozenset[PortRef], host: Name) -> Iterator[PortRef]:
    left = set(ports)
    at: PortRef | None = next((port for port in ports if port.element == host), None)
    while at is not None:
        yield at
        left.discard(at)
        peer = topology.peers.get(at)
        if peer is None or peer not in left:
            return
        yield peer
        left.discard(peer)
        at = next((port for port in sorted(left) if port.element == peer.element), None)


def _judge(frames: ReceivedFrames | None) -> PathResult:
    if frames is None or not (frames.broadcast or frames.small or frames.full):
        return PathResult.NOTHING_PASSES
    if frames.duplicates:
        return PathResult.DUPLICATES
    if not frames.full:
        return PathResult.ONLY_SMALL
    return PathResult.PASSES if frames.broadcast else PathResult.NO_BROADCAST


def _is_looped(frames: ReceivedFrames | None) -> bool:
    return frames is not None and frames.broadcast > 0


_CARRIED: Final[Mapping[PathResult, frozenset[PathResult]]] = {
    PathResult.NOTHING_PASSES: frozenset(set(PathResult) - {PathResult.NOTHING_PASSES}),
    PathResult.ONLY_SMALL: frozenset({PathResult.PASSES, PathResult.NO_BROADCAST, PathResult.DUPLICATES}),
    PathResult.NO_BROADCAST: frozenset({PathResult.PASSES, PathResult.DUPLICATES}),
}
"""For each lost kind of frames: the results that show that a path carries such frames."""


def _find_sections(
    topology: Topology, cluster: LiveCluster, results: Mapping[HostPair, PathResult]
) -> dict[HostPair, PathSection]:
    """Return the sections of the paths that lose frames. Omit paths that the topology does not have."""
    if not _CARRIED.keys() & set(results.values()):
        return {}
    routes = _find_routes(topology, cluster, results)
    proven: dict[PathResult, set[Step]] = {
        lost: {step for pair, result in results.items() if result in carried for step in _list_steps(routes[pair])}
        for lost, carried in _CARRIED.items()
    }
    return {
        pair: _find_section(routes[pair], proven[result])
        for pair, result in results.items()
        if result in proven and routes[pair]
    }


def _find_routes(
    topology: Topology, cluster: LiveCluster, pairs: Iterable[HostPair]
) -> dict[HostPair, tuple[PortRef, ...]]:
    routes: dict[HostPair, tuple[PortRef, ...]] = {}
    for source, target in pairs:
        back = routes.get((target, source))
        routes[source, target] = find_route(topology, cluster, source, target) if back is None else back[::-1]
    return routes


def _find_section(route: Sequence[PortRef], proven: Container[Step]) -> PathSection:
    unproven = [index for index, step in enumerate(_list_steps(route)) if step not in proven]
    # if other paths prove every step of the route, the section is the whole path
    start, end = (unproven[0], unproven[-1] + 1) if unproven else (0, len(route))
    return PathSection(
        after=route[start - 1] if start else None,
        before=route[end] if end < len(route) else None,
        ports=tuple(route[start:end]),
    )


def _list_steps(route: Sequence[PortRef]) -> Iterator[Step]:
    return ((port, index % 2 == 0) for index, port in enumerate(route))
