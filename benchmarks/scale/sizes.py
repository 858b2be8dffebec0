"""Sizes of measured installations, and their topologies.

The sites are divided into regions of ten sites. Each region has its own transport, which carries every VLAN ID for at
most one network (decision 96). Each cluster has hosts at two sites of one region.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet

UPLINK = "up"
REGION_SITES = 10
FIRST_VLAN = 100
LEAST_POOL = 500


@dataclass(frozen=True, slots=True)
class Regions:
    """The division of ``sites`` sites into regions of ``region_sites`` sites.

    The last region also has the remaining sites, if there are any.
    """

    sites: int
    region_sites: int = REGION_SITES

    def list_all(self) -> Iterator[range]:
        """Yield the numbers of the sites of each region."""
        starts = range(0, max(self.sites - self.region_sites, 0) + 1, self.region_sites)
        yield from (self.find(start) for start in starts)

    def find(self, site: int) -> range:
        """Return the numbers of the sites in the region of a site."""
        last = max(self.sites // self.region_sites, 1) - 1
        number = min(site // self.region_sites, last)
        start = number * self.region_sites
        return range(start, self.sites if number == last else start + self.region_sites)

    def pair_sites(self, number: int) -> tuple[int, int]:
        """Return two sites for the cluster ``number``: a site and its neighbour in the same region.

        The neighbour of a region's last site is the region's first site.
        """
        first = number % self.sites
        region = self.find(first)
        return first, region[(first - region.start + 1) % len(region)]

    def name_transport(self, site: int) -> str:
        """Return the name of the transport of a site's region."""
        return f"core{self.find(site).start:04}"


@dataclass(frozen=True, slots=True)
class InstallationSize:
    """The numbers of sites, hosts at each site, live and ended clusters, audit rows, and sites of a region."""

    sites: int
    hosts: int
    live: int
    ended: int = 0
    audit: int = 0
    region_sites: int = REGION_SITES

    @property
    def regions(self) -> Regions:
        """The regions of the sites."""
        return Regions(self.sites, self.region_sites)

    @property
    def pool(self) -> VlanSet:
        """The pool of each site: twice as many VLAN IDs as a region has live clusters, but at least ``LEAST_POOL``.

        Raise an error if there are not enough VLAN IDs.
        """
        live = ceil(self.live / self.sites) * max(map(len, self.regions.list_all()))
        return VlanSet(range(FIRST_VLAN, FIRST_VLAN + max(LEAST_POOL, 2 * live)))

    def __str__(self) -> str:
        """Format the size, such as ``10x10, 100 live``."""
        text = f"{self.sites}x{self.hosts}, {self.live} live"
        text += f", {self.ended} ended" if self.ended else ""
        return text + (f", {self.audit} audit rows" if self.audit else "")


SMALL = InstallationSize(10, 10, 100)
SIZES = {
    "small": SMALL,
    "medium": InstallationSize(100, 10, 1_000),
    "dense": InstallationSize(100, 10, 10_000),
    "wide": InstallationSize(1_000, 10, 1_000),
    "history": InstallationSize(10, 10, 100, 100_000, 1_000_000),
    "large": InstallationSize(1_000, 100, 10_000, 100_000, 1_000_000),
}


def make_topology(regions: Regions, hosts: int) -> Topology:
    """Return a topology whose sites have two switches each."""
    transports = [regions.name_transport(region.start) for region in regions.list_all()]
    sites = {number: name_site(number) for number in range(regions.sites)}
    return Topology.model_validate(
        {
            "name": "scale",
            "transports": [
                {"name": name, "kind": "qinq", "s_tag": 2000 + number} for number, name in enumerate(transports)
            ],
            "sites": [_make_site(name, hosts, regions.name_transport(number)) for number, name in sites.items()],
            "links": [link for name in sites.values() for link in _make_links(name, hosts)],
        }
    )


def name_site(number: int) -> str:
    """Return the name of a site."""
    return f"s{number:04}"


def name_host(site: int, number: int) -> str:
    """Return the name of a host of a site."""
    return f"{name_site(site)}-h{number}"


def _make_site(name: str, hosts: int, transport: str) -> dict[str, Any]:
    first, second = [f"p{n}" for n in range(0, hosts, 2)], [f"p{n}" for n in range(1, hosts, 2)]
    return {
        "name": name,
        "attachments": [{"transport": transport, "port": f"{name}-sw1:{UPLINK}"}],
        "switches": [
            {"name": f"{name}-sw1", "platform": "fake", "ports": [*first, UPLINK, "down"]},
            {"name": f"{name}-sw2", "platform": "fake", "ports": [*second, UPLINK]},
        ],
        "hosts": [{"name": f"{name}-h{n}", "ports": ["eth0"]} for n in range(hosts)],
    }


def _make_links(name: str, hosts: int) -> list[dict[str, str]]:
    of_hosts = [{"a": f"{name}-h{n}:eth0", "b": f"{name}-sw{1 + n % 2}:p{n}"} for n in range(hosts)]
    return [*of_hosts, {"a": f"{name}-sw1:down", "b": f"{name}-sw2:{UPLINK}"}]
