"""The plan of a lab: its nodes with their files, interfaces and services, and the cables between them. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from virtcloud.lab import addressing, frr, network, node_services, openvswitch
from virtcloud.lab.fabric.plan import FabricPlan, LabNode, NodeService, VethPair
from virtcloud.lab.node_services import LabMaterials
from virtcloud.model.element import Edge, Gateway, Host, Switch
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport

TMPFS = ("/run", "/tmp", "/var/tmp", "/var/log", "/var/lib/libvirt", "/var/lib/virtcloud", "/etc/libvirt", "/etc/frr")  # noqa: S108
GATEWAY_DISK = (node_services.AGENT_STATE, "/var/log", "/var/spool")
HOST_DISK = (*GATEWAY_DISK, "/var/lib/libvirt", "/etc/libvirt")
DEVICE_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
    # with br_netfilter, these sysctls are 1 in each new network namespace
    "net.bridge.bridge-nf-call-iptables": "0",
    "net.bridge.bridge-nf-call-ip6tables": "0",
    "net.bridge.bridge-nf-call-arptables": "0",
}


def station_plan(materials: LabMaterials, *, tap: bool) -> FabricPlan:
    """Return the plan of the station, where SBF and the operator's programs run.

    ``tap`` is true if the other nodes run in another kernel, which is connected by a tap interface.
    """
    services = () if materials.bare else (node_services.sbf_service_of_lab(materials),)
    node = LabNode(addressing.STATION, "station", addressing.STATION_ADDRESS, isolated=False, services=services)
    address = f"addr add {addressing.STATION_ADDRESS}/{addressing.PREFIX} dev"
    lines = (f"{address} kernel0", "link set kernel0 up") if tap else (f"{address} mgmt",)
    return FabricPlan((node,), (), before=("link set lo up", *(lines if tap else ())), after=() if tap else lines)


def fabric_plan(topology: Topology, materials: LabMaterials, *, uplink: str = "") -> FabricPlan:
    """Return the plan of all nodes except the station.

    If the station runs in another kernel, ``uplink`` is the interface to the station. Otherwise, ``uplink`` is "".
    """
    numbers = addressing.number_nodes(topology)
    hosts = addressing.hosts_file(topology)
    nodes = tuple(
        _laptop(number, topology, materials)
        if name == addressing.LAPTOP
        else _node(name, number, hosts, topology, materials)
        for name, number in numbers.items()
    )
    service_cables = [cable for name, number in numbers.items() for cable in _service_cables(name, number, topology)]
    before = ["link add mgmt type bridge", "link add outside type bridge"]
    if uplink:
        address = f"{addressing.FABRIC_ADDRESS}/{addressing.PREFIX}"
        before += ["link set lo up", f"link set {uplink} master mgmt up", f"addr add {address} dev mgmt"]
    before += ["link set mgmt up", "link set outside up"]
    after = tuple(f"link set {cable.peer_port} master {_network(cable)} up" for cable in service_cables)
    return FabricPlan(nodes, (*network.cables(topology), *service_cables), tuple(before), after)


def join_plans(station: FabricPlan, fabric: FabricPlan) -> FabricPlan:
    """Return one plan for a station and a fabric that run in the same kernel."""
    return FabricPlan(
        (*station.nodes, *fabric.nodes),
        fabric.cables,
        (*station.before, *fabric.before),
        (*fabric.after, *station.after),
    )


def _laptop(number: int, topology: Topology, materials: LabMaterials) -> LabNode:
    """Return the user's laptop. The laptop has no management address, because it must reach only the gateways."""
    return LabNode(
        addressing.LAPTOP,
        "laptop",
        addressing.outside_address(number),
        tmpfs=TMPFS,
        binds=tuple((folder, folder) for folder in materials.visible_folders),
        files=node_services.base_files(addressing.laptop_hosts_file(topology)),
        ip=("link set lo up", *network.outside_lines(number, "eth0")),
    )


def _node(name: str, number: int, hosts: str, topology: Topology, materials: LabMaterials) -> LabNode:
    address = addressing.management_address(number)
    by_kind = _node_by_kind(name, number, topology, materials)
    people = node_services.PEOPLE if by_kind.kind == "gateway" else ""
    return LabNode(
        name=name,
        kind=by_kind.kind,
        address=address,
        tmpfs=(*(folder for folder in TMPFS if folder not in by_kind.disk_folders), *by_kind.tmpfs),
        disk=f"{materials.state}/disks/{name}" if by_kind.disk_folders else "",
        disk_folders=by_kind.disk_folders,
        binds=(
            (f"{materials.state}/images",) * 2,
            *((folder, folder) for folder in materials.visible_folders),
            *by_kind.binds,
        ),
        files={**node_services.base_files(hosts, materials.lldp, people), **by_kind.files},
        sysctls=by_kind.sysctls,
        ip=(*network.management_lines(number), *by_kind.ip),
        bridge=by_kind.bridge,
        tc=network.shaping_lines(topology, name),
        no_offload_ports=network.ports_towards(topology, openvswitch.ovs_switch_names(topology), name),
        services=(*by_kind.services, *_lldpd(name, topology, materials)),
    )


def _lldpd(name: str, topology: Topology, materials: LabMaterials) -> Iterator[NodeService]:
    element = topology.elements.get(name)  # type: ignore[call-overload]
    if materials.lldp is not None and element is not None:
        yield node_services.lldpd_service(member for port in element.ports for member in element.members(port))


def _node_by_kind(name: str, number: int, topology: Topology, materials: LabMaterials) -> LabNode:
    element = topology.elements.get(name)  # type: ignore[call-overload]
    if isinstance(element, Switch):
        return _switch(element, number, materials)
    if isinstance(element, Edge):
        return _edge(element, number, topology, materials)
    if isinstance(element, Host):
        return _host(element, number, materials)
    if isinstance(element, Gateway):
        lines = (*network.port_up_lines(element), *network.outside_lines(number, "outside0"))
        settings = node_services.agent_config(name, (), materials.state)
        services = () if materials.bare else (node_services.agent_service(),)
        return LabNode(
            name,
            "gateway",
            tmpfs=("/srv",),
            disk_folders=GATEWAY_DISK,
            binds=_token_binds(name, materials),
            files={node_services.AGENT_FILE: settings},
            ip=lines,
            services=services,
        )
    return _core(topology.transport(name), topology)


def _switch(switch: Switch, number: int, materials: LabMaterials) -> LabNode:
    address = addressing.management_address(number)
    files = node_services.device_files(address, materials.authorized_key, materials.host_keys[switch.name])
    node = LabNode(
        switch.name, "switch", files=files, sysctls=DEVICE_SYSCTLS, services=(node_services.sshd_service(address),)
    )
    if switch.platform != openvswitch.PLATFORM:
        return replace(node, ip=network.switch_lines(switch))
    return replace(
        node,
        files={**files, **openvswitch.ovs_files(switch)},
        ip=openvswitch.ip_lines(switch),
        services=(*openvswitch.ovs_services(), *node.services),
    )


def _edge(edge: Edge, number: int, topology: Topology, materials: LabMaterials) -> LabNode:
    address = addressing.management_address(number)
    files = node_services.device_files(address, materials.authorized_key, materials.host_keys[edge.name])
    return LabNode(
        edge.name,
        "edge",
        files={**files, **frr.frr_files(edge, topology)},
        sysctls=DEVICE_SYSCTLS,
        ip=network.edge_lines(edge, topology),
        services=(node_services.sshd_service(address), *frr.frr_services(edge, topology)),
    )


def _host(host: Host, number: int, materials: LabMaterials) -> LabNode:
    services = (
        (node_services.libvirtd_service(),)
        if materials.bare
        else (node_services.libvirtd_service(), node_services.agent_service())
    )
    return LabNode(
        host.name,
        "host",
        disk_folders=HOST_DISK,
        binds=(
            (node_services.CACHE, "/var/cache/libvirt"),
            *node_services.driver_binds(host),
            *_token_binds(host.name, materials),
        ),
        files=node_services.host_files(host, number, materials.state),
        ip=network.port_up_lines(host),
        services=services,
    )


def _token_binds(element: str, materials: LabMaterials) -> tuple[tuple[str, str], ...]:
    return () if materials.bare else ((node_services.token_folder(materials.state, element),) * 2,)


def _core(transport: Transport, topology: Topology) -> LabNode:
    lines, vlans = network.core_lines(transport, topology)
    sysctls = {**DEVICE_SYSCTLS, **network.ROUTER_SYSCTLS} if network.is_fabric(transport) else DEVICE_SYSCTLS
    return LabNode(transport.name, "core", sysctls=sysctls, ip=lines, bridge=vlans)


def _service_cables(name: str, number: int, topology: Topology) -> list[VethPair]:
    if name == addressing.LAPTOP:
        return [VethPair(name, "eth0", network.HOST_MTU, "", f"o{number}", network.HOST_MTU)]
    management = VethPair(name, "mgmt0", network.HOST_MTU, "", f"m{number}", network.HOST_MTU)
    if not isinstance(topology.elements.get(name), Gateway):  # type: ignore[call-overload]
        return [management]
    return [management, VethPair(name, "outside0", network.HOST_MTU, "", f"o{number}", network.HOST_MTU)]


def _network(cable: VethPair) -> str:
    return "mgmt" if cable.port == "mgmt0" else "outside"
