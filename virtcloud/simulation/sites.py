"""The sites that ``virtcloud up`` simulates: their topology, their pool, and the switch that is off at first. Pure."""

from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet

PLATFORM = "simulated"
CITIES = ("brno", "praha", "plzen", "ostrava", "liberec", "olomouc")
MAX_SITES = 100
PORTS = 8
"""The number of ports of a simulated switch, Gi1/0/1 to Gi1/0/8, without the uplink Te1/1/1."""
TRANSPORT = "core"
POOL = VlanSet(range(100, 140))
"""The pool of each site. The pool contains VLAN 105, which is a foreign VLAN on every new simulated switch.

The transport separates networks only by their VLAN IDs, so at most 39 networks can connect several sites (decision 96).
"""


def simulated_topology(count: int) -> Topology:
    """Return a topology of ``count`` sites on an 802.1ad transport.

    Each site has a switch and two hosts. The last site also has a second switch, with a third host.
    """
    names = [site_name(index) for index in range(count)]
    last = names[-1]
    sites = [_site(name, has_second=name == last) for name in names]
    links = [link for name in names for link in _links(name)]
    links += [
        {"a": f"{last}-sw1:Gi1/0/{PORTS}", "b": f"{last}-sw2:Te1/1/1"},
        {"a": f"{last}-h3:eth0", "b": f"{last}-sw2:Gi1/0/1"},
    ]
    transports = [{"name": TRANSPORT, "kind": "qinq", "s_tag": 2000}]
    return Topology.model_validate({"name": "simulated", "transports": transports, "sites": sites, "links": links})


def unreachable_switch(topology: Topology) -> str:
    """Return the name of the switch that does not answer at first."""
    return topology.sites[-1].switches[-1].name


def site_name(index: int) -> str:
    """Return the name of the site with this index."""
    return CITIES[index] if index < len(CITIES) else f"site{index + 1}"


def _site(name: str, *, has_second: bool) -> dict[str, object]:
    switches = [_switch(f"{name}-sw1")] + ([_switch(f"{name}-sw2")] if has_second else [])
    hosts = [{"name": f"{name}-h{number}", "ports": ["eth0"]} for number in (1, 2, *([3] if has_second else []))]
    attachments = [{"transport": TRANSPORT, "port": f"{name}-sw1:Te1/1/1", "bandwidth_mbit": 1000}]
    return {"name": name, "attachments": attachments, "switches": switches, "hosts": hosts}


def _switch(name: str) -> dict[str, object]:
    ports = [*(f"Gi1/0/{number}" for number in range(1, PORTS + 1)), "Te1/1/1"]
    return {"name": name, "platform": PLATFORM, "ports": ports}


def _links(name: str) -> list[dict[str, str]]:
    return [{"a": f"{name}-h{number}:eth0", "b": f"{name}-sw1:Gi1/0/{number}"} for number in (1, 2)]
