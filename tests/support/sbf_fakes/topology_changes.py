"""Changes of a topology's sites, links and transports that administrators make, as edits of the topology's document.

An edit that is impossible at present changes nothing. Edits can also produce a topology with faults, as mistakes do.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeVar

from virtcloud.model.topology import Topology
from virtcloud.model.values import PortRef

T = TypeVar("T")
Document = dict[str, Any]

SITES: Final = ("a", "b", "c")
TRANSPORTS: Final[dict[str, Document]] = {
    "core": {"kind": "qinq", "s_tag": 2000},
    "alt": {"kind": "direct"},
    "pseudo": {"kind": "vpls", "vpn_id": 7, "asn": 65000},
    "evpn": {"kind": "evpn", "vnis": "10100-10101", "asn": 65000},
    "tunnel": {"kind": "qinq", "s_tags": "3000-3001"},
}
KINDS: Final = (
    *TRANSPORTS.values(),
    {"kind": "qinq", "s_tag": 2001},
    {"kind": "evpn", "vnis": "10101-10103", "asn": 65000},
)
FIRST: Final = ("core", "alt", "pseudo", "evpn")
"""The transports of the first topology."""


class Choice(Random):
    """Random choices. A call returns one of the options, or None if there are none."""

    def __call__(self, options: Sequence[T]) -> T | None:
        return self.choice(options) if options else None


def make_site(name: str) -> Document:
    switches = [
        {"name": f"{name}-sw1", "platform": "fake", "ports": ["p1", "p2", "p3", "p4", "up"]},
        {"name": f"{name}-sw2", "platform": "fake", "ports": ["p1", "p2", "p3", "up"]},
    ]
    edge = {"name": f"{name}-pe1", "platform": "fake", "ports": ["ac", "ac2"], "core_port": "core"}
    uplinks = [("core", "sw1:up"), ("pseudo", "pe1:ac"), ("evpn", "pe1:ac"), ("alt", "sw2:up")]
    return {
        "name": name,
        "attachments": [{"transport": transport, "port": f"{name}-{port}"} for transport, port in uplinks],
        "switches": switches,
        "edges": [edge | {"loopback": f"192.0.2.{SITES.index(name) + 1}"}],
        "hosts": [{"name": f"{name}-h{number}", "ports": ["eth0"]} for number in (1, 2)],
    }


def make_links(name: str) -> list[Document]:
    ends = [("h1:eth0", "sw1:p1"), ("h2:eth0", "sw2:p1"), ("sw1:p4", "sw2:p3"), ("pe1:ac", "sw1:p3")]
    return [{"a": f"{name}-{a}", "b": f"{name}-{b}"} for a, b in ends]


def make_topology() -> Topology:
    return Topology.model_validate(
        {
            "name": "changing",
            "transports": [{"name": name} | TRANSPORTS[name] for name in FIRST],
            "sites": [make_site(name) for name in SITES],
            "links": [link for name in SITES for link in make_links(name)],
        }
    )


def list_elements(site: Document) -> list[Document]:
    return [element for kind in ("switches", "edges", "hosts", "gateways") for element in site.get(kind, ())]


def list_ports(document: Document, site: Document, kind: str) -> list[str]:
    """Return the ports of a site's elements of one kind. Ports without a link come first."""
    linked = {end for link in document["links"] for end in (link["a"], link["b"])}
    ports = [f"{element['name']}:{port}" for element in site[kind] for port in element["ports"]]
    return sorted(ports, key=linked.__contains__)


def _choose_port(document: Document, site: Document, transport: str, choose: Choice) -> str | None:
    keys = {key for one in document["transports"] if one["name"] == transport for key in one}
    on_edges = keys & {"s_tags", "vpn_id", "vpn_ids", "vnis"}
    return choose(list_ports(document, site, "edges" if on_edges else "switches"))


def attach(document: Document, site: Document, choose: Choice) -> None:
    transport = choose([one["name"] for one in document["transports"]])
    if transport is not None and (port := _choose_port(document, site, transport, choose)):
        place = choose([0, len(site["attachments"])])
        site["attachments"].insert(place, {"transport": transport, "port": port})


def detach(_document: Document, site: Document, choose: Choice) -> None:
    if (one := choose(site["attachments"])) is not None:
        site["attachments"].remove(one)


def move_attachment(document: Document, site: Document, choose: Choice) -> None:
    if (one := choose(site["attachments"])) and (port := _choose_port(document, site, one["transport"], choose)):
        one["port"] = port


def exchange_attachments(_document: Document, site: Document, choose: Choice) -> None:
    first, second = choose(site["attachments"]), choose(site["attachments"])
    if first is not None and second is not None:
        first["transport"], second["transport"] = second["transport"], first["transport"]


def remove_site(document: Document, site: Document, _choose: Choice) -> None:
    document["sites"] = [one for one in document["sites"] if one is not site]
    names = {element["name"] for element in list_elements(site)}
    document["links"] = [one for one in document["links"] if not names & find_ends(one)]


def add_site(document: Document, _site: Document, choose: Choice) -> None:
    """Add a site that is missing, as it was in the first topology."""
    name = choose([name for name in SITES if name not in {site["name"] for site in document["sites"]}])
    if name is not None:
        new, known = make_site(name), {one["name"] for one in document["transports"]}
        new["attachments"] = [one for one in new["attachments"] if one["transport"] in known]
        document["sites"].append(new)
        document["links"] += make_links(name)


def remove_element(document: Document, site: Document, choose: Choice) -> None:
    element = choose(list_elements(site))
    if element is not None:
        drop_element(document, site, element["name"])


def drop_element(document: Document, site: Document, name: str) -> None:
    for kind in ("switches", "edges", "hosts", "gateways"):
        site[kind] = [one for one in site.get(kind, ()) if one["name"] != name]
    document["links"] = [one for one in document["links"] if name not in find_ends(one)]
    site["attachments"] = [one for one in site["attachments"] if PortRef(one["port"]).element != name]


def add_element(document: Document, site: Document, choose: Choice) -> None:
    """Add an element of any kind to a site. The name is that of a missing element or of a new host."""
    present = {element["name"] for one in document["sites"] for element in list_elements(one)}
    names = [f"{name}-{end}" for name in SITES for end in ("h1", "h2", "h3", "sw1", "sw2", "pe1")]
    name = choose([name for name in names if name not in present])
    if name is None:
        return
    kind = choose([{"h": "hosts", "s": "switches", "p": "edges"}[name[2]]] * 3 + ["switches", "edges", "hosts"])
    element: Document = {"name": name, "ports": ["eth0"] if kind == "hosts" else ["p1", "p2", "p3", "up", "ac"]}
    element |= {} if kind == "hosts" else {"platform": "fake"}
    element |= {"loopback": "192.0.2.9", "core_port": "core"} if kind == "edges" else {}
    other = choose(list_ports(document, site, "switches"))
    site[kind].append(element)
    if other is not None:
        document["links"].append({"a": f"{name}:{element['ports'][0]}", "b": other})


def move_link(document: Document, site: Document, choose: Choice) -> None:
    link, port = choose(list_links_at(document, site)), choose(list_ports(document, site, "switches"))
    if link is not None and port is not None:
        link[choose(["b", "a"]) or "b"] = port


def move_host(document: Document, site: Document, choose: Choice) -> None:
    """Move a host's link to a port without a link, usually of another switch of the site."""
    linked = {end for one in document["links"] for end in (one["a"], one["b"])}
    link = choose(list_links_of_hosts(document, site))
    port = choose([port for port in list_ports(document, site, "switches") if port not in linked])
    if link is not None and port is not None:
        link["b"] = port


def exchange_links(document: Document, site: Document, choose: Choice) -> None:
    """Exchange the switch ports of two hosts' links, as somebody does who connects cables wrongly."""
    first, second = choose(list_links_of_hosts(document, site)), choose(list_links_of_hosts(document, site))
    if first is not None and second is not None:
        first["b"], second["b"] = second["b"], first["b"]


def add_link(document: Document, site: Document, choose: Choice) -> None:
    ports = list_ports(document, site, "switches")
    a, b = choose(ports), choose(ports + list_ports(document, site, "hosts") + list_ports(document, site, "edges"))
    if a is not None and b is not None:
        document["links"].append({"a": a, "b": b})


def remove_link(document: Document, site: Document, choose: Choice) -> None:
    if (link := choose(list_links_at(document, site))) is not None:
        document["links"].remove(link)


def toggle_access(document: Document, site: Document, choose: Choice) -> None:
    if link := choose(list_links_of_hosts(document, site)):
        link["access"] = not link.get("access", False)


def add_port(_document: Document, site: Document, choose: Choice) -> None:
    if (device := choose(site["switches"] + site["edges"])) is not None:
        port = choose(["p1", "p2", "p3", "p4", "p5", "up", "ac", "ac2"])
        if port not in device["ports"]:
            device["ports"].append(port)


def remove_port(_document: Document, site: Document, choose: Choice) -> None:
    if (device := choose(site["switches"] + site["edges"])) is not None:
        lost = choose(device["ports"])
        device["ports"] = [port for port in device["ports"] if port != lost]


def add_transport(document: Document, _site: Document, choose: Choice) -> None:
    known = {one["name"] for one in document["transports"]}
    if name := choose([name for name in TRANSPORTS if name not in known]):
        document["transports"].append({"name": name} | (choose([TRANSPORTS[name], *KINDS]) or {}))


def remove_transport(document: Document, _site: Document, choose: Choice) -> None:
    if transport := choose(document["transports"]):
        document["transports"].remove(transport)
        for site in document["sites"]:
            site["attachments"] = [one for one in site["attachments"] if one["transport"] != transport["name"]]


def rename_transport(document: Document, _site: Document, choose: Choice) -> None:
    transport, name = choose(document["transports"]), choose(list(TRANSPORTS))
    if transport is not None:
        attachments = [one for site in document["sites"] for one in site["attachments"]]
        for one in attachments:
            one["transport"] = name if one["transport"] == transport["name"] else one["transport"]
        transport["name"] = name


def change_transport(document: Document, _site: Document, choose: Choice) -> None:
    if transport := choose(document["transports"]):
        name = transport["name"]
        transport.clear()
        transport |= {"name": name} | (choose(KINDS) or {})


def change_mtu(document: Document, _site: Document, choose: Choice) -> None:
    if transport := choose(document["transports"]):
        transport["mtu"] = choose([1600, 1700, None])


def exchange_names(document: Document, _site: Document, choose: Choice) -> None:
    """Exchange the names of two transports. The sites' attachments keep their names."""
    first, second = choose(document["transports"]), choose(document["transports"])
    if first is not None and second is not None:
        first["name"], second["name"] = second["name"], first["name"]


def list_links_at(document: Document, site: Document) -> list[Document]:
    names = {element["name"] for element in list_elements(site)}
    return [link for link in document["links"] if names & find_ends(link)]


def list_links_of_hosts(document: Document, *sites: Document) -> list[Document]:
    hosts = {host["name"] for site in sites or document["sites"] for host in site["hosts"]}
    return [link for link in document["links"] if hosts & find_ends(link)]


def find_ends(link: Document) -> set[str]:
    return {PortRef(link[end]).element for end in ("a", "b")}
