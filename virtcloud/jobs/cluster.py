"""From a request and the hosts that a job got to the cluster that SBF is asked for."""

import ipaddress
from itertools import islice
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.request import Request


def cluster_of(request: Request, owner: str, hosts: Sequence[str], lease_s: int) -> Dict[str, Any]:
    """Give the spec of a cluster (as JSON): guests g1, g2 and so on, host by host, with addresses in that order.

    Raises RequestError when the subnet is too small.
    """
    places = [host for host in hosts for _ in range(request.guests)]
    addresses = _addresses(request.subnet, len(places))
    guests = [
        {
            "name": "g%d" % number,
            "host": host,
            "image": request.image,
            "memory_mb": request.memory_mb,
            "cpus": request.cpus,
            "addresses": given,
        }
        for number, (host, given) in enumerate(zip(places, addresses), 1)
    ]
    return {"owner": owner, "hosts": sorted(set(hosts)), "guests": guests, "lease_s": lease_s}


def _addresses(subnet: Optional[str], count: int) -> List[List[str]]:
    if subnet is None:
        return [[] for _ in range(count)]
    network = ipaddress.ip_network(subnet)
    found = [["%s/%d" % (one, network.prefixlen)] for one in islice(network.hosts(), count)]
    if len(found) < count:
        raise RequestError(
            "subnet: expected room for %d guests, got %s with %d addresses" % (count, subnet, len(found))
        )
    return found


def hosts_of(exec_vnode: str) -> Tuple[str, ...]:
    """Give the hosts of an ``exec_vnode`` such as ``(n1:ncpus=4)+(n2:ncpus=4)``, each once, in order."""
    return tuple(_each_once(part.strip("() ").partition(":")[0] for part in exec_vnode.split("+")))


def _each_once(names: Iterator[str]) -> Iterator[str]:
    seen = set()
    for name in names:
        if name and name not in seen:
            seen.add(name)
            yield name
