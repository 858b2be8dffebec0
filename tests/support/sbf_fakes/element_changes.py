"""Changes of gateways, names and devices as edits of a topology's document, and the random choice of edits."""

from collections.abc import Callable
from typing import Final

from support.sbf_fakes import topology_changes as changes
from support.sbf_fakes.topology_changes import Choice, Document, find_ends, list_elements, list_links_at, list_ports
from virtcloud.model.site import SitePart
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import replace_site_part

SITE_NAMES: Final = ("a", "b", "c", "d")
ROLES: Final[dict[str, Document]] = {
    "outside": {"interface": "outside0"},
    "vpn": {"address": "gateway.example.org"},
}


def add_gateway(document: Document, site: Document, choose: Choice) -> None:
    present = {element["name"] for one in document["sites"] for element in list_elements(one)}
    names = [name for name in (f"{site['name']}-gw1", f"{site['name']}-gw2") if name not in present]
    name, port = choose(names), choose(list_ports(document, site, "switches")[:2])
    if name is not None and port is not None:
        roles = {"outside": ROLES["outside"]} | {key: ROLES[key] for key in choose.sample(sorted(ROLES), 1)}
        site.setdefault("gateways", []).append({"name": name, "ports": ["eth0"]} | roles)
        document["links"].append({"a": f"{name}:eth0", "b": port})


def change_role(_document: Document, site: Document, choose: Choice) -> None:
    if gateway := choose(site.get("gateways", [])):
        role = choose.choice(("outside", "outside", "vpn"))
        if gateway.pop(role, None) is None:
            gateway[role] = ROLES[role]


def change_address(_document: Document, site: Document, choose: Choice) -> None:
    """Change the address of a device, as the installation of another device with the same name does."""
    if device := choose(site["switches"] + site["edges"]):
        device["address"] = f"192.0.2.{choose.randint(1, 250)}"


def rename_element(document: Document, site: Document, choose: Choice) -> None:
    present = {element["name"] for one in document["sites"] for element in list_elements(one)}
    kind, ends = choose.choice((("hosts", ("h1", "h2", "h3")), ("gateways", ("gw1", "gw2"))))
    element = choose(site.get(kind, []))
    new = choose([name for end in ends if (name := f"{site['name']}-{end}") not in present])
    if element is not None and new is not None:
        for link in list_links_at(document, site):
            link |= {end: link[end].replace(f"{element['name']}:", f"{new}:") for end in ("a", "b")}
        element["name"] = new


def rename_site(document: Document, site: Document, choose: Choice) -> None:
    present = {one["name"] for one in document["sites"]}
    site["name"] = choose([name for name in SITE_NAMES if name not in present]) or site["name"]


def move_element(document: Document, site: Document, choose: Choice) -> None:
    other, kind = choose(document["sites"]), choose.choice(("switches", "hosts", "gateways"))
    if other is not None and (element := choose(site.get(kind, []))) is not None:
        site[kind] = [one for one in site[kind] if one is not element]
        document["links"] = [one for one in document["links"] if element["name"] not in find_ends(one)]
        other.setdefault(kind, []).append(element)
        if kind != "switches" and (port := choose(list_ports(document, other, "switches")[:2])):
            document["links"].append({"a": f"{element['name']}:{element['ports'][0]}", "b": port})


Edit = Callable[[Document, Document, Choice], None]
AT_SITE: Final[tuple[Edit, ...]] = (
    changes.attach,
    changes.detach,
    changes.move_attachment,
    changes.exchange_attachments,
    changes.remove_element,
    changes.add_element,
    changes.move_link,
    changes.move_host,
    changes.exchange_links,
    changes.add_link,
    changes.remove_link,
    changes.toggle_access,
    changes.add_port,
    changes.remove_port,
    add_gateway,
    add_gateway,
    change_role,
    change_role,
    change_address,
    rename_element,
)
OF_PATHS: Final[tuple[Edit, ...]] = (
    changes.attach,
    changes.move_attachment,
    changes.exchange_attachments,
    changes.move_link,
    changes.move_host,
    changes.move_host,
    changes.exchange_links,
    changes.add_link,
    changes.toggle_access,
)
OF_ALL: Final[tuple[Edit, ...]] = (
    changes.add_site,
    changes.remove_site,
    changes.add_transport,
    changes.remove_transport,
    changes.rename_transport,
    changes.change_transport,
    changes.change_mtu,
    changes.exchange_names,
    rename_site,
    move_element,
)


def edit_topology(topology: Topology, choose: Choice, *, local: bool, near: str | None = None) -> tuple[str, Document]:
    """Make one to three edits of a topology's document. Return the name of the edited site, and the document.

    If ``local`` is true, edit only what an administrator of this site may change. If ``near`` is an element
    of the topology, edit only paths at the site of this element.
    """
    document = topology.model_dump(mode="json", exclude_none=True)
    near_sites = [site for site in document["sites"] if near in {one["name"] for one in list_elements(site)}]
    site = choose.choice(near_sites or document["sites"])
    for _ in range(choose.choice((1, 1, 2, 3))):
        edit = choose.choice(OF_PATHS if near_sites else AT_SITE if local or choose.random() < 0.5 else OF_ALL)
        edit(document, site, choose)
    return site["name"], document


def parse_part(topology: Topology, name: str, document: Document) -> Topology:
    """Return ``topology`` with one site's part from an edited document."""
    site = next(site for site in document["sites"] if site["name"] == name)
    names = {element["name"] for element in list_elements(site)}
    links = [link for link in document["links"] if find_ends(link) <= names]
    return replace_site_part(topology, SitePart.model_validate({"site": site, "links": links}))
