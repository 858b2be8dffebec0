"""Builds the spec of a job's cluster from the job's request and the hosts that the batch system assigned."""

import re
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

from virtcloud.jobs.address_plan import find_subnets, plan_addresses
from virtcloud.jobs.request import GuestRequest, JobRequest
from virtcloud.jobs.request_file import check_host_count

SETUP_S = 600
MARGIN_S = 300
"""The lease exceeds the sum of ``setup_s`` and walltime by this many seconds. Usually the cluster ends with the job."""


class JobRun(NamedTuple):
    """One attempt of a job. ``key``: the cluster's key. ``hosts``: SBF's names of the hosts, in the job's order.

    ``ssh_keys``: the public SSH keys in the user's home folder.
    """

    key: str
    owner: str
    hosts: Tuple[str, ...]
    walltime_s: int
    setup_s: int = SETUP_S
    ssh_keys: Tuple[str, ...] = ()


class JobNetwork(NamedTuple):
    """A running network that a job joins.

    - ``subnets``: None if neither the network's spec nor its guests name a subnet. With an empty list, guests get no
      addresses.
    - ``used``: the addresses of the guests of the network's other clusters, without prefix length.
    - ``former``: the addresses that this job's guests already have, and retain, by guest name.
    - ``others``: the addresses of gateways, users' devices and the router, without prefix length.
    """

    key: str
    subnets: Optional[Tuple[str, ...]] = None
    used: Tuple[str, ...] = ()
    former: Mapping[str, Tuple[str, ...]] = {}
    others: Tuple[str, ...] = ()


def build_cluster_spec(
    request: JobRequest, job: JobRun, joined: Optional[JobNetwork] = None, plan: Optional[str] = None
) -> Dict[str, Any]:
    """Return the spec of a cluster as JSON data. Names and addresses of guests are assigned host by host.

    The default names are g1, g2 and so on. If job ``12.pbssrv`` joins a network, the default names are j12-g1, j12-g2
    and so on.

    ``plan`` is the subnet for a request without a subnet. Raise RequestError if a subnet is too small, or if the
    request file does not fit the number of hosts.
    """
    check_host_count(request, len(job.hosts))
    prefix = "" if request.net is None else "j%s-" % _parse_job_number(job.key)
    guests = [(host, guest) for index, host in enumerate(job.hosts) for guest in request.part(index)]
    named = [(host, guest, guest.name or "%sg%d" % (prefix, n)) for n, (host, guest) in enumerate(guests, 1)]
    network = joined or JobNetwork(request.net or "")
    addresses = _assign_addresses(request, [(name, guest) for _, guest, name in named], network, plan)
    spec = {
        "owner": job.owner,
        "hosts": sorted(set(job.hosts)),
        "guests": [_build_guest(host, guest, name, addresses[name]) for host, guest, name in named],
        "lease_s": job.walltime_s + job.setup_s + MARGIN_S,
    }  # type: Dict[str, Any]
    if job.ssh_keys:
        spec["authorized_keys"] = list(job.ssh_keys)
    spec.update(_network_fields(request, network))
    return spec


def parse_network(clusters: Sequence[Mapping[str, Any]], key: str) -> Optional[JobNetwork]:
    """Parse SBF's answer to ``GET /v1/clusters?network=NAME`` for the job ``key``. Return None for an empty answer."""
    if not clusters:
        return None
    root = find_network_cluster(clusters)
    guests = [(cluster["key"], guest) for cluster in clusters for guest in cluster["spec"].get("guests", ())]
    given = [address for owner, guest in guests if owner != key for address in guest.get("addresses", ())]
    former = {guest["name"]: tuple(guest.get("addresses", ())) for owner, guest in guests if owner == key}
    spec = root["spec"]
    used = tuple(address.partition("/")[0] for address in given)
    subnets = find_subnets(given) or None if spec.get("subnets") is None else tuple(spec["subnets"])
    router = [address.partition("/")[0] for address in spec.get("router_addresses") or ()]
    others = (*root.get("other_addresses", ()), *router)  # an old SBF sends no other_addresses
    return JobNetwork(root["key"], subnets, used, former, others)


def find_network_cluster(clusters: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the cluster that created the network. ``clusters`` is SBF's answer, and is not empty.

    Do not rely on the order of the answer: if SBF's clock was set back, a cluster that joined the network can come
    first.
    """
    return next((cluster for cluster in clusters if cluster.get("network") is None), clusters[0])


def _parse_job_number(key: str) -> str:
    """Return ``12`` for the key ``12.pbssrv``. A dash replaces a character that is no lower-case letter or digit."""
    return re.sub("[^a-z0-9]", "-", key.partition(".")[0])


def _assign_addresses(
    request: JobRequest, named: Sequence[Tuple[str, GuestRequest]], network: JobNetwork, default: Optional[str]
) -> Dict[str, Tuple[str, ...]]:
    """Return the addresses of each guest, by the guest's name.

    The addresses that the request lists for a guest have precedence, even an empty list. Without a list, a guest keeps
    its previous addresses, and a new guest gets new addresses.
    """
    assigned = {name: guest.addresses for name, guest in named if guest.addresses is not None}
    names = [name for name, _ in named if name not in assigned]
    assigned.update({name: network.former[name] for name in names if name in network.former})
    names = [name for name in names if name not in assigned]
    listed = [address.partition("/")[0] for addresses in assigned.values() for address in addresses]
    used = (*network.used, *listed)
    found = plan_addresses(len(names), request.subnet, used, network.subnets, default, network.others)
    assigned.update(zip(names, found))
    return assigned


def _build_guest(host: str, request: GuestRequest, name: str, addresses: Sequence[str]) -> Dict[str, Any]:
    optional = {key: getattr(request, key) for key in ("mac", "disk_mb", "pids", "bandwidth_mbit")}
    guest = {
        "name": name,
        "host": host,
        "image": request.image,
        "memory_mb": request.memory_mb,
        "cpus": request.cpus,
        "addresses": list(addresses),
    }
    return dict(guest, **{key: value for key, value in optional.items() if value is not None})


def _network_fields(request: JobRequest, network: JobNetwork) -> Iterator[Tuple[str, Any]]:
    if request.net is not None:
        yield "joins", network.key
    fields = [
        ("name", request.name),
        ("vlan", request.vlan),
        ("shares_with", list(request.share)),
        ("filters", request.filters),
        ("sites", list(request.reach)),
        ("host_services", list(request.services)),
        ("services", list(request.service)),
        ("vpn", request.vpn),
        ("outside", list(request.outside)),
    ]
    for key, value in fields:
        if value:
            yield key, value
