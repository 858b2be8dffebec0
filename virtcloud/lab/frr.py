"""FRR, which implements BGP EVPN at the lab's edges: the configuration of zebra and bgpd, and their services. Pure.

Edges use iBGP from loopback to loopback. bgpd announces every VNI whose interface is up. zebra writes the learnt routes
into the bridge. The configuration does not depend on the clusters.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address

from virtcloud.lab.fabric.plan import NodeService
from virtcloud.lab.network import core_wires, is_fabric, peer_loopbacks
from virtcloud.model.element import Edge
from virtcloud.model.topology import Topology

FRR_PROGRAMS = "/usr/lib/frr"
FOLDER = "/run/frr"
SHELL = "/etc/frr/vtysh.conf"
"""The configuration file of vtysh. Each node has a separate /etc/frr, because vtysh also writes files to /etc/frr."""
ZEBRA = "frr defaults datacenter\nhostname {name}\n"
BGP = """\
frr defaults datacenter
hostname {name}
router bgp {asn}
 bgp router-id {loopback}
 no bgp default ipv4-unicast
 neighbor edges peer-group
 neighbor edges remote-as {asn}
 neighbor edges update-source {loopback}
 neighbor edges timers 1 5
 neighbor edges timers connect 1
 neighbor edges advertisement-interval 0
{neighbors}
 address-family l2vpn evpn
  neighbor edges activate
  advertise-all-vni
 exit-address-family
"""
"""The configuration of bgpd. The timers can be short, because all edges run on one machine. With ``advertise-all-vni``,
bgpd needs no configuration for each VNI (FRR's manual, EVPN)."""


def frr_files(edge: Edge, topology: Topology) -> dict[str, str]:
    """Return the configuration files of an edge's daemons: texts by path.

    Return no files if the edge is not attached to an EVPN fabric.
    """
    wires = [wire for wire in core_wires(topology) if wire.node == edge.name and is_fabric(wire.transport)]
    if not wires:
        return {}
    peers = sorted({IPv4Address(peer) for wire in wires for peer in peer_loopbacks(topology, wire)})
    bgpd = BGP.format(
        name=edge.name,
        asn=wires[0].transport.asn,
        loopback=edge.loopback,
        neighbors="\n".join(line for peer in peers for line in _neighbor_lines(edge, peer)),
    )
    files = {f"{FOLDER}/zebra.conf": ZEBRA.format(name=edge.name), f"{FOLDER}/bgpd.conf": bgpd}
    return {**files, SHELL: "service integrated-vtysh-config\n"}


def _neighbor_lines(edge: Edge, peer: IPv4Address) -> Iterator[str]:
    """Yield the configuration lines of a neighbour.

    Only the edge with the lower address opens the TCP connection: BGP sessions then start faster.
    """
    yield f" neighbor {peer} peer-group edges"
    if IPv4Address(str(edge.loopback)) > peer:
        yield f" neighbor {peer} passive"


def frr_services(edge: Edge, topology: Topology) -> tuple[NodeService, ...]:
    """Return the services of an edge's daemons, or () if the edge is not attached to an EVPN fabric."""
    if not frr_files(edge, topology):
        return ()
    return (_daemon("zebra", "zserv.api"), _daemon("bgpd", "bgpd.vty"))


def _daemon(name: str, socket: str) -> NodeService:
    argv = (f"{FRR_PROGRAMS}/{name}", "-f", f"{FOLDER}/{name}.conf", "-u", "root", "-g", "root", "-P", "0")
    return NodeService(name, (*argv, "--log", "stdout"), ready=f"unix:{FOLDER}/{socket}")
