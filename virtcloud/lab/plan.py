"""PURE. A lab file becomes a plan: nodes with their places, networks and services, and the cables between them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from virtcloud.lab import backbone, frr, names, network, openvswitch, services
from virtcloud.lab.fabric.plan import Cable, Node, Plan, Service
from virtcloud.lab.services import Materials
from virtcloud.model.element import Device, Edge, Gateway, Host, Switch
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport

DeviceT = TypeVar("DeviceT", bound=Device)
TMPFS = ("/run", "/tmp", "/var/tmp", "/var/log", "/var/lib/libvirt", "/var/lib/virtcloud", "/etc/libvirt", "/etc/frr")  # noqa: S108
QUIET = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    # where the machine's kernel has br_netfilter, a new network namespace begins with these set
    "net.bridge.bridge-nf-call-iptables": "0",
    "net.bridge.bridge-nf-call-ip6tables": "0",
    "net.bridge.bridge-nf-call-arptables": "0",
}


def station_plan(materials: Materials, *, tap: bool) -> Plan:
    """Plan the station: where the service and the operator are. With ``tap`` the nodes live in another kernel."""
    running = () if materials.bare else (services.sbf(materials),)
    node = Node(names.STATION, "station", names.STATION_ADDRESS, isolated=False, services=running)
    address = f"addr add {names.STATION_ADDRESS}/{names.PREFIX} dev"
    lines = (f"{address} kernel0", "link set kernel0 up") if tap else (f"{address} mgmt",)
    return Plan((node,), (), before=("link set lo up", *(lines if tap else ())), after=() if tap else lines)


def fabric_plan(topology: Topology, materials: Materials, *, uplink: str = "") -> Plan:
    """Plan all other nodes. ``uplink`` is the fabric's interface towards a station that is in another kernel."""
    numbers = numbering(topology)
    hosts = hosts_file(topology)
    nodes = tuple(_node(name, number, hosts, topology, materials) for name, number in numbers.items())
    service_cables = [one for name, number in numbers.items() for one in _service_cables(name, number, topology)]
    before = ["link add mgmt type bridge", "link add outside type bridge"]
    if uplink:
        address = f"{names.FABRIC_ADDRESS}/{names.PREFIX}"
        before += ["link set lo up", f"link set {uplink} master mgmt up", f"addr add {address} dev mgmt"]
    before += ["link set mgmt up", "link set outside up"]
    after = tuple(f"link set {one.peer_port} master {_network(one)} up" for one in service_cables)
    return Plan(nodes, (*network.cables(topology), *service_cables), tuple(before), after)


def joined(station: Plan, fabric: Plan) -> Plan:
    """Put both into one kernel."""
    return Plan(
        (*station.nodes, *fabric.nodes),
        fabric.cables,
        (*station.before, *fabric.before),
        (*fabric.after, *station.after),
    )


def numbering(topology: Topology) -> dict[str, int]:
    """Give all nodes numbers from 1: the elements as they stand in the topology, transports, the user's machine."""
    known = [*topology.elements, *(transport.name for transport in topology.transports), names.USER]
    return {str(name): number for number, name in enumerate(known, start=1)}


def device_addresses(topology: Topology) -> dict[str, str]:
    """Give the management address of each switch and each edge."""
    numbers = numbering(topology)
    return {
        name: names.management_address(numbers[name])
        for name, one in topology.elements.items()
        if isinstance(one, Device)
    }


def addressed(topology: Topology) -> Topology:
    """Fill in the management address and the credential of each switch and each edge, as the service needs them."""
    addresses = device_addresses(topology)

    def device(one: DeviceT) -> DeviceT:
        return one.model_copy(update={"address": addresses[one.name], "credential": names.CREDENTIAL})

    def site(one: Site) -> Site:
        switches, edges = tuple(map(device, one.switches)), tuple(map(device, one.edges))
        return one.model_copy(update={"switches": switches, "edges": edges})

    return topology.model_copy(update={"sites": tuple(map(site, topology.sites))})


def hosts_file(topology: Topology) -> str:
    """Give the names of all nodes with their management addresses."""
    lines = ["127.0.0.1 localhost", f"{names.STATION_ADDRESS} {names.STATION} sbf"]
    lines += [f"{names.management_address(number)} {name}" for name, number in numbering(topology).items()]
    return "\n".join(lines) + "\n"


def _node(name: str, number: int, hosts: str, topology: Topology, materials: Materials) -> Node:
    address = names.management_address(number)
    parts = _parts(name, number, topology, materials)
    return Node(
        name=name,
        kind=parts.kind,
        address=address,
        tmpfs=TMPFS,
        binds=((f"{materials.state}/images",) * 2, *((one, one) for one in materials.kept), *parts.binds),
        files={**services.base_files(hosts, materials.lldp), **parts.files},
        sysctls=parts.sysctls,
        ip=(*network.management_lines(number), *parts.ip),
        bridge=parts.bridge,
        tc=network.shaping_lines(topology, name),
        plain=network.peers_of(topology, openvswitch.names(topology), name),
        services=(*parts.services, *_lldpd(name, topology, materials)),
    )


def _lldpd(name: str, topology: Topology, materials: Materials) -> Iterator[Service]:
    element = topology.elements.get(name)  # type: ignore[call-overload]
    if materials.lldp is not None and element is not None:
        yield services.lldpd(member for port in element.ports for member in element.members(port))


def _parts(name: str, number: int, topology: Topology, materials: Materials) -> Node:
    """Give what distinguishes this node from any other."""
    element = topology.elements.get(name)  # type: ignore[call-overload]
    if isinstance(element, Switch):
        return _switch(element, number, materials)
    if isinstance(element, Edge):
        return _edge(element, number, topology, materials)
    if isinstance(element, Host):
        return _host(element, number, materials)
    if isinstance(element, Gateway):
        lines = (*network.plain_lines(element), *network.outside_lines(number, "outside0"))
        settings = services.agent_config(name, (), materials.state)
        running = () if materials.bare else (services.agent(),)
        binds = _token_binds(name, materials)
        return Node(name, "gateway", binds=binds, files={services.AGENT_FILE: settings}, ip=lines, services=running)
    if name == names.USER:
        return Node(name, "user", ip=network.outside_lines(number, "eth0"))
    return _core(topology.transport(name), topology)


def _switch(switch: Switch, number: int, materials: Materials) -> Node:
    address = names.management_address(number)
    files = services.device_files(address, materials.authorized_key, materials.host_keys[switch.name])
    made = Node(switch.name, "switch", files=files, sysctls=QUIET, services=(services.sshd(address),))
    if switch.platform != openvswitch.PLATFORM:
        return replace(made, ip=network.switch_lines(switch))
    return replace(
        made,
        files={**files, **openvswitch.files(switch)},
        ip=openvswitch.ip_lines(switch),
        services=(*openvswitch.services(), *made.services),
    )


def _edge(edge: Edge, number: int, topology: Topology, materials: Materials) -> Node:
    address = names.management_address(number)
    files = services.device_files(address, materials.authorized_key, materials.host_keys[edge.name])
    return Node(
        edge.name,
        "edge",
        files={**files, **frr.files(edge, topology)},
        sysctls=QUIET,
        ip=backbone.edge_lines(edge, topology),
        services=(services.sshd(address), *frr.services(edge, topology)),
    )


def _host(host: Host, number: int, materials: Materials) -> Node:
    running = (services.libvirtd(),) if materials.bare else (services.libvirtd(), services.agent())
    return Node(
        host.name,
        "host",
        binds=(
            (services.CACHE, "/var/cache/libvirt"),
            *services.driver_binds(host),
            *_token_binds(host.name, materials),
        ),
        files=services.host_files(host, number, materials.state),
        ip=network.plain_lines(host),
        services=running,
    )


def _token_binds(element: str, materials: Materials) -> tuple[tuple[str, str], ...]:
    """Show an agent its own token, and no other's."""
    return () if materials.bare else ((services.token_folder(materials.state, element),) * 2,)


def _core(transport: Transport, topology: Topology) -> Node:
    lines, vlans = backbone.core_lines(transport, topology)
    sysctls = {**QUIET, **backbone.ROUTER} if backbone.is_fabric(transport) else QUIET
    return Node(transport.name, "core", sysctls=sysctls, ip=lines, bridge=vlans)


def _service_cables(name: str, number: int, topology: Topology) -> list[Cable]:
    management = Cable(name, "mgmt0", network.HOST_MTU, "", f"m{number}", network.HOST_MTU)
    ports = {names.USER: "eth0"}
    if isinstance(topology.elements.get(name), Gateway):  # type: ignore[call-overload]
        ports[name] = "outside0"
    if name not in ports:
        return [management]
    return [management, Cable(name, ports[name], network.HOST_MTU, "", f"o{number}", network.HOST_MTU)]


def _network(cable: Cable) -> str:
    return "mgmt" if cable.port == "mgmt0" else "outside"
