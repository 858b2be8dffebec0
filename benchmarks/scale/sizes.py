"""Sizes of measured installations, and their topologies."""

from dataclasses import dataclass
from typing import Any

from virtcloud.model.topology import Topology

UPLINK = "up"


@dataclass(frozen=True, slots=True)
class InstallationSize:
    """The number of sites, of hosts at each site, of live and ended clusters, and of audit rows."""

    sites: int
    hosts: int
    live: int
    ended: int = 0
    audit: int = 0

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


def make_topology(sites: int, hosts: int) -> Topology:
    """Return a topology whose sites have two switches each. Each site's first switch leads to the sites' transport."""
    return Topology.model_validate(
        {
            "name": "scale",
            "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
            "sites": [_make_site(f"s{number:04}", hosts) for number in range(sites)],
            "links": [link for number in range(sites) for link in _make_links(f"s{number:04}", hosts)],
        }
    )


def name_site(number: int) -> str:
    """Return the name of a site."""
    return f"s{number:04}"


def name_host(site: int, number: int) -> str:
    """Return the name of a host of a site."""
    return f"{name_site(site)}-h{number}"


def _make_site(name: str, hosts: int) -> dict[str, Any]:
    first, second = [f"p{n}" for n in range(0, hosts, 2)], [f"p{n}" for n in range(1, hosts, 2)]
    return {
        "name": name,
        "attachments": [{"transport": "core", "port": f"{name}-sw1:{UPLINK}"}],
        "switches": [
            {"name": f"{name}-sw1", "platform": "fake", "ports": [*first, UPLINK, "down"]},
            {"name": f"{name}-sw2", "platform": "fake", "ports": [*second, UPLINK]},
        ],
        "hosts": [{"name": f"{name}-h{n}", "ports": ["eth0"]} for n in range(hosts)],
    }


def _make_links(name: str, hosts: int) -> list[dict[str, str]]:
    of_hosts = [{"a": f"{name}-h{n}:eth0", "b": f"{name}-sw{1 + n % 2}:p{n}"} for n in range(hosts)]
    return [*of_hosts, {"a": f"{name}-sw1:down", "b": f"{name}-sw2:{UPLINK}"}]
